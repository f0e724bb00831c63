"""Which files may lie in the tree of a model: what servers read, and nothing that a tool runs by itself."""

from __future__ import annotations

import io
import pickletools
import posixpath
import re
from typing import TYPE_CHECKING

from overlay.formats.licenses import LICENSES_FOLDER, is_license

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

__all__ = ["LOOKED_AT", "git_folder", "is_hidden", "why_no_data", "why_not_by_name"]

_DATA_SUFFIXES = (
    *(".safetensors", ".gguf"),
    *(".json", ".jsonl", ".txt", ".md", ".rst", ".yaml", ".yml", ".csv", ".tsv", ".jinja", ".jinja2"),
    *(".model", ".vocab", ".merges", ".bpe", ".spm", ".tiktoken"),  # of tokenizers
    *(".png", ".jpg", ".jpeg", ".webp", ".gif", ".wav", ".flac", ".mp3", ".mp4"),
)
"""Files of models that no reader runs.

What is missing is missing for a reason: pickles in all their spellings, ``.npy`` (may hold pickled objects), ``.onnx``
(names further files, to be read from elsewhere; no server here wants it), ``.svg`` (may hold a script, which browsers
run), ``.py`` and its compiled forms (a server that trusts remote code imports them), libraries, archives, ``.toml``,
``.ini`` and ``.cfg`` (tools take their settings from the folder that they are started in).
"""

_VERSIONED = re.compile(r".+\.model\.v[0-9]+(m[0-9]+)?")
"""Tokenizers of Mistral: ``tokenizer.model.v3``."""

_PAPER = re.compile(r"README|AUTHORS|COPYRIGHT|THIRD[-_]PARTY[-_](NOTICES?|LICEN[SC]ES?)", re.IGNORECASE)
"""Texts that have no suffix, beside licences."""

_MAGIC = {
    **{bytes([0x80, protocol]): "a pickle" for protocol in (2, 3, 4, 5)},
    b"PK\x03\x04": "a zip archive, as torch writes its pickles",
    b"PK\x05\x06": "a zip archive",
    b"\x93NUMPY": "an array of numpy, which may hold pickled objects",
    b"\x89HDF": "an HDF5 file",
    **dict.fromkeys((b"\x1f\x8b", b"\xfd7zXZ\x00", b"\x28\xb5\x2f\xfd"), "compressed data"),
    **{b"BZh%d1AY" % level: "compressed data" for level in range(1, 10)},
    b"7z\xbc\xaf\x27\x1c": "a 7z archive",
    b"Rar!\x1a\x07": "a rar archive",
    b"\x7fELF": "a program or library",
    b"MZ\x90\x00": "a program or library",
    b"\xcf\xfa\xed\xfe": "a program or library",
}
_TAR_MAGIC, _TAR_PLACE = b"ustar", 257

_IMPORTS = frozenset({"GLOBAL", "INST", "STACK_GLOBAL"})
"""Opcodes of a pickle by which it names what is called when it is read."""

LOOKED_AT = 2**16
"""First bytes of a file that :func:`why_no_data` looks at."""


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
    if dot and stem and (f".{suffix.lower()}" in _DATA_SUFFIXES or _VERSIONED.fullmatch(name)):
        return None
    if not dot and (is_license(name) or _PAPER.fullmatch(name)):
        return None
    kind = f".{suffix}" if dot else "no suffix"
    return (
        f"a file of a kind that no model needs ({kind}); expected .safetensors, .json and others that hold data alone"
    )


def why_no_data(first: bytes) -> str | None:
    """What a file is by its first bytes, where that is nothing that a tree may hold, whatever its name says.

    It finds what was left by mistake, and not everything that was made not to be found: of a pickle without a mark of
    its protocol (0 and 1 have none) the end must be among these bytes.
    """
    if (what := next((what for magic, what in _MAGIC.items() if first.startswith(magic)), None)) is not None:
        return what
    if first.startswith(_TAR_MAGIC, _TAR_PLACE):
        return "a tar archive"
    return "a pickle" if _is_unmarked_pickle(first) else None


def _is_unmarked_pickle(data: bytes) -> bool:
    """Whether these are opcodes to the end of a pickle that names what is called, or that makes sense and ends here.

    Text is none within a few bytes, because blanks and newlines are no opcodes.
    """
    read = io.BytesIO(data)
    try:
        if _IMPORTS & {opcode.name for opcode, _, _ in pickletools.genops(data)}:
            return True
        pickletools.dis(read, io.StringIO())
    except (ValueError, IndexError):  # the latter of its own stack
        return False
    return not data[read.tell() :].strip()
