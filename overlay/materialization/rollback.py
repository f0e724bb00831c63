"""Rolling back: a model's location led to the generation that was before, whole and in one step, and forward again."""

from __future__ import annotations

import shlex
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from overlay.cache.generations import RolledBack, found_current, generations, note_rollback, rolled_back
from overlay.cache.leases import hold
from overlay.cache.listing import ls
from overlay.cache.trees import check_location, point_location, swing_location
from overlay.errors import BrokenInput, InvalidUsage, NotHere, TryAgain
from overlay.materialization.record import read_record
from overlay.materialization.request import DEFAULTS, Options, open_cache
from overlay.materialization.resolve import build_words, location_at_hand, resolve
from overlay.materialization.state import known_location
from overlay.materialization.verify import quick_problems

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from overlay.cache import Cache
    from overlay.cache.listing import TreeInfo
    from overlay.materialization.state import State

__all__ = ["Rollback", "hit_notes", "rollback", "rollback_notes"]


@dataclass(frozen=True, slots=True)
class Rollback:
    """Where a location leads, or would lead.

    Attributes:
        came_from: The materialization that it led to.
        to: The one that it leads to.
        is_undo: Whether it leads to what it was rolled back from at first, so that nothing is rolled back any more.
    """

    model: str
    location: Path
    came_from: TreeInfo
    to: TreeInfo
    is_undo: bool


def rollback(
    model: str,
    options: Options = DEFAULTS,
    *,
    to: str | None = None,
    undo: bool = False,
    dry_run: bool = False,
    on_wait: Callable[[str], None] | None = None,
) -> Rollback:
    """Lead a model's location to the generation before the one that it leads to, and note that a user wanted that.

    A second rollback goes further back. The note makes :func:`materialize` and :func:`lease` take the model as it is,
    until the way back is undone or the registry pins something else than what was rolled back.

    Args:
        to: Name of the tree to lead it to, instead of the one before.
        undo: Lead it to what it was rolled back from at first.
        dry_run: Only look.
        on_wait: Called with who holds the lock while another process builds this model.

    Raises:
        NotHere: There is nothing to roll back, or no generation before, or no such tree.
        InvalidUsage: Both ``to`` and ``undo``.
        BrokenInput: The tree is not whole.
        TryAgain: A build holds the lock, or the tree was removed meanwhile.
        CannotWrite: The filesystem refused.
    """
    if to is not None and undo:
        raise InvalidUsage("--to and --undo exclude each other", code="option-conflict", hint="leave one of them away")
    found = resolve(model, options)
    cache, state, entry = open_cache(options, create=False), found.state, found.resolution.entry
    is_certain = state.is_in_force or (location_at_hand(found.resolution, options) or known_location(entry)) is not None
    if state.location is None or state.tree is None or not is_certain:
        raise NotHere(
            f"{model}: not here as the registry pins it, so there is nothing to roll back",
            code="no-previous",
            hint=shlex.join(["overlay", *build_words(model, found, options)]),
            model=model,
        )
    location = state.location.name
    check_location(cache.root, location)
    if dry_run:
        return _chosen(cache, entry.model, location, to=to, undo=undo)
    with cache.lock(location, timeout=options.lock_timeout, on_wait=on_wait):
        chosen = _chosen(cache, entry.model, location, to=to, undo=undo)
        with hold(cache.root, chosen.to.name):  # what is found whole now stays until the location leads to it
            _require_whole(chosen.to)
            if chosen.is_undo:
                swing_location(cache.root, location, chosen.to.name)
            elif chosen.to.name != chosen.came_from.name:
                note = _note(cache, location, chosen)
                note_rollback(cache.root, location, note)
                point_location(cache.root, location, chosen.to.name)
                if rolled_back(cache.root, location, chosen.to.name) is None:  # a build without locks took it back
                    note_rollback(cache.root, location, note)
        if not chosen.to.path.is_dir():
            raise _removed(chosen.to)
    return chosen


def rollback_notes(state: State | None) -> tuple[str, ...]:
    """What is said of a model that is left as it is because a user rolled it back."""
    if state is None or state.rolled_back_from is None:
        return ()
    return (f"{state.why}; it stays so until overlay rollback --undo",)


def hit_notes(state: State, options: Options) -> tuple[str, ...]:
    """The same after a run, which notes that it found the tree in its place."""
    if state.tree is not None and state.name == "present":
        found_current(open_cache(options, create=False).root, state.tree.name)
    return rollback_notes(state)


def _chosen(cache: Cache, model: str, location: str, *, to: str | None, undo: bool) -> Rollback:
    """From where to where, as things are now."""
    groups = generations(ls(cache.root)).get(model, [])
    trees = {tree.name: tree for group in groups for tree in group}
    target = cache.location_target(location)
    now = trees.get(target.name) if target is not None else None
    if now is None:
        raise NotHere(
            f"{cache.location_path(location)}: leads to no readable materialization of {model}, so none is before it",
            code="no-previous",
            hint="overlay cache ls",
            model=model,
        )
    before = rolled_back(cache.root, location, now.name)
    if undo:
        wanted = _undone(model, before)
    elif to is not None:
        wanted = to
    else:
        wanted = _previous(model, now, groups, is_rolled_back=before is not None)
    if wanted not in trees:
        raise NotHere(
            f"{cache.root.path}: holds no materialization of {model} named {wanted}",
            code="not-in-cache",
            hint=f"overlay prewarm {shlex.quote(model)}" if undo else "overlay cache ls",
            target=wanted,
        )
    _require_whole(trees[wanted])
    is_undo = before is not None and wanted == before.came_from
    return Rollback(model, cache.location_path(location), now, trees[wanted], is_undo)


def _undone(model: str, before: RolledBack | None) -> str:
    if before is None:
        raise NotHere(
            f"{model}: is not rolled back", code="not-rolled-back", hint=f"overlay resolve {model}", model=model
        )
    return before.came_from


def _previous(model: str, now: TreeInfo, groups: Sequence[tuple[TreeInfo, ...]], *, is_rolled_back: bool) -> str:
    """The newest tree of the generation before this one; for which consumer it was made does not matter."""
    here = next(number for number, group in enumerate(groups) if now in group)
    if here + 1 == len(groups):
        forward = f", or go forward: overlay rollback {shlex.quote(model)} --undo" if is_rolled_back else ""
        raise NotHere(
            f"{model}: no generation before {now.name} is in the cache",
            code="no-previous",
            hint=f"pin the older revisions in the registry and build them (overlay prewarm){forward}",
            model=model,
            tree=now.name,
        )
    return groups[here + 1][0].name


def _note(cache: Cache, location: str, chosen: Rollback) -> RolledBack:
    before = rolled_back(cache.root, location, chosen.came_from.name)
    if before is None:
        return RolledBack(chosen.came_from.name, (chosen.to.name,), time.time())
    trees = [name for name in before.trees if name != chosen.to.name]
    return RolledBack(before.came_from, (*trees, chosen.to.name), time.time())


def _require_whole(tree: TreeInfo) -> None:
    """Names and sizes, as before a model is taken for present."""
    if not tree.path.is_dir():
        raise _removed(tree)
    record = read_record(tree.path)
    problems = quick_problems(tree.path, record) if record else []
    if record is None or problems:
        what = f"{problems[0].path}: {problems[0].what}" if problems else "has no record"
        raise BrokenInput(
            f"{tree.path}: {what}, so no location is led there",
            code="tree-damaged",
            hint="name another one with --to (overlay cache ls)",
            path=str(tree.path),
        )


def _removed(tree: TreeInfo) -> TryAgain:
    return TryAgain(
        f"{tree.path}: was removed while this ran",
        code="tree-removed",
        hint="another process removes from this cache (overlay cache rm, gc); run the same command again",
        path=str(tree.path),
    )
