"""Small remembered documents, each of which says what it is found by and carries a digest that tells damage."""

from __future__ import annotations

import json
from typing import Any

from overlay.fingerprint.actions import action_key

__all__ = ["entry_bytes", "entry_in"]


def entry_bytes(version: int, key: str, entry: Any) -> bytes:
    """A document as it lies on disk.

    Args:
        version: Of the entry's form.
        key: What it is found by.
        entry: JSON.
    """
    return json.dumps({**_head(version, key), "entry": entry, "check": _check(version, key, entry)}).encode()


def entry_in(data: bytes, version: int, key: str) -> Any:
    """The entry in a file's bytes; None where they are not, bit by bit, what was written under this key and version."""
    try:
        document = json.loads(data)
        entry = document["entry"]
        sound = document == {**_head(version, key), "entry": entry, "check": _check(version, key, entry)}
    except (ValueError, TypeError, KeyError, RecursionError):
        return None
    return entry if sound else None


def _head(version: int, key: str) -> dict[str, Any]:
    return {"schema_version": version, "key": key}


def _check(version: int, key: str, entry: Any) -> str:
    return f"sha256:{action_key([version, key, entry])}"
