"""Files of this host: read with every way in which one can be unreadable told apart by name, small ones written."""

from __future__ import annotations

import os
import stat
from contextlib import contextmanager
from typing import TYPE_CHECKING

from overlay.errors import BrokenInput, OverlayError
from overlay.formats.os_errors import cannot_read

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

__all__ = [
    "MAX_SMALL_FILE",
    "explain_os_error",
    "file_stat",
    "open_file",
    "read_small_file",
    "read_span",
    "too_large",
    "write_small_file",
]

MAX_SMALL_FILE = 64 * 2**20
"""Bytes of a small file at most: JSON and text, never weights."""


def file_stat(path: Path) -> os.stat_result:
    """Stat of a regular file, through links.

    Raises:
        NotHere: There is no such file.
        BrokenInput: A link whose target is missing or that runs in a circle, or something that is not a file.
        Refused: No permission.
    """
    try:
        found = path.stat()
    except OSError as error:
        raise explain_os_error(path, error) from error
    _require_regular(path, found)
    return found


@contextmanager
def open_file(path: Path) -> Iterator[tuple[int, os.stat_result]]:
    """A regular file opened for reading: its descriptor and the stat of that very descriptor.

    Raises:
        OverlayError: As ``file_stat``; also in place of a system error that reading from the descriptor gives inside.
    """
    file_stat(path)  # first, because opening a pipe would wait for its writer
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as error:
        raise explain_os_error(path, error) from error
    try:
        found = os.fstat(descriptor)
        _require_regular(path, found)
        yield descriptor, found
    except OSError as error:
        if isinstance(error, OverlayError) or error.filename is not None:  # of another file that the body deals with
            raise
        raise explain_os_error(path, error) from error
    finally:
        os.close(descriptor)


def read_span(descriptor: int, start: int, nbytes: int) -> bytes:
    """Up to ``nbytes`` bytes from ``start``; fewer only where the file ends."""
    parts = []
    while nbytes > 0 and (part := os.pread(descriptor, nbytes, start)):
        parts.append(part)
        start += len(part)
        nbytes -= len(part)
    return b"".join(parts)


def read_small_file(path: Path, most: int = MAX_SMALL_FILE) -> bytes:
    """A small regular file, whole.

    Raises:
        BrokenInput: It has more than ``most`` bytes.
        OverlayError: As ``open_file``.
    """
    with open_file(path) as (descriptor, found):
        if found.st_size > most:
            raise too_large(str(path), found.st_size, most)
        return read_span(descriptor, 0, found.st_size)


def too_large(where: str, size: int, most: int) -> BrokenInput:
    """The error for a file of more than ``most`` bytes where a small one is expected."""
    return BrokenInput(
        f"{where}: {size} bytes, expected at most {most} for a small file",
        code="too-large",
        hint="check that this is the right file",
        where=where,
        size=size,
    )


def write_small_file(path: Path, data: bytes) -> None:
    """Write a file so that readers see the old one or the new one, whole; its folder is made, its mode is the umask's.

    Nothing is synced: after a crash of the system the file may be gone or damaged.

    Raises:
        OSError: The system refuses.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    staged = path.with_name(f".{path.name}-{os.urandom(8).hex()}.tmp")
    try:
        staged.write_bytes(data)
        staged.replace(path)
    finally:
        staged.unlink(missing_ok=True)


def _require_regular(path: Path, found: os.stat_result) -> None:
    if not stat.S_ISREG(found.st_mode):
        kind = "a folder" if stat.S_ISDIR(found.st_mode) else "a special file"
        raise BrokenInput(
            f"{path}: found {kind}, expected a regular file",
            code="not-a-file",
            hint=f"ls -l {path.parent}",
            where=str(path),
        )


def explain_os_error(path: Path, error: OSError, *, at: int | None = None) -> OverlayError:
    """The error of this program for one that the system gave when ``path`` was to be read, at byte ``at``."""
    where = str(path)
    if isinstance(error, FileNotFoundError | NotADirectoryError) and path.is_symlink():
        target = str(path.readlink())
        return BrokenInput(
            f"{where}: link to {target}, which is not there",
            code="dangling-link",
            hint="the file that it points to was removed (a pruned cache?); download it again",
            where=where,
            target=target,
        )
    look = f"{'ls -l' if isinstance(error, PermissionError) else 'ls'} {path.parent}"
    return cannot_read(error, where, look=look, at=at)
