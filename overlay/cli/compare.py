"""``overlay compare``: two directories, byte by byte and tensor by tensor."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

import overlay
from overlay.cli._options import Common, common_options
from overlay.cli._output import columns, style
from overlay.formats.wording import counted

if TYPE_CHECKING:
    from collections.abc import Iterator

    from overlay.materialization.compare import TensorDifference

__all__ = ["Compared", "DifferentFile", "DifferentTensor", "compare"]

_SHOWN = 20
_FOLDER = click.Path(path_type=Path)


@dataclass(frozen=True, slots=True)
class DifferentFile:
    """A file that is not the same on both sides."""

    path: str
    kind: Literal["only-in-a", "only-in-b", "content"]


@dataclass(frozen=True, slots=True)
class DifferentTensor:
    """A tensor that is not the same on both sides.

    Attributes:
        folder: Where its file lies in the directory; ``.`` for the top.
        elements: Elements of the tensor; null, as what follows, unless values differ.
        differing: Elements whose bits differ.
        max_abs: Largest absolute difference; null for dtypes without a value.
        max_ulp: Largest difference in units of the last place, over pairs of the same sign: across zero it would count
            every float in between. Null where there are none, and for dtypes that are not floats.
    """

    folder: str
    name: str
    kind: Literal["only-in-a", "only-in-b", "dtype", "shape", "values"]
    what: str
    elements: int | None
    differing: int | None
    max_abs: float | None
    max_ulp: int | None


@dataclass(frozen=True, slots=True)
class Compared:
    """What ``overlay compare`` prints.

    Attributes:
        identical: Whether every file holds the same bytes.
        tensors_equal: Whether every tensor holds the same bytes, however the files are cut.
        files: Distinct paths on both sides together.
        tensors: Distinct tensors on both sides together.
    """

    identical: bool
    tensors_equal: bool
    a: str
    b: str
    files: int
    tensors: int
    different_files: tuple[DifferentFile, ...]
    different_tensors: tuple[DifferentTensor, ...]


@click.command(short_help="Compare two directories, by file and by tensor.")
@click.argument("a", type=_FOLDER)
@click.argument("b", type=_FOLDER)
@common_options
def compare(common: Common, a: Path, b: Path) -> None:
    """Compare two directories: files byte by byte, tensors whatever the sharding. Status 1 when they differ.

    The records, which tell of runs, are left out.
    """
    found = overlay.compare(a, b)
    document = Compared(
        identical=found.identical,
        tensors_equal=found.tensors_equal,
        a=str(found.a),
        b=str(found.b),
        files=found.num_files,
        tensors=found.num_tensors,
        different_files=tuple(DifferentFile(item.path, item.kind) for item in found.files),
        different_tensors=tuple(_tensor(item) for item in found.tensors),
    )
    common.output.result(document, lambda: _text(document))
    if not document.identical:
        raise click.exceptions.Exit(1)


def _tensor(item: TensorDifference) -> DifferentTensor:
    values = item.values
    return DifferentTensor(
        item.folder,
        item.name,
        item.kind,
        item.what,
        elements=values.num_elements if values else None,
        differing=values.num_differing if values else None,
        max_abs=values.max_abs if values else None,
        max_ulp=values.max_ulp if values else None,
    )


def _text(found: Compared) -> Iterator[str]:
    if found.identical:
        yield f"{style('identical', 'good')}: {counted(found.files, 'file')}, {counted(found.tensors, 'tensor')}"
        return
    count = len(found.different_tensors)
    tensors = (
        f"{counted(count, 'tensor')} {'differs' if count == 1 else 'differ'}" if count else "every tensor is equal"
    )
    files = f"{len(found.different_files)} of {counted(found.files, 'file')}"
    yield f"{style('different', 'bad')}: {files}, {tensors}"
    yield f"  A  {found.a}"
    yield f"  B  {found.b}"
    file_rows = [[item.kind, item.path] for item in found.different_files]
    tensor_rows = [[item.kind, _place(item), item.what] for item in found.different_tensors]
    width = max(len(row[0]) for row in file_rows + tensor_rows)  # both tables as one
    for rows in (file_rows, tensor_rows):
        yield from columns(_shortened([[row[0].ljust(width), *row[1:]] for row in rows]))


def _place(item: DifferentTensor) -> str:
    return item.name if item.folder == "." else f"{item.folder}: {item.name}"


def _shortened(rows: list[list[str]]) -> list[list[str]]:
    more = len(rows) - _SHOWN
    return rows if more <= 0 else [*rows[:_SHOWN], [f"… and {more} more: --json lists all"]]
