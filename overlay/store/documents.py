"""What a store says of its files: small documents, each checked as if a stranger had written it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from overlay.errors import BrokenInput
from overlay.fingerprint import BLOCK, parse_digest
from overlay.fingerprint.entries import entry_bytes, entry_in

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["CHUNK", "LARGEST_DOCUMENT", "StoredObject", "StoredTree"]

CHUNK = BLOCK
"""Bytes of a chunk, the last one of a file excepted: what is read again after a cut, and what a transfer holds."""

LARGEST_DOCUMENT = 2**28
"""Bytes. The largest are those of trees, which hold a record."""

_VERSION = 1
_HEX64 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class StoredObject:
    """A file as a store has it.

    Attributes:
        digest: ``algorithm:hex``, its name.
        size: Bytes.
        chunks: sha256 of each chunk, in order.
    """

    digest: str
    size: int
    chunks: tuple[str, ...]

    def to_bytes(self) -> bytes:
        """As it lies in the store."""
        return entry_bytes(_VERSION, self.digest, {"size": self.size, "chunks": list(self.chunks)})

    @classmethod
    def parse(cls, data: bytes, digest: str, where: str) -> StoredObject:
        """The document of this digest.

        Raises:
            BrokenInput: It is not.
        """
        entry = _entry(data, digest, where)
        try:
            size, chunks = entry["size"], tuple(entry["chunks"])
            sound = type(size) is int and size >= 0 and len(chunks) == -(-size // CHUNK)
            sound = sound and all(isinstance(chunk, str) and _HEX64.fullmatch(chunk) for chunk in chunks)
        except (KeyError, TypeError):
            sound = False
        if not sound:
            raise _damaged(where)
        return cls(digest, size, chunks)

    def sizes(self) -> list[int]:
        """Bytes of each chunk."""
        return [min(CHUNK, self.size - start) for start in range(0, self.size, CHUNK)]


@dataclass(frozen=True, slots=True)
class StoredTree:
    """A materialization as a store has it; its files are objects, by the digests in its record.

    Attributes:
        name: Of the tree.
        record: The bytes of its record.
        actions: What it was made by: the keys of action entries.
    """

    name: str
    record: bytes
    actions: tuple[str, ...]

    def to_bytes(self) -> bytes:
        """As it lies in the store."""
        return entry_bytes(_VERSION, self.name, {"record": self.record.decode(), "actions": list(self.actions)})

    @classmethod
    def parse(cls, data: bytes, name: str, where: str) -> StoredTree:
        """The document of this tree; what the record itself says is for the reader to check.

        Raises:
            BrokenInput: It is not.
        """
        entry = _entry(data, name, where)
        try:
            record, actions = entry["record"].encode(), tuple(entry["actions"])
            sound = all(isinstance(key, str) and _HEX64.fullmatch(key) for key in actions)
        except (KeyError, TypeError, AttributeError, UnicodeEncodeError):
            sound = False
        if not sound:
            raise _damaged(where)
        return cls(name, record, actions)


def action_bytes(key: str, entry: Mapping[str, Any]) -> bytes:
    """An action entry as it lies in the store."""
    return entry_bytes(_VERSION, key, dict(entry))


def parse_action(data: bytes, key: str, where: str) -> dict[str, Any]:
    """An action entry: at least ``digest`` and ``size`` of the file that the action gave.

    Raises:
        BrokenInput: It is none.
    """
    entry = _entry(data, key, where)
    try:
        parse_digest(entry["digest"])
        sound = type(entry["size"]) is int and isinstance(entry, dict)
    except (KeyError, TypeError, BrokenInput):
        sound = False
    if not sound:
        raise _damaged(where)
    return dict(entry)


def pointer_bytes(key: str, tree: str) -> bytes:
    """Which tree a model is."""
    return entry_bytes(_VERSION, key, tree)


def parse_pointer(data: bytes, key: str, where: str) -> str:
    """Name of the tree that a model is.

    Raises:
        BrokenInput: It names none.
    """
    tree = _entry(data, key, where)
    if not isinstance(tree, str):
        raise _damaged(where)
    return tree


def _entry(data: bytes, key: str, where: str) -> Any:
    entry = entry_in(data, _VERSION, key) if len(data) <= LARGEST_DOCUMENT else None
    if entry is None:
        raise _damaged(where)
    return entry


def _damaged(where: str) -> BrokenInput:
    return BrokenInput(
        f"{where}: not a document that this version wrote, or damaged",
        code="store-damaged",
        hint="on a host that has the model: overlay push MODEL --anew, with the same --store",
        where=where,
    )
