"""Bringing a materialization from a store: no source, no Hub, every byte proven on the way in."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from overlay.cache.presence import building
from overlay.cache.trees import check_location
from overlay.errors import BrokenInput, OverlayError
from overlay.materialization.build import Made
from overlay.materialization.links import Links
from overlay.materialization.lookup import Found
from overlay.materialization.preparing import found_present, present_state
from overlay.materialization.publishing import Materialization, Published, Sealed, publish, where_one_may
from overlay.materialization.request import DEFAULTS, Options, open_cache, resolved, silent
from overlay.materialization.room import require_room, room_of_tree
from overlay.materialization.sharing.bringing import FILES_AT_A_TIME, bring, is_gone
from overlay.materialization.sharing.soundness import damaged, payload_of, require_header
from overlay.materialization.sharing.stored import find_offer
from overlay.materialization.survey import Step, Work, counters_of
from overlay.materialization.verify import quick_problems
from overlay.planning.outputs import ScriptedFile
from overlay.planning.plan import Plan
from overlay.registry import load_registry
from overlay.store import open_store
from overlay.store.bucket import shown_url

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path
    from typing import Any

    from overlay.cache import Cache
    from overlay.materialization.record import Record
    from overlay.materialization.request import Phase
    from overlay.materialization.sharing.bringing import Brought
    from overlay.materialization.sharing.stored import Offer
    from overlay.store import Store

__all__ = ["PlannedPull", "plan_pull", "pull", "take", "work_of"]

# Keys that are asked for: a store could list millions, while a file has an action or two for each revision it outlived.
_ACTIONS, _ACTIONS_OF_FILE = 16, 4


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
        return found_present(resolution, state, options, started)
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
        require_room(work, {}, cache)
        brought = bring(store, cache, work.pulled, phase)
        if brought.errors:
            return None, brought
        try:
            published = _published(store, cache, offer, work)
        except BrokenInput as error:
            brought.errors.append(error)
            return None, brought
        _take_actions(store, cache, offer)
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


def _published(store: Store, cache: Cache, offer: Offer, work: Work) -> Published:
    """Publish what came; no location leads to a tree that is not what its record says.

    Raises:
        BrokenInput: It is not.
    """
    where, files = f"{store.url}: tree {offer.tree.name}", offer.record.outputs
    for file in files:
        require_header(cache.object_path(file.digest), file, where)

    def swing(location: str, tree: str) -> Path:
        if problems := quick_problems(cache.tree_path(tree), offer.record):
            raise damaged(where, f"{problems[0].path}: {problems[0].what}")
        return cache.swing_location(location, tree)

    made = Made({file.path: file for file in files})
    return publish(work, made, cache, Sealed(offer.tree.name, offer.tree.record, files), swing)


def _take_actions(store: Store, cache: Cache, offer: Offer) -> None:
    """Let a later build find these files; nothing is lost where the store cannot tell what gave them."""
    sizes = {file.digest: file.size for file in offer.record.outputs}
    keys = offer.tree.actions[: _ACTIONS + _ACTIONS_OF_FILE * len(sizes)]
    gone = threading.Event()

    def find(key: str) -> dict[str, Any] | None:
        if not gone.is_set():
            try:
                return store.find_action(key)
            except OverlayError as error:
                if is_gone(error):
                    gone.set()
        return None

    with ThreadPoolExecutor(FILES_AT_A_TIME) as pool, suppress(OverlayError):
        for key, entry in zip(keys, pool.map(find, keys), strict=True):
            if entry is not None and sizes.get(entry["digest"]) == entry["size"]:
                cache.put_action(key, entry)
