"""Fingerprints of files whose bytes come one after the other, as from a network; the same as those of files on disk."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Protocol

from overlay.fingerprint.digests import BY_TENSORS, BlockHasher, safetensors_digest
from overlay.formats.header import needed_prefix, parse_header

if TYPE_CHECKING:
    from overlay.fingerprint.digests import Buffer

__all__ = ["StreamHasher", "stream_hasher"]

_LENGTH = 8  # bytes that say how long a safetensors header is


class StreamHasher(Protocol):
    """Takes the bytes of one file in order, in pieces of any size."""

    def update(self, data: Buffer, /) -> None:
        """Adds the next bytes.

        Raises:
            BrokenInput: They are not safetensors, although the fingerprint is one of those.
        """

    def digest(self) -> str:
        """``algorithm:hex`` of the whole file, all of which was added."""


def stream_hasher(algorithm: str, size: int, where: str) -> StreamHasher:
    """A hasher for :func:`overlay.fingerprint.file_digest` of a file that is not there yet.

    Args:
        size: Bytes of the file.
        where: Its name in messages.
    """
    if algorithm == BY_TENSORS:
        return _ByTensors(size, where)
    return BlockHasher() if algorithm == "xxh3_128" else _Sha256()


class _Sha256:
    def __init__(self) -> None:
        self._hash = hashlib.sha256()

    def update(self, data: Buffer, /) -> None:
        self._hash.update(data)

    def digest(self) -> str:
        return f"sha256:{self._hash.hexdigest()}"


class _ByTensors:
    """Gathers the header, which says where the tensors end."""

    def __init__(self, size: int, where: str) -> None:
        self._size, self._where = size, where
        self._head = bytearray()
        self._rooms: list[int] | None = None  # bytes of the parts that are to come, the next one last
        self._part = BlockHasher()
        self._digests: list[str] = []

    def update(self, data: Buffer, /) -> None:
        view = memoryview(data).cast("B")
        if self._rooms is None:
            self._head += view
            if not self._is_header_whole():
                return
            header = parse_header(bytes(self._head), self._size, self._where)
            self._rooms = [header.data_start, *(info.nbytes for info in header.tensors.values())][::-1]
            view, self._head = memoryview(self._head), bytearray()
        while self._rooms and (view or not self._rooms[-1]):
            piece = view[: self._rooms[-1]]
            self._part.update(piece)
            self._rooms[-1] -= len(piece)
            view = view[len(piece) :]
            if not self._rooms[-1]:
                self._rooms.pop()
                self._digests.append(self._part.digest())
                self._part = BlockHasher()

    def digest(self) -> str:
        if self._rooms is None:  # no header came
            parse_header(bytes(self._head), self._size, self._where)
        return safetensors_digest(self._digests[0], self._digests[1:])

    def _is_header_whole(self) -> bool:
        first = bytes(self._head[:_LENGTH])
        if len(first) < min(_LENGTH, self._size):
            return False
        return len(self._head) >= needed_prefix(first, self._size, self._where)
