"""Bringing a file to a second place: shared blocks, a shared inode, or a copy.

What is possible is found by trying, between the two places themselves. Linked files are never opened for writing and
never chmodded: the inode may belong to the Hub's cache.
"""

from __future__ import annotations

import errno
import fcntl
import os
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from overlay.errors import BrokenInput
from overlay.formats.local import explain_os_error

if TYPE_CHECKING:
    from pathlib import Path

__all__ = [
    "SMALL_FILE",
    "How",
    "LinkMode",
    "LinkResult",
    "input_changed",
    "is_small",
    "link_file",
    "ways",
    "ways_into_tree",
]

LinkMode = Literal["auto", "reflink", "hardlink", "copy"]
How = Literal["reflink", "hardlink", "copy"]

# Consumers rewrite configs in place; nothing of this size or more was seen to be rewritten (sglang's own threshold).
SMALL_FILE = 64 * 2**20

_FICLONE = 0x40049409  # fcntl.FICLONE exists from Python 3.12 on
_CHUNK = 64 * 2**20
_BUFFER = 2**20
# What copy_file_range answers where the kernel or one of the two filesystems cannot do it for this pair of files; and a
# fault of one of the two disks, of which only a plain copy tells whose it is.
_NO_RANGE_COPY = {errno.EXDEV, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL, errno.EPERM, errno.ETXTBSY, errno.EIO}


@dataclass(frozen=True, slots=True)
class LinkResult:
    """How a file came to its place, its size in bytes, and the place."""

    how: Literal["present", "reflink", "hardlink", "copy"]
    nbytes: int
    path: Path


def ways(mode: LinkMode, *, shared_store: bool, size: int) -> tuple[How, ...]:
    """What ``mode`` allows for a file of this size that comes in from outside, in the order to try.

    Hardlinks come by themselves only from a store nobody edits, and only of files too large to be rewritten in place.
    """
    if mode != "auto":
        return (mode,)
    return ("reflink", "hardlink", "copy") if shared_store and size >= SMALL_FILE else ("reflink", "copy")


def ways_into_tree(path: str, *, small: bool) -> tuple[How, ...]:
    """How an object may come to ``path`` in a tree, in the order to try.

    Args:
        path: Its name tells whether it is one of our own safetensors, which are never written again.
        small: The consumer may rewrite it (:func:`is_small`), so it gets an inode of its own.
    """
    if small:
        return ("reflink", "copy")
    if path.endswith(".safetensors"):
        return ("hardlink", "reflink", "copy")
    return ("reflink", "hardlink", "copy")


def is_small(path: str, size: int) -> bool:
    """Whether a file is one that a consumer may rewrite in place, and so must not share its inode."""
    return size < SMALL_FILE and not path.endswith(".safetensors")


def link_file(source: Path, dest: Path, allowed: tuple[How, ...]) -> How:
    """Bring ``source`` (no link) to the new path ``dest`` in the first of the allowed ways that works.

    Raises:
        OSError: The last of the allowed ways failed.
        BrokenInput: The source changed while it was copied.
    """
    *attempts, last = allowed
    for how in attempts:
        with suppress(OSError):
            _WAYS[how](source, dest)
            return how
    _WAYS[last](source, dest)
    return last


def _reflink(source: Path, dest: Path) -> None:
    with source.open("rb") as data, dest.open("xb") as out:
        try:
            fcntl.ioctl(out.fileno(), _FICLONE, data.fileno())
        except OSError:
            dest.unlink()
            raise


def _hardlink(source: Path, dest: Path) -> None:
    dest.hardlink_to(source)


def _copy(source: Path, dest: Path) -> None:
    """Copy inside the kernel where it can, else through a buffer.

    Raises:
        BrokenInput: The source shrank or grew meanwhile, or its disk reports a fault.
    """
    with source.open("rb", buffering=0) as data, dest.open("xb", buffering=0) as out:
        size = os.fstat(data.fileno()).st_size
        copied = _copy_in_kernel(data.fileno(), out.fileno(), size)
        while chunk := _read(source, data.fileno()):
            copied += len(chunk)
            view = memoryview(chunk)
            while view:
                view = view[out.write(view) :]
    if copied != size:
        raise input_changed(source, size, copied)


def _read(source: Path, descriptor: int) -> bytes:
    try:
        return os.read(descriptor, _BUFFER)
    except OSError as error:
        raise explain_os_error(source, error) from error


def input_changed(source: Path, before: int, after: int) -> BrokenInput:
    """The error of a source whose size changed between two looks at it."""
    return BrokenInput(
        f"{source}: changed while it was copied ({before} bytes at first, {after} in the end)",
        code="input-changed",
        hint="let whatever writes it finish, then try again",
        where=str(source),
    )


def _copy_in_kernel(source: int, dest: int, size: int) -> int:
    """Bytes copied; both positions are left there, so that a plain copy can go on."""
    copied = 0
    try:
        while copied < size and (count := os.copy_file_range(source, dest, min(_CHUNK, size - copied))):
            copied += count
    except OSError as error:
        if error.errno not in _NO_RANGE_COPY:
            raise
    return copied


_WAYS = {"reflink": _reflink, "hardlink": _hardlink, "copy": _copy}
