"""Folders that a server built and an adoption left beside their location, because they were not to be removed.

Nobody but a user knows what is in them, so nothing here removes one. They are outside ``.overlay`` and no part of the
cache; but weights in them share their inodes with it, and stay on the disk with them.
"""

from __future__ import annotations

import os
import re
import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING

from overlay.cache.disk import entries
from overlay.cache.listing import Files, files_under
from overlay.cache.trees import location_target
from overlay.formats.wording import counted, format_bytes

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

    from overlay.cache.layout import CacheRoot

__all__ = ["KeptFolder", "kept_folders", "kept_note", "name_to_keep"]

_KEPT = re.compile(r"(.+)\.kept-[1-9][0-9]*")


@dataclass(frozen=True, slots=True)
class KeptFolder:
    """A folder that ``overlay adopt`` left beside its location.

    Attributes:
        size: Bytes of its files, each inode once.
        frees: Bytes that removing it gives back; the others have names elsewhere, in the cache above all.
        why: Why it is there.
        remove: The command that removes it, once it is known what came into it.
    """

    path: str
    size: int
    frees: int
    why: str
    remove: str


def name_to_keep(location: Path, number: int) -> Path:
    """A name beside a location that no consumer looks for."""
    return location.with_name(f"{location.name}.kept-{number}")


def kept_folders(root: CacheRoot) -> tuple[KeptFolder, ...]:
    """Every folder that is kept under the root."""
    return tuple(
        _kept(root, path, match[1])
        for path in entries(root.locations)
        if (match := _KEPT.fullmatch(path.name)) and path.is_dir() and not path.is_symlink()
    )


def kept_note(kept: Collection[KeptFolder]) -> str:
    """What a collector says of them."""
    what, size = counted(len(kept), "folder"), format_bytes(sum(folder.size for folder in kept))
    return f"{what} that overlay adopt kept ({size}): neither counted nor removed, see overlay cache ls"


def _kept(root: CacheRoot, path: Path, location: str) -> KeptFolder:
    files = Files(files_under(path))
    if location_target(root, location) is not None:
        why = f"something came into it or changed while overlay adopt took it; {location} leads to what was adopted"
    elif os.path.lexists(root.locations / location):
        why = f"overlay adopt could not put it back, and something else is at {location} now"
    else:
        back = shlex.join(["mv", str(path), str(root.locations / location)])
        why = f"overlay adopt was stopped half-way, and nothing is at {location} now; to put it back: {back}"
    return KeptFolder(str(path), files.size(), files.frees(), why, shlex.join(["rm", "-r", str(path)]))
