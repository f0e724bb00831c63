"""The cache: layout, objects, actions, staging, trees, locations, locks; listing and collecting; probes."""

from __future__ import annotations

from overlay.cache.collecting import Removal, gc, rm
from overlay.cache.disk import cannot_write, free_room, writing
from overlay.cache.layout import CacheRoot, choose_root
from overlay.cache.links import SMALL_FILE, How, LinkMode, LinkResult, is_small
from overlay.cache.listing import FileInfo, TreeInfo, find, ls
from overlay.cache.probe import Filesystem, LinkOutlook, Probe, RootReport, filesystem_of, link_outlook, probe_root
from overlay.cache.store import Cache
from overlay.cache.trees import Published

__all__ = [
    "SMALL_FILE",
    "Cache",
    "CacheRoot",
    "FileInfo",
    "Filesystem",
    "How",
    "LinkMode",
    "LinkOutlook",
    "LinkResult",
    "Probe",
    "Published",
    "Removal",
    "RootReport",
    "TreeInfo",
    "cannot_write",
    "choose_root",
    "filesystem_of",
    "find",
    "free_room",
    "gc",
    "is_small",
    "link_outlook",
    "ls",
    "probe_root",
    "rm",
    "writing",
]
