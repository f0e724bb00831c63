"""Newer commits of source and overlay that belong together: found by going back from the heads."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import islice, product
from typing import TYPE_CHECKING

from overlay.contract.check import Report, check_model
from overlay.contract.finding import OF_THE_LOCK
from overlay.errors import BrokenInput, OverlayError, Refused, TryAgain
from overlay.formats.manifest import read_manifest

if TYPE_CHECKING:
    from overlay.contract.check import Status
    from overlay.registry import Entry, Pin, Resolution
    from overlay.upkeep.repos import Repos

__all__ = [
    "Pair",
    "Search",
    "check_pinned",
    "moved_to",
    "pins_of",
    "reason_of",
    "repinned",
    "right_fingerprint",
    "search",
    "standing",
    "untold",
    "without_lock",
]

MOST_COMMITS = 20
"""Commits of a repo that a search goes back."""

MOST_CHECKS = 40
"""Pairs whose contract a search checks; those that a listing alone rules out are not among them."""

_FINGERPRINT = "fingerprint-differs"


@dataclass(frozen=True, slots=True)
class Pair:
    """A commit of the source and one of the overlay; None for an entry without an overlay."""

    source: str | None
    overlay: str | None


@dataclass(frozen=True, slots=True)
class Search:
    """What a search for another pair came to.

    Attributes:
        pair: The newest one but the pins whose contract holds; None where none of those looked at does.
        report: Of that pair, against the pins.
        newest: Of the heads; None where the pins are the heads.
        pairs: How many were looked at, ruled out by listings included.
        is_whole: Whether those were all between pins and heads, or all there are where the pins do not hold.
    """

    pair: Pair | None
    report: Report | None
    newest: Report | None
    pairs: int
    is_whole: bool

    @property
    def reason(self) -> str:
        """Why the heads are not it: the first error found there, else why it could not be told."""
        return reason_of(self.newest) if self.newest else ""


def moved_to(resolution: Resolution, pair: Pair) -> Resolution:
    """The same model with other commits of source and overlay, and no fingerprint: that is written as it is found.

    A None in the pair leaves that pin alone.
    """
    entry = resolution.entry
    source, overlay = repinned(entry.source, pair.source), entry.overlay and repinned(entry.overlay, pair.overlay)
    moved = replace(entry, source=source, overlay=overlay, overlay_fingerprint=None)
    return replace(resolution, entry=moved, notes=())


def check_pinned(resolution: Resolution, repos: Repos) -> Report:
    """Check a model as it is pinned."""
    return without_lock(check_model(resolution, repos.inventory))


def standing(pinned: Report) -> Status:
    """Whether the pinned commits hold. A wrong fingerprint beside them is no fault of theirs."""
    errors = {finding.code for finding in pinned.findings if finding.severity == "error"}
    if errors != {_FINGERPRINT}:
        return pinned.status
    return "unknown" if pinned.trouble else "passed"


def right_fingerprint(pinned: Report) -> str | None:
    """The fingerprint that the overlay's files have, where the registry says another one."""
    found = (finding.data["fingerprint"] for finding in pinned.findings if finding.code == _FINGERPRINT)
    return next(found, None)


def search(resolution: Resolution, repos: Repos, pinned: Report) -> Search:
    """Go back from the heads for the newest pair whose contract holds; needs stay at their pins.

    Pairs are tried by how many commits they are behind the heads, both together. None is older than the pins, unless
    those do not hold: then the search goes on past them.

    Args:
        repos: Opens them.
        pinned: What the check of the pins found.

    Raises:
        OverlayError: It cannot be told: of a pair that comes before one that holds, or as ``Histories.commits``.
    """
    if isinstance(pinned.trouble, TryAgain):
        raise pinned.trouble
    entry, pins, past = resolution.entry, pins_of(resolution.entry), standing(pinned) == "failed"
    sources, all_sources = _candidates(entry.source, repos, past=past)
    overlays, all_overlays = _candidates(entry.overlay, repos, past=past) if entry.overlay else ((None,), True)
    heads, is_whole = Pair(sources[0], overlays[0]), all_sources and all_overlays
    places = sorted(product(range(len(sources)), range(len(overlays))), key=lambda place: (sum(place), place))
    pairs = [pair for i, j in places if (pair := Pair(sources[i], overlays[j])) != pins]
    before = (resolution, None) if all(pin.revision for pin in entry.pins) else None
    newest: Report | None = None
    checked = 0
    for number, pair in enumerate(pairs):
        moved = moved_to(resolution, pair)
        # The heads are checked in any case: what is found there is the reason for whatever is advised.
        if pair != heads and _is_ruled_out(moved, repos):
            continue
        if checked == MOST_CHECKS:
            return Search(None, None, newest, number, is_whole=False)
        checked += 1
        report = without_lock(check_model(moved, repos.inventory, before=before))
        newest = report if pair == heads else newest
        if error := untold(report):
            raise error  # an older pair is not known to be the newest that holds
        if report.status == "passed":
            return Search(pair, report, newest, number + 1, is_whole=is_whole)
    return Search(None, None, newest, len(pairs), is_whole=is_whole)


def pins_of(entry: Entry) -> Pair:
    """Where source and overlay are pinned."""
    return Pair(entry.source.revision, entry.overlay.revision if entry.overlay else None)


def without_lock(report: Report) -> Report:
    """A report less what it says of the lock: that is written once it is known what the pins will be."""
    findings = tuple(finding for finding in report.findings if finding.code not in OF_THE_LOCK)
    return replace(report, findings=findings)


def reason_of(report: Report) -> str:
    """Why a contract does not hold, or cannot be told to, in one sentence: the first error, else what comes first."""
    errors = [finding for finding in report.findings if finding.severity == "error" and finding.code != _FINGERPRINT]
    for finding in errors or report.findings:
        return f"{finding.code}: {finding.message}"
    return report.trouble.message if report.trouble else report.status


def untold(report: Report) -> OverlayError | None:
    """Why it could not be told whether a contract holds; None where it was."""
    if report.status == "unknown":
        return report.trouble
    for finding in report.findings:
        if report.status == "skipped" and finding.code == "skipped":
            return Refused(finding.message, code=finding.data["reason"], hint=finding.fix, repo=finding.data["repo"])
    return None


def repinned(pin: Pin, commit: str | None) -> Pin:
    """The pin at another commit; None leaves it as it is."""
    return pin if commit in (None, pin.revision) else replace(pin, revision=commit, floating=None)


def _candidates(pin: Pin, repos: Repos, *, past: bool) -> tuple[tuple[str | None, ...], bool]:
    """Commits from the head back to the pin, or past it, newest first; and whether that is all of them."""
    histories = repos.histories
    head = histories.head(pin.repo)
    if head == pin.revision and not past:
        return (head,), True
    commits: list[str | None] = list(islice(histories.commits(pin.repo), MOST_COMMITS + 1))
    newest, is_whole = commits[:MOST_COMMITS], len(commits) <= MOST_COMMITS and repos.hub is None
    if pin.revision is None:
        return tuple(newest), is_whole
    if past:
        return tuple(dict.fromkeys([*newest, pin.revision])), is_whole
    if pin.revision in commits:
        return tuple(commits[: commits.index(pin.revision) + 1]), True
    if histories.behind(pin.repo, pin.revision) is None:
        # No part of the history (it was rewritten, or a folder has none): then of the others nobody knows the age.
        return (head, pin.revision), False
    return (*newest, pin.revision), False


def _is_ruled_out(moved: Resolution, repos: Repos) -> bool:
    """Whether the source's listing lacks a file that the overlay's manifest requires."""
    try:
        inventory = repos.inventory(moved)
        if inventory.overlay is None:
            return False
        required = read_manifest(inventory.overlay).required_source_files
        return not set(required) <= set(inventory.source.paths())
    except BrokenInput:
        return True
    except OverlayError:
        return False  # the check tells what is gone from what cannot be read now
