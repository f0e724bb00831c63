"""Findings: what a check of the contract found, each with a stable code and a severity for each consumer."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from overlay.registry import Entry, Place

__all__ = ["CODES", "OF_THE_LOCK", "SEVERITIES", "Code", "Finding", "Severity", "found", "worst"]

Severity = Literal["note", "warning", "error"]
SEVERITIES: tuple[Severity, ...] = ("note", "warning", "error")
"""From harmless to fatal."""


@dataclass(frozen=True, slots=True)
class Code:
    """One kind of finding; ``docs/reference/findings/<code>.md`` explains it.

    Attributes:
        title: What it means, in a few words.
        overlay: How bad it is for this program, which builds from the pins.
        sglang: How bad it is for a server that resolves the overlay by itself.
    """

    title: str
    overlay: Severity
    sglang: Severity


CODES: Mapping[str, Code] = {
    # Files
    "file-missing": Code("a file that the overlay requires is not in the source", "error", "error"),
    "file-renamed": Code("a file that the overlay requires has another name in the source", "error", "error"),
    "fallback-unreachable": Code(
        "a file name that the reader would accept is ruled out by the manifest", "note", "warning"
    ),
    "not-fetched": Code("a file that the build needs is left out by the manifest's patterns", "note", "error"),
    "specs-differ": Code("an adapter is described twice, and not the same", "error", "error"),
    "manifest-broken": Code("the overlay's manifest or model index cannot be used", "error", "error"),
    "component-missing": Code("the model index promises a component that is not made", "error", "error"),
    "component-broken": Code("a file that is carried as it is cannot be used", "error", "error"),
    "shard-missing": Code("an index lists a shard that is absent", "error", "error"),
    "checkpoint-broken": Code("the weights of a folder do not belong together", "error", "error"),
    # Adapters and base
    "adapter-broken": Code("an adapter cannot be read", "error", "error"),
    "targets-differ": Code("the targets of an adapter do not expand to the pairs in its file", "error", "error"),
    "pattern-unmatched": Code("a per-module rank or alpha matches no module", "error", "warning"),
    "rank-mismatch": Code("tensors have another rank than their description says", "error", "error"),
    "shape-mismatch": Code("an adapter does not fit the shapes of the base", "error", "error"),
    "base-quantised": Code("the base is quantised or scaled", "error", "error"),
    "base-not-trained-on": Code("an adapter says that it was trained on another base", "warning", "warning"),
    "base-bytes-differ": Code("another base with equal names and shapes, but other bytes", "warning", "warning"),
    "branch-broken": Code("the linear branch cannot be read, or does not fit the base", "error", "error"),
    "branch-keys-unknown": Code("the linear branch has keys that no runtime knows, or lacks some", "error", "error"),
    "branch-keys-collide": Code("the linear branch and the base have tensors of one name", "error", "error"),
    # Pins
    "unpinned": Code("a repo has no commit", "warning", "warning"),
    "secondary-unpinned": Code(
        "the overlay's script takes a repo that the entry does not pin for it", "note", "warning"
    ),
    "script-changed": Code("the overlay's script is not the one that the recipe repeats or runs", "error", "note"),
    "script-unpinned": Code("the overlay is built by its own script, and the entry pins none", "note", "note"),
    "fingerprint-differs": Code("the registry's fingerprint is not that of the overlay's files", "error", "note"),
    "source-revision-differs": Code("the overlay's manifest names another commit of the source", "note", "warning"),
    "location-changed": Code("the output lies in another directory than before", "note", "warning"),
    "license-changed": Code("a licence file changed", "warning", "warning"),
    "vanished": Code("a pinned commit is gone", "error", "error"),
    "skipped": Code("not checked: the repo may not be read without a token", "note", "note"),
    "not-checked": Code("not checked: what it takes is not on this host", "note", "note"),
    "plan-refused": Code("the recipe cannot be carried out", "error", "error"),
    # A server that is given the model's name
    "server-unknown": Code("the server has nothing to look up for the model", "note", "error"),
    "server-looks-elsewhere": Code("the server looks for another directory than is built here", "note", "error"),
    "server-not-warmed": Code("nothing is where the server will look on this host", "note", "warning"),
    "source-not-staged": Code("the server misses something in the Hub's cache on this host", "note", "warning"),
    "server-finds": Code("the server finds what is built here", "note", "note"),
    "layout-not-loaded": Code("the server loads another layout than is made here", "error", "note"),
    "source-not-told": Code("the server takes the source from a branch, not from the pinned commit", "note", "warning"),
    "branch-elsewhere": Code("a branch in the Hub's cache is at another commit than is pinned", "note", "warning"),
    "snapshot-extras": Code(
        "the overlay's snapshot holds files that the server hashes and never fetches", "note", "error"
    ),
    # The lock
    "lock-missing": Code("the entry is not in the lock", "warning", "note"),
    "lock-stale": Code("the lock was made for other pins", "error", "note"),
    "lock-differs": Code("a file is not what the lock says", "error", "error"),
    # What it costs
    "cost": Code("what a host that has the model moves for the change", "note", "note"),
}

OF_THE_LOCK = frozenset({"lock-missing", "lock-stale", "lock-differs"})
"""Codes that are about the lock and not about what is pinned."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that a check found.

    Attributes:
        code: Of ``CODES``.
        model: The entry.
        message: What was found and what was expected; one sentence, or a few lines.
        place: Where in the registry the reason stands.
        severities: By consumer, of those that the entry names.
        fix: What to do; a command where there is one.
        data: The facts of the message, JSON-representable.
    """

    code: str
    model: str
    message: str
    place: Place
    severities: Mapping[str, Severity]
    fix: str | None = None
    data: Mapping[str, Any] = field(default_factory=dict)

    @property
    def severity(self) -> Severity:
        """The worst of its severities."""
        return max(self.severities.values(), key=SEVERITIES.index)


def found(
    code: str, entry: Entry, message: str, *, place: Place | None = None, fix: str | None = None, **data: Any
) -> Finding:
    """A finding about an entry, with the severities of its code.

    Args:
        place: Where the reason stands; the entry itself unless given.
    """
    known = CODES[code]
    by_consumer: dict[str, Severity] = {"overlay": known.overlay, "sglang": known.sglang}
    severities = {name: by_consumer[name] for name in entry.consumers}
    return Finding(code, entry.model, message, place or entry.place, severities, fix, data)


def worst(findings: Iterable[Finding]) -> Severity | None:
    """The worst severity among findings; None where there is none."""
    return max((finding.severity for finding in findings), key=SEVERITIES.index, default=None)
