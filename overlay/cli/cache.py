"""``overlay cache``: the commands that look into the cache and remove from it."""

from __future__ import annotations

import click

from overlay.cli._lazy import LazyGroup

__all__ = ["cache"]

_PLACES = {
    "gc": "cache_removal",
    "info": "cache_listing",
    "ls": "cache_listing:list_models",
    "pin": "cache_pins",
    "repair": "cache_repair",
    "rm": "cache_removal",
    "unpin": "cache_pins",
}


@click.command(cls=LazyGroup, places=_PLACES)
def cache() -> None:
    """Look into the cache, repair it, remove from it."""
