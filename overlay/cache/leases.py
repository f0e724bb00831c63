"""Leases: a file for each reader of a tree, which keeps the tree from being collected.

All that counts is in the file's name, so that a lease holds from the moment it appears: whose it is, and until when it
is believed where that cannot be seen. A lease of a process is over when the process is gone, and both witnesses must
say so: flock is a no-op on some filesystems, and a lock that is held is a sign of life even where the process cannot be
seen. A process of another host or container is believed until the time in the name, and so is a timed lease, which
belongs to no process. The file's content only serves messages.

A reader that got a tree never loses it: see :mod:`overlay.cache.presence` for why. Only what a user removes by name in
spite of leases, or a damaged tree that is replaced, goes before.
"""

from __future__ import annotations

import os
import re
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from overlay.cache.disk import entries, fsync, make_folder, share_with_group, writing
from overlay.cache.layout import checked_name
from overlay.cache.locks import try_flock
from overlay.cache.owner import Owner, is_alive, process_name
from overlay.cache.presence import wait_for_collectors
from overlay.cache.staging import is_locked

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from overlay.cache.layout import CacheRoot

__all__ = ["BELIEVED", "Lease", "ended_leases", "hold", "lease_for", "leases", "sweep"]

BELIEVED = 24 * 3600.0
"""Seconds for which a reader is believed that cannot be seen, unless it says more."""

_TIMED = "timed"
_NAME = re.compile(r"((?:[0-9]+-[0-9]+-[0-9a-f]{12}|timed))-until-([0-9]{1,12})-[0-9a-f]{12}")


@dataclass(frozen=True, slots=True)
class Lease:
    """A lease that holds.

    Attributes:
        owner: Who took it, and when; None where that cannot be read.
        until: End of a timed lease, in seconds since the epoch; None for one that ends with its process.
    """

    file: Path
    owner: Owner | None
    until: float | None

    def describe(self) -> str:
        """For messages: ``pid 123 on host, since 2026-11-30 12:00:03 (42 s)``.

        Who took a timed lease is no reader: that process is gone, most often.
        """
        if self.until is None:
            return self.owner.describe() if self.owner else "an unknown process"
        taken = f", taken by pid {self.owner.pid} on {self.owner.host}," if self.owner else ""
        return (
            f"a reader whose lease{taken} lasts until {time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(self.until))}"
        )


@contextmanager
def hold(root: CacheRoot, tree: str, *, believed: float = BELIEVED) -> Iterator[int]:
    """Hold a lease on a tree as long as the context lasts, or the process; look whether the tree is there inside.

    Args:
        tree: Its name; it need not be there.
        believed: Seconds for which others believe it who see neither this process nor its lock.

    Yields:
        The descriptor that carries the lock. A program that inherits it and has this process's number holds the lease.

    Raises:
        CannotWrite: The filesystem refused.
    """
    file, descriptor = _take(root, tree, process_name(), believed, durable=False)
    try:
        wait_for_collectors(root)
        yield descriptor
    finally:
        with suppress(OSError):
            file.unlink(missing_ok=True)
        os.close(descriptor)


def lease_for(root: CacheRoot, tree: str, seconds: float) -> Lease:
    """Take a lease that outlives this process; look whether the tree is there afterwards.

    Raises:
        CannotWrite: The filesystem refused.
    """
    file, descriptor = _take(root, tree, _TIMED, seconds, durable=True)
    os.close(descriptor)
    wait_for_collectors(root)
    return _lease(file)


def leases(root: CacheRoot) -> dict[str, tuple[Lease, ...]]:
    """Every lease that holds, by the name of its tree."""
    found = {folder.name: tuple(_lease(file) for file in _files(folder, over=False)) for folder in entries(root.leases)}
    return {tree: held for tree, held in found.items() if held}


def ended_leases(root: CacheRoot) -> list[Path]:
    """Files of leases that are over."""
    return [file for folder in entries(root.leases) for file in _files(folder, over=True)]


def sweep(root: CacheRoot, tree: str) -> None:
    """Remove the leases of a tree that are over, and their folder if the tree is gone. Never fails."""
    folder = root.leases / tree
    with suppress(OSError):
        used = folder.stat().st_mtime_ns
        for file in _files(folder, over=True):
            file.unlink(missing_ok=True)
        os.utime(folder, ns=(used, used))  # this was no use of the tree
        if not root.tree(tree).exists():
            folder.rmdir()


def _take(root: CacheRoot, tree: str, owner: str, seconds: float, *, durable: bool) -> tuple[Path, int]:
    folder = root.leases / checked_name(tree, "tree")
    file = folder / f"{owner}-until-{int(time.time() + seconds) + 1}-{os.urandom(6).hex()}"
    hidden = file.with_name(f".{file.name}.tmp")
    with writing(root, "take a lease"):
        sweep(root, tree)
        descriptor = _create(hidden, root, durable=durable)
        try:
            if not durable:
                try_flock(descriptor)  # before anybody looks at it; where there is no flock, the name alone tells
            os.write(descriptor, Owner.me().to_json())
            share_with_group(hidden, root)
            if durable:
                os.fsync(descriptor)
            hidden.rename(file)
            if durable:
                fsync(folder)
        except BaseException:
            os.close(descriptor)
            with suppress(OSError):
                hidden.unlink()
            raise
    return file, descriptor


def _create(hidden: Path, root: CacheRoot, *, durable: bool) -> int:
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    for _ in range(9):
        make_folder(hidden.parent, root, durable=durable)
        with suppress(FileNotFoundError):  # a sweep took the folder, which was empty
            return os.open(hidden, flags, 0o666)
    return os.open(hidden, flags, 0o666)


def _files(folder: Path, *, over: bool) -> list[Path]:
    return [file for file in entries(folder) if (match := _NAME.fullmatch(file.name)) and _is_over(file, match) == over]


def _is_over(file: Path, match: re.Match[str]) -> bool:
    if is_locked(file):
        return False
    alive = None if match[1] == _TIMED else is_alive(file.name)
    return time.time() > int(match[2]) if alive is None else not alive


def _lease(file: Path) -> Lease:
    match = _NAME.fullmatch(file.name)
    timed = match is not None and match[1] == _TIMED
    return Lease(file, Owner.read(file), float(match[2]) if match and timed else None)
