"""Which trees of a cache a registry wants: those that a collector must not take."""

from __future__ import annotations

from typing import TYPE_CHECKING

from overlay.cache.listing import ls
from overlay.errors import BrokenInput
from overlay.materialization.record import read_record
from overlay.materialization.request import DEFAULTS, Options, open_cache
from overlay.materialization.state import find_state
from overlay.registry import load_registry, resolve

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from overlay.cache import Cache
    from overlay.cache.listing import TreeInfo
    from overlay.registry import Registry

__all__ = ["wanted_trees"]


def wanted_trees(options: Options = DEFAULTS, also: Iterable[Path] = ()) -> frozenset[str]:
    """Names of the trees that a location leads to, and that are what a registry pins today, by whatever rule.

    Superseded generations are not among them.

    Args:
        options: Name the cache and the registry in force.
        also: More registry files, of others who use the cache.

    Raises:
        InvalidRegistry: A registry cannot be used as it stands, so nobody knows what it wants.
    """
    cache = open_cache(options, create=False)
    registries = [load_registry(path) for path in (options.registry, *also)]
    return frozenset(
        tree.name
        for tree in ls(cache.root)
        if tree.locations and any(_wants(registry, cache, tree) for registry in registries)
    )


def _wants(registry: Registry, cache: Cache, tree: TreeInfo) -> bool:
    if tree.model is None or tree.model not in registry.entries:
        return False
    try:
        record = read_record(tree.path)
    except BrokenInput:
        return False
    if record is None or record.rule is None:
        return False
    resolution = resolve(tree.model, registry)
    states = (find_state(resolution, cache, record.rule, location) for location in tree.locations)
    return any(state.name == "present" for state in states)
