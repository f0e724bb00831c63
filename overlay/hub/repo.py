"""What the rest of the program sees of a repo, whichever place its bytes come from."""

from __future__ import annotations

from collections.abc import Callable
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Protocol

from overlay.errors import NotHere
from overlay.formats.files import Files

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence
    from pathlib import Path

__all__ = ["Progress", "Repo", "matches", "no_such_file"]

Progress = Callable[[int], None]
"""Called with the bytes that arrived since the last call; a negative number takes back bytes that were lost.

May be called from several threads at once.
"""


class Repo(Files, Protocol):
    """One repo at one commit, or a folder in its place.

    Attributes:
        repo: Repo id (``org/name``), or the absolute folder where no repo is named.
        revision: 40-hex commit, or ``local``.
        shared_store: Whether files lie in the Hub's cache, which nobody edits in place and to which hard links are
            allowed; False for a user's folder.
    """

    repo: str
    revision: str
    shared_store: bool

    def digest(self, path: str) -> str:
        """``sha256:<hex>``, or ``sha1-git:<hex>`` for a small file of the Hub. May read a local file whole."""

    def local(self, path: str) -> Path | None:
        """Where the bytes lie on this host already, links resolved; None where they do not. Makes no request."""

    def fetch(self, paths: Collection[str], progress: Progress | None = None) -> Mapping[str, Path]:
        """Bring exactly these files to this host, of the right sizes; says where each lies, links resolved."""


def matches(path: str, patterns: Sequence[str] | None) -> bool:
    """Whether a path is wanted by the Hub's rule: any pattern, ``*`` crossing folders; None wants everything."""
    return patterns is None or any(fnmatchcase(path, pattern) for pattern in patterns)


def no_such_file(name: str, path: str, paths: Sequence[str]) -> NotHere:
    """The error for a path that a repo or folder does not have, with those that look like it."""
    import difflib  # 3 ms that only an error needs

    similar = difflib.get_close_matches(path, paths, n=3, cutoff=0.8)
    hint = f"did you mean {' or '.join(similar)}?" if similar else "check the path and the revision"
    where = f"{name}/{path}"
    return NotHere(f"{name}: has no file {path}", code="no-such-file", hint=hint, where=where, similar=similar)
