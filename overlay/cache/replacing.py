"""Our link in the place of a folder that a server built, with a model at the location at every moment.

``renameat2(RENAME_EXCHANGE)`` swaps the two in one step. Where kernel or filesystem lacks it, two renames do, and for a
moment between them nothing is there. The folder goes with the staging folder that takes it; a process that has files of
it open reads on, and the inodes of what the cache links live on.
"""

from __future__ import annotations

import ctypes
import errno
import os
from typing import TYPE_CHECKING

from overlay.cache.disk import fsync, make_folder, writing
from overlay.cache.staging import staging
from overlay.cache.trees import check_locations, link_text, swing_location
from overlay.errors import TryAgain

if TYPE_CHECKING:
    from pathlib import Path

    from overlay.cache.layout import CacheRoot

__all__ = ["replace_folder"]

_LIBC = ctypes.CDLL(None, use_errno=True)
_AT_FDCWD, _RENAME_EXCHANGE = -100, 2
_NO_EXCHANGE = {errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTTY}


def replace_folder(root: CacheRoot, name: str, tree: str, folder: os.stat_result, notes: list[str]) -> Path:
    """Make a location point to a tree where a real folder is, which is removed.

    Args:
        root: The cache root.
        name: Of the location.
        tree: Of the tree, which is published.
        folder: Stat of the folder that may be removed.
        notes: Takes a sentence where it could not be done in one step.

    Raises:
        TryAgain: Another folder is there than ``folder``.
        CannotWrite: The filesystem refused; the folder is in its place.
    """
    location = root.location(name)
    check_locations(root)
    with staging(root) as aside:
        make_folder(root.trees, root, durable=True)
        link = aside / name
        with writing(root, f"symlink to {link_text(tree)}"):
            link.symlink_to(link_text(tree))
        try:
            found = location.lstat()
        except FileNotFoundError:  # the server removed it, to build again: its next look finds ours
            return swing_location(root, name, tree)
        if not os.path.samestat(found, folder):
            raise TryAgain(
                f"{location}: another folder than at first: a server built it anew while this ran",
                code="location-changed",
                hint="run the same command again",
                path=str(location),
            )
        with writing(root, f"exchange materialized_models/{name} for a link"):
            if not _exchange(link, location):
                notes.append(
                    f"{location}: exchanged in two renames (no RENAME_EXCHANGE here): for a moment it was gone"
                )
                _rename_twice(link, location, aside / f"{name}.old")
        with writing(root, f"fsync {location.parent.name}"):
            fsync(location.parent)
    return location


def _exchange(a: Path, b: Path) -> bool:
    """Swap two names in one step; False where that cannot be done here."""
    try:
        renameat2 = _LIBC.renameat2
    except AttributeError:  # an older C library
        return False
    if renameat2(_AT_FDCWD, os.fsencode(a), _AT_FDCWD, os.fsencode(b), ctypes.c_uint(_RENAME_EXCHANGE)) == 0:
        return True
    number = ctypes.get_errno()
    if number in _NO_EXCHANGE:
        return False
    raise OSError(number, os.strerror(number), str(b))


def _rename_twice(link: Path, location: Path, old: Path) -> None:
    location.rename(old)
    try:
        link.rename(location)
    except OSError:
        old.rename(location)
        raise
