"""What ``hub_server`` serves: the revisions of a folder of repos, and their files as the Hub describes them."""

from __future__ import annotations

import fnmatch
import hashlib
import re
import threading
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

LFS_SIZE = 10 * 1000 * 1000
EPOCH = datetime(2026, 9, 30, tzinfo=UTC)
COMMIT = re.compile(r"[0-9a-f]{40}")


@dataclass(frozen=True, slots=True)
class Entry:
    """One file that is served.

    Attributes:
        blob_id: Its name as a git blob; for LFS, that of its pointer.
        sha256: Only where it counts as LFS.
    """

    file: Path
    size: int
    blob_id: str
    sha256: str | None

    @property
    def etag(self) -> str:
        """What the Hub gives as ``ETag``."""
        return self.sha256 or self.blob_id

    def tree_item(self, path: str) -> dict[str, Any]:
        """The entry of a tree listing."""
        item: dict[str, Any] = {"type": "file", "path": path, "size": self.size, "oid": self.blob_id}
        if self.sha256:
            item["lfs"] = {"oid": self.sha256, "size": self.size, "pointerSize": len(_pointer(self.sha256, self.size))}
        return item


class Content:
    """The repos of ``folder``, each ``<org>/<name>/<revision>/…``.

    Args:
        lfs: Globs of the files that count as LFS, besides those over 10 MB.
        branches: Commit of ``main`` by repo, where a repo has several revisions.

    Attributes:
        history: Commits of ``main`` by repo, newest first, each with its title; the first is what ``main`` is at.
    """

    def __init__(self, folder: Path, *, lfs: Sequence[str], branches: Mapping[str, str]) -> None:
        self.folder = folder
        self.lfs = tuple(lfs)
        self.branches = dict(branches)
        self.history: dict[str, Mapping[str, str]] = {}
        self._lock = threading.Lock()
        self._digests: dict[tuple[int, int, int, int], tuple[str, str]] = {}

    def has(self, repo: str) -> bool:
        """Whether there is such a repo."""
        return ".." not in repo.split("/") and (self.folder / repo).is_dir()

    def find(self, repo: str, revision: str) -> tuple[str, Path] | None:
        """Commit and folder of a revision (a commit, or ``main``), if the repo has it."""
        commits = {_commit(path.name): path for path in sorted((self.folder / repo).iterdir()) if path.is_dir()}
        if revision == "main":
            named = _commit("main") if _commit("main") in commits else None
            only = next(iter(commits)) if len(commits) == 1 else None
            newest = next(iter(self.history.get(repo, ())), None)
            revision = newest or self.branches.get(repo) or named or only or revision
        return (revision, commits[revision]) if revision in commits else None

    def commits(self, repo: str, commit: str) -> list[dict[str, Any]]:
        """A commit and those before it, newest first, a day apart; unless told otherwise, as their folders came."""
        folders = [path for path in (self.folder / repo).iterdir() if path.is_dir()]
        folders.sort(key=lambda path: path.stat().st_ctime_ns, reverse=True)
        known = self.history.get(repo) or {_commit(path.name): "Upload folder" for path in folders}
        listed = [_commit_item(*item, EPOCH - timedelta(days=age)) for age, item in enumerate(known.items())]
        return listed[next((age for age, name in enumerate(known) if name == commit), len(listed)) :]

    def entries(self, folder: Path) -> dict[str, Entry]:
        """Every file of a revision by its path."""
        paths = sorted(path for path in folder.rglob("*") if path.is_file())
        return {name: self._entry(path, name) for path in paths for name in [path.relative_to(folder).as_posix()]}

    def _entry(self, file: Path, name: str) -> Entry:
        stat = file.stat()
        key = (stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns)  # revisions share files
        with self._lock:
            known = self._digests.get(key)
        sha256, blob_id = known or _digests(file, stat.st_size)
        with self._lock:
            self._digests[key] = sha256, blob_id
        if stat.st_size > LFS_SIZE or any(fnmatch.fnmatchcase(name, glob) for glob in self.lfs):
            pointer = _pointer(sha256, stat.st_size)
            return Entry(file, stat.st_size, _git_blob(len(pointer), pointer).hexdigest(), sha256)
        return Entry(file, stat.st_size, blob_id, None)


def _commit(name: str) -> str:
    """Commit under which a revision folder is served: its name, or one made up from it."""
    return name if COMMIT.fullmatch(name) else hashlib.sha1(name.encode(), usedforsecurity=False).hexdigest()


def _commit_item(commit: str, title: str, date: datetime) -> dict[str, Any]:
    """The entry of a list of commits."""
    when = date.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return {"id": commit, "title": title, "message": "", "authors": [{"user": "someone"}], "date": when}


def _pointer(sha256: str, size: int) -> bytes:
    return f"version https://git-lfs.github.com/spec/v1\noid sha256:{sha256}\nsize {size}\n".encode()


def _git_blob(size: int, data: bytes = b"") -> Any:
    digest = hashlib.sha1(f"blob {size}\0".encode(), usedforsecurity=False)
    digest.update(data)
    return digest


def _digests(file: Path, size: int) -> tuple[str, str]:
    """The sha256 of a file, and its name as a git blob."""
    sha256, blob = hashlib.sha256(), _git_blob(size)
    with file.open("rb") as stream:
        while chunk := stream.read(1 << 20):
            sha256.update(chunk)
            blob.update(chunk)
    return sha256.hexdigest(), blob.hexdigest()
