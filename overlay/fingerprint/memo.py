"""Remembering the sha256 of local files, so that 62 GB are hashed once and not at every run."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import secrets
import time
from pathlib import Path
from typing import TYPE_CHECKING

from overlay.errors import TryAgain
from overlay.fingerprint.digests import descriptor_digest, parse_digest
from overlay.formats.local import file_stat, open_file

if TYPE_CHECKING:
    from collections.abc import Callable

    from overlay.errors import OverlayError

__all__ = ["DigestMemo"]

_SETTLED_NS = 2 * 10**9
"""A file whose last change is younger than this when hashing begins could change again within the same timestamp."""

_Identity = tuple[int, int, int, int]


class DigestMemo:
    """sha256 by (real path, inode, size, mtime, ctime), in memory and in one small JSON file for each file.

    ctime is what no program can set back, so content changed under a restored size and mtime is seen. A file that was
    changed less than two seconds before it was hashed is not remembered: its timestamps may not be able to tell the
    next change. Writers of one memo replace each other's entries whole; both are right.

    Args:
        folder: Where entries are kept, made when the first one is written; None, or a folder that cannot be written:
            remembered in memory only.
        write: Keep new digests; without it, what others kept is used and nothing is written.
    """

    def __init__(self, folder: Path | None, *, write: bool = True) -> None:
        self._folder = folder
        self._write = write
        self._known: dict[str, tuple[_Identity, str]] = {}

    def sha256(self, path: Path, progress: Callable[[int], None] | None = None) -> str:
        """``sha256:<hex>`` of a file's content, through links.

        Args:
            progress: Called with the bytes of each read, where the file has to be read.

        Raises:
            TryAgain: The file changed while it was read.
            OverlayError: The file cannot be read (``formats.local``).
        """
        known = self._remembered(path)
        return known if known is not None else self._compute(os.path.realpath(path), progress)

    def knows(self, path: Path) -> bool:
        """Whether :meth:`sha256` would not read the file."""
        return self._remembered(path) is not None

    def _remembered(self, path: Path) -> str | None:
        identity = _identity(file_stat(path))
        real = os.path.realpath(path)
        known = self._known.get(real) or self._load(real)
        return known[1] if known is not None and known[0] == identity else None

    def _compute(self, real: str, progress: Callable[[int], None] | None) -> str:
        begun = time.time_ns()
        with open_file(Path(real)) as (descriptor, before):
            digest = descriptor_digest(descriptor, "sha256", progress)
            after = os.fstat(descriptor)
        identity = _identity(before)
        if identity != _identity(after):
            raise _changed(real)
        if begun - max(before.st_mtime_ns, before.st_ctime_ns) >= _SETTLED_NS:
            self._known[real] = identity, digest
            self._store(real, identity, digest)
        return digest

    def _entry(self, real: str) -> Path | None:
        if self._folder is None:
            return None
        return self._folder / f"{hashlib.sha256(os.fsencode(real)).hexdigest()}.json"

    def _load(self, real: str) -> tuple[_Identity, str] | None:
        entry = self._entry(real)
        if entry is None:
            return None
        try:
            found = json.loads(entry.read_bytes())
            inode, size, mtime_ns, ctime_ns = found["identity"]
            if found["path"] != real or parse_digest(found["digest"])[0] != "sha256":
                return None
            known = (inode, size, mtime_ns, ctime_ns), found["digest"]
        except (OSError, ValueError, TypeError, KeyError):  # absent, or damaged: as if it were not there
            return None
        self._known[real] = known
        return known

    def _store(self, real: str, identity: _Identity, digest: str) -> None:
        entry = self._entry(real)
        if entry is None or not self._write:
            return
        text = json.dumps({"path": real, "identity": identity, "digest": digest})
        staged = entry.with_name(f".{entry.stem}-{secrets.token_hex(8)}.tmp")
        with contextlib.suppress(OSError):  # a memo that cannot be written costs time, nothing else
            entry.parent.mkdir(parents=True, exist_ok=True)
            try:
                staged.write_text(text, encoding="ascii")
                staged.replace(entry)
            finally:
                staged.unlink(missing_ok=True)


def _identity(found: os.stat_result) -> _Identity:
    return found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def _changed(real: str) -> OverlayError:
    return TryAgain(
        f"{real}: changed while it was read",
        code="input-changed",
        hint="wait until whatever writes it is done, then run the same command again",
        where=real,
    )
