"""Our link in the place of a folder that a server built, with a model at the location at every moment.

``renameat2(RENAME_EXCHANGE)`` swaps the two in one step. Where kernel or filesystem lacks it, two renames do, and for a
moment between them nothing is there. The folder goes with the staging folder that takes it, unless something came into
it at the last moment; a process that has files of it open reads on, and the inodes of what the cache links live on.
"""

from __future__ import annotations

import ctypes
import errno
import os
import stat
from typing import TYPE_CHECKING

from overlay.cache.disk import fsync, make_folder, writing
from overlay.cache.generations import became_current
from overlay.cache.kept import name_to_keep
from overlay.cache.staging import staging
from overlay.cache.trees import check_locations, link_text, location_target, swing_location
from overlay.errors import CannotWrite, TryAgain

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from overlay.cache.layout import CacheRoot

__all__ = ["replace_folder", "require_replaceable", "swing_checked"]

_LIBC = ctypes.CDLL(None, use_errno=True)
_AT_FDCWD, _RENAME_EXCHANGE = -100, 2
_NO_EXCHANGE = {errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTTY}


def require_replaceable(root: CacheRoot, name: str) -> None:
    """Find out before the work whether this user may take the folder at a location away. Writes nothing.

    Raises:
        CannotWrite: ``not-permitted``.
    """
    location = root.location(name)
    folder, parent = location.stat(), location.parent.stat()
    places = [place for place in (location.parent, location) if not os.access(place, os.W_OK | os.X_OK)]
    if parent.st_mode & stat.S_ISVTX and os.geteuid() not in (0, folder.st_uid, parent.st_uid):
        places.append(location)
    if places:
        raise CannotWrite(
            f"{places[0]}: belongs to another user (uid {places[0].stat().st_uid}), and the folder cannot be replaced",
            code="not-permitted",
            hint=f"adopt as the owner of the folder: ls -ld {location.parent} {location}",
            where=str(places[0]),
            path=str(places[0]),
        )


def swing_checked(root: CacheRoot, name: str, tree: str, check: Callable[[], None]) -> Path:
    """Make a location where no folder is point to a tree, and back to where it pointed if ``check`` raises."""
    before = location_target(root, name)
    location = swing_location(root, name, tree)
    try:
        check()
    except BaseException:
        if before is not None:
            swing_location(root, name, before.name)
        else:
            with writing(root, f"unlink materialized_models/{name}"):
                location.unlink()
        raise
    return location


def replace_folder(
    root: CacheRoot,
    name: str,
    tree: str,
    folder: os.stat_result,
    check: Callable[[], None],
    changed: Callable[[Path], str],
    notes: list[str],
) -> Path:
    """Make a location point to a tree where a real folder is, which is removed.

    Args:
        root: The cache root.
        name: Of the location.
        tree: Of the tree, which is published.
        folder: Stat of the folder that may be removed.
        check: Called when the link is in its place: raises if the tree may not stay there after all.
        changed: Tells what is in the folder, wherever that lies, and was not when it was looked at; empty where nothing
            is. Asked when the folder is out of its place; one of which it says something is kept.
        notes: Takes a sentence where it could not be done in one step, or something is left.

    Raises:
        TryAgain: Another folder is there than ``folder``.
        CannotWrite: The filesystem refused.
        BaseException: What ``check`` raises. Whatever is raised, the folder is in its place.
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
            return swing_checked(root, name, tree, check)
        if not os.path.samestat(found, folder):
            raise TryAgain(
                f"{location}: another folder than at first: a server built it anew while this ran",
                code="location-changed",
                hint="run the same command again",
                path=str(location),
            )
        with writing(root, f"exchange materialized_models/{name} for a link"):
            old = link
            if not _exchange(link, location):
                old = _free_name(location)
                _rename_twice(link, location, old)
                notes.append(
                    f"{location}: exchanged in two renames (no RENAME_EXCHANGE here): for a moment nothing was there"
                )
        try:
            with writing(root, f"fsync {location.parent.name}"):
                fsync(location.parent)
            check()
            _remove_or_keep(root, location, old, aside, changed(old), notes)
        except BaseException:
            _put_back(root, location, old, aside)
            raise
    became_current(root, tree)
    if os.path.lexists(aside):
        notes.append(f"{aside}: what is left of the server's folder could not be removed; its owner may: rm -r {aside}")
    return location


def _remove_or_keep(root: CacheRoot, location: Path, old: Path, aside: Path, what: str, notes: list[str]) -> None:
    """Let a folder go with ``aside``; or, with something in it that nobody looked at, keep it beside the location."""
    if not what:
        if old.parent != aside:
            with writing(root, f"rename {old.name} aside"):
                old.rename(aside / location.name)
        return
    if old.parent == aside:
        kept = _free_name(location)
        with writing(root, f"rename the folder to {kept.name}"):
            old.rename(kept)
        old = kept
    notes.append(f"{old}: the server's folder is kept, because {what} came or changed at the last moment")


def _put_back(root: CacheRoot, location: Path, old: Path, aside: Path) -> None:
    """Let the folder and our link change places again, unless the folder has gone where it was to go."""
    if not os.path.lexists(old):
        return
    with writing(root, f"put {location.name} back"):
        try:
            if not _exchange(old, location):
                location.rename(aside / "link")
                old.rename(location)
            elif old.parent != aside:
                old.unlink()
        except OSError:
            if old.parent == aside and old.is_dir():  # with which it must not go
                old.rename(_free_name(location))
            raise


def _free_name(location: Path) -> Path:
    """A name beside the location that nobody looks for."""
    number = 1
    while os.path.lexists(place := name_to_keep(location, number)):
        number += 1
    return place


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
