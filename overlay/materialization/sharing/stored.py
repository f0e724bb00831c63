"""Which tree of a store a model is, as the registry pins it."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from overlay.errors import BrokenInput, CheckFailed, InvalidUsage, NotHere
from overlay.fingerprint import action_key
from overlay.formats.materialized import MARKER_NAME
from overlay.materialization.locking.of_tree import expected_tree
from overlay.materialization.record import parse_record
from overlay.materialization.request import open_cache
from overlay.materialization.resolve import location_at_hand, prewarm_words
from overlay.materialization.sealing import portable
from overlay.materialization.sharing.soundness import damaged, require_tree
from overlay.materialization.state import difference, find_state, is_settled

if TYPE_CHECKING:
    from overlay.materialization.record import Record
    from overlay.materialization.request import Options
    from overlay.registry import Registry, Resolution
    from overlay.store import Store, StoredTree

__all__ = ["Offer", "find_offer", "label_of", "pins_key", "require_shareable"]


@dataclass(frozen=True, slots=True)
class Offer:
    """A tree that a store has for a model.

    Attributes:
        model: As the registry names it.
        location: Name of the location that leads to it.
        record: As it was read from ``tree``.
        notes: What a user should know of the model.
    """

    model: str
    location: str
    tree: StoredTree
    record: Record
    notes: tuple[str, ...]


def find_offer(store: Store, resolution: Resolution, registry: Registry, options: Options) -> Offer:
    """What a store has for a model; its record is proven, no file was asked for yet.

    Raises:
        InvalidUsage: No other host could have offered it.
        NotHere: The store has no tree of these pins.
        BrokenInput: What it says is damaged, or of other pins.
        CheckFailed: The lock in force expects other output.
        OverlayError: It cannot be asked.
    """
    require_shareable(resolution)
    model, rule = resolution.model, options.rule
    # None where it cannot be told without the overlay's files.
    place = find_state(resolution, open_cache(options, create=False), rule, location_at_hand(resolution, options))
    location = place.location.name if place.location else None
    found = store.find_model(label_of(model), pins_key(resolution, rule), location)
    if len(found) > 1:
        raise NotHere(
            f"{store.url}: has {model} for {len(found)} servers, and only the overlay's files could tell which one is "
            f"wanted: {', '.join(sorted(found))}",
            code="location-unknown",
            hint="overlay lock, and deploy the registry.lock with the registry.yaml",
            store=store.url,
            model=model,
        )
    for name, tree in found.items():
        stored = store.find_tree(tree)
        if stored is not None:
            record = _proven(store, stored, resolution, registry, rule)
            return Offer(model, name, stored, record, resolution.notes)
    words = prewarm_words(model, resolution, options)
    raise NotHere(
        f"{store.url}: has no {model} of these pins",
        code="not-in-store",
        hint=f"on a host that can build it: {shlex.join(['overlay', *words, '--store', store.url])}",
        store=store.url,
        model=model,
    )


def _proven(store: Store, stored: StoredTree, resolution: Resolution, registry: Registry, rule: str) -> Record:
    where = f"{store.url}: tree {stored.name}"
    try:
        record = parse_record(stored.record, where)
        require_tree(record.outputs, where)
    except BrokenInput as error:
        raise damaged(where, error.message.removeprefix(f"{where}: ")) from error
    if not record.is_intact or record.tree != stored.name:
        raise damaged(where, "its record is not the one that it was named by")
    if what := difference(record, resolution.entry, rule):
        raise damaged(where, f"{what}, though it was offered for today's pins")
    if resolution.entry.overlay is not None and all(file.path != MARKER_NAME for file in record.outputs):
        raise damaged(where, f"its record lists no {MARKER_NAME}, by which a server knows that a model is whole")
    expected = expected_tree(record, registry)
    if expected and (problems := expected.problems(record)):
        raise CheckFailed(
            f"{where}: {problems[0].path}: {problems[0].what}",
            code="output-differs",
            hint=f"build it here, without the store, and see what comes out: overlay prewarm {resolution.model}",
            where=where,
            files=[problem.path for problem in problems],
        )
    return record


def label_of(model: str) -> str:
    """A model's name as one path component."""
    return model.replace("/", "__")


def pins_key(resolution: Resolution, rule: str) -> str:
    """What a model is looked up by in a store: everything that decides its output, and nothing else."""
    from overlay.planning.actions import WRITER_VERSION

    entry = resolution.entry
    components = {need.pin.repo: list(need.components) for need in entry.needs}
    document: dict[str, Any] = {
        "model": entry.model,
        "repos": [[portable(pin), pin.revision, components.get(pin.repo, [])] for pin in entry.pins],
        "recipe": {"name": entry.recipe.name, **entry.recipe.options},
        "rule": rule,
        "writer_version": WRITER_VERSION,
    }
    return action_key(document)


def require_shareable(resolution: Resolution) -> None:
    """Refuse a model that no other host could ask for by its pins.

    Raises:
        InvalidUsage: A pin floats, or a folder takes the place of a repo.
    """
    if not is_settled(resolution):
        raise InvalidUsage(
            f"{resolution.model}: a pin of it floats, or a folder takes the place of a repo, so no other host could "
            "ask for its content by name",
            code="not-shareable",
            hint=f"pin it: overlay bump {resolution.model}",
            model=resolution.model,
        )
