"""The cache: layout, objects, actions, staging, trees, locations, locks.

Listing, collecting and probing, which only some commands need, are imported from their own modules.
"""

from __future__ import annotations

from overlay.cache.disk import cannot_write, free_room, writing
from overlay.cache.layout import CacheRoot, choose_root
from overlay.cache.links import SMALL_FILE, How, LinkMode, LinkResult, is_small
from overlay.cache.store import Cache
from overlay.cache.trees import Published

__all__ = [
    "SMALL_FILE",
    "Cache",
    "CacheRoot",
    "How",
    "LinkMode",
    "LinkResult",
    "Published",
    "cannot_write",
    "choose_root",
    "free_room",
    "is_small",
    "writing",
]
