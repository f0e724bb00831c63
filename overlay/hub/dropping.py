"""Commits taken out of the Hub's cache by its own client. Imports the network stack: only where something is dropped.

What a repo of the Hub's cache loses is decided by the client alone. Here it is looked at first: nothing outside the
repo may go, no download of somebody else, and what it says to free is held against the disk.
"""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from huggingface_hub import scan_cache_dir
from huggingface_hub.errors import CacheNotFound

from overlay.errors import BrokenInput, CannotWrite, TryAgain
from overlay.formats.wording import some
from overlay.hub.hub_cache import hub_cache, storage_folder

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping
    from pathlib import Path

    from huggingface_hub import CachedRepoInfo, DeleteCacheStrategy, HFCacheInfo

__all__ = ["Drop", "look"]


@dataclass(frozen=True, slots=True)
class Drop:
    """Commits that are in the Hub's cache, and what goes with them.

    Attributes:
        commits: ``org/name@commit`` each.
        removed: Bytes of the files that lose their name there, each file once.
        freed: Those of them that the disk gets back. A file that has a further name, such as one of this program's
            cache, or that another repo shares, stays.
    """

    commits: tuple[str, ...]
    removed: int
    freed: int
    _strategies: tuple[DeleteCacheStrategy, ...]

    def execute(self) -> None:
        """Take them out.

        Raises:
            CannotWrite: Something of them is there still.
        """
        for strategy in self._strategies:
            strategy.execute()
        gone = [path for strategy in self._strategies for path in (*strategy.repos, *strategy.snapshots)]
        if left := [str(path) for path in gone if os.path.lexists(path)]:
            raise CannotWrite(
                f"{left[0]}: could not be removed from the Hub's cache",
                code="not-permitted",
                hint=f"run as a user who may write there: ls -ld {left[0]}",
                where=left[0],
                left=left,
            )


def look(commits: Mapping[str, Collection[str]]) -> Drop:
    """What dropping these commits would take out.

    Args:
        commits: By repo id.

    Raises:
        BrokenInput: The client cannot tell what a repo's folder holds, or it leads out of the cache.
        TryAgain: A download lies there that is not finished.
    """
    try:
        scan = scan_cache_dir(hub_cache())
    except CacheNotFound:
        return Drop((), 0, 0, ())
    found, strategies, doomed = [], [], set()
    for name, wanted in sorted(commits.items()):
        repo = next((repo for repo in scan.repos if repo.repo_type == "model" and repo.repo_id == name), None)
        if repo is None:
            _require_absent(name, wanted, scan)
            continue
        here = sorted({revision.commit_hash for revision in repo.revisions} & set(wanted))
        if not here:
            continue
        # Of this repo alone: a renamed one has the same commits, and the client would take whichever comes first.
        strategy = replace(scan, repos=frozenset({repo})).delete_revisions(*here)
        names = set(_names(repo, here))
        _require_own(repo, names, scan, whole=bool(strategy.repos))
        found += [f"{name}@{commit}" for commit in here]
        strategies.append(strategy)
        doomed |= names
    return Drop(tuple(found), *_sizes(doomed, scan), tuple(strategies))


def _names(repo: CachedRepoInfo, commits: Collection[str]) -> Iterator[Path]:
    """Blobs of these commits that no other commit of the repo has."""
    kept = {f.blob_path for other in repo.revisions if other.commit_hash not in commits for f in other.files}
    for revision in repo.revisions:
        if revision.commit_hash in commits:
            yield from (file.blob_path for file in revision.files if file.blob_path not in kept)


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


def _require_absent(name: str, commits: Collection[str], scan: HFCacheInfo) -> None:
    """The client passes over a repo that it cannot make sense of."""
    folder = storage_folder(name)
    if not any((folder / "snapshots" / commit).exists() for commit in commits):
        return
    why = next((str(warning) for warning in scan.warnings if str(folder) in str(warning)), "it is no repo of the cache")
    raise BrokenInput(
        f"{folder}: the Hub's client cannot tell what it holds: {why}",
        code="hub-cache-unclear",
        hint=f"look at it, and remove it by hand if nobody needs it: ls -R {folder}",
        where=str(folder),
    )


def _require_own(repo: CachedRepoInfo, names: Collection[Path], scan: HFCacheInfo, *, whole: bool) -> None:
    outside = sorted(str(path) for path in names if not path.is_relative_to(repo.repo_path))
    if outside or repo.repo_path.is_symlink():
        raise BrokenInput(
            f"{repo.repo_path}: leads out of the Hub's cache ({some(outside or [str(repo.repo_path.resolve())])}), and "
            "nothing outside it is removed",
            code="hub-cache-unclear",
            hint="remove it by hand if nobody needs it",
            where=str(repo.repo_path),
        )
    unfinished = [str(file.file_path) for file in scan.incomplete_files if repo.repo_path in file.file_path.parents]
    if whole and unfinished:
        raise TryAgain(
            f"{unfinished[0]}: a download that is not finished, and that would go with the rest of {repo.repo_id}",
            code="download-unfinished",
            hint=f"wait for it; if nobody downloads there, remove what was left: rm {' '.join(unfinished)}",
            where=unfinished[0],
            files=unfinished,
        )
