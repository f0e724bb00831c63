"""Which files of an overlay repo count: what a server downloads of one."""

from __future__ import annotations

from fnmatch import fnmatchcase

__all__ = ["METADATA_PATTERNS", "is_metadata"]

METADATA_PATTERNS = ("*.json", "*.md", "*.py", "*.txt")
"""What a server downloads of an overlay repo; ``*`` crosses ``/``. Weights never come from there."""


def is_metadata(path: str) -> bool:
    """Whether the server downloads this file of an overlay repo (POSIX path inside it)."""
    return any(fnmatchcase(path, pattern) for pattern in METADATA_PATTERNS)
