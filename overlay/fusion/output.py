"""The file being written: any thread writes at any offset, and what goes wrong says what to do about it."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
from typing import TYPE_CHECKING, Self

from overlay.errors import CannotWrite

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from types import TracebackType

__all__ = ["PartialFile"]

_LIBC = ctypes.CDLL(None)
_WRITE = 2  # SYNC_FILE_RANGE_WRITE of fcntl.h: begin, and do not wait

_CAUSES = {
    errno.ENOSPC: ("no-room", "free some room there, or build elsewhere (prewarm: --cache-root, fuse: --out)"),
    errno.EDQUOT: ("quota-exceeded", "raise the quota, or build elsewhere (prewarm: --cache-root, fuse: --out)"),
    errno.EFBIG: ("file-too-large", "this filesystem or limit (ulimit -f) allows no file of this size; use another"),
    errno.EROFS: ("read-only", "it is mounted read-only; build elsewhere (prewarm: --cache-root, fuse: --out)"),
    errno.EACCES: ("no-permission", "choose a folder that this user may write to, or change its mode"),
    errno.EPERM: ("no-permission", "choose a folder that this user may write to, or change its mode"),
    errno.EEXIST: ("exists", "it is never overwritten; choose another place or remove it"),
    errno.ENOENT: ("no-such-folder", "make the folder first"),
    errno.ENOSYS: ("missing-operation", "this filesystem cannot do that; use a local one (overlay doctor tells)"),
    errno.EOPNOTSUPP: ("missing-operation", "this filesystem cannot do that; use a local one (overlay doctor tells)"),
}


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
                count = os.pwrite(self._descriptor, left, offset)
            left = left[count:]
            offset += count
        # So that the sync at the end has little left to wait for. A failure of the disk shows there.
        _LIBC.sync_file_range(self._descriptor, ctypes.c_int64(start), ctypes.c_int64(offset - start), _WRITE)

    def _discard(self) -> None:
        os.close(self._descriptor)
        with contextlib.suppress(OSError):
            self._path.unlink()

    @contextlib.contextmanager
    def _explained(self, operation: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            code, hint = _CAUSES.get(error.errno or 0, ("cannot-write", "see dmesg for what the device reports"))
            raise CannotWrite(
                f"{self._path}: cannot {operation}: {error.strerror}",
                code=code,
                hint=hint,
                path=str(self._path),
                operation=operation,
                errno=error.errno,
            ) from error
