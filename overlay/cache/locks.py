"""Named locks, which only save work: two builders of one thing waste time, but never spoil it.

So where a lock cannot be had because the filesystem or its permissions do not allow one, the work goes on without.
"""

from __future__ import annotations

import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from filelock import FileLock, Timeout

from overlay.cache.disk import make_folder, write_atomically
from overlay.cache.layout import checked_name
from overlay.cache.owner import Owner
from overlay.errors import TryAgain

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from overlay.cache.layout import CacheRoot

__all__ = ["lock"]

_REPORT_EVERY = 30.0


@contextmanager
def lock(root: CacheRoot, name: str, *, timeout: float, on_wait: Callable[[str], None] | None) -> Iterator[bool]:
    """Hold a lock.

    Args:
        root: The cache root that the lock belongs to.
        name: Name of the lock.
        timeout: Seconds to wait for another holder.
        on_wait: Called with who holds it and since when, once waiting starts and every 30 seconds after.

    Yields:
        Whether the lock is held; False where this place has no locks.

    Raises:
        TryAgain: Somebody else held it all the time.
    """
    file = root.locks / f"{checked_name(name, 'lock')}.lock"
    holder = file.with_suffix(".json")
    # Readable and writable by all, like the Hub's: a lock that the next user cannot open would be none.
    handle = FileLock(file, mode=0o666)
    held = _acquire(handle, holder, root, timeout, on_wait)
    try:
        if held:
            with suppress(OSError):
                write_atomically(holder, Owner.me().to_json(), root)
        yield held
    finally:
        if held:
            with suppress(OSError):
                holder.unlink()
            handle.release()


def _acquire(
    handle: FileLock, holder: Path, root: CacheRoot, timeout: float, on_wait: Callable[[str], None] | None
) -> bool:
    deadline = time.monotonic() + timeout
    patience = 0.0
    while True:
        try:
            make_folder(root.locks, root)
            handle.acquire(timeout=patience)
        except Timeout:
            owner = Owner.read(holder)
            who = owner.describe() if owner else "an unknown process"
        except (OSError, NotImplementedError):
            return False
        else:
            return True
        left = deadline - time.monotonic()
        if left <= 0:
            raise TryAgain(
                f"{handle.lock_file}: held by {who}; gave up after {timeout:.0f} s",
                code="lock-busy",
                hint="try again later, or wait longer with --lock-timeout SECONDS",
                lock=str(handle.lock_file),
                holder={"host": owner.host, "pid": owner.pid, "since": owner.since} if owner else None,
            )
        if on_wait is not None:
            on_wait(f"waiting for {who}")
        patience = min(_REPORT_EVERY, left)
