"""Bringing a materialization from a store: no source, no Hub, every byte proven on the way in."""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from overlay.cache.incoming import arrived
from overlay.cache.presence import building
from overlay.cache.trees import check_location
from overlay.errors import OverlayError
from overlay.materialization.build import Made
from overlay.materialization.links import Links
from overlay.materialization.lookup import Found
from overlay.materialization.preparing import present_state
from overlay.materialization.publishing import Materialization, Sealed, publish, where_one_may
from overlay.materialization.request import DEFAULTS, Options, open_cache, resolved, silent
from overlay.materialization.rollback import hit_notes
from overlay.materialization.sharing.bringing import bring
from overlay.materialization.sharing.stored import find_offer, payload_of
from overlay.materialization.survey import Counters, Step, Work, counters_of, room_of_tree
from overlay.planning.outputs import ScriptedFile
from overlay.planning.plan import Plan
from overlay.registry import load_registry
from overlay.store import open_store
from overlay.store.bucket import shown_url

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from overlay.cache import Cache
    from overlay.materialization.record import Record
    from overlay.materialization.request import Phase
    from overlay.materialization.sharing.bringing import Brought
    from overlay.materialization.sharing.stored import Offer
    from overlay.store import Store

__all__ = ["PlannedPull", "plan_pull", "pull", "take", "work_of"]


@dataclass(frozen=True, slots=True)
class PlannedPull:
    """What :func:`pull` would bring.

    Attributes:
        tree: Name of the materialization.
        num_files: Files that would come.
        size: Their bytes, all of which need room in the cache.
        is_present: Whether the model is here already.
    """

    model: str
    store: str
    tree: str | None
    num_files: int
    size: int
    is_present: bool


def plan_pull(model: str, url: str, options: Options = DEFAULTS) -> PlannedPull:
    """What :func:`pull` would bring; nothing is written.

    Raises:
        OverlayError: As :func:`pull`, up to its first write.
    """
    registry = load_registry(options.registry)
    resolution = resolved(model, registry, options)
    if state := present_state(resolution, registry, options):
        return PlannedPull(
            resolution.model, shown_url(url), state.tree.name if state.tree else None, 0, 0, is_present=True
        )
    with open_store(url) as store:
        offer = find_offer(store, resolution, registry, options)
        sizes = [step.size for step in work_of(offer, open_cache(options, create=False)).steps if step.how == "pull"]
        return PlannedPull(resolution.model, store.url, offer.tree.name, len(sizes), sum(sizes), is_present=False)


def pull(
    model: str,
    url: str,
    options: Options = DEFAULTS,
    *,
    phase: Phase = silent,
    on_wait: Callable[[str], None] | None = None,
) -> Materialization:
    """Bring a model from a store and publish it, or find that it is here.

    Args:
        url: Of the store.

    Raises:
        NotHere: The store does not have it as the registry pins it.
        BrokenInput: What the store has is not what it says. Nothing is published then, and what was right is kept.
        CheckFailed: The lock in force expects other output.
        OverlayError: The store cannot be asked, or the cache cannot be written.
    """
    started = time.monotonic()
    registry = load_registry(options.registry)
    resolution = resolved(model, registry, options)
    if state := present_state(resolution, registry, options):
        return Materialization(
            resolution.model,
            state.tree,
            state.location,
            "present",
            Counters(),
            time.monotonic() - started,
            hit_notes(state, options),
        )
    with open_store(url) as store:
        offer = find_offer(store, resolution, registry, options)
        done, brought = take(store, offer, options, phase, on_wait)
    if done is None:
        raise brought.errors[0]
    return replace(done, seconds=time.monotonic() - started)


def take(
    store: Store, offer: Offer, options: Options, phase: Phase, on_wait: Callable[[str], None] | None
) -> tuple[Materialization | None, Brought]:
    """Bring a tree and publish it; None where the store did not give all of it.

    Raises:
        OverlayError: The cache cannot be written.
    """
    started = time.monotonic()
    cache = open_cache(options, create=True)
    check_location(cache.root, offer.location)
    lock = cache.lock(offer.location, timeout=options.lock_timeout, on_wait=on_wait)
    with lock, where_one_may(building(cache.root)):  # no collector takes what is found here meanwhile
        work = work_of(offer, cache)
        cache.require_room(work.room - arrived(cache.root, {file.digest: file.size for file in work.pulled}))
        brought = bring(store, cache, work.pulled, phase)
        if brought.errors:
            return None, brought
        _take_actions(store, cache, offer)
        made = Made({file.path: file for file in offer.record.outputs})
        published = publish(work, made, cache, Sealed(offer.tree.name, offer.tree.record, offer.record.outputs))
    return (
        Materialization(
            work.plan.model,
            published.tree,
            published.location,
            "pulled",
            work.counters,
            time.monotonic() - started,
            (*offer.notes, *cache.notes),
        ),
        brought,
    )


def work_of(offer: Offer, cache: Cache) -> Work:
    """What bringing a tree takes: of each content one file, where the cache does not have it."""
    record = offer.record
    steps = tuple(_steps(record, cache))
    outputs = tuple(step.output for step in steps)
    plan = Plan(offer.model, record.rule or "", offer.location, outputs, notes=offer.notes)
    room = sum(step.room for step in steps) + room_of_tree(steps, Links(cache.root, "auto"))
    return Work(plan, steps, (), counters_of(steps), room)


def _steps(record: Record, cache: Cache) -> Iterator[Step]:
    coming: set[str] = set()
    for file in record.outputs:
        is_here = file.digest in coming or cache.has_object(file.digest, file.size)
        coming.add(file.digest)
        output = ScriptedFile(file.path, file.digest, file.size)
        yield Step(output, "present" if is_here else "pull", Found(entry=file), payload_of(file), file.size)


def _take_actions(store: Store, cache: Cache, offer: Offer) -> None:
    """Let a later build find these files; nothing is lost where the store cannot tell what gave them."""
    digests = {file.digest for file in offer.record.outputs}
    for key in offer.tree.actions:
        with suppress(OverlayError):
            entry = store.find_action(key)
            if entry is not None and entry["digest"] in digests:
                cache.put_action(key, entry)
