"""Removing: what a user names, and what nobody needs.

A plan is made first and then carried out, so a dry run lists what a run does. Where somebody began to use what was to
go, the plan is made anew.
"""

from __future__ import annotations

import shlex
import time
from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING, Literal

from overlay.cache.actions import read_entry
from overlay.cache.disk import entries, last_written
from overlay.cache.generations import for_rollback, without_subject
from overlay.cache.incoming import abandoned
from overlay.cache.leases import ended_leases
from overlay.cache.listing import FileInfo, Files, TreeInfo, files_under, find, locations_of, ls
from overlay.cache.presence import builds_run, left_by_collectors
from overlay.cache.readers import find_readers
from overlay.cache.removal import Kept, Removal, carry_out
from overlay.cache.staging import is_abandoned
from overlay.cache.verified import without_tree
from overlay.errors import BrokenInput, CannotWrite, TryAgain
from overlay.formats.local import read_small_file
from overlay.formats.wording import format_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence
    from pathlib import Path

    from overlay.cache.layout import CacheRoot
    from overlay.cache.readers import Readers

__all__ = ["gc", "plan_rm", "rm", "unreferenced"]

# Seconds: what is so young may belong to a build that cannot be seen from here.
GRACE = 3600.0
# Of each model, so that one can go back from a generation that turns out to be bad.
LAST_GENERATIONS = 2
_ATTEMPTS = 9

_Reason = Literal["leased", "pinned", "rollback", "registry", "open", "young"]


def rm(root: CacheRoot, targets: Sequence[str], *, leased: bool = False, dry_run: bool = False) -> Removal:
    """Remove locations, the trees that nothing else points to, and the objects that only these trees use.

    Args:
        root: The cache root.
        targets: Locations, trees, models, or paths of the first two.
        leased: Also what readers hold leases on, or have open: its files vanish from under them.
        dry_run: Only say what would go.

    Raises:
        NotHere: A target names nothing.
        CannotWrite: A tree is pinned, or the filesystem refused.
        TryAgain: A reader holds a lease on a tree, or has files of it open.
    """

    def plan() -> Removal:
        removal, doomed = _plan_rm(root, targets)
        for tree in doomed:
            _require_free(tree, leased=leased)
        return removal if leased else _require_closed(removal, doomed)

    return plan() if dry_run else _carry_out(root, plan, leased=leased)


def plan_rm(root: CacheRoot, targets: Sequence[str]) -> Removal:
    """What :func:`rm` would remove, were nothing leased or pinned.

    Raises:
        NotHere: A target names nothing.
    """
    return _plan_rm(root, targets)[0]


def _plan_rm(root: CacheRoot, targets: Sequence[str]) -> tuple[Removal, list[TreeInfo]]:
    found = [find(root, target) for target in targets]
    locations = frozenset[str]().union(*(names for _, names in found))
    meant = {tree.path: tree for trees, _ in found for tree in trees}
    doomed = [tree for tree in meant.values() if locations.issuperset(tree.locations)]
    remaining = [tree for tree in ls(root) if tree.path not in {tree.path for tree in doomed}]
    owned = {root.object(digest) for tree in doomed for digest in tree.digests}
    objects = [file for file in unreferenced(root, remaining) if file.path in owned]
    return _plan(root, [root.location(name) for name in locations], doomed, objects), doomed


def _require_free(tree: TreeInfo, *, leased: bool) -> None:
    if tree.pin is not None:
        by = f" by {tree.pin.by}" if tree.pin.by else ""
        reason = f" ({tree.pin.reason})" if tree.pin.reason else ""
        raise CannotWrite(
            f"{tree.path}: pinned{by}{reason}",
            code="tree-pinned",
            hint=f"overlay cache unpin {tree.name}",
            path=str(tree.path),
            by=tree.pin.by,
            reason=tree.pin.reason,
        )
    if tree.leases and not leased:
        first = tree.leases[0]
        ends = "stop that reader" if first.until is None else f"end that lease with rm {shlex.quote(str(first.file))}"
        more = f" and {len(tree.leases) - 1} more" if len(tree.leases) > 1 else ""
        raise TryAgain(
            f"{tree.path}: in use by {first.describe()}{more}",
            code="tree-leased",
            hint=f"{ends}, or take its files from under it with --leased",
            path=str(tree.path),
            leases=[str(lease.file) for lease in tree.leases],
        )


def _require_closed(removal: Removal, doomed: Collection[TreeInfo]) -> Removal:
    """Refuse what processes have open; with a note where it cannot be told of all of them."""
    if not doomed:
        return removal
    readers = find_readers(doomed)
    if readers.of:
        path, found = next(iter(readers.of.items()))
        raise TryAgain(
            f"{path}: open in {', '.join(map(str, found))}, without a lease",
            code="tree-open",
            hint="stop that process, or take its files from under it with --leased",
            path=str(path),
            pids=[reader.pid for reader in found],
        )
    return replace(removal, notes=(*removal.notes, readers.note)) if readers.note else removal


def gc(
    root: CacheRoot,
    *,
    max_size: int | None = None,
    max_age: float | None = None,
    wanted: Callable[[], Collection[str]] = frozenset,
    dry_run: bool = False,
) -> Removal:
    """Collect abandoned staging, and objects and action entries that no tree needs; under a limit, trees too.

    Trees in quarantine go first, then superseded ones, then those that a location points to, and of each kind the least
    recently used first. In spite of them stays what readers hold leases on or have open, what a user pinned, the last
    two generations of each model, what a registry wants, and what is younger than an hour.

    Args:
        root: The cache root.
        max_size: Bytes that may stay, not counting files that the Hub's cache holds as well.
        max_age: Seconds; trees that were not used for longer go.
        wanted: Gives the names of the trees that a registry wants. Asked only under a limit.
        dry_run: Only say what would go.

    Raises:
        CannotWrite: The filesystem refused.
        TryAgain: Others kept beginning to use what was to go.
    """

    def plan() -> Removal:
        return _plan_gc(root, max_size, max_age, wanted)

    return plan() if dry_run else _carry_out(root, plan)


def _plan_gc(
    root: CacheRoot, max_size: int | None, max_age: float | None, wanted: Callable[[], Collection[str]]
) -> Removal:
    now = time.time()
    trees = ls(root)
    needed = wanted() if max_size is not None or max_age is not None else ()
    unfinished = [
        *filter(is_abandoned, entries(root.staging)),
        *left_by_collectors(root),
        *abandoned(root),
        *_strays(root, now),
    ]
    last = for_rollback(root, trees, LAST_GENERATIONS)
    readers: Readers | None = None
    occupied = Files(files_under(root.own)).frees()
    doomed: list[TreeInfo] = []
    spared: dict[_Reason, list[TreeInfo]] = {}
    for tree in sorted(trees, key=lambda tree: (not tree.in_quarantine, bool(tree.locations), tree.last_used)):
        old = max_age is not None and now - tree.last_used > max_age
        big = max_size is not None and occupied - _frees(root, trees, doomed, unfinished) > max_size
        if not old and not big:
            continue
        reason = _reason_to_stay(tree, last, needed, now)
        if reason is None:
            readers = readers or find_readers(trees)  # once, and only where something is about to go
            reason = "open" if tree.path in readers.of else None
        if reason:
            spared.setdefault(reason, []).append(tree)
        else:
            doomed.append(tree)
    kept = [_kept("tree", why, found) for why, found in spared.items()]
    unused = unreferenced(root, _without(trees, doomed))
    objects = [file for file in unused if now - file.changed > GRACE]
    if young := [file for file in unused if now - file.changed <= GRACE]:
        kept.append(Kept("object", "young", len(young), (), Files(young).size()))
    pointing = [name for tree in doomed for name in tree.locations]
    dangling = [name for name, target in locations_of(root).items() if target is None]
    locations = [root.location(name) for name in pointing + dangling]
    removal = replace(_plan(root, locations, doomed, objects, unfinished, kept), ended=tuple(ended_leases(root)))
    if readers is not None:
        held = [
            f"{tree.name} is open in {', '.join(map(str, readers.of[tree.path]))}" for tree in spared.get("open", ())
        ]
        removal = replace(removal, notes=(*removal.notes, *held, *filter(None, [readers.note])))
    if max_size is not None and (left := occupied - removal.frees) > max_size:
        over = f"{format_bytes(left)} stay, more than the limit of {format_bytes(max_size)}"
        removal = replace(removal, notes=(*removal.notes, over))
    return removal


def _reason_to_stay(tree: TreeInfo, last: Collection[str], wanted: Collection[str], now: float) -> _Reason | None:
    if tree.leases:
        return "leased"
    if tree.pin is not None:
        return "pinned"
    if not tree.in_quarantine and tree.name in wanted:
        return "registry"
    if not tree.in_quarantine and tree.name in last:
        return "rollback"
    return "young" if now - tree.created <= GRACE else None


def _kept(what: Literal["tree"], why: _Reason, trees: Collection[TreeInfo]) -> Kept:
    size = Files(chain.from_iterable(tree.files for tree in trees)).size()
    return Kept(what, why, len(trees), tuple(tree.name for tree in trees), size)


def _carry_out(root: CacheRoot, plan: Callable[[], Removal], *, leased: bool = False) -> Removal:
    for _ in range(_ATTEMPTS):
        removal = plan()
        if carry_out(root, removal, leased=leased):
            return removal
    raise TryAgain(
        f"{root.path}: others kept beginning to use what was to go",
        code="cache-busy",
        hint="run the same command again",
        path=str(root.path),
    )


def _plan(
    root: CacheRoot,
    locations: Collection[Path],
    trees: Collection[TreeInfo],
    objects: Collection[FileInfo],
    unfinished: Collection[Path] = (),
    kept: Collection[Kept] = (),
) -> Removal:
    notes: list[str] = []
    if objects and builds_run(root):
        kept = [*kept, Kept("object", "build", len(objects), (), Files(objects).size())]
        objects = ()
    going = {file.path for file in objects}
    actions = [file for file in files_under(root.actions) if _is_idle(root, file.path, going)]
    gone = Files([*_files_of(trees, unfinished), *objects, *actions])
    outside = gone.held_outside(Files(files_under(root.own)))
    if outside:
        notes.append(
            f"{format_bytes(outside)} stay on the disk: the Hub's cache, or another folder, has the same inodes"
        )
    locations = sorted(locations)
    leading = locations_of(root)
    return Removal(
        locations=tuple(locations),
        targets=tuple(leading.get(location.name) for location in locations),
        trees=tuple(tree.path for tree in trees),
        actions=tuple(file.path for file in actions),
        objects=tuple(file.path for file in objects),
        unfinished=tuple(unfinished),
        ended=(),
        frees=gone.frees(),
        held_outside=outside,
        kept=tuple(kept),
        notes=tuple(notes),
    )


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
        entry = read_entry(read_small_file(path), path.stem)
    except BrokenInput:
        return True
    except OSError:
        return False
    if entry is None:
        return True
    target = root.object(entry["digest"])
    return target in going or not target.exists()


def _strays(root: CacheRoot, now: float) -> list[Path]:
    """Temporary files that a killed writer left beside the file it meant to replace; notes on what is gone."""
    plain = (root.own, root.locks, root.digests, root.pins, root.rolled_back)
    folders = (*plain, *entries(root.leases), *entries(root.actions))
    hidden = (path for folder in folders for path in entries(folder) if path.name.startswith("."))
    left = [path for path in hidden if path.suffix == ".tmp" and now - last_written(path) > GRACE]
    return left + without_tree(root) + without_subject(root)
