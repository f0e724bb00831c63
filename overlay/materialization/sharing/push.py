"""Offering a materialization to a store."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from overlay.cache.actions import read_entry
from overlay.cache.leases import hold
from overlay.errors import BrokenInput, OverlayError
from overlay.formats.local import read_small_file
from overlay.materialization.publishing import where_one_may
from overlay.materialization.record import RECORD_NAME, read_record
from overlay.materialization.request import DEFAULTS, Options, open_cache, silent
from overlay.materialization.resolve import present
from overlay.materialization.sharing.bringing import FILES_AT_A_TIME
from overlay.materialization.sharing.stored import label_of, pins_key, require_shareable
from overlay.store import StoredTree, open_store

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from overlay.cache import Cache
    from overlay.materialization.record import Record, RecordedFile
    from overlay.materialization.request import Phase
    from overlay.store import Store

__all__ = ["Pushed", "offer", "push"]


@dataclass(frozen=True, slots=True)
class Pushed:
    """What a store has now.

    Attributes:
        tree: Name of the materialization.
        num_files: Distinct files of it.
        size: Their bytes.
        sent: Bytes of files that were sent; the store had the rest.
    """

    model: str
    store: str
    tree: str
    num_files: int
    size: int
    sent: int
    seconds: float


def push(model: str, url: str, options: Options = DEFAULTS, *, anew: bool = False, phase: Phase = silent) -> Pushed:
    """Offer a model that is in the cache: its files, the actions that gave them, its record. What is there stays.

    Args:
        url: Of the store.
        anew: Send everything and replace what the store has.

    Raises:
        NotHere: The model is not here as the registry pins it.
        InvalidUsage: No other host could ask for it, or nothing here knows such a URL.
        BrokenInput: A file of it is damaged, or the store has another tree for the same pins.
        OverlayError: The store cannot be written.
    """
    with open_store(url) as store:
        return offer(model, store, options, anew=anew, phase=phase)


def offer(model: str, store: Store, options: Options, *, anew: bool = False, phase: Phase = silent) -> Pushed:
    """As :func:`push`, to a store that is open."""
    started = time.monotonic()
    found, tree = present(model, options, wanted_by=("push", model))
    require_shareable(found.resolution)
    cache = open_cache(options, create=False)
    with where_one_may(hold(cache.root, tree.name)):
        record = read_record(tree)
        if record is None or record.tree is None or found.state.location is None:
            raise BrokenInput(f"{tree}: has no record", code="record-unreadable", where=str(tree))
        sent = _offer_files(store, tree, record, anew, phase)
        actions = dict(_actions_of(cache, record))
        with ThreadPoolExecutor(FILES_AT_A_TIME) as pool:
            list(pool.map(lambda item: store.put_action(*item, anew=anew), actions.items()))
        data = (tree / RECORD_NAME).read_bytes()
        store.put_tree(StoredTree(record.tree, data, tuple(sorted(actions))), anew=anew)
        label, pins = label_of(found.resolution.model), pins_key(found.resolution, options.rule)
        store.put_model(label, pins, found.state.location.name, record.tree, anew=anew)
        files = _distinct(record)
        return Pushed(
            found.resolution.model,
            store.url,
            record.tree,
            len(files),
            sum(file.size for file in files),
            sent,
            time.monotonic() - started,
        )


def _distinct(record: Record) -> list[RecordedFile]:
    """One output of each content, largest first, so that no long file is left for the end."""
    return sorted({file.digest: file for file in record.outputs}.values(), key=lambda file: -file.size)


def _offer_files(store: Store, tree: Path, record: Record, anew: bool, phase: Phase) -> int:  # noqa: FBT001  # private
    files = _distinct(record)
    with phase("push", sum(file.size for file in files)) as update, ThreadPoolExecutor(FILES_AT_A_TIME) as pool:

        def one(file: RecordedFile) -> int:
            return store.put_object(tree / file.path, file.digest, file.size, update, anew=anew)

        try:
            return sum(pool.map(one, files))
        except BaseException:
            store.close()
            pool.shutdown(cancel_futures=True)
            raise


def _actions_of(cache: Cache, record: Record) -> Iterator[tuple[str, dict[str, Any]]]:
    """The action entries of this cache that gave a file of the record."""
    digests = {file.digest for file in record.outputs}
    for path in sorted(cache.root.actions.glob("??/*.json")):
        try:
            entry = read_entry(read_small_file(path), path.stem)
        except (OSError, OverlayError):  # gone meanwhile, or damaged: then it is no entry
            continue
        if entry is not None and entry["digest"] in digests:
            yield path.stem, entry
