"""A finished file held against what a build would write into it: byte by byte, in bounded memory, writing nothing."""

from __future__ import annotations

import os
from contextlib import ExitStack
from typing import TYPE_CHECKING, Self

from overlay.errors import BrokenInput, CheckFailed
from overlay.formats.header import read_header
from overlay.formats.local import explain_os_error, open_file
from overlay.formats.wording import counted, some

if TYPE_CHECKING:
    from pathlib import Path
    from types import TracebackType

__all__ = ["ComparedFile", "file_differs"]

_PIECE = 2**18
"""Bytes compared at a time: what is read stays in a core's cache until it is compared."""


class ComparedFile:
    """In the place of a file that is written: takes the same bytes and finds out whether they are there already.

    Every tensor is compared before the context ends, and all that differ are named.

    Args:
        path: The file, which is there.
        size: Bytes that it must have.

    Raises:
        CheckFailed: At the end: a tensor differs. At once: the size or the header does.
        OverlayError: It cannot be read (``formats.local``).
    """

    def __init__(self, path: Path, size: int) -> None:
        self._path = path
        self._differing: list[int] = []
        self._stack = ExitStack()
        self._descriptor, found = self._stack.enter_context(open_file(path))
        if found.st_size != size:
            self._stack.close()
            raise file_differs(path, f"{found.st_size} bytes, expected {size}{_in_names(path)}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, at: TracebackType | None) -> None:
        self._stack.close()
        if kind is None and self._differing:
            header = read_header(self._path)
            ends = {name: header.offset(name) + info.nbytes for name, info in header.tensors.items()}
            names = [
                name
                for name, end in ends.items()
                if any(header.offset(name) <= offset < end for offset in self._differing)
            ]
            raise file_differs(self._path, "", names)

    def write_at(self, offset: int, data: memoryview | bytes) -> None:
        """Compares ``data`` with what is at ``offset``."""
        left, place = memoryview(data), offset
        while left:
            piece = left[:_PIECE]
            there = bytearray(len(piece))
            self.read_back(place, memoryview(there))
            if there != piece:  # in this order Python compares memory, not elements
                if offset == 0:
                    raise file_differs(self._path, f"another header than the inputs give{_in_names(self._path)}")
                self._differing.append(place)
                return
            left = left[len(piece) :]
            place += len(piece)

    def copy_from(self, descriptor: int, offset: int, nbytes: int, place: int) -> bool:  # noqa: ARG002 - as of an output
        """Never: to be compared, bytes have to be read."""
        return False

    def read_back(self, place: int, buffer: memoryview) -> None:
        """Fills ``buffer`` with what is at ``place``."""
        while buffer:
            try:
                count = os.preadv(self._descriptor, [buffer], place)
            except OSError as error:
                raise explain_os_error(self._path, error, at=place) from error
            if not count:
                raise file_differs(self._path, f"shrank to {place} bytes while it was read")
            buffer = buffer[count:]
            place += count


def file_differs(path: Path, what: str, tensors: list[str] | None = None) -> CheckFailed:
    """The error of a file that does not hold what its inputs give.

    Args:
        what: What was found and what was expected; empty where ``tensors`` say it.
        tensors: Names of those that differ, where they are known.
    """
    names = tensors or []
    if names:
        named = counted(len(names), "tensor")
        what = f"{named} {'is' if len(names) == 1 else 'are'} not what the inputs give: {some(names)}"
    return CheckFailed(
        f"{path}: {what}",
        code="file-differs",
        hint="it was damaged, or made from other inputs: move its folder away, then build the model (overlay prewarm)",
        where=str(path),
        tensors=names,
    )


def _in_names(path: Path) -> str:
    """A few words on what the file holds, for whoever expected something else."""
    try:
        return f" (it holds {counted(len(read_header(path).tensors), 'tensor')})"
    except BrokenInput as error:
        return f" ({error.message})"
