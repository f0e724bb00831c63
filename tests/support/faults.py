"""Filesystems and disks that refuse: operations of this process made to fail, and what must hold after each failure.

Everything here changes the process that it is called in, so it is called in a forked child (``support.children``).
"""

from __future__ import annotations

import fcntl
import hashlib
import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from overlay.materialization.verify import verify

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

__all__ = [
    "OPERATIONS",
    "Failing",
    "at_first_write",
    "check_sound",
    "fail_from",
    "fail_operation",
    "fail_reads",
    "input_digests",
    "objects_of",
]

FICLONE = 0x40049409  # ioctl request of linux/fs.h
OPERATIONS = {
    "rename": ("rename", "replace"),
    "link": ("link",),
    "ftruncate": ("ftruncate", "truncate"),
    "copy_file_range": ("copy_file_range",),
    "fsync": ("fsync", "fdatasync"),
    "symlink": ("symlink",),
    "mkdir": ("mkdir",),
    "reflink": (),
    "flock": (),
}
"""Operations by name, and the functions of :mod:`os` that make them."""

_WRITES = ("pwrite", "pwritev", "copy_file_range", "sendfile")
_STEPS = (*_WRITES, "write", "mkdir", "link", "rename", "replace", "symlink", "ftruncate", "fsync")
_READS = {"pread": 2, "preadv": 2, "read": None, "readv": None}


@dataclass(slots=True)
class Failing:
    """What was made to fail, and how often that was met."""

    number: int
    hits: int = field(default=0)

    def __call__(self, *args: Any, **_: Any) -> Any:
        """In place of the operation."""
        self.hits += 1
        name = args[0] if args and not isinstance(args[0], int) else None
        raise OSError(self.number, os.strerror(self.number), None if name is None else str(name))


def fail_operation(operation: str, number: int) -> Failing:
    """Let every call of one operation fail with this errno from now on."""
    failing = Failing(number)
    if operation == "reflink":
        real = fcntl.ioctl

        def ioctl(descriptor: Any, request: int, *args: Any) -> Any:
            return failing() if request == FICLONE else real(descriptor, request, *args)

        fcntl.ioctl = ioctl
    elif operation == "flock":
        fcntl.flock = failing
    else:
        for name in OPERATIONS[operation]:
            setattr(os, name, failing)
    return failing


def fail_from(step: int, number: int) -> Failing:
    """Let everything that writes fail from its ``step``-th call on, as on a disk that is full from then on."""
    failing, done = Failing(number), iter(range(1 << 62))

    def wrap(real: Any) -> Any:
        def call(*args: Any, **named: Any) -> Any:
            return failing(*args) if next(done) >= step else real(*args, **named)

        return call

    for name in _STEPS:
        setattr(os, name, wrap(getattr(os, name)))
    return failing


def fail_reads(path: Path, number: int, *, when: Callable[[], bool] = lambda: True) -> Failing:
    """Let reads of the second half of one file fail while ``when()`` holds, whatever name it is opened by."""
    failing, whole = Failing(number), path.stat()

    def wrap(name: str, real: Any, place: int | None) -> Any:
        def call(descriptor: int, *args: Any, **named: Any) -> Any:
            found = os.fstat(descriptor)
            if (found.st_dev, found.st_ino) == (whole.st_dev, whole.st_ino):
                at = args[place - 1] if place is not None else os.lseek(descriptor, 0, os.SEEK_CUR)
                length = args[0] if isinstance(args[0], int) else sum(map(len, args[0]))
                if at + length > whole.st_size // 2 and when():
                    return failing()
            return real(descriptor, *args, **named)

        call.__name__ = name
        return call

    for name, place in _READS.items():
        setattr(os, name, wrap(name, getattr(os, name), place))
    copy = os.copy_file_range

    def copy_file_range(source: int, *args: Any, **named: Any) -> Any:
        found = os.fstat(source)
        is_it = (found.st_dev, found.st_ino) == (whole.st_dev, whole.st_ino)
        return failing() if is_it and when() else copy(source, *args, **named)

    os.copy_file_range = copy_file_range
    return failing


def at_first_write(action: Callable[[], None]) -> list[str]:
    """Run ``action`` once, right after the first bytes of a weights file were staged; the list tells whether it ran."""
    done: list[str] = []

    def wrap(name: str, real: Any) -> Any:
        def call(*args: Any, **named: Any) -> Any:
            written = real(*args, **named)
            if not done:
                done.append(name)
                action()
            return written

        return call

    for name in _WRITES:
        setattr(os, name, wrap(name, getattr(os, name)))
    return done


def input_digests(folder: Path) -> dict[str, str]:
    """sha256 of every file below a folder, by path."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def objects_of(root: Path) -> dict[Path, tuple[int, int]]:
    """Inode and time of the last change of content of every object."""
    found = ((path, path.stat()) for path in (root / ".overlay/objects").glob("*/*/*"))
    return {path: (status.st_ino, status.st_mtime_ns) for path, status in found}


def check_sound(root: Path) -> None:
    """Whatever a reader can see is whole, to the last byte."""
    for place in (*root.glob("materialized_models/*"), *root.glob(".overlay/trees/*")):
        report = verify(place, "full")
        assert report.ok, (place, report.problems)
