"""Which files of an overlay repo count: its manifest, and what a server downloads of one."""

from __future__ import annotations

from fnmatch import fnmatchcase

from overlay.formats.tree_files import is_hidden

__all__ = ["MANIFEST_PATH", "METADATA_PATTERNS", "comes_to_tree", "is_metadata"]

MANIFEST_PATH = "_overlay/overlay_manifest.json"
"""What makes a repo or folder an overlay."""

METADATA_PATTERNS = ("*.json", "*.md", "*.py", "*.txt")
"""What a server downloads of an overlay repo; ``*`` crosses ``/``. Weights never come from there."""


def comes_to_tree(path: str) -> bool:
    """Whether this file of an overlay repo goes to the root of the tree: its metadata do.

    ``_overlay/`` stays out, and so does what is hidden: a tool's, not a model's.
    """
    return is_metadata(path) and not path.startswith("_overlay/") and not is_hidden(path)


def is_metadata(path: str) -> bool:
    """Whether the server downloads this file of an overlay repo (POSIX path inside it)."""
    return any(fnmatchcase(path, pattern) for pattern in METADATA_PATTERNS)
