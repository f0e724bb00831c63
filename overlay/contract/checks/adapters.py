"""Whether every adapter of a recipe can be applied to the base whole, told from headers and descriptions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from overlay.contract.checks.base_files import read_base
from overlay.contract.finding import found
from overlay.contract.reading import error_facts, is_broken, pin_of, said
from overlay.errors import NotHere, OverlayError
from overlay.formats.adapters import read_adapter
from overlay.planning.fuse import base_tensors

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from overlay.contract.finding import Finding
    from overlay.contract.subject import AdapterPlace, Subject
    from overlay.formats.header import TensorInfo

__all__ = ["check_adapters"]

_CODES = {
    "adapter-pairs-missing": "targets-differ",
    "adapter-pairs-unexpected": "targets-differ",
    "adapter-target-ambiguous": "targets-differ",
    "adapter-target-unmatched": "targets-differ",
    "adapter-unmatched": "targets-differ",
    "adapter-pattern-unmatched": "pattern-unmatched",
    "adapter-rank": "rank-mismatch",
    "adapter-shape": "shape-mismatch",
    "adapter-target-shape": "shape-mismatch",
}
"""Finding for what the reader found; what is not here makes the adapter a broken one."""


def check_adapters(subject: Subject) -> Iterator[Finding]:
    """Read each adapter against the base, as a build does; one that is broken does not hide the next.

    Nothing is found where the base itself cannot be read, or where the adapter's files are not there: other checks say
    that.
    """
    base = read_base(subject)
    if base is None:
        return
    tensors = base_tensors(base.checkpoint)
    for adapter in subject.adapters:
        refusal = _refusal(adapter, tensors)
        if refusal is None or _is_said_elsewhere(refusal):
            continue
        code = _CODES.get(refusal.code, "adapter-broken")
        yield found(
            code,
            subject.entry,
            said(refusal),
            place=pin_of(subject.entry, adapter.repo).place,
            fix=refusal.hint if code == "adapter-broken" else f"overlay bump {subject.entry.model}",
            adapter=adapter.name or adapter.path,
            repo=adapter.repo.repo,
            error=error_facts(refusal),
        )


def _refusal(adapter: AdapterPlace, base: Mapping[str, TensorInfo]) -> OverlayError | None:
    """Why an adapter cannot be applied to the base; None where it can, or where it is not there at all."""
    try:
        read_adapter(adapter.repo, adapter.path, base, name=adapter.name)
    except OverlayError as error:
        if not is_broken(error):
            raise
        return None if isinstance(error, NotHere) else error
    return None


def _is_said_elsewhere(refusal: OverlayError) -> bool:
    """Whether it is about files that are absent or there under two names, or about the base: other checks say that."""
    match refusal.code:
        case "adapter-file":
            return not refusal.data.get("files", True)
        case "adapter-specs-differ":  # in the folder, unless it is the weights that have a second one in their metadata
            return not str(refusal.data["where"]).endswith(".safetensors")
    return refusal.code in ("adapter-spec-missing", "adapter-target-quantised")
