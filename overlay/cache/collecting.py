"""Removing: what a user names, and what nobody needs.

A plan is made first and then carried out, so a dry run lists what a run does. The order of removal is safe to interrupt
anywhere: first the links that lead to a tree, then the tree in one rename, then action entries, then objects. A tree
never needs its objects, which only save work.
"""

from __future__ import annotations

import shutil
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING

from overlay.cache.actions import read_entry
from overlay.cache.disk import writing
from overlay.cache.listing import FileInfo, Files, TreeInfo, entries, files_under, find, locations_of, ls
from overlay.cache.staging import is_abandoned, staging
from overlay.formats.wording import counted, format_bytes

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence
    from pathlib import Path

    from overlay.cache.layout import CacheRoot

__all__ = ["Removal", "gc", "rm", "unreferenced"]

# Seconds: what is so young may belong to a build that cannot be seen from here.
GRACE = 3600.0


@dataclass(frozen=True, slots=True)
class Removal:
    """What goes, or went.

    Attributes:
        unfinished: Abandoned staging folders and temporary files.
        frees: Bytes that the filesystem gets back.
        held_outside: Bytes among these files that it does not, because the inodes have names outside the cache.
        notes: What is kept although one might expect otherwise, and why.
    """

    locations: tuple[Path, ...]
    trees: tuple[Path, ...]
    actions: tuple[Path, ...]
    objects: tuple[Path, ...]
    unfinished: tuple[Path, ...]
    frees: int
    held_outside: int
    notes: tuple[str, ...]


def rm(root: CacheRoot, targets: Sequence[str], *, dry_run: bool = False) -> Removal:
    """Remove locations, the trees that nothing else points to, and the objects that only these trees use.

    Args:
        root: The cache root.
        targets: Locations, trees, models, or paths of the first two.
        dry_run: Only say what would go.

    Raises:
        NotHere: A target names nothing.
        CannotWrite: The filesystem refused.
    """
    found = [find(root, target) for target in targets]
    locations = frozenset[str]().union(*(names for _, names in found))
    meant = {tree.name: tree for trees, _ in found for tree in trees}
    doomed = [tree for tree in meant.values() if locations.issuperset(tree.locations)]
    remaining = [tree for tree in ls(root) if tree.name not in {tree.name for tree in doomed}]
    owned = {root.object(digest) for tree in doomed for digest in tree.digests}
    objects = [file for file in unreferenced(root, remaining) if file.path in owned]
    removal = _plan(root, [root.location(name) for name in locations], doomed, objects, [])
    return removal if dry_run else _carry_out(root, removal)


def gc(root: CacheRoot, *, max_size: int | None = None, max_age: float | None = None, dry_run: bool = False) -> Removal:
    """Collect abandoned staging, and objects and action entries that no tree needs; under a limit, trees too.

    Superseded trees go before those that a location points to, and in both the least recently used first. What is
    younger than an hour stays.

    Args:
        root: The cache root.
        max_size: Bytes that may stay, not counting files that the Hub's cache holds as well.
        max_age: Seconds; trees that were not used for longer go.
        dry_run: Only say what would go.

    Raises:
        CannotWrite: The filesystem refused.
    """
    now = time.time()
    trees = ls(root)
    unfinished = [*filter(is_abandoned, entries(root.staging)), *_strays(root, now)]
    occupied = Files(files_under(root.own)).frees()
    doomed: list[TreeInfo] = []
    young = 0
    for tree in sorted(trees, key=lambda tree: (bool(tree.locations), tree.last_used)):
        old = max_age is not None and now - tree.last_used > max_age
        big = max_size is not None and occupied - _frees(root, trees, doomed, unfinished) > max_size
        if not old and not big:
            continue
        if now - tree.created > GRACE:
            doomed.append(tree)
        else:
            young += 1
    unused = unreferenced(root, _without(trees, doomed))
    objects = [file for file in unused if now - file.changed > GRACE]
    notes = [f"kept: {counted(young, 'tree')} younger than an hour"] if young else []
    if len(objects) < len(unused):
        fresh = format_bytes(Files(unused).size() - Files(objects).size())
        notes.append(f"kept: {counted(len(unused) - len(objects), 'unused object')} younger than an hour ({fresh})")
    pointing = [name for tree in doomed for name in tree.locations]
    dangling = [name for name, target in locations_of(root).items() if target is None]
    removal = _plan(root, [root.location(name) for name in pointing + dangling], doomed, objects, unfinished, notes)
    if max_size is not None and (left := occupied - removal.frees) > max_size:
        over = f"{format_bytes(left)} stay, more than the limit of {format_bytes(max_size)}"
        removal = replace(removal, notes=(*removal.notes, over))
    return removal if dry_run else _carry_out(root, removal)


def _plan(
    root: CacheRoot,
    locations: Collection[Path],
    trees: Collection[TreeInfo],
    objects: Collection[FileInfo],
    unfinished: Collection[Path],
    notes: Collection[str] = (),
) -> Removal:
    notes = list(notes)
    if objects and not all(map(is_abandoned, entries(root.staging))):
        notes.append(f"kept: {counted(len(objects), 'unused object')}, because a build is running and may use them")
        objects = ()
    going = {file.path for file in objects}
    actions = [file for file in files_under(root.actions) if _is_idle(root, file.path, going)]
    gone = Files([*_files_of(trees, unfinished), *objects, *actions])
    outside = gone.held_outside(Files(files_under(root.own)))
    if outside:
        notes.append(
            f"{format_bytes(outside)} stay on the disk: the Hub's cache, or another folder, has the same inodes"
        )
    return Removal(
        locations=tuple(sorted(locations)),
        trees=tuple(tree.path for tree in trees),
        actions=tuple(file.path for file in actions),
        objects=tuple(file.path for file in objects),
        unfinished=tuple(unfinished),
        frees=gone.frees(),
        held_outside=outside,
        notes=tuple(notes),
    )


def _carry_out(root: CacheRoot, removal: Removal) -> Removal:
    with writing(root, "unlink what nobody needs"):
        for path in removal.locations:
            path.unlink(missing_ok=True)
        if removal.trees:
            with staging(root) as aside:
                for path in removal.trees:
                    with suppress(FileNotFoundError):
                        path.rename(aside / path.name)
        for path in (*removal.actions, *removal.objects):
            path.unlink(missing_ok=True)
        for path in removal.unfinished:
            with suppress(FileNotFoundError):  # another collector was faster
                shutil.rmtree(path) if path.is_dir() else path.unlink()
    return removal


def _frees(
    root: CacheRoot, trees: Collection[TreeInfo], doomed: Collection[TreeInfo], unfinished: Collection[Path]
) -> int:
    """Bytes that come free with these trees and all that only they need, be it now or when it is old enough."""
    return Files([*_files_of(doomed, unfinished), *unreferenced(root, _without(trees, doomed))]).frees()


def _files_of(trees: Collection[TreeInfo], folders: Collection[Path]) -> list[FileInfo]:
    return [*chain.from_iterable(tree.files for tree in trees), *chain.from_iterable(map(files_under, folders))]


def _without(trees: Collection[TreeInfo], doomed: Collection[TreeInfo]) -> list[TreeInfo]:
    return [tree for tree in trees if tree not in doomed]


def unreferenced(root: CacheRoot, trees: Collection[TreeInfo]) -> list[FileInfo]:
    """Objects that none of the trees names in its record or shares an inode with."""
    named = {root.object(digest) for tree in trees for digest in tree.digests}
    inodes = {file.inode for tree in trees for file in tree.files}
    return [file for file in files_under(root.objects) if file.path not in named and file.inode not in inodes]


def _is_idle(root: CacheRoot, path: Path, going: Collection[Path]) -> bool:
    """Whether an action entry leads to no object that stays. Temporary files of writers are not entries."""
    if path.name.startswith("."):
        return False
    try:
        entry = read_entry(path.read_bytes(), path.stem)
    except OSError:
        return False
    if entry is None:
        return True
    target = root.object(entry["digest"])
    return target in going or not target.exists()


def _strays(root: CacheRoot, now: float) -> list[Path]:
    """Temporary files that a killed writer left beside the file it meant to replace."""
    folders = (root.own, root.locks, root.digests, *entries(root.actions))
    hidden = (path for folder in folders for path in entries(folder) if path.name.startswith("."))
    return [path for path in hidden if path.suffix == ".tmp" and now - _changed(path) > GRACE]


def _changed(path: Path) -> float:
    try:
        return path.lstat().st_mtime
    except OSError:
        return time.time()
