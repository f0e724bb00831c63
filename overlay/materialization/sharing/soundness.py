"""Whether what a store says of a tree can be one: such a record may be named by its content and still make no sense."""

from __future__ import annotations

import unicodedata
from typing import TYPE_CHECKING

from overlay.errors import BrokenInput
from overlay.formats.dtypes import tensor_nbytes
from overlay.formats.header import read_header
from overlay.formats.materialized import RECORD_NAME
from overlay.planning.outputs import GeneratedFile
from overlay.planning.plan import finish

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from overlay.materialization.record import RecordedFile

__all__ = ["damaged", "payload_of", "require_header", "require_tree"]

_LONGEST_NAME = 255  # bytes, of filesystems of Linux
_LONGEST_PATH = 2**10  # bytes; the folders above it need room, too
_LARGEST_FILE = 2**50  # bytes; a larger one is no file of a model, but a room check that must fail


def damaged(where: str, what: str) -> BrokenInput:
    """The error that says what is wrong with a document of a store."""
    return BrokenInput(
        f"{where}: {what}",
        code="store-damaged",
        hint="on a host that has the model: overlay push MODEL --anew, with the same --store",
        where=where,
    )


def payload_of(file: RecordedFile) -> int:
    """Bytes of a file's tensors, as its record has them.

    Raises:
        BrokenInput: There are no such tensors.
    """
    return sum(tensor_nbytes(tensor.dtype, tensor.shape, file.path) for tensor in file.tensors or ())


def require_tree(files: Sequence[RecordedFile], where: str) -> None:
    """Refuse outputs that cannot be one tree, by the rule of every plan and by what a filesystem and a terminal take.

    Raises:
        BrokenInput: They cannot.
    """
    if not files:
        raise damaged(where, "its record has no outputs")
    # With the record itself, whose place no output may take.
    finish([GeneratedFile(path, b"") for path in (RECORD_NAME, *(file.path for file in files))], where)
    for file in files:
        name = file.path.encode()
        if any(unicodedata.category(letter) == "Cc" for letter in file.path):
            raise damaged(where, f"path {file.path[:80]!r} has control characters")
        if len(name) > _LONGEST_PATH or max(map(len, name.split(b"/"))) > _LONGEST_NAME:
            raise damaged(where, f"path {file.path[:80]!r} is too long")
        if not payload_of(file) <= file.size <= _LARGEST_FILE:
            raise damaged(where, f"{file.path} cannot have the {file.size} bytes that its record says")


def require_header(path: Path, file: RecordedFile, where: str) -> None:
    """Refuse a file whose tensors are not those in its record.

    Raises:
        BrokenInput: They are not.
    """
    if file.tensors is None:
        return
    try:
        found = [(tensor.name, tensor.dtype, tuple(tensor.shape)) for tensor in read_header(path).tensors.values()]
    except BrokenInput as error:
        raise damaged(where, f"{file.path} is no safetensors file, though its record lists tensors of it") from error
    if sorted(found) != sorted((tensor.name, tensor.dtype, tensor.shape) for tensor in file.tensors):
        raise damaged(where, f"{file.path} has other tensors than its record lists")
