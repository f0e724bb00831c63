"""Named locks, which only save work: two builders of one thing waste time, but never spoil it.

So where a lock cannot be had because the filesystem or its permissions do not allow one, the work goes on without. The
kernel drops the lock of a dead process, so nobody waits for one. Lock files are never removed: a waiter could then hold
a lock that the next one does not see.
"""

from __future__ import annotations

import errno
import fcntl
import os
import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from overlay.cache.disk import make_folder, share_with_group, write_atomically
from overlay.cache.layout import checked_name
from overlay.cache.owner import Owner
from overlay.errors import OverlayError, TryAgain

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from overlay.cache.layout import CacheRoot

__all__ = ["lock", "try_flock"]

_POLL = 0.1
_REPORT_EVERY = 30.0
_HELD_BY_ANOTHER = {errno.EAGAIN, errno.EACCES}


@contextmanager
def lock(root: CacheRoot, name: str, *, timeout: float, on_wait: Callable[[str], None] | None) -> Iterator[bool]:
    """Hold a lock.

    Args:
        root: The cache root that the lock belongs to.
        name: Name of the lock.
        timeout: Seconds to wait for another holder.
        on_wait: Called with who holds it and since when, once waiting has begun and every 30 seconds after.

    Yields:
        Whether the lock is held; False where this place has no locks.

    Raises:
        TryAgain: Somebody else held it all the time.
    """
    file = root.locks / f"{checked_name(name, 'lock')}.lock"
    holder = file.with_suffix(".json")
    descriptor = _open(file, root)
    try:
        held = descriptor is not None and _acquire(descriptor, holder, timeout, on_wait)
        if held:
            with suppress(OSError):
                write_atomically(holder, Owner.me().to_json(), root, durable=False)
        try:
            yield held
        finally:
            if held:
                with suppress(OSError):
                    holder.unlink()
    finally:
        if descriptor is not None:
            with suppress(OSError):  # a forked child may hold the descriptor as well, so closing would not do
                fcntl.flock(descriptor, fcntl.LOCK_UN)
            os.close(descriptor)


def try_flock(descriptor: int) -> bool | None:
    """Lock an open file now: True if it is ours, False if somebody else has it, None where there is no flock."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return False if error.errno in _HELD_BY_ANOTHER else None
    return True


def _open(file: Path, root: CacheRoot) -> int | None:
    with suppress(OSError, OverlayError):
        make_folder(file.parent, root, durable=False)
    # Another user's lock file may be closed to our writing; locking it needs no more than reading.
    for flags in (os.O_RDWR | os.O_CREAT, os.O_RDONLY | os.O_NONBLOCK):
        with suppress(OSError):
            descriptor = os.open(file, flags, 0o666)
            share_with_group(file, root)
            return descriptor
    return None


def _acquire(descriptor: int, holder: Path, timeout: float, on_wait: Callable[[str], None] | None) -> bool:
    begun = time.monotonic()
    report_at = _POLL  # not at once: a lock may be had before its new holder has written who it is
    while (got := try_flock(descriptor)) is False:
        waited = time.monotonic() - begun
        owner = Owner.read(holder)
        who = owner.describe() if owner else "an unknown process"
        if waited >= timeout:
            raise TryAgain(
                f"{holder.with_suffix('.lock')}: held by {who}; gave up after {timeout:g} s",
                code="lock-busy",
                hint="run the same command again once that one is done, or wait for it longer with --lock-timeout",
                lock=str(holder.with_suffix(".lock")),
                holder={"host": owner.host, "pid": owner.pid, "since": owner.since} if owner else None,
            )
        if on_wait is not None and waited >= report_at:
            on_wait(f"waiting for {who}")
            report_at = waited + _REPORT_EVERY
        time.sleep(min(_POLL, timeout - waited))
    return got is True
