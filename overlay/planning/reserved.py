"""Places of a tree that say what it is: the marker, the record and the licences. No recipe puts another file there."""

from __future__ import annotations

from typing import TYPE_CHECKING

from overlay.errors import BrokenInput
from overlay.formats.checkpoint import WEIGHTS_SUFFIX
from overlay.formats.licenses import LICENSES_FOLDER
from overlay.formats.materialized import OURS, RECORD_NAME
from overlay.planning.outputs import CarriedFile, GeneratedFile

if TYPE_CHECKING:
    from collections.abc import Iterable

    from overlay.planning.outputs import OutputFile

__all__ = ["require_unreserved"]

_RESERVED = (LICENSES_FOLDER, *OURS)


def require_unreserved(outputs: Iterable[OutputFile], where: str) -> None:
    """Refuse what a recipe, a mapping or a part would put at a place that is not its own, in any case of letters.

    What lies at that place in its repo, too, is what that repo says of itself, and comes along as everything else: a
    base may be a tree that was built here.

    Raises:
        BrokenInput: ``reserved-path``.
    """
    for output in outputs:
        top = output.path.partition("/")[0].casefold()
        if top in _RESERVED and not _lies_there(output):
            raise BrokenInput(
                f"{where}: {output.path!r} is a place of this program's own record, marker or licences",
                code="reserved-path",
                hint=f"take it to another place; {', '.join(_RESERVED)} are reserved",
                path=output.path,
            )


def _lies_there(output: OutputFile) -> bool:
    if output.path.casefold() in OURS and output.path != RECORD_NAME:
        return False  # a record gives way to the tree's own
    if output.path.endswith(WEIGHTS_SUFFIX):
        return False
    if isinstance(output, GeneratedFile):
        return True  # one of the overlay's own, which keep their places
    return isinstance(output, CarriedFile) and output.input.path == output.path
