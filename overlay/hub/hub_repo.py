"""A repo of the Hub at one commit: listed once, headers read by range, files in the Hub's own cache."""

from __future__ import annotations

import os
import shlex
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from overlay.errors import BrokenInput, NotHere, OverlayError, Refused, TryAgain
from overlay.fingerprint import bytes_digest, git_blob_digest
from overlay.formats.files import MAX_RANGE, MAX_SMALL_FILE, Folder
from overlay.formats.header import needed_prefix, parse_header, read_header
from overlay.formats.lfs import refuse_pointer
from overlay.formats.local import open_file, read_span, write_small_file
from overlay.formats.wording import counted
from overlay.hub.hub_cache import BRANCH, is_offline, storage_folder
from overlay.hub.repo import matches, no_such_file
from overlay.hub.trees import read_cached_tree, snapshot_tree, write_tree
from overlay.registry import COMMIT

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence
    from pathlib import Path

    from overlay.fingerprint import DigestMemo
    from overlay.formats.header import Header
    from overlay.hub.repo import Progress
    from overlay.hub.traffic import Traffic
    from overlay.hub.trees import Tree, TreeFile
    from overlay.registry import Pin

__all__ = ["HubRepo"]

_HEADERS_AT_ONCE = 8

_HEADER_GUESS = 100_000
"""Bytes asked for to get at a header: enough for nearly all of them, as the client itself assumes."""


class HubRepo:
    """One commit of a repo of the Hub.

    Opening it makes one request where its listing is not cached (two for a floating pin). What is cached already is
    never asked for again.

    Args:
        pin: The repo and its commit; where it floats, ``main`` is resolved now, and the commit kept.
        offline: Make no request, as under ``HF_HUB_OFFLINE``.
        memo: Remembers the digests of files that the listing gives none of.
        only: Patterns of the files that count; no other is listed or fetched. None for all.
        traffic: Counts what is fetched.

    Raises:
        OverlayError: As ``explain.explained``.
        NotHere: Offline, and neither a listing nor a snapshot of the commit is cached.
    """

    shared_store = True

    def __init__(
        self,
        pin: Pin,
        *,
        offline: bool,
        memo: DigestMemo,
        only: Sequence[str] | None = None,
        traffic: Traffic | None = None,
    ) -> None:
        self.repo = pin.repo
        self._traffic = traffic
        self._storage = storage_folder(pin.repo)
        self._offline = offline or is_offline()
        self.revision = pin.revision or self._commit_of_branch()
        self.name = f"{self.repo}@{self.revision[:12]}"
        self.snapshot = self._storage / "snapshots" / self.revision
        self.lost: Refused | None = None
        """Why the Hub has this commit no more, if only the cached copy is left."""
        self._memo = memo
        self._headers: dict[str, Header] = {}
        self._tree = {path: file for path, file in sorted(self._find_tree().items()) if matches(path, only)}

    def paths(self) -> Sequence[str]:
        """Every file that counts, sorted."""
        return list(self._tree)

    def size(self, path: str) -> int:
        """Bytes of a file, by the listing."""
        size = self._file(path).size
        if size is None:
            raise self._not_here([path])
        return size

    def digest(self, path: str) -> str:
        """The Hub's own digest of a file; computed only where a snapshot has no listing."""
        return self._file(path).digest or self._memo.sha256(self._need(path))

    def where(self, path: str) -> str:
        """``org/name@6d052b3e9cc6/path``."""
        return f"{self.name}/{path}"

    def local(self, path: str) -> Path | None:
        """The file in the Hub's cache, links resolved; None where it is not there.

        Raises:
            NotHere: What is there has another size than the commit's file (``damaged-in-hub-cache``).
        """
        expected = self._file(path).size
        link = self.snapshot / path
        if not link.is_file():  # also a link to a blob that was pruned; the client replaces that one
            return self._of_other_commit(path)
        blob = link.resolve()
        size = blob.stat().st_size
        if expected is not None and size != expected:
            found = f"{size} bytes, expected {expected}: damaged in the Hub's cache"
            raise self._damaged(path, blob, found, size=size, expected_size=expected)
        return blob

    def fetch(self, paths: Collection[str], progress: Progress | None = None) -> Mapping[str, Path]:
        """Bring files into the Hub's cache, several at once, largest first, and hold them against the listing.

        Raises:
            NotHere: Offline, and some are not cached; all of them are named.
            OverlayError: As ``explain.explained``.
        """
        missing = [path for path in dict.fromkeys(paths) if self.local(path) is None]
        if missing:
            if self._offline or self.lost:
                raise self._not_here(missing)
            missing.sort(key=lambda path: (-self.size(path), path))
            from overlay.hub import client  # the network stack, only where a request is made

            client.download(self.repo, self.revision, missing, progress, self._traffic)
        found = {path: self.local(path) for path in paths}
        absent = [path for path, place in found.items() if place is None]
        if absent:
            raise TryAgain(
                f"{self.name}: the client reports success, but these files are not in {self.snapshot}:"
                f" {', '.join(absent)}",
                code="incomplete-download",
                hint="something else removes files from the Hub's cache; run the same command again",
                missing=absent,
            )
        return {path: place for path, place in found.items() if place is not None}

    def read_bytes(self, path: str, most: int = MAX_SMALL_FILE) -> bytes:
        """A small file, whole; brought into the Hub's cache first, and held against its digest.

        One that is damaged there is fetched once more: its blob is replaced in one step, by the client.

        Raises:
            NotHere: It is damaged all the same, or cannot be asked for (``damaged-in-hub-cache``).
            BrokenInput: It has more than ``most`` bytes, or is a Git LFS pointer.
            OverlayError: As :meth:`fetch`.
        """
        size = self.size(path)
        if size > most:
            raise BrokenInput(
                f"{self.where(path)}: {size} bytes, expected at most {most} for a small file",
                code="too-large",
                hint="check that this is the right file",
                where=self.where(path),
                size=size,
            )
        try:
            return self._read_whole(path)
        except NotHere as error:
            if error.code != "damaged-in-hub-cache" or self._offline or self.lost:
                raise
        from overlay.hub import client  # the network stack, only where a request is made

        client.download(self.repo, self.revision, [path], None, self._traffic, anew=True)
        return self._read_whole(path)

    def _read_whole(self, path: str) -> bytes:
        place = self.fetch([path])[path]
        with open_file(place) as (descriptor, found):
            data = read_span(descriptor, 0, found.st_size)
        refuse_pointer(data, self.where(path))
        if (expected := self._file(path).digest) is not None:
            digest = bytes_digest(data, "sha256") if expected.startswith("sha256:") else git_blob_digest(data)
            if digest != expected:
                raise self._damaged(path, place, f"{digest}, expected {expected}: not the file of this commit")
        return data

    def read_range(self, path: str, start: int, nbytes: int) -> bytes:
        """Exactly ``nbytes`` from ``start``, without bringing the rest of the file."""
        if not 0 <= nbytes <= MAX_RANGE or start < 0:
            raise ValueError(f"range {start}+{nbytes} is not within 0 to {MAX_RANGE} bytes")
        size = self.size(path)
        if start + nbytes > size:
            raise BrokenInput(
                f"{self.where(path)}: {size} bytes, expected at least {start + nbytes}",
                code="truncated",
                hint="the file is not what its header says; tell whoever published it",
                where=self.where(path),
                size=size,
            )
        return self._read(path, start, nbytes)

    def header(self, path: str) -> Header:
        """The header of a safetensors file, checked: from the cache, else with one or two requests for its range."""
        if path not in self._headers:
            if (here := self.local(path)) is not None:
                self._headers[path] = read_header(here)
            else:
                size, where = self.size(path), self.where(path)
                prefix = self._read(path, 0, min(_HEADER_GUESS, size))
                needed = needed_prefix(prefix[:8], size, where)
                if needed > len(prefix):
                    prefix += self._read(path, len(prefix), needed - len(prefix))
                self._headers[path] = parse_header(prefix, size, where)
        return self._headers[path]

    def fetch_headers(self, paths: Collection[str]) -> None:
        """Read the headers of many safetensors files, several at once, for :meth:`header` to have them.

        Raises:
            OverlayError: As :meth:`header`; the first failure stops the others.
        """
        missing = [path for path in paths if path not in self._headers]
        pool = ThreadPoolExecutor(_HEADERS_AT_ONCE, thread_name_prefix="overlay-header")
        try:
            for done in as_completed([pool.submit(self.header, path) for path in missing]):
                done.result()
        finally:
            pool.shutdown(cancel_futures=True)

    def take_headers(self, other: HubRepo) -> None:
        """Take over what another commit of this repo has read of files that are the same here."""
        known = {file.sha256: other._headers.get(path) for path, file in other._tree.items() if file.sha256}
        for path, file in self._tree.items():
            if file.sha256 and (header := known.get(file.sha256)) is not None:
                self._headers.setdefault(path, header)

    def in_snapshot(self) -> tuple[str, ...]:
        """Every file in the snapshot's folder, sorted: others may have fetched more, or put something there."""
        return tuple(Folder(self.snapshot).paths()) if self.snapshot.is_dir() else ()

    def _of_other_commit(self, path: str) -> Path | None:
        """The blob that another commit with the same file brought: the client would link it here, and fetch nothing."""
        file = self._file(path)
        name = file.sha256 or file.blob_id
        blob = self._storage / "blobs" / name if name else None
        if blob is None or not blob.is_file() or blob.stat().st_size != file.size:
            return None
        return blob.resolve()

    def link_known(self, path: str) -> None:
        """Give the snapshot a file that another commit brought, as the client would; nothing where none has it.

        A filesystem without symlinks leaves it to the client.
        """
        if (self.snapshot / path).is_file() or self._of_other_commit(path) is None:
            return
        file, link = self._file(path), self.snapshot / path
        target = os.path.relpath(self._storage / "blobs" / (file.sha256 or file.blob_id or ""), link.parent)
        # Staged outside: what a killed run leaves in a snapshot would count as a file of the repo.
        staged = self._storage / f".overlay-{os.urandom(8).hex()}.tmp"
        with suppress(OSError):
            link.parent.mkdir(parents=True, exist_ok=True)
            staged.symlink_to(target)
            staged.replace(link)

    def _damaged(self, path: str, blob: Path, found: str, **data: Any) -> NotHere:
        """What lies in the Hub's cache is not the commit's file: that is a matter of this host, and of no repo."""
        link = self.snapshot / path
        return NotHere(
            f"{link}: {found}",
            code="damaged-in-hub-cache",
            hint=f"remove it and run again: rm -f {shlex.quote(str(blob))} {shlex.quote(str(link))}",
            where=self.where(path),
            repo=self.repo,
            **data,
        )

    def _read(self, path: str, start: int, nbytes: int) -> bytes:
        if self.local(path) is None and not (self._offline or self.lost):
            from overlay.hub import client  # the network stack, only where a request is made

            return client.read_range(self.repo, self.revision, path, start, nbytes, self._traffic)
        with open_file(self._need(path)) as (descriptor, _):
            return read_span(descriptor, start, nbytes)

    def _need(self, path: str) -> Path:
        """A file that must be here already, because nothing can be asked for."""
        return self.fetch([path])[path]

    def _file(self, path: str) -> TreeFile:
        if path not in self._tree:
            raise no_such_file(self.name, path, self.paths())
        return self._tree[path]

    def _not_here(self, paths: Sequence[str]) -> OverlayError:
        """Error for files that cannot be had now; it names all that are missing in their folders."""
        folders = {path.rpartition("/")[0] for path in paths}
        missing = [path for path in self.paths() if path.rpartition("/")[0] in folders and self.local(path) is None]
        message = f"{self.name}: {counted(len(missing), 'file')} not in the Hub's cache: {', '.join(missing)}"
        if self.lost:
            return Refused(
                f"{message}; {self.lost.message}",
                code=self.lost.code,
                hint=self.lost.hint,
                repo=self.repo,
                revision=self.revision,
                missing=missing,
            )
        return NotHere(
            message,
            code="not-cached",
            hint="run it once with a connection (without --offline, HF_HUB_OFFLINE unset); an interrupted download?",
            repo=self.repo,
            revision=self.revision,
            missing=missing,
            snapshot=str(self.snapshot),
        )

    def _find_tree(self) -> Tree:
        tree = read_cached_tree(self._storage, self.revision)
        if tree is None and not self._offline:
            from overlay.hub import client  # the network stack, only where a request is made

            try:
                tree = client.list_tree(self.repo, self.revision, self._traffic)
            except Refused as error:
                if error.code == "not-a-hub" or not self.snapshot.is_dir():
                    raise  # what is no Hub says nothing of the commit
                self.lost = error
            else:
                write_tree(self._storage, self.revision, tree)
        if tree is None:
            tree = snapshot_tree(self.snapshot)
        if tree is None:
            raise NotHere(
                f"{self.name}: nothing of it is in the Hub's cache {self._storage.parent}",
                code="not-cached",
                hint="run it once with a connection (without --offline, HF_HUB_OFFLINE unset), or give --hub DIR",
                repo=self.repo,
                revision=self.revision,
                snapshot=str(self.snapshot),
            )
        return tree

    def _commit_of_branch(self) -> str:
        ref = self._storage / "refs" / BRANCH
        if not self._offline:
            from overlay.hub import client  # the network stack, only where a request is made

            commit = client.resolve_branch(self.repo, self._traffic)
            with suppress(OSError):  # a cache that cannot be written does without
                write_small_file(ref, commit.encode())
            return commit
        commit = ref.read_text(encoding="ascii").strip() if ref.is_file() else ""
        if not COMMIT.fullmatch(commit):
            raise NotHere(
                f"{self.repo}: floats, and no commit of {BRANCH} is in the Hub's cache",
                code="not-cached",
                hint="pin the repo in the registry, or run it once with a connection",
                repo=self.repo,
            )
        return commit
