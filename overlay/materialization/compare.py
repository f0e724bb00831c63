"""Comparing two directories: byte by byte for files, and value by value for tensors, however they are sharded."""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from overlay.formats.folders import files_below
from overlay.formats.header import read_header
from overlay.formats.local import open_file, read_span
from overlay.materialization.differences import ValueDifferences, value_differences
from overlay.materialization.record import RECORD_NAME
from overlay.materialization.request import existing_folder

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from overlay.formats.header import TensorInfo

__all__ = ["Comparison", "FileDifference", "TensorDifference", "compare"]

_CHUNK = 16 * 2**20

TensorKey = tuple[str, str]
"""Folder (or file, where a folder has the name twice) and tensor name."""


@dataclass(frozen=True, slots=True)
class FileDifference:
    """A file that is not the same on both sides."""

    path: str
    kind: Literal["only-in-a", "only-in-b", "content"]


@dataclass(frozen=True, slots=True)
class TensorDifference:
    """A tensor that is not the same on both sides.

    Attributes:
        folder: Where its file lies in the directory; ``.`` for the top.
        what: One sentence for people.
        values: For kind ``values``: how many elements differ and by how much.
    """

    folder: str
    name: str
    kind: Literal["only-in-a", "only-in-b", "dtype", "shape", "values"]
    what: str
    values: ValueDifferences | None = None


@dataclass(frozen=True, slots=True)
class Comparison:
    """Outcome of a compare.

    Attributes:
        num_files: Distinct paths on both sides together.
        num_tensors: Distinct tensors on both sides together.
    """

    a: Path
    b: Path
    num_files: int
    num_tensors: int
    files: tuple[FileDifference, ...]
    tensors: tuple[TensorDifference, ...]

    @property
    def identical(self) -> bool:
        """Whether every file holds the same bytes."""
        return not self.files

    @property
    def tensors_equal(self) -> bool:
        """Whether every tensor holds the same bytes, however the files are cut."""
        return not self.tensors


def compare(a: Path, b: Path) -> Comparison:
    """Hold two directories against each other. The records in them, which tell of runs, are left out.

    Raises:
        NotHere: One of them is not there.
        InvalidUsage: One of them is a file.
        OverlayError: A file cannot be read.
    """
    a, b = existing_folder(a).resolve(), existing_folder(b).resolve()
    files_a, files_b = _files(a), _files(b)
    files = [FileDifference(path, "only-in-a") for path in files_a - files_b]
    files += [FileDifference(path, "only-in-b") for path in files_b - files_a]
    common = sorted(files_a & files_b)
    same = {path for path in common if _same_bytes(a / path, b / path)}
    files += [FileDifference(path, "content") for path in common if path not in same]

    all_a, all_b = _tensors(a, files_a), _tensors(b, files_b)
    keys = sorted(all_a.keys() | all_b.keys())
    tensors = [
        difference
        for key in keys
        if (difference := _tensor_difference(key, all_a.get(key), all_b.get(key), a, b, same)) is not None
    ]
    ordered = tuple(sorted(files, key=lambda item: item.path))
    return Comparison(a, b, len(files_a | files_b), len(keys), ordered, tuple(tensors))


def _files(root: Path) -> set[str]:
    return {path for path in files_below(root) if path.rpartition("/")[2] != RECORD_NAME}


def _same_bytes(a: Path, b: Path) -> bool:
    with open_file(a) as (file_a, status_a), open_file(b) as (file_b, status_b):
        if os.path.samestat(status_a, status_b):
            return True
        size = status_a.st_size
        return size == status_b.st_size and all(
            read_span(file_a, start, _CHUNK) == read_span(file_b, start, _CHUNK) for start in range(0, size, _CHUNK)
        )


@dataclass(frozen=True, slots=True)
class _Place:
    path: str
    info: TensorInfo
    offset: int


def _tensors(root: Path, files: Iterable[str]) -> dict[TensorKey, _Place]:
    headers = {path: read_header(root / path) for path in sorted(files) if path.endswith(".safetensors")}
    count = Counter((_folder(path), name) for path, header in headers.items() for name in header.tensors)
    return {
        (_folder(path) if count[_folder(path), name] == 1 else path, name): _Place(path, info, header.offset(name))
        for path, header in headers.items()
        for name, info in header.tensors.items()
    }


def _folder(path: str) -> str:
    return path.rpartition("/")[0] or "."


def _tensor_difference(
    key: TensorKey, in_a: _Place | None, in_b: _Place | None, a: Path, b: Path, same: set[str]
) -> TensorDifference | None:
    folder, name = key
    if in_a is None or in_b is None:
        place, side = (in_a, "a") if in_b is None else (in_b, "b")
        what = f"only in {place.path} of {side.upper()}" if place else ""
        return TensorDifference(folder, name, "only-in-a" if side == "a" else "only-in-b", what)
    if in_a.path == in_b.path and in_a.path in same:
        return None
    if in_a.info.dtype != in_b.info.dtype:
        return TensorDifference(folder, name, "dtype", f"{in_a.info.dtype} in A, {in_b.info.dtype} in B")
    if in_a.info.shape != in_b.info.shape:
        return TensorDifference(folder, name, "shape", f"{list(in_a.info.shape)} in A, {list(in_b.info.shape)} in B")
    found = value_differences(a / in_a.path, in_a.offset, b / in_b.path, in_b.offset, in_a.info.nbytes, in_a.info.dtype)
    if found is None:
        return None
    what = f"{found.num_differing} of {found.num_elements} elements differ"
    if found.max_abs is not None:
        what += f", by {found.max_abs:.3g} at most"
    if found.max_ulp is not None:
        what += f" ({found.max_ulp} ulp)"
    return TensorDifference(folder, name, "values", what, found)
