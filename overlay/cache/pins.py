"""Pins by the user: a small file for each tree that must stay, whatever limits a collector is given."""

from __future__ import annotations

import getpass
import json
import os
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from overlay.cache.disk import entries, fsync, remove, write_atomically, writing
from overlay.cache.layout import checked_name
from overlay.cache.presence import wait_for_collectors
from overlay.errors import NotHere
from overlay.formats.local import read_small_file

if TYPE_CHECKING:
    from pathlib import Path

    from overlay.cache.layout import CacheRoot

__all__ = ["Pin", "pin", "pins", "unpin"]


@dataclass(frozen=True, slots=True)
class Pin:
    """Who wants a tree kept.

    Attributes:
        by: ``user@host``; empty where that cannot be read.
        since: In seconds since the epoch.
        reason: As the user gave it; may be empty.
    """

    by: str
    since: float
    reason: str


def pin(root: CacheRoot, tree: str, reason: str = "") -> Pin:
    """Keep a tree until :func:`unpin`; a pin that is there already is replaced.

    Raises:
        NotHere: The tree was removed meanwhile.
        CannotWrite: The filesystem refused.
    """
    made = Pin(f"{_user()}@{os.uname().nodename}", time.time(), reason)
    file = root.pins / checked_name(tree, "tree")
    with writing(root, "write a pin"):
        write_atomically(file, json.dumps(asdict(made), sort_keys=True).encode(), root, durable=True)
        fsync(root.pins)
    wait_for_collectors(root)
    if not (root.tree(tree).is_dir() or (root.quarantine / tree).is_dir()):
        unpin(root, tree)
        raise NotHere(f"{root.tree(tree)}: was removed meanwhile", code="not-in-cache", hint="overlay cache ls")
    return made


def unpin(root: CacheRoot, tree: str) -> bool:
    """Take a pin back; False where there was none.

    Raises:
        CannotWrite: The filesystem refused.
    """
    with writing(root, "unlink a pin"):
        try:
            remove(root.pins / checked_name(tree, "tree"))
        except FileNotFoundError:
            return False
    return True


def pins(root: CacheRoot) -> dict[str, Pin]:
    """Every pin by the name of its tree. A file that cannot be read is a pin all the same."""
    return {file.name: _read(file) for file in entries(root.pins) if not file.name.startswith(".")}


def _read(file: Path) -> Pin:
    try:
        document: Any = json.loads(read_small_file(file))
        return Pin(str(document["by"]), float(document["since"]), str(document["reason"]))
    except (OSError, ValueError, TypeError, KeyError, OverflowError, RecursionError):
        with suppress(OSError):
            return Pin("", file.stat().st_mtime, "")
        return Pin("", 0.0, "")


def _user() -> str:
    with suppress(KeyError, OSError):  # a container's user may have no name
        return getpass.getuser()
    return f"uid {os.getuid()}"
