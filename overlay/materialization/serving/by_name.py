"""Serving by name: the Hub's cache filled as a server needs it that resolves the source before it looks at ours.

Such a server asks the Hub's cache for the overlay's metadata and for the source, by a commit or by a branch, and then
for the materialization. Where something of that is missing it asks the Hub, and where a branch leads elsewhere it
builds by itself: so all of it is here, at the pinned commits, or the run is refused before it moves a weight.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from overlay.cache.disk import existing
from overlay.cache.presence import building
from overlay.consumers.staged import Elsewhere, Lacking
from overlay.hub.hub_cache import hub_cache
from overlay.hub.serving import complete_snapshot
from overlay.materialization.materialize import materialize, plan
from overlay.materialization.publishing import where_one_may
from overlay.materialization.request import DEFAULTS, Options, open_cache, resolved, silent
from overlay.materialization.resolve import resolve
from overlay.materialization.room import require_room_at
from overlay.materialization.serving.asking import asking
from overlay.materialization.serving.checks import (
    no_overlay,
    refused,
    require_hub_cache,
    require_known,
    require_named_source,
)
from overlay.registry import Pin, load_registry

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from overlay.cache import Cache
    from overlay.consumers.staged import Part
    from overlay.materialization.materialize import Materialization
    from overlay.materialization.request import Phase
    from overlay.materialization.survey import Work
    from overlay.registry import Entry

__all__ = ["Staged", "materialize_by_name", "plan_by_name"]


@dataclass(frozen=True, slots=True)
class Staged:
    """What a server finds in the Hub's cache.

    Attributes:
        files: That it asks for.
        nbytes: Of those fetched for it alone, not for the build.
        branches: Files of the Hub's cache that lead to a pinned commit now, and did not exist before.
    """

    files: int
    nbytes: int
    branches: tuple[str, ...]


def plan_by_name(model: str, options: Options = DEFAULTS, *, phase: Phase = silent) -> tuple[Work, Staged]:
    """What :func:`materialize_by_name` would do; the room of the work counts what is fetched beside the build.

    Raises:
        OverlayError: As :func:`materialize_by_name` up to its first write.
    """
    parts = _parts(model, options)
    work = plan(model, options, phase=phase)
    to_build = None if work.is_present else work
    staged = _outlook(parts, to_build)
    return replace(work, room=_room(staged, to_build, open_cache(options, create=False))), staged


def materialize_by_name(
    model: str,
    options: Options = DEFAULTS,
    *,
    phase: Phase = silent,
    on_wait: Callable[[str], None] | None = None,
) -> tuple[Materialization, Staged]:
    """Bring a model into the cache, and into the Hub's cache what a server needs that is given the model's name.

    Args:
        options: They name the server; the others are those of :func:`materialize`.

    Raises:
        CheckFailed: A branch of the Hub's cache leads to another commit (``branch-elsewhere``), or a server would not
            find the model all the same.
        InvalidUsage: No server is named that looks a model up, or there is no Hub cache to fill.
        OverlayError: As :func:`materialize`.
    """
    parts = _parts(model, options)
    found = resolve(model, options)
    work = None if found.state.name == "present" else plan(model, options, phase=phase)
    staged = _outlook(parts, work)
    cache = open_cache(options, create=False)
    _require_room(staged, work, cache)
    done = materialize(model, options, phase=phase, on_wait=on_wait)
    if not all(part.is_complete for part in parts):
        with where_one_may(building(cache.root)):  # nobody drops these files meanwhile
            _complete(parts, found.resolution.entry, options, phase)
    return done, staged


def _complete(parts: Sequence[Part], entry: Entry, options: Options, phase: Phase) -> None:
    missing = _missing(parts)
    with phase("download", sum(missing.values())) if missing else nullcontext(None) as update:
        for part in parts:
            complete_snapshot(part.repo, part.paths, update)
    for part in parts:  # last, so that no branch leads to a snapshot that is not whole
        if part.branch and not part.branch.create(part.repo.revision):
            pin = Pin(part.repo.repo, part.repo.revision)
            raise refused(Elsewhere(pin, part.branch, part.branch.commit()), entry, options)


def _parts(model: str, options: Options) -> tuple[Part, ...]:
    """What must be in the Hub's cache, if nothing there or in the pins is against it."""
    require_hub_cache(options)
    resolution = resolved(model, load_registry(options.registry), options)
    entry = resolution.entry
    if entry.overlay is None or options.server is None:
        raise no_overlay(model, options.server)
    require_known(model, resolution, options)
    lookup = asking(resolution, options)
    require_named_source(entry, lookup)
    for obstacle in lookup.obstacles():
        if not isinstance(obstacle, Lacking):
            raise refused(obstacle, entry, options)
    return lookup.parts


def _missing(parts: Sequence[Part]) -> dict[tuple[str, str], int]:
    """Bytes of each content to fetch, by repo and digest: two files of one content come as one."""
    return {
        (part.repo.repo, part.repo.digest(path)): part.repo.size(path)
        for part in parts
        for path in part.paths
        if part.repo.local(path) is None
    }


def _outlook(parts: Sequence[Part], work: Work | None) -> Staged:
    """What is to be done beside a build; ``work`` is the build's, None where the model is present."""
    by_build = {(item.repo, item.digest) for item in work.missing} if work else set()
    nbytes = sum(size for key, size in _missing(parts).items() if key not in by_build)
    branches = tuple(str(part.branch.file) for part in parts if part.branch and part.branch.commit() is None)
    return Staged(sum(len(part.paths) for part in parts), nbytes, branches)


def _shares_filesystem(cache: Cache) -> bool:
    return existing(hub_cache()).stat().st_dev == existing(cache.root.path).stat().st_dev


def _room(staged: Staged, work: Work | None, cache: Cache) -> int:
    """Bytes that the cache root's filesystem needs, for the build and for what is fetched beside it there."""
    return (work.room if work else 0) + (staged.nbytes if _shares_filesystem(cache) else 0)


def _require_room(staged: Staged, work: Work | None, cache: Cache) -> None:
    cache.require_room(_room(staged, work, cache))
    if _shares_filesystem(cache):
        return
    require_room_at(hub_cache(), staged.nbytes + (sum(item.size for item in work.missing) if work else 0))
