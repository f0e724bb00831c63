"""Commits taken out of the Hub's cache. Imports the network stack: only where something is dropped.

What lies there is told by the Hub's own client, and so is which shared blobs nobody needs any more. It is looked at
first (:mod:`overlay.hub.going`). Then it moves aside, by renames, and is removed there: a reader finds a commit whole
or not at all, and what a killed run left behind goes with the next.
"""

from __future__ import annotations

import logging
import os
from collections import Counter
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from huggingface_hub import scan_cache_dir
from huggingface_hub.errors import CacheNotFound

from overlay.errors import CannotWrite, OverlayError, TryAgain
from overlay.hub.going import (
    Going,
    require_nothing_else,
    require_own,
    require_unlinked,
    require_writable,
    unclear,
    unfinished_in,
)
from overlay.hub.hub_cache import hub_cache, storage_folder

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping
    from pathlib import Path

    from huggingface_hub import DeleteCacheStrategy, HFCacheInfo

__all__ = ["Drop", "look"]

_ASIDE = "--overlay-dropping-"
"""Behind the name of a repo's folder. So to the client it is a repo, whose shared blobs it counts, of a name that the
Hub has nowhere."""


@dataclass(frozen=True, slots=True)
class Drop:
    """Commits that are in the Hub's cache, and what goes with them.

    Attributes:
        commits: ``org/name@commit`` each.
        removed: Bytes of the files that lose their name there, each file once; also of those that a killed run left.
        freed: Those of them that the disk gets back. A file that has a further name, such as one of this program's
            cache, or that another repo shares, stays.
    """

    commits: tuple[str, ...]
    removed: int
    freed: int
    _going: tuple[Going, ...]
    _left: tuple[Path, ...]
    _nothing: DeleteCacheStrategy | None

    def execute(self) -> None:
        """Take them out.

        Raises:
            CannotWrite: The system refuses; what it refuses is in its place, or aside, where the next run finds it.
            TryAgain: Something was downloaded meanwhile; it is in its place.
        """
        for going in self._going:
            require_writable(going)
        for path in self._left:
            self._remove(path)
        for going in self._going:
            self._remove(_moved_aside(going))

    def _remove(self, folder: Path) -> None:
        if self._nothing is None:
            raise AssertionError
        with _quiet():  # it warns with tracebacks
            replace(self._nothing, repos=frozenset({folder})).execute()
        if os.path.lexists(folder):
            raise CannotWrite(
                f"{folder}: could not be removed from the Hub's cache",
                code="not-permitted",
                hint=f"run the same command again as a user who may write there: ls -ld {folder}",
                where=str(folder),
                left=[str(folder)],
            )


def look(commits: Mapping[str, Collection[str]], root: Path, linking: Path) -> Drop:
    """What dropping these commits would take out.

    Args:
        commits: By repo id.
        root: The cache root, which must stay.
        linking: A folder beside the Hub's cache whose links must go on leading somewhere.

    Raises:
        BrokenInput: The client cannot tell what a repo's folder holds, or it holds what is not the client's, leads out
            of the cache, or is needed by something that stays.
        TryAgain: A download lies there that is not finished.
    """
    try:
        return _look(commits, root, linking, scan_cache_dir(hub_cache()))
    except CacheNotFound:
        return Drop((), 0, 0, (), (), None)
    except RecursionError:
        raise unclear(hub_cache(), "folders lie in it too deep to be looked through") from None


def _look(commits: Mapping[str, Collection[str]], root: Path, linking: Path, scan: HFCacheInfo) -> Drop:
    store = hub_cache().resolve()
    left = tuple(
        path for name in sorted(commits) for path in sorted(store.glob(f"{storage_folder(name).name}{_ASIDE}*"))
    )
    all_going = []
    for name, wanted in sorted(commits.items()):
        going = _going(name, wanted, store, scan)
        if going is None:
            continue
        require_nothing_else(going, root)
        require_own(going)
        all_going.append(going)
    require_unlinked(all_going, (store, linking), left)
    doomed = {blob for going in all_going for blob in going.blobs}
    doomed |= {path for folder in left for path in folder.glob("blobs/*") if path.exists()}
    return Drop(
        tuple(f"{going.repo}@{commit}" for going in all_going for commit in going.commits),
        *_sizes(doomed, scan),
        tuple(all_going),
        left,
        scan.delete_revisions(),
    )


def _going(name: str, wanted: Collection[str], store: Path, scan: HFCacheInfo) -> Going | None:
    """What goes of one repo; None where nothing of it is here."""
    folder = store / storage_folder(name).name
    repo = next((repo for repo in scan.repos if repo.repo_type == "model" and repo.repo_id == name), None)
    if repo is None and any((folder / "snapshots").glob("*")):
        _require_absent(folder, wanted, scan)
        return None
    revisions = repo.revisions if repo is not None else frozenset()
    gone = sorted((found for found in revisions if found.commit_hash in wanted), key=lambda found: found.commit_hash)
    others = [found for found in revisions if found not in gone]
    kept = {file.blob_path for found in others for file in found.files}
    blobs = {file.blob_path for found in gone for file in found.files}
    # What no commit has is left of a removal that was killed, or somebody downloads it at this moment.
    if not others or not unfinished_in(folder):
        blobs |= {path for path in (folder / "blobs").glob("*") if not path.name.endswith(".incomplete")}
    blobs = {path for path in blobs - kept if path.exists()}
    if not gone and not blobs:
        return None
    return Going(
        name,
        folder,
        tuple(found.commit_hash for found in gone),
        not others,
        tuple(found.snapshot_path for found in gone),
        tuple(sorted(folder / "refs" / ref for found in gone for ref in found.refs)),
        frozenset(blobs),
    )


def _require_absent(folder: Path, commits: Collection[str], scan: HFCacheInfo) -> None:
    """The client passes over a repo that it cannot make sense of."""
    if any(os.path.lexists(folder / "snapshots" / commit) for commit in commits):
        why = next((str(said) for said in scan.warnings if str(folder) in str(said)), "it is no repo of the cache")
        raise unclear(folder, f"the Hub's client cannot tell what it holds ({why})")


def _sizes(doomed: Collection[Path], scan: HFCacheInfo) -> tuple[int, int]:
    """Bytes that lose a name, and those of them that lose the last one."""
    shared = {path.resolve() for path in _kept(doomed, scan) if path.is_symlink()}
    sizes: dict[tuple[int, int], tuple[int, int]] = {}
    going: Counter[tuple[int, int]] = Counter()
    for path in {path.resolve() for path in doomed}:
        status = path.stat()
        inode = (status.st_dev, status.st_ino)
        sizes[inode] = (status.st_size, status.st_nlink)
        going[inode] += path not in shared
    names = sum(size for size, _ in sizes.values())
    return names, sum(size for inode, (size, links) in sizes.items() if going[inode] == links)


def _kept(doomed: Collection[Path], scan: HFCacheInfo) -> set[Path]:
    """Blobs of the whole cache that stay."""
    every = {file.blob_path for repo in scan.repos for revision in repo.revisions for file in revision.files}
    return every - set(doomed)


def _moved_aside(going: Going) -> Path:
    """Take out what goes, by renames; all of it is back in its place where that is not possible.

    Blobs keep their depth, so that one that is a link to the shared store leads there still.
    """
    aside = going.folder.parent / f"{going.folder.name}{_ASIDE}{os.urandom(6).hex()}"
    moved: list[tuple[Path, Path]] = []
    try:
        if going.whole:
            _move(going.folder, aside, moved)
            _require_as_seen(going, aside)
        else:
            aside.mkdir()
            # Branches first: one that leads nowhere makes the client pass over the whole repo.
            for path in (*going.refs, *going.snapshots, *sorted(going.blobs)):
                to = aside / path.relative_to(going.folder)
                to.parent.mkdir(parents=True, exist_ok=True)
                _move(path, to, moved)
    except (OSError, OverlayError) as error:
        for path, to in reversed(moved):
            with suppress(OSError):
                to.rename(path)
        for parent, _, _ in os.walk(aside, topdown=False):
            with suppress(OSError):  # not where anything is left in it
                os.rmdir(parent)  # noqa: PTH106 - of a text
        if isinstance(error, OverlayError):
            raise
        raise CannotWrite(
            f"{going.folder}: could not be taken out of the Hub's cache: {error.strerror or error}",
            code="not-permitted",
            hint=f"run as a user who may write there: ls -ld {going.folder}",
            where=str(going.folder),
        ) from error
    return aside


def _move(path: Path, to: Path, moved: list[tuple[Path, Path]]) -> None:
    path.rename(to)
    moved.append((path, to))


def _require_as_seen(going: Going, aside: Path) -> None:
    """What began between the look and the rename is not taken along."""
    came = sorted({path.name for path in (aside / "snapshots").glob("*")} - {path.name for path in going.snapshots})
    if came or unfinished_in(aside):
        raise TryAgain(
            f"{going.folder}: somebody downloads there, which began a moment ago",
            code="download-unfinished",
            hint="wait for it, then run the same command again",
            where=str(going.folder),
            files=came,
        )


@contextmanager
def _quiet() -> Iterator[None]:
    logger = logging.getLogger("huggingface_hub")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(level)
