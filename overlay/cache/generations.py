"""Which materializations of a model were current, in which order, and which location a user rolled back.

A tree becomes current when a build, a pull or an adoption makes a location lead to it, and again when a run finds it
there after another one was current. When that was last is the time of an empty file of the tree's name: no two writers
can spoil it, and where it is missing the tree's own time counts. A rollback makes nothing current, so what is before
what stays as it was, and a second one goes further back.

A rollback is noted in a file of the location's name, which counts as long as the location leads where a rollback led
it. It is written before the link is swung and goes after the link was swung elsewhere: a kill in between leaves a note
that does not count.
"""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any, Literal

from overlay.cache.disk import entries, make_folder, share_with_group, write_atomically
from overlay.errors import OverlayError
from overlay.formats.local import read_small_file

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from overlay.cache.layout import CacheRoot
    from overlay.cache.listing import TreeInfo

__all__ = [
    "RolledBack",
    "Standing",
    "became_current",
    "for_rollback",
    "forget_current",
    "forget_rollback",
    "found_current",
    "generations",
    "note_rollback",
    "rolled_back",
    "standings",
    "without_subject",
]

_LATEST = 1e11  # seconds: what is later can be no time, and is not printed as one
Standing = Literal["current", "previous", "older", "rolled-back"]


@dataclass(frozen=True, slots=True)
class RolledBack:
    """That a location was rolled back.

    Attributes:
        came_from: Name of the tree that it led to at first.
        trees: Names of those that it was rolled back to since, the last one last.
        when: Of the last rollback, in seconds since the epoch.
    """

    came_from: str
    trees: tuple[str, ...]
    when: float


def became_current(root: CacheRoot, tree: str) -> None:
    """Note that a location leads to a tree from now on; where that cannot be written, nothing is."""
    note = root.current / tree
    with suppress(OSError, OverlayError):
        make_folder(note.parent, root, durable=False)
        note.touch()
        share_with_group(note, root)


def found_current(root: CacheRoot, tree: str) -> None:
    """Note that a run found a tree in its place, if another one of its model became current since."""
    label = tree.rpartition("-")[0]
    notes = [note for note in entries(root.current) if note.name.rpartition("-")[0] == label]
    if max(notes, key=_changed, default=None) != root.current / tree:
        became_current(root, tree)


def forget_current(root: CacheRoot, tree: str) -> None:
    """Take the note on a tree back, because the tree is gone. Never fails."""
    with suppress(OSError):
        (root.current / tree).unlink()


def generations(trees: Iterable[TreeInfo]) -> dict[str, list[tuple[TreeInfo, ...]]]:
    """Generations of each model, the one that became current last first; trees for several consumers are one.

    What is in quarantine was never current, and of a tree whose record cannot be read nothing is known.
    """
    found: dict[str, dict[str, list[TreeInfo]]] = {}
    for tree in sorted(trees, key=lambda tree: (-tree.current_since, tree.name)):
        if tree.model is not None and not tree.in_quarantine:
            found.setdefault(tree.model, {}).setdefault(tree.generation, []).append(tree)
    return {model: [tuple(group) for group in groups.values()] for model, groups in found.items()}


def standings(root: CacheRoot, trees: Iterable[TreeInfo]) -> dict[Path, Standing]:
    """What each tree is to its model, by its path; nothing of those that were never current."""
    found: dict[Path, Standing] = {}
    for groups in generations(trees).values():
        now = _in_force(root, groups)
        for number, group in enumerate(groups):
            standing: Standing = "rolled-back" if number < now else "older"
            if now <= number <= now + 1:
                standing = "current" if number == now else "previous"
            found.update((tree.path, standing) for tree in group)
    return found


def _in_force(root: CacheRoot, groups: Sequence[Sequence[TreeInfo]]) -> int:
    """Number of the generation that a consumer gets: the last one, or one that it was rolled back to."""
    last = {tree.name for tree in groups[0]}
    for number, group in enumerate(groups):
        backs = [rolled_back(root, location, tree.name) for tree in group for location in tree.locations]
        if any(back is not None and back.came_from in last for back in backs):
            return number
    return 0


def for_rollback(root: CacheRoot, trees: Iterable[TreeInfo], count: int) -> frozenset[str]:
    """Names of the trees that a rollback may need: the last generations of each model, and both ends of one in force.

    Args:
        count: Of the last generations.
    """
    trees = tuple(trees)
    last = chain.from_iterable(chain(*groups[:count]) for groups in generations(trees).values())
    names = {tree.name for tree in last}
    for tree in trees:
        for location in tree.locations:
            if count and (found := rolled_back(root, location, tree.name)):
                names |= {tree.name, found.came_from}
    return frozenset(names)


def note_rollback(root: CacheRoot, location: str, found: RolledBack) -> None:
    """Note a rollback that is about to be made.

    Raises:
        CannotWrite: The filesystem refused.
    """
    document = {"came_from": found.came_from, "trees": found.trees, "when": found.when}
    write_atomically(_note(root, location), json.dumps(document, sort_keys=True).encode(), root, durable=True)


def rolled_back(root: CacheRoot, location: str, tree: str) -> RolledBack | None:
    """The rollback by which a location leads to a tree; None where there was none, or its note cannot be read."""
    try:
        document: Any = json.loads(read_small_file(_note(root, location)))
        found = RolledBack(str(document["came_from"]), tuple(map(str, document["trees"])), float(document["when"]))
    except (OSError, ValueError, TypeError, KeyError, OverflowError, RecursionError):
        return None
    return found if tree in found.trees and 0 <= found.when < _LATEST else None


def forget_rollback(root: CacheRoot, location: str) -> None:
    """Take the note back, because the location leads elsewhere for another reason. Never fails."""
    with suppress(OSError):
        _note(root, location).unlink()


def without_subject(root: CacheRoot) -> list[Path]:
    """Notes on trees that are gone, and on locations that are."""
    of_trees = [note for note in entries(root.current) if not (root.trees / note.name).exists()]
    notes = [note for note in entries(root.rolled_back) if not note.name.startswith(".")]
    return of_trees + [note for note in notes if not (root.locations / note.stem).is_symlink()]


def _note(root: CacheRoot, location: str) -> Path:
    return root.rolled_back / f"{location}.json"


def _changed(path: Path) -> int:
    try:
        return path.lstat().st_mtime_ns
    except OSError:
        return 0
