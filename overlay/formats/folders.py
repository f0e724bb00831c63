"""Walking through folders and removing them however deep they are nested.

Up to Python 3.11 the standard library's walk calls itself for each level, up to 3.12 what removes a tree does.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from overlay.errors import BrokenInput

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["DEEPEST", "files_below", "remove_folder", "too_deep", "walk"]

DEEPEST = 100
"""Levels of folders; a checkpoint has three."""


def files_below(folder: Path) -> Iterator[str]:
    """Paths of everything below a folder but folders; a link to a folder is not followed, nor told.

    Folders that cannot be read are passed over.
    """
    return (f"{prefix}{name}" for prefix, names in walk(folder) for name in names)


def walk(folder: Path) -> Iterator[tuple[str, list[str]]]:
    """A folder and every one below, each before those in it, and the names in it but those of folders.

    Folders are told by their path with a slash behind it, the first one by an empty text; links and folders that cannot
    be read as in :func:`files_below`.
    """
    prefixes = [""]
    while prefixes:
        prefix = prefixes.pop()
        names = []
        try:
            with os.scandir(folder / prefix) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        prefixes.append(f"{prefix}{entry.name}/")
                    elif not _leads_to_folder(entry):
                        names.append(entry.name)
        except OSError:
            continue
        yield prefix, names


def _leads_to_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link in a circle, or to where this user may not look
        return False


def remove_folder(folder: Path, *, ignore_errors: bool = False) -> None:
    """Remove a folder with all that is in it.

    Raises:
        OSError: The system refuses, and errors are not to be ignored.
    """
    try:
        shutil.rmtree(folder, ignore_errors=ignore_errors)
    except RecursionError:
        _flatten(folder)
        shutil.rmtree(folder, ignore_errors=ignore_errors)


def _flatten(root: Path) -> None:
    """Bring what is nested deeper than any checkpoint nearer to ``root``."""
    waiting = [(root, 0)]
    while waiting:
        folder, depth = waiting.pop()
        with os.scandir(folder) as entries:
            inside = [Path(entry.path) for entry in entries if entry.is_dir(follow_symlinks=False)]
        for path in inside:
            if depth < DEEPEST:
                waiting.append((path, depth + 1))
            else:
                waiting.append((path.rename(root / f"deep-{os.urandom(8).hex()}"), 1))


def too_deep(folder: Path) -> BrokenInput:
    """The error of folders that are nested deeper than any checkpoint's."""
    return BrokenInput(
        f"{folder}: more than {DEEPEST} folders in one another; no checkpoint has that",
        code="too-deep",
        hint="look what they are, and remove them",
        where=str(folder),
    )
