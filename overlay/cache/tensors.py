"""Remembered digests of the tensors of adapters, by the digest of the file: facts of content, true wherever it lies."""

from __future__ import annotations

from typing import TYPE_CHECKING

from overlay.cache.disk import write_atomically, writing
from overlay.fingerprint import Span, parse_digest
from overlay.fingerprint.entries import entry_bytes, entry_in
from overlay.formats.local import read_small_file

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from overlay.cache.layout import CacheRoot

__all__ = ["TensorDigests"]

_VERSION = 1
_SUFFIX = ".tensors.json"


class TensorDigests:
    """One small JSON file for each adapter file, and what was asked for before in memory.

    What is damaged counts as absent. Whoever asks names the tensors by their place in the file, so an entry that was
    made by another header does not hold them.

    Args:
        root: The cache root.
    """

    def __init__(self, root: CacheRoot) -> None:
        self._root = root
        self._known: dict[str, Mapping[Span, str]] = {}

    def of(self, file: str) -> Mapping[Span, str]:
        """``sha256:<hex>`` of the tensors of a file, by place; empty where nothing is known.

        Args:
            file: The file's digest.
        """
        if file not in self._known:
            self._known[file] = self._load(file)
        return self._known[file]

    def keep(self, file: str, tensors: Mapping[Span, str]) -> None:
        """Remember digests that were taken of the very bytes that gave the file's digest.

        Raises:
            CannotWrite: The filesystem refused.
        """
        self._known[file] = dict(tensors)
        rows = [[offset, nbytes, digest] for (offset, nbytes), digest in sorted(tensors.items())]
        with writing(self._root, "rename digests into place"):
            # Not durable: an entry that a power cut empties is as good as none.
            write_atomically(self._path(file), entry_bytes(_VERSION, file, rows), self._root, durable=False)

    def is_empty(self) -> bool:
        """Whether nothing was ever remembered here."""
        return next(self._root.digests.glob(f"*{_SUFFIX}"), None) is None

    def _path(self, file: str) -> Path:
        return self._root.digests / f"{parse_digest(file)[1]}{_SUFFIX}"

    def _load(self, file: str) -> Mapping[Span, str]:
        try:
            rows = entry_in(read_small_file(self._path(file)), _VERSION, file)
            found = {(offset, nbytes): digest for offset, nbytes, digest in rows}
            sound = all(parse_digest(digest)[0] == "sha256" for digest in found.values())
        except (OSError, ValueError, TypeError):
            return {}
        return found if sound else {}
