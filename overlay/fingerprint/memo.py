"""Remembering the sha256 of local files, so that 62 GB are hashed once and not at every run."""

from __future__ import annotations

import contextlib
import hashlib
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from overlay.errors import TryAgain
from overlay.fingerprint.digests import BLOCK, descriptor_digests, parse_digest
from overlay.fingerprint.entries import entry_bytes, entry_in
from overlay.formats.local import file_stat, open_file, read_small_file, write_small_file

if TYPE_CHECKING:
    from collections.abc import Callable

    from overlay.errors import OverlayError
    from overlay.fingerprint.digests import Digests

__all__ = ["DigestMemo"]

_SETTLED_NS = 2 * 10**9
"""A file whose last change is younger than this when hashing begins could change again within the same timestamp."""

_VERSION = 1

_Identity = tuple[int, int, int, int]


class DigestMemo:
    """sha256 by (real path, inode, size, mtime, ctime), in memory and in one small JSON file for each file.

    ctime is what no program can set back, so content changed under a restored size and mtime is seen. A file that was
    changed less than two seconds before it was hashed is not remembered: its timestamps may not be able to tell the
    next change. Writers of one memo replace each other's entries whole; both are right.

    A name more or less changes the ctime as well, and a cache gives names to files that it links. So of a file that is
    the object of its remembered digest, inode, size and mtime are enough: it is believed as far as that object is.

    The pass that takes a sha256 takes the xxh3_128 too, and that both are of one content is remembered by the content:
    whoever has only the slow digest of a file can check it by the fast one.

    Args:
        folder: Where entries are kept, made when the first one is written; None, or a folder that cannot be written:
            remembered in memory only.
        write: Keep new digests; without it, what others kept is used and nothing is written.
        objects: Says where the object of a digest is, if there is one.
    """

    def __init__(
        self, folder: Path | None, *, write: bool = True, objects: Callable[[str], Path] | None = None
    ) -> None:
        self._folder = folder
        self._write = write
        self._objects = objects
        self._known: dict[str, tuple[_Identity, str]] = {}
        self._equal: dict[str, str] = {}

    def sha256(
        self,
        path: Path,
        progress: Callable[[int], None] | None = None,
        see: Callable[[memoryview], None] | None = None,
    ) -> str:
        """``sha256:<hex>`` of a file's content, through links.

        Args:
            progress: Called with the number of bytes of each read, where the file has to be read.
            see: Called with the file's bytes in order: with it the file is read in any case, and the digest is of what
                was seen.

        Raises:
            TryAgain: The file changed while it was read.
            OverlayError: The file cannot be read (``formats.local``).
        """
        known = self._remembered(path) if see is None else None
        return known if known is not None else self._compute(os.path.realpath(path), progress, see)

    def knows(self, path: Path) -> bool:
        """Whether :meth:`sha256` would not read the file."""
        return self._remembered(path) is not None

    def remember_equal(self, digests: Digests, size: int) -> None:
        """Keep that both digests are of one content of this size, if taking them again would cost anything."""
        if size >= BLOCK and self._equal.get(digests.sha256) != digests.xxh3_128:
            self._equal[digests.sha256] = digests.xxh3_128
            self._store(self._equal_entry(digests.sha256), digests.sha256, digests.xxh3_128)

    def xxh3_of(self, sha256: str) -> str | None:
        """The ``xxh3_128:<hex>`` of the content that has this sha256, if both were ever taken of it here.

        It is a fact about content, so no file's stat counts. Whoever finds that it does not fit takes the sha256
        itself: the entry may be damaged.
        """
        entry = self._equal_entry(sha256)
        if entry is not None and sha256 not in self._equal:
            with contextlib.suppress(OSError, ValueError):  # absent, or damaged: as if not there
                found = entry_in(read_small_file(entry), _VERSION, sha256)
                if isinstance(found, str) and parse_digest(found)[0] == "xxh3_128":
                    self._equal[sha256] = found
        return self._equal.get(sha256)

    def _remembered(self, path: Path) -> str | None:
        found = file_stat(path)
        identity, real = _identity(found), os.path.realpath(path)
        known = self._known.get(real) or self._load(real)
        if known is None:
            return None
        same = known[0] == identity or (known[0][:-1] == identity[:-1] and self._is_object(found, known[1]))
        return known[1] if same else None

    def _is_object(self, found: os.stat_result, digest: str) -> bool:
        try:
            return self._objects is not None and os.path.samestat(found, self._objects(digest).lstat())
        except OSError:
            return False

    def _compute(
        self, real: str, progress: Callable[[int], None] | None, see: Callable[[memoryview], None] | None
    ) -> str:
        begun = time.time_ns()
        with open_file(Path(real)) as (descriptor, before):
            digests = descriptor_digests(descriptor, progress, see)
            after = os.fstat(descriptor)
        identity = _identity(before)
        if identity[:-1] != _identity(after)[:-1]:
            raise _changed(real)
        self.remember_equal(digests, before.st_size)
        # Another run may have linked it meanwhile, which is no reason to fail.
        if identity == _identity(after) and begun - max(before.st_mtime_ns, before.st_ctime_ns) >= _SETTLED_NS:
            self._known[real] = identity, digests.sha256
            self._store(self._entry(real), real, {"identity": list(identity), "digest": digests.sha256})
        return digests.sha256

    def _entry(self, real: str) -> Path | None:
        if self._folder is None:
            return None
        return self._folder / f"{hashlib.sha256(os.fsencode(real)).hexdigest()}.json"

    def _load(self, real: str) -> tuple[_Identity, str] | None:
        entry = self._entry(real)
        if entry is None:
            return None
        try:
            found = entry_in(read_small_file(entry), _VERSION, real)
            inode, size, mtime_ns, ctime_ns = found["identity"]
            if parse_digest(found["digest"])[0] != "sha256":
                return None
            known = (inode, size, mtime_ns, ctime_ns), found["digest"]
        except (OSError, ValueError, TypeError, KeyError):  # absent, or damaged: as if it were not there
            return None
        self._known[real] = known
        return known

    def _equal_entry(self, sha256: str) -> Path | None:
        return None if self._folder is None else self._folder / f"{parse_digest(sha256)[1]}.equal"

    def _store(self, entry: Path | None, key: str, found: Any) -> None:
        if entry is None or not self._write:
            return
        with contextlib.suppress(OSError):  # a memo that cannot be written costs time, nothing else
            write_small_file(entry, entry_bytes(_VERSION, key, found))


def _identity(found: os.stat_result) -> _Identity:
    return found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def _changed(real: str) -> OverlayError:
    return TryAgain(
        f"{real}: changed while it was read",
        code="input-changed",
        hint="wait until whatever writes it is done, then run the same command again",
        where=real,
    )
