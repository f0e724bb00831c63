"""Action entries: which object an action gave. They are claims, checked against the object before use."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from overlay.cache.disk import is_file_of, remove, write_atomically, writing
from overlay.cache.layout import CacheRoot
from overlay.errors import BrokenInput, OverlayError
from overlay.fingerprint.entries import entry_bytes, entry_in
from overlay.formats.local import read_small_file

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["drop_action", "find_action", "put_action", "read_entry"]

_VERSION = 2


def find_action(root: CacheRoot, key: str, notes: list[str]) -> dict[str, Any] | None:
    """The entry of this key, if its object is there with the size that it names.

    An entry that cannot be right is dropped, counts as absent, and is noted.
    """
    path = root.action(key)
    try:
        entry = read_entry(read_small_file(path), path.stem)
    except FileNotFoundError:
        return None
    except BrokenInput:  # no file, or far too large
        entry = None
    except OSError as error:
        notes.append(f"{error}; not used")
        return None
    if entry is None:
        reason = "not an action entry of this version, or damaged"
    elif not is_file_of(root.object(entry["digest"]), entry["size"]):
        reason = f"its object {entry['digest']} is missing or has another size"
    else:
        return entry
    drop_action(root, key, reason, notes)
    return None


def drop_action(root: CacheRoot, key: str, reason: str, notes: list[str]) -> None:
    """Remove an entry that cannot be right, and say so."""
    path = root.action(key)
    with suppress(OSError):
        remove(path)
    notes.append(f"{path}: {reason}; dropped")


def put_action(root: CacheRoot, key: str, entry: Mapping[str, Any]) -> None:
    """Write an entry; it names at least the ``digest`` and the ``size`` of the object."""
    path = root.action(key)
    data = entry_bytes(_VERSION, path.stem, dict(entry))
    with writing(root, "rename an action entry into place"):
        # Not durable: an entry that a power cut empties is dropped like any other that makes no sense.
        write_atomically(path, data, root, durable=False)


def read_entry(data: bytes, key: str) -> dict[str, Any] | None:
    """The entry in a file's bytes; None where they are not an entry of this key and version."""
    entry = entry_in(data, _VERSION, key)
    try:
        CacheRoot(Path()).object(entry["digest"])
        sound = type(entry["size"]) is int
    except (TypeError, KeyError, OverlayError):
        return None
    return entry if sound and isinstance(entry, dict) else None
