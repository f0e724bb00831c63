"""Staging: a folder of its own for each build, that nobody else ever adopts.

Finished files leave it for the objects at once, so a killed build loses only what it was writing. A folder whose owner
is gone is collected by ``overlay cache gc``.
"""

from __future__ import annotations

import fcntl
import os
import secrets
import shutil
import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from overlay.cache.disk import make_folder, share_with_group, writing
from overlay.cache.owner import Owner

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from overlay.cache.layout import CacheRoot

__all__ = ["OWNER", "is_abandoned", "staging"]

OWNER = "owner.json"

# Without a word from its owner (other host, other container), a folder nobody wrote to for so long is abandoned.
_SILENCE = 24 * 3600.0
# A folder without a readable owner is one being made, or one half removed.
_MAKING = 3600.0


@contextmanager
def staging(root: CacheRoot) -> Iterator[Path]:
    """An empty folder under the root, removed at the end whatever happens, short of a kill.

    Yields:
        A folder inside ``.overlay/staging/<pid>-<random>/``; the owner file lies beside it.
    """
    unique = root.staging / f"{os.getpid()}-{secrets.token_hex(8)}"
    descriptor = -1
    try:
        with writing(root, "make a staging folder"):
            work = unique / "work"
            make_folder(work, root)
            descriptor = os.open(unique / OWNER, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
            with suppress(OSError):  # no flock here: the owner file still tells
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.write(descriptor, Owner.me().to_json())
            share_with_group(unique / OWNER, root)
        yield work
    finally:
        shutil.rmtree(unique, ignore_errors=True)
        if descriptor >= 0:
            os.close(descriptor)


def is_abandoned(unique: Path) -> bool:
    """Whether the owner of a staging folder is certainly gone.

    Both witnesses must say so, since flock is a no-op on some filesystems and a process of another host or container
    cannot be seen.
    """
    if _is_locked(unique / OWNER):
        return False
    owner = Owner.read(unique / OWNER)
    if owner is None:
        return _silent_for(unique) > _MAKING
    alive = owner.alive()
    return _silent_for(unique) > _SILENCE if alive is None else not alive


def _is_locked(path: Path) -> bool:
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return False


def _silent_for(unique: Path) -> float:
    """Seconds since anything in the folder changed."""
    newest = 0.0
    for folder, _, names in os.walk(unique):
        for name in (".", *names):
            with suppress(OSError):
                newest = max(newest, os.lstat(os.path.join(folder, name)).st_mtime)  # noqa: PTH118 - many files
    return time.time() - newest
