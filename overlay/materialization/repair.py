"""Repairing a cache: read everything, throw out what is not what its name says, build only that again."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from overlay.cache.listing import find, ls
from overlay.errors import BrokenInput, InvalidUsage, NotHere, OverlayError
from overlay.fingerprint import file_digest
from overlay.materialization.content import Problem
from overlay.materialization.materialize import materialize
from overlay.materialization.record import read_record
from overlay.materialization.request import DEFAULTS, Options, open_cache, silent
from overlay.materialization.resolve import resolve
from overlay.materialization.verify import verify
from overlay.registry import LOCAL

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from overlay.cache import Cache
    from overlay.cache.listing import TreeInfo
    from overlay.materialization.record import Record, RecordedFile
    from overlay.materialization.request import Phase

    _Build = Callable[[str, Options], Path | None]

__all__ = ["Repaired", "repair"]


@dataclass(frozen=True, slots=True)
class Repaired:
    """One materialization that was looked at.

    Attributes:
        problems: What was wrong with it.
        result: ``sound``: nothing was. ``rebuilt``: its model is whole again under today's pins. ``removed``: it was
            taken out, and nothing points to it any more: a superseded generation, one whose location is not where the
            registry in force puts the model, a model of no registry, or one made of a local folder, which only whoever
            has that folder can make again.
        path: The tree in its place; None where it was removed.
    """

    name: str
    model: str | None
    problems: tuple[Problem, ...]
    result: Literal["sound", "rebuilt", "removed"]
    path: Path | None


def repair(
    targets: Sequence[str] = (),
    options: Options = DEFAULTS,
    *,
    dry_run: bool = False,
    phase: Phase = silent,
    on_wait: Callable[[str], None] | None = None,
) -> tuple[Repaired, ...]:
    """Verify materializations in full, and replace those that do not verify.

    A server that has a damaged tree open keeps what it has open: the tree is moved aside, never written into.

    Args:
        targets: Models, trees or locations; none for all that the cache holds.
        dry_run: Only look.
        on_wait: As for :func:`materialize`.

    Raises:
        NotHere: A target is not in the cache.
        OverlayError: As :func:`materialize`; what was damaged is gone then, what was sound is not.
    """
    cache = open_cache(options, create=False)
    names = [tree.name for target in targets for tree in find(cache.root, target)[0]]
    trees = [tree for tree in ls(cache.root) if not tree.in_quarantine and (not targets or tree.name in names)]
    looked = [(tree, _problems(cache.tree_path(tree.name), options, phase, dry_run=dry_run)) for tree in trees]
    damaged = [(tree, problems) for tree, problems in looked if problems]
    records = {tree.name: _record(cache.tree_path(tree.name)) for tree, _ in damaged}
    if not dry_run:
        for tree, problems in damaged:
            _drop(cache, tree, records[tree.name], problems)

    def build(model: str, options: Options) -> Path | None:
        return materialize(model, options, phase=phase, on_wait=on_wait).path

    done = {tree.name: _again(cache, tree, records[tree.name], options, build, dry_run=dry_run) for tree, _ in damaged}
    return tuple(
        Repaired(tree.name, tree.model, problems, *done.get(tree.name, ("sound", cache.tree_path(tree.name))))
        for tree, problems in looked
    )


def _problems(tree: Path, options: Options, phase: Phase, *, dry_run: bool) -> tuple[Problem, ...]:
    try:
        return verify(tree, "full", jobs=options.jobs, phase=phase, remember=not dry_run).problems
    except (BrokenInput, NotHere) as error:
        return (Problem("", "unreadable", str(error)),)


def _record(tree: Path) -> Record | None:
    try:
        return read_record(tree)
    except BrokenInput:
        return None


def _drop(cache: Cache, tree: TreeInfo, record: Record | None, problems: Sequence[Problem]) -> None:
    """Throw out the damaged objects behind a tree, and the tree."""
    files = {item.path: item for item in record.outputs} if record else {}
    for problem in problems:
        file = files.get(problem.path)
        if file is not None and not _is_sound_object(cache.object_path(file.digest), file):
            cache.drop_object(file.digest)
    cache.move_aside(tree.name)


def _is_sound_object(path: Path, file: RecordedFile) -> bool:
    try:
        return file_digest(path, file.algorithm) == file.digest
    except OverlayError:
        return False


def _again(
    cache: Cache, tree: TreeInfo, record: Record | None, options: Options, build: _Build, *, dry_run: bool
) -> tuple[Literal["rebuilt", "removed"], Path | None]:
    """Build a damaged tree's model again by the rule that it was built by, if it had a location and a pinned source."""
    result: tuple[Literal["rebuilt", "removed"], Path | None] = ("removed", None)
    from_folder = record is not None and any(repo.revision == LOCAL for repo in record.repos)
    if tree.model is not None and not from_folder:
        by_rule = replace(options, rule=record.rule) if record is not None and record.rule else options
        # Without the model in a registry, it cannot be built again.
        with suppress(InvalidUsage):
            if _is_where_it_belongs(tree, tree.model, by_rule):
                result = "rebuilt", None if dry_run else build(tree.model, by_rule)
    if not dry_run:
        for location in tree.locations:
            if cache.location_target(location) is None:
                cache.drop_location(location)
    return result


def _is_where_it_belongs(tree: TreeInfo, model: str, options: Options) -> bool:
    """Whether a build of the model today comes to a location of this tree; it would not replace another generation."""
    location = resolve(model, options).state.location
    return bool(tree.locations) and (location is None or location.name in tree.locations)
