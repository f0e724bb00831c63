"""Carrying a removal out, so that it may be killed anywhere and robs nobody.

First go the locations, then the trees, then action entries and objects: nothing ever leads to what is gone, and a tree
never needs its objects, which only save work. Each goes by one rename into a folder aside, whose content is deleted at
the end, so no tree is ever half there; the folder of a killed collector goes with the next.
"""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from overlay.cache.disk import fsync, writing
from overlay.cache.generations import forget_current
from overlay.cache.leases import leases, sweep
from overlay.cache.listing import locations_of
from overlay.cache.pins import pins
from overlay.cache.presence import aside, builds_run, collecting
from overlay.cache.trees import is_our_link
from overlay.cache.verified import forget_verified
from overlay.formats.folders import remove_folder

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from overlay.cache.layout import CacheRoot

__all__ = ["Kept", "Removal", "carry_out"]


@dataclass(frozen=True, slots=True)
class Kept:
    """What could go but for one reason.

    Attributes:
        why: ``leased``: readers hold leases. ``pinned``: a user did. ``rollback``: it is of the last two generations of
            its model, or of a rollback. ``registry``: it is what a registry pins today. ``open``: a process has files
            of it open, without a lease. ``young``: of less than an hour. ``build``: a build is running that may use it.
        names: Of the trees; none for objects.
        size: Bytes, each inode once.
    """

    what: Literal["tree", "object"]
    why: Literal["leased", "pinned", "rollback", "registry", "open", "young", "build"]
    count: int
    names: tuple[str, ...]
    size: int


@dataclass(frozen=True, slots=True)
class Removal:
    """What goes, or went.

    Attributes:
        targets: The tree that each of the locations leads to; None where that is gone.
        unfinished: Abandoned staging folders and temporary files.
        ended: Leases that are over.
        frees: Bytes that the filesystem gets back.
        held_outside: Bytes among these files that it does not, because the inodes have names outside the cache.
        kept: What is kept although one might expect otherwise.
        notes: What else a user should know.
    """

    locations: tuple[Path, ...]
    targets: tuple[Path | None, ...]
    trees: tuple[Path, ...]
    actions: tuple[Path, ...]
    objects: tuple[Path, ...]
    unfinished: tuple[Path, ...]
    ended: tuple[Path, ...]
    frees: int
    held_outside: int
    kept: tuple[Kept, ...]
    notes: tuple[str, ...]


def carry_out(root: CacheRoot, removal: Removal, *, leased: bool = False) -> bool:
    """Remove; False, and nothing that anybody could miss is gone, where the plan does not hold any more.

    Args:
        leased: Trees go although readers hold leases.

    Raises:
        CannotWrite: The filesystem refused.
        TryAgain: This process was stopped for too long in between.
    """
    with writing(root, "unlink what nobody needs"):
        # What has no owner needs no announcement; on a full disk it makes the room for the folders below.
        for path in removal.unfinished:
            with suppress(FileNotFoundError):  # another collector was faster
                remove_folder(path) if path.is_dir() else path.unlink()
        for tree in {path.parent.name for path in removal.ended}:
            sweep(root, tree)
        if not (removal.locations or removal.trees or removal.actions or removal.objects):
            return True
        with aside(root) as folder, collecting(root) as step:
            if not _holds(root, removal, leased=leased):
                return False
            _take_out(root, removal, folder, step)
    for path in removal.trees:
        sweep(root, path.name)
        forget_verified(root, path)
        if path.parent == root.trees:
            forget_current(root, path.name)
    return True


def _holds(root: CacheRoot, removal: Removal, *, leased: bool) -> bool:
    """Whether everything may still go; who comes from now on waits until it is gone."""
    doomed = {path.name for path in removal.trees}
    kept = pins(root).keys() | (set() if leased else leases(root).keys())
    now = {root.location(name): tree for name, tree in locations_of(root).items()}
    return (
        not doomed & kept
        and removal.targets == tuple(now.get(location) for location in removal.locations)
        and {location for location, tree in now.items() if tree in removal.trees} <= set(removal.locations)
        and not (removal.objects and builds_run(root))
    )


def _take_out(root: CacheRoot, removal: Removal, folder: Path, step: Callable[[], None]) -> None:
    for number, (location, target) in enumerate(zip(removal.locations, removal.targets, strict=True)):
        step()
        _take_location(root, location, target, folder / f"location-{number}")
    if removal.trees and removal.locations:
        fsync(root.locations)  # a power cut must not bring back a location alone
    for number, path in enumerate((*removal.trees, *removal.actions, *removal.objects)):
        step()
        with suppress(FileNotFoundError):  # another collector was faster
            path.rename(folder / f"{number}")


def _take_location(root: CacheRoot, location: Path, target: Path | None, moved: Path) -> None:
    """Take a location out, unless a build that runs swung it meanwhile."""
    if not is_our_link(location):
        return
    with suppress(FileNotFoundError):
        location.rename(moved)
        text = os.readlink(moved)  # noqa: PTH115 - as it stands there
        tree = root.trees / text.rpartition("/")[2]
        if tree != target and tree.is_dir():
            with suppress(FileExistsError):  # swung once more
                location.symlink_to(text)
