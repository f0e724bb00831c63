"""Remembering that a tree was read as a whole and found to be what its record says.

Nothing published is written again, so this lies beside the trees. It tells when the bytes were last looked at, no more:
a disk can rot the next day. Of a tree that was replaced since, or of a fact that cannot be read, nothing is known.
"""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

import overlay
from overlay.cache.disk import entries, has_layout, write_atomically
from overlay.cache.layout import CacheRoot
from overlay.errors import OverlayError
from overlay.fingerprint.entries import entry_bytes, entry_in
from overlay.formats.local import read_small_file
from overlay.formats.wording import iso_time

if TYPE_CHECKING:
    import os
    from pathlib import Path

__all__ = ["Verified", "forget_verified", "last_verified", "remember_verified", "root_of", "without_tree"]


_VERSION = 1


@dataclass(frozen=True, slots=True)
class Verified:
    """When a tree was verified.

    Attributes:
        when: ISO 8601, UTC.
        level: ``full`` or ``sha256``.
        version: Of this program.
    """

    when: str
    level: str
    version: str


def root_of(tree: Path) -> CacheRoot | None:
    """The cache root that a folder is a tree of; None for any other folder, and for a layout that is not ours."""
    root = CacheRoot(tree.parent.parent.parent)
    try:
        return root if tree.parent == root.trees and has_layout(root) else None
    except OverlayError:
        return None


def remember_verified(root: CacheRoot, tree: Path, seen: os.stat_result, level: str) -> None:
    """Note that a tree was found to be sound just now; where the root cannot be written, nothing is.

    Args:
        seen: Stat of its folder when the verify began.
    """
    fact = Verified(iso_time(time.time()), level, overlay.__version__)
    data = entry_bytes(_VERSION, tree.name, {**asdict(fact), "tree": _identity(seen)})
    with suppress(OSError):
        write_atomically(_fact(root, tree), data, root, durable=False)


def forget_verified(root: CacheRoot, tree: Path) -> None:
    """Take such a note back, because the tree is damaged."""
    with suppress(OSError):
        _fact(root, tree).unlink()


def last_verified(root: CacheRoot, tree: Path) -> Verified | None:
    """What is noted of a tree; None where nothing is, or of another one that had its name."""
    try:
        found, identity = entry_in(read_small_file(_fact(root, tree)), _VERSION, tree.name), _identity(tree.stat())
    except (OSError, ValueError):
        return None
    if found is None or found["tree"] != identity:
        return None
    return Verified(found["when"], found["level"], found["version"])


def without_tree(root: CacheRoot) -> list[Path]:
    """Notes on trees that are gone."""
    return [path for path in entries(root.verified) if not (root.trees / path.stem).exists()]


def _fact(root: CacheRoot, tree: Path) -> Path:
    return root.verified / f"{tree.name}.json"


def _identity(found: os.stat_result) -> list[int]:
    """Of the folder itself: a tree that is built again has the same name."""
    return [found.st_ino, found.st_mtime_ns]
