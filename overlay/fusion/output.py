"""Where the bytes of a build go: a file being written. Any thread writes at any offset; failures say what to do."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, Self

from overlay.formats.os_errors import cannot_write

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import TracebackType

__all__ = ["OpenOutput", "Output", "PartialFile"]

_LIBC = ctypes.CDLL(None)
_WRITE = 2  # SYNC_FILE_RANGE_WRITE of fcntl.h: begin, and do not wait
_WRITE_BYTES = 2**18
"""Of one call. A larger one makes the kernel look for larger pages, which takes longer than the copy where few are
left: 5.6 GB into new pages took 3 s in pieces of 128 KiB and 8 to 15 s in pieces of 1 MiB (Linux 6.18, ext4)."""

_ELSEWHERE = "build elsewhere (prewarm: --cache-root, fuse: --out)"


class Output(Protocol):
    """What a build makes of its bytes: a new file of them, or a comparison with one that is there."""

    def write_at(self, offset: int, data: memoryview | bytes) -> None:
        """Takes the bytes that belong at ``offset``."""

    def copy_from(self, descriptor: int, offset: int, nbytes: int, place: int) -> bool:
        """Takes ``nbytes`` of an open file from its ``offset``, for ``place``; False: read them and hand them over."""

    def read_back(self, place: int, buffer: memoryview) -> None:
        """Fills ``buffer`` with what is at ``place``."""


OpenOutput = Callable[[Path, int], AbstractContextManager[Output]]
"""Called with the path of an output and its size in bytes."""


class PartialFile:
    """A new file of a known size, removed again unless the context ends well; then it is synced.

    Its mode comes from the umask.

    Args:
        path: Must not exist.
        size: Bytes.

    Raises:
        CannotWrite: From every method: no room, no permission, or an operation that the filesystem lacks.
    """

    def __init__(self, path: Path, size: int) -> None:
        self._path = path
        with self._explained("open"):
            self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        try:
            with self._explained("ftruncate"):
                os.ftruncate(self._descriptor, size)
        except BaseException:
            self._discard()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, at: TracebackType | None) -> None:
        if kind is not None:
            self._discard()
            return
        try:
            with self._explained("fsync"):
                os.fsync(self._descriptor)
        except BaseException:
            self._discard()
            raise
        os.close(self._descriptor)

    def write_at(self, offset: int, data: memoryview | bytes) -> None:
        """Writes all of ``data`` from ``offset``, and has the disk begin with it at once."""
        left, start = memoryview(data), offset
        while left:
            with self._explained("write"):
                count = os.pwrite(self._descriptor, left[:_WRITE_BYTES], offset)
            left = left[count:]
            offset += count
        self._begin_writeback(start, offset - start)

    def copy_from(self, descriptor: int, offset: int, nbytes: int, place: int) -> bool:
        """Has the kernel copy ``nbytes`` of an open file from its ``offset`` to ``place``.

        Returns:
            False where it cannot, or not all of it: whoever reads and writes these bytes instead learns why.
        """
        start, end = place, place + nbytes
        while place < end:
            try:
                count = os.copy_file_range(descriptor, self._descriptor, end - place, offset, place)
            except OSError:
                return False
            if not count:
                return False
            offset += count
            place += count
        self._begin_writeback(start, nbytes)
        return True

    def read_back(self, place: int, buffer: memoryview) -> None:
        """Fills ``buffer`` with what was written at ``place``."""
        while buffer:
            with self._explained("read back"):
                count = os.preadv(self._descriptor, [buffer], place)
                if not count:
                    raise OSError(errno.EIO, os.strerror(errno.EIO))
            buffer = buffer[count:]
            place += count

    def _begin_writeback(self, start: int, nbytes: int) -> None:
        """So that the sync at the end has little left to wait for. A failure of the disk shows there."""
        _LIBC.sync_file_range(self._descriptor, ctypes.c_int64(start), ctypes.c_int64(nbytes), _WRITE)

    def _discard(self) -> None:
        os.close(self._descriptor)
        with contextlib.suppress(OSError):
            self._path.unlink()

    @contextlib.contextmanager
    def _explained(self, operation: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise cannot_write(error, str(self._path), operation, elsewhere=_ELSEWHERE) from error
