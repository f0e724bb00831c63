"""Publishing: a finished tree moves in by one rename, then its location is swung by another.

Nothing published is ever written again. Whoever loses a race adopts the winner; a damaged winner is moved aside, never
repaired in place, because a server may have it open.
"""

from __future__ import annotations

import errno
import os
import shlex
import stat
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from overlay.cache.disk import fsync, make_folder, share_with_group, writing
from overlay.cache.generations import became_current, forget_rollback
from overlay.cache.layout import checked_name
from overlay.cache.locks import lock
from overlay.cache.staging import staging
from overlay.errors import CannotWrite, TryAgain
from overlay.formats.folders import walk
from overlay.formats.materialized import MARKER_NAME

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from overlay.cache.layout import CacheRoot

__all__ = [
    "Published",
    "check_location",
    "check_locations",
    "is_our_link",
    "link_text",
    "location_target",
    "move_aside",
    "point_location",
    "publish_tree",
    "quarantine_tree",
    "swing_location",
    "try_publishing",
]

_TAKEN = {errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR}
_ATTEMPTS = 5
# Seconds to wait for others who replace the same damaged tree, each after a quick check.
_PATIENCE = 60.0
_LOCK_NAME = 200


@dataclass(frozen=True, slots=True)
class Published:
    """Where a tree is, and whether this call put it there or found one that is as good."""

    path: Path
    result: Literal["built", "adopted"]


def publish_tree(root: CacheRoot, staged: Path, name: str, verify: Callable[[Path], bool]) -> Published:
    """Move a finished tree in.

    Args:
        root: The cache root.
        staged: Complete folder in a staging folder of this root.
        name: Name of the tree.
        verify: Quick check of a tree that is there already: True to keep it, False to replace it.

    Raises:
        CannotWrite: The filesystem refused; nothing was published.
        TryAgain: Others kept putting damaged trees there.
    """
    return _place(root, staged, root.tree(name), verify)


def quarantine_tree(root: CacheRoot, staged: Path, name: str, verify: Callable[[Path], bool]) -> Published:
    """Move a finished tree that must not be published to where it can be looked at; otherwise as :func:`publish_tree`.

    No location ever leads there.
    """
    return _place(root, staged, root.quarantine / checked_name(name, "tree"), verify)


def _place(root: CacheRoot, staged: Path, target: Path, verify: Callable[[Path], bool]) -> Published:
    name = target.name
    with writing(root, f"fsync tree {name}"):
        _settle(root, staged)
    make_folder(target.parent, root, durable=True)
    if _move_in(root, staged, target):
        return Published(target, "built")
    if _is_sound(target, verify):
        return Published(target, "adopted")
    # Replacing is done by one at a time, lest the second move the first one's good tree aside.
    with lock(root, f"tree-{name}"[:_LOCK_NAME], timeout=_PATIENCE, on_wait=None):
        for _ in range(_ATTEMPTS):
            if _is_sound(target, verify):
                return Published(target, "adopted")
            move_aside(root, target)
            if _move_in(root, staged, target):
                return Published(target, "built")
    raise TryAgain(
        f"{target}: found damaged {_ATTEMPTS} times in a row, each time put there anew",
        code="tree-contended",
        hint="another process or an older version publishes there; see what `overlay cache info` says of it",
        path=str(target),
    )


def _move_in(root: CacheRoot, staged: Path, target: Path) -> bool:
    """Rename a tree into place; False where something is there already."""
    with writing(root, f"rename into {target.parent.name}/{target.name}"):
        try:
            staged.rename(target)
        except OSError as error:
            if error.errno in _TAKEN:
                return False
            raise
    with writing(root, f"fsync {target.parent.name}"):
        fsync(target.parent)
    return True


def _is_sound(target: Path, verify: Callable[[Path], bool]) -> bool:
    try:
        return verify(target)
    except FileNotFoundError:  # somebody is replacing it at this moment
        return False


def _settle(root: CacheRoot, staged: Path) -> None:
    """Sync folders, and the files that are not links to (synced) objects; give both their final modes."""
    for prefix, names in reversed(list(walk(staged))):  # what is in a folder before the folder
        for name in names:
            path = staged / f"{prefix}{name}"
            status = path.lstat()
            if stat.S_ISREG(status.st_mode) and status.st_nlink == 1:
                share_with_group(path, root)
                fsync(path)
        share_with_group(staged / prefix, root)
        fsync(staged / prefix)


def move_aside(root: CacheRoot, target: Path) -> None:
    """Take a damaged tree out in one step; it goes with the staging folder that takes it."""
    with (
        staging(root) as aside,
        writing(root, f"rename damaged {target.parent.name}/{target.name} aside"),
        suppress(FileNotFoundError),
    ):
        target.rename(aside / target.name)


def check_location(root: CacheRoot, name: str) -> None:
    """Find out before a build whether :func:`swing_location` will do at its end. Writes nothing.

    Raises:
        CannotWrite: Something that is not our link is in the way, or ``materialized_models`` lies elsewhere.
    """
    check_locations(root)
    _current(root.location(name))


def check_locations(root: CacheRoot) -> None:
    """Find out whether links in ``materialized_models`` could reach our trees.

    Raises:
        CannotWrite: The folder lies elsewhere.
    """
    if root.locations.resolve() != root.path.resolve() / root.locations.name:
        raise CannotWrite(
            f"{root.locations}: a link to {root.locations.resolve()}, so links in it could not reach {root.own}",
            code="locations-elsewhere",
            hint=f"give the folder that holds it as the root: --cache-root {root.locations.resolve().parent}",
            path=str(root.locations),
        )


def swing_location(root: CacheRoot, name: str, tree: str) -> Path:
    """Make a location point to a tree, which is the current one from now on.

    Raises:
        CannotWrite: As :func:`check_location`, or the filesystem refused.
    """
    location = point_location(root, name, tree)
    became_current(root, tree)
    forget_rollback(root, name)
    return location


def point_location(root: CacheRoot, name: str, tree: str) -> Path:
    """Make a location point to a tree, in one step; nothing is written where it does already.

    Raises:
        CannotWrite: As :func:`check_location`, or the filesystem refused.
    """
    location, wanted = root.location(name), link_text(root.tree(tree).name)
    make_folder(root.locations, root, durable=True)
    check_location(root, name)
    if _current(location) == wanted:
        return location
    with staging(root) as folder:
        _swing(root, folder / "location", wanted, location)
    return location


def _swing(root: CacheRoot, link: Path, text: str, location: Path) -> None:
    with writing(root, f"symlink to {text}"):
        link.symlink_to(text)
    with writing(root, f"rename the link {location.relative_to(root.path)} into place"):
        link.replace(location)
    with writing(root, f"fsync {location.parent.name}"):
        fsync(location.parent)


def try_publishing(root: CacheRoot) -> None:
    """Go through what publishing ends with, so that a root which lacks a step is refused before the work, not after it.

    Raises:
        CannotWrite: The filesystem refused one.
    """
    with staging(root) as folder:
        with writing(root, "mkdir of a tree"):
            (folder / "tree").mkdir()
        with writing(root, "rename a folder"):
            (folder / "tree").rename(folder / "published")
        for _ in range(2):  # the second link replaces the first
            _swing(root, folder / "link", "published", folder / "location")


def location_target(root: CacheRoot, name: str) -> Path | None:
    """The tree that a location points to; None where it is absent, not ours, or leads nowhere."""
    text = _read_link(root.location(name))
    tree = _tree_of(text) if text is not None else None
    path = root.trees / tree if tree is not None else None
    return path if path is not None and path.is_dir() else None


def is_our_link(location: Path) -> bool:
    """Whether a location is a link to one of our trees, there or gone."""
    text = _read_link(location)
    return text is not None and _tree_of(text) is not None


def link_text(tree: str) -> str:
    """What our link to a tree says."""
    return f"../.overlay/trees/{tree}"


def _tree_of(text: str) -> str | None:
    tree = text.removeprefix("../.overlay/trees/")
    return tree if text == link_text(tree) and tree and "/" not in tree and not tree.startswith(".") else None


def _current(location: Path) -> str | None:
    """Text of our link at the location; None where nothing is there.

    Raises:
        CannotWrite: What is there is not ours.
    """
    text = _read_link(location)
    while text is None:
        try:
            if not stat.S_ISLNK(os.lstat(location).st_mode):
                break
        except FileNotFoundError:
            return None
        text = _read_link(location)  # somebody put a link there since the first look
    if text is not None and _tree_of(text) is not None:
        return text
    found = f"a link to {text}" if text is not None else "a real folder" if location.is_dir() else "a file"
    name = shlex.quote(str(location))
    if not (location / MARKER_NAME).is_file():
        hint = f"move it away: mv {name} {shlex.quote(f'{location}.old')}"
    elif text is None:
        hint = f"overlay adopt {name}"
    else:  # what it leads to is adopted from where it lies
        hint = f"rm {name} && overlay adopt {shlex.quote(str(location.resolve()))}"
    raise CannotWrite(
        f"{location}: {found} is in the way, expected nothing or a link of this program",
        code="location-taken",
        hint=hint,
        path=str(location),
    )


def _read_link(location: Path) -> str | None:
    try:
        return os.readlink(location)  # noqa: PTH115 - Path.readlink would drop a trailing slash, which is not ours
    except OSError:
        return None
