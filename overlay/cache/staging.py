"""Staging: a folder of its own for each build, that nobody else ever adopts.

Finished files leave it for the objects at once, so a killed build loses only what it was writing. A folder whose owner
is gone is collected by ``overlay cache gc``. The owner is in the folder's name, and so there from the first moment on,
and holds a lock on the folder itself.
"""

from __future__ import annotations

import os
import time
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING

from overlay.cache.disk import make_folder, share_with_group, writing
from overlay.cache.locks import try_flock
from overlay.cache.owner import is_alive, process_name
from overlay.formats.folders import remove_folder, walk

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from overlay.cache.layout import CacheRoot

__all__ = ["is_abandoned", "is_locked", "owned_folder", "remove_abandoned", "staging"]

# Seconds. A process of another host or container cannot be seen: where nobody wrote for so long, it is taken for gone.
_SILENCE = 24 * 3600.0


@contextmanager
def staging(root: CacheRoot) -> Iterator[Path]:
    """An empty folder under the root, removed at the end whatever happens, short of a kill."""
    with ExitStack() as stack:
        with writing(root, "mkdir a staging folder"):
            make_folder(root.staging, root, durable=False)
            folder = stack.enter_context(owned_folder(root.staging))
            share_with_group(folder, root)
        yield folder


@contextmanager
def owned_folder(parent: Path, prefix: str = "") -> Iterator[Path]:
    """A new folder whose name, after ``prefix``, says which process it belongs to; removed at the end."""
    folder = parent / f"{prefix}{process_name()}-{os.urandom(6).hex()}"
    descriptor = -1
    try:
        folder.mkdir()
        descriptor = os.open(folder, os.O_RDONLY)
        try_flock(descriptor)  # where there is no flock, the name alone tells
        yield folder
    finally:
        remove_folder(folder, ignore_errors=True)
        if descriptor >= 0:
            os.close(descriptor)


def remove_abandoned(parent: Path, prefix: str) -> None:
    """Remove the folders of this prefix that killed processes left in ``parent``, as far as it can be listed."""
    with suppress(OSError):
        for folder in parent.iterdir():
            if folder.name.startswith(prefix) and is_abandoned(folder, prefix):
                remove_folder(folder, ignore_errors=True)


def is_abandoned(folder: Path, prefix: str = "") -> bool:
    """Whether the owner of a staging folder is certainly gone.

    Both witnesses must say so: flock is a no-op on some filesystems, and a lock that is held is a sign of life even
    where the process cannot be seen.
    """
    if is_locked(folder):
        return False
    alive = is_alive(folder.name.removeprefix(prefix))
    return _silent_for(folder) > _SILENCE if alive is None else not alive


def is_locked(path: Path) -> bool:
    """Whether another open file holds the lock of this file or folder."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # whatever lies there: a pipe would wait for a writer
    except OSError:
        return False
    try:
        return try_flock(descriptor) is False
    finally:
        os.close(descriptor)


def _silent_for(folder: Path) -> float:
    """Seconds since anything in the folder changed."""
    newest = 0.0
    for prefix, names in walk(folder):
        for name in ("", *names):
            with suppress(OSError):
                newest = max(newest, (folder / f"{prefix}{name}").lstat().st_mtime)
    return time.time() - newest
