"""Walking through folders however deep they are nested: the standard library's walk calls itself for each level."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from overlay.errors import BrokenInput

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

__all__ = ["DEEPEST", "files_below", "too_deep"]

DEEPEST = 100
"""Levels of folders; a checkpoint has three."""


def files_below(folder: Path) -> Iterator[str]:
    """Paths of everything below a folder but folders; a link to a folder is not followed, nor told.

    Folders that cannot be read are passed over.
    """
    prefixes = [""]
    while prefixes:
        prefix = prefixes.pop()
        try:
            with os.scandir(folder / prefix) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        prefixes.append(f"{prefix}{entry.name}/")
                    elif not entry.is_dir():
                        yield f"{prefix}{entry.name}"
        except OSError:
            continue


def too_deep(folder: Path) -> BrokenInput:
    """The error of folders that are nested deeper than any checkpoint's."""
    return BrokenInput(
        f"{folder}: more than {DEEPEST} folders in one another; no checkpoint has that",
        code="too-deep",
        hint="look what they are, and remove them",
        where=str(folder),
    )
