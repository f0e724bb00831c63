"""Keys of actions: the name under which a result is found again."""

from __future__ import annotations

import hashlib
import json
from typing import Any

__all__ = ["action_key"]


def action_key(document: Any) -> str:
    """sha256 (64 hex digits) of a JSON document in canonical form: sorted keys, no spaces, ASCII.

    Numbers keep the spelling that Python gives them (``1`` and ``1.0`` differ), so callers decide int or float.

    Raises:
        ValueError: NaN or an infinity, which JSON does not have.
        TypeError: Not a JSON document.
    """
    text = json.dumps(document, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode("ascii")).hexdigest()
