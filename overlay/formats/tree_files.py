"""Which files may lie in the tree of a model: what servers read, and nothing that a tool runs by itself."""

from __future__ import annotations

import posixpath
from typing import TYPE_CHECKING

from overlay.formats.licenses import LICENSES_FOLDER, is_license

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

__all__ = ["MAGIC_LENGTH", "git_folder", "is_hidden", "why_no_data", "why_not_by_name"]

_DATA_SUFFIXES = (
    *(".safetensors", ".json", ".jsonl", ".txt", ".md", ".yaml", ".yml", ".csv", ".tsv", ".jinja", ".jinja2"),
    *(".model", ".vocab", ".merges", ".bpe", ".spm", ".tiktoken"),  # of tokenizers
    *(".png", ".jpg", ".jpeg", ".webp", ".gif", ".wav", ".flac", ".mp3", ".mp4"),
)
"""Files of models that no reader runs.

What is missing is missing for a reason: pickles in all their spellings, ``.npy`` (may hold pickled objects), ``.py``
and its compiled forms (a server that trusts remote code imports them), libraries, archives, ``.toml``, ``.ini`` and
``.cfg`` (tools take their settings from the folder that they are started in).
"""

_MAGIC = {
    **{bytes([0x80, protocol]): "a pickle" for protocol in (2, 3, 4, 5)},
    b"PK\x03\x04": "a zip archive, as torch writes its pickles",
    b"PK\x05\x06": "a zip archive",
    b"\x93NUMPY": "an array of numpy, which may hold pickled objects",
    b"\x89HDF": "an HDF5 file",
    b"\x1f\x8b": "compressed data",
    b"\x7fELF": "a program or library",
    b"MZ\x90\x00": "a program or library",
    b"\xcf\xfa\xed\xfe": "a program or library",
}
MAGIC_LENGTH = max(map(len, _MAGIC))
"""First bytes that :func:`why_no_data` looks at."""


def is_hidden(path: str) -> bool:
    """Whether a file is, or lies in a folder, that tools keep for themselves: ``.git``, ``.envrc``, ``.vscode``."""
    return any(part.startswith(".") for part in path.split("/"))


def git_folder(paths: Iterable[str]) -> str | None:
    """A folder that git takes for a repository, whatever its name; it runs what the settings there name."""
    folders: dict[str, set[str]] = {}
    for path in paths:
        parts = path.lower().split("/")
        for depth, part in enumerate(parts):
            folders.setdefault("/".join(parts[:depth]), set()).add(part)
    return next(
        (folder or "." for folder, held in folders.items() if "head" in held and _is_git(held)),
        None,
    )


def _is_git(held: Collection[str]) -> bool:
    return "commondir" in held or ("objects" in held and "refs" in held)


def why_not_by_name(path: str) -> str | None:
    """Why the overlay's own script may not leave a file of this name in the tree; None where it may."""
    name = posixpath.basename(path)
    stem, dot, suffix = name.rpartition(".")
    if is_hidden(path):
        return "a hidden file or folder, such as tools take their settings from"
    if path.partition("/")[0].lower() == LICENSES_FOLDER:
        return f"a file in {LICENSES_FOLDER}/, which holds what the repos themselves say"
    if dot and stem and f".{suffix.lower()}" in _DATA_SUFFIXES:
        return None
    if not dot and (is_license(name) or name.upper() == "README"):
        return None
    kind = f".{suffix}" if dot else "no suffix"
    return (
        f"a file of a kind that no model needs ({kind}); expected .safetensors, .json and others that hold data alone"
    )


def why_no_data(first: bytes) -> str | None:
    """What a file is by its first bytes, where that is nothing that a tree may hold, whatever its name says."""
    return next((what for magic, what in _MAGIC.items() if first.startswith(magic)), None)
