"""Serving by path: the source taken out of the Hub's cache once the tree that was built of it stands by itself."""

from __future__ import annotations

import shlex
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from overlay.cache.presence import builds_run, collecting
from overlay.errors import BrokenInput, InvalidUsage, NotHere, TryAgain
from overlay.materialization.record import read_record
from overlay.materialization.request import DEFAULTS, Options, open_cache
from overlay.materialization.resolve import build_words, resolve
from overlay.materialization.verify import quick_problems

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    from overlay.cache.layout import CacheRoot
    from overlay.hub.dropping import Drop
    from overlay.materialization.resolve import Resolved
    from overlay.registry import Entry

__all__ = ["Dropped", "drop_source", "plan_drop", "require_source_of_hub"]


@dataclass(frozen=True, slots=True)
class Dropped:
    """What is no more in the Hub's cache.

    Attributes:
        commits: ``org/name@commit`` of the source and of the needs, as far as they were there.
        removed: Bytes of the files that lost their name there.
        freed: Those of them that the disk got back; the others have another name, mostly in the cache itself.
        notes: Sentences about what earlier drops left there.
    """

    commits: tuple[str, ...]
    removed: int
    freed: int
    notes: tuple[str, ...] = ()


def plan_drop(model: str, options: Options = DEFAULTS) -> Dropped:
    """What :func:`drop_source` would take out of what is in the Hub's cache now, whether the model is built or not.

    Raises:
        OverlayError: As :func:`drop_source`, but that the model is not here.
    """
    from overlay.hub.dropping import look  # the network stack, only where something is dropped

    found = require_source_of_hub(model, options)
    pins = _pins(found.resolution.entry, found.state.tree if found.state.name == "present" else None)
    return _result(look(_commits(pins), open_cache(options, create=False).root.locations))


def drop_source(model: str, options: Options = DEFAULTS, *, on_wait: Callable[[str], None] | None = None) -> Dropped:
    """Take the source and the needs of a model that is here out of the Hub's cache, at the commits it was built of.

    The overlay's small files stay, and so does whatever else is there. What anybody begins to use meanwhile is put
    back. No build of this cache root is robbed; those of other roots on the same Hub cache are not seen.

    Raises:
        NotHere: The model is not here, or not whole.
        InvalidUsage: A folder takes the place of the source.
        TryAgain: A build or another drop is at work, or somebody downloads one of the repos.
        BrokenInput: The Hub's cache is not what its client makes, or something that stays needs what would go.
        CannotWrite: The system refuses.
    """
    from overlay.hub.dropping import drop

    found = require_source_of_hub(model, options)
    state, cache = found.state, open_cache(options, create=False)
    if state.name != "present" or state.tree is None or state.location is None:
        raise NotHere(
            f"{model}: {state.name}{f': {state.why}' if state.why else ''}; its source is still needed",
            code=f"model-{state.name}",
            hint=shlex.join(["overlay", *build_words(model, found, options)]),
            model=model,
        )
    with cache.lock(state.location.name, timeout=options.lock_timeout, on_wait=on_wait):
        dropped = drop(
            _commits(_pins(found.resolution.entry, state.tree)),
            cache.root.locations,
            _turn(cache.root),
            timeout=options.lock_timeout,
            on_wait=on_wait,
        )
    _require_intact(state.tree)
    return _result(dropped)


def require_source_of_hub(model: str, options: Options) -> Resolved:
    """What the model stands for, if its source comes from the Hub's cache; to be asked before a build, too.

    Raises:
        InvalidUsage: A folder takes its place (``option-conflict``), or the model is unknown.
    """
    found = resolve(model, options)
    folder = options.hub or found.resolution.source_folder
    if folder is not None:
        raise InvalidUsage(
            f"{folder}: the source is taken from this folder, so there is none to drop from the Hub's cache",
            code="option-conflict",
            hint="leave --hub away (unset OVERLAY_HUB), and name the model, not a folder",
            where=str(folder),
        )
    return found


def _pins(entry: Entry, tree: Path | None) -> Iterable[tuple[str, str | None]]:
    """Repos and commits beside the overlay: as the tree was built, else as pinned."""
    record = read_record(tree) if tree is not None else None
    if record is not None:
        overlay = entry.overlay.repo if entry.overlay else None
        return [(repo.repo, repo.revision) for repo in record.repos if repo.repo != overlay]
    return [(pin.repo, pin.revision) for pin in (entry.source, *(need.pin for need in entry.needs))]


def _commits(pins: Iterable[tuple[str, str | None]]) -> dict[str, set[str]]:
    from overlay.registry import COMMIT

    commits: dict[str, set[str]] = {}
    for repo, revision in pins:
        if revision is not None and COMMIT.fullmatch(revision):  # a folder has none
            commits.setdefault(repo, set()).add(revision)
    return commits


@contextmanager
def _turn(root: CacheRoot) -> Iterator[Callable[[], None]]:
    """A build that starts now waits, and then sees what is gone; where one is at work already, nothing goes."""
    with collecting(root) as step:
        if builds_run(root):
            raise TryAgain(
                f"{root.path}: another process builds, perhaps from the same source",
                code="build-at-work",
                hint="run the same command again when it is done",
                where=str(root.path),
            )
        yield step


def _result(drop: Drop) -> Dropped:
    notes = (
        f"{folder}: left by an earlier drop; it could be neither put back nor removed: ls -ld {folder}"
        for folder in drop.left
    )
    return Dropped(drop.commits, drop.removed, drop.freed, tuple(notes))


def _require_intact(tree: Path) -> None:
    """The tree links nothing of what was dropped; looked at all the same, because there is no way back."""
    record = read_record(tree)
    problems = quick_problems(tree, record) if record else []
    if record is None or problems:
        what = f"{problems[0].path}: {problems[0].what}" if problems else "has no record"
        raise BrokenInput(
            f"{tree}: not whole any more after the source was dropped: {what}",
            code="tree-damaged",
            hint="overlay cache repair",
            where=str(tree),
        )
