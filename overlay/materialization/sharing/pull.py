"""Bringing a materialization from a store: no source, no Hub, every byte proven on the way in."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from overlay.cache import is_small
from overlay.cache.disk import writing
from overlay.cache.incoming import incoming
from overlay.cache.leases import hold
from overlay.cache.presence import building
from overlay.cache.trees import check_location
from overlay.errors import NotHere, OverlayError
from overlay.formats.header import read_header
from overlay.materialization.materialize import Materialization
from overlay.materialization.preparing import present_state
from overlay.materialization.publishing import Sealed, where_one_may
from overlay.materialization.record import RECORD_NAME
from overlay.materialization.request import DEFAULTS, Options, open_cache, resolved, silent
from overlay.materialization.resolve import location_at_hand
from overlay.materialization.sharing.push import FILES_AT_A_TIME, distinct
from overlay.materialization.sharing.stored import find_offer, require_shareable
from overlay.materialization.state import find_state
from overlay.materialization.survey import Counters
from overlay.registry import load_registry
from overlay.store import open_store

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from overlay.cache import Cache
    from overlay.materialization.record import RecordedFile
    from overlay.materialization.request import Phase
    from overlay.materialization.sharing.stored import Offer
    from overlay.registry import Registry, Resolution
    from overlay.store import Store

__all__ = ["PlannedPull", "plan_pull", "pull"]


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
        return PlannedPull(resolution.model, url, state.tree.name if state.tree else None, 0, 0, is_present=True)
    with open_store(url) as store:
        offer = _offer(store, resolution, registry, options)
        missing = _missing(open_cache(options, create=False), offer)
        size = sum(file.size for file in missing)
        return PlannedPull(resolution.model, store.url, offer.tree.name, len(missing), size, is_present=False)


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
            resolution.model, state.tree, state.location, "present", Counters(), time.monotonic() - started
        )
    with open_store(url) as store:
        offer = _offer(store, resolution, registry, options)
        cache = open_cache(options, create=True)
        check_location(cache.root, offer.location)
        lock = cache.lock(offer.location, timeout=options.lock_timeout, on_wait=on_wait)
        with lock, where_one_may(building(cache.root)):  # no collector takes what is found here meanwhile
            brought = _bring(store, cache, _missing(cache, offer), phase)
            _take_actions(store, cache, offer)
            tree, location = _publish(cache, offer)
    return Materialization(
        resolution.model,
        tree,
        location,
        "pulled",
        Counters(downloaded=brought, written=brought),
        time.monotonic() - started,
        tuple(cache.notes),
    )


def _offer(store: Store, resolution: Resolution, registry: Registry, options: Options) -> Offer:
    require_shareable(resolution)
    location = find_state(
        resolution, open_cache(options, create=False), options.rule, location_at_hand(resolution, options)
    ).location
    return find_offer(store, resolution, registry, options.rule, location.name if location else None)


def _missing(cache: Cache, offer: Offer) -> list[RecordedFile]:
    return [file for file in distinct(offer.record) if not cache.has_object(file.digest, file.size)]


def _bring(store: Store, cache: Cache, files: list[RecordedFile], phase: Phase) -> int:
    """Make objects of these files; bytes of tensor payload that came."""
    total = sum(file.size for file in files)
    cache.require_room(total)
    with phase("pull", total) as update, ThreadPoolExecutor(FILES_AT_A_TIME) as pool:

        def bring(file: RecordedFile) -> int:
            stored = store.find_object(file.digest, file.size)
            if stored is None:
                raise NotHere(
                    f"{store.url}: lacks {file.path} ({file.digest}), though it has the model",
                    code="store-incomplete",
                    hint="overlay push MODEL --anew, from a host that has the model",
                    store=store.url,
                    where=file.path,
                )
            with incoming(cache.root, file.digest) as path:
                with writing(cache.root, f"write {file.path}"):
                    store.get_object(stored, path, update)
                made = cache.adopt_file(path, file.digest)
            return file.size - read_header(made).data_start if file.tensors is not None else 0

        try:
            return sum(pool.map(bring, files))
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


def _take_actions(store: Store, cache: Cache, offer: Offer) -> None:
    """Let a later build find these files; nothing is lost where the store cannot tell what gave them."""
    digests = {file.digest for file in offer.record.outputs}
    for key in offer.tree.actions:
        with suppress(OverlayError):
            entry = store.find_action(key)
            if entry is not None and entry["digest"] in digests:
                cache.put_action(key, entry)


def _publish(cache: Cache, offer: Offer) -> tuple[Path, Path]:
    sealed = Sealed(offer.tree.name, offer.tree.record, offer.record.outputs)
    tree = cache.tree_path(sealed.name)
    with where_one_may(hold(cache.root, sealed.name)):
        if not (tree.is_dir() and sealed.is_sound(tree)):
            with cache.staging() as staging:
                for file in offer.record.outputs:
                    target = staging / "tree" / file.path
                    cache.place_file(cache.object_path(file.digest), target, is_small(file.path, file.size))
                with writing(cache.root, f"write {RECORD_NAME}"):
                    (staging / "tree" / RECORD_NAME).write_bytes(sealed.record)
                cache.publish_tree(staging / "tree", sealed.name, verify=sealed.is_sound)
        return tree, cache.swing_location(offer.location, sealed.name)
