"""Commits taken out of the Hub's cache. Imports the network stack: only where something is dropped.

What lies there is told by the Hub's own client, and so is which shared blobs nobody needs any more. What was seen goes,
and nothing else:

1. One drop at a time: a lock in the Hub's cache, so that those of several cache roots exclude each other.
2. What a killed drop had taken is put back; then it is looked what goes (:mod:`overlay.hub.going`).
3. That moves aside, by renames, in the collector's turn: branches, then commits, then what only these need. So a reader
   finds a commit whole or not at all.
4. It is looked again. Where anybody began to use what is aside, or where anything fails, all of it is put back.
5. The folders aside get another name, the mark that their removal has begun. Only folders so marked are ever removed.
"""

from __future__ import annotations

import logging
import os
from collections import Counter
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from filelock import FileLock, Timeout
from huggingface_hub import scan_cache_dir

from overlay.errors import CannotWrite, OverlayError, TryAgain
from overlay.formats.os_errors import cannot_write
from overlay.hub.going import (
    Going,
    below,
    going_of,
    link_to,
    remove_emptied,
    require_own,
    require_writable,
    unclear,
    unfinished_in,
)
from overlay.hub.hub_cache import hub_cache, storage_folder

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
    from contextlib import AbstractContextManager
    from pathlib import Path

    from huggingface_hub import DeleteCacheStrategy, HFCacheInfo

__all__ = ["Drop", "drop", "look"]

_ASIDE, _DOOMED = "--overlay-dropping-", "--overlay-dropped-"
"""Behind the name of a repo's folder: of what is taken, and of what is being removed. So to the client it is a repo,
whose shared blobs it counts, of a name that the Hub has nowhere."""


@dataclass(frozen=True, slots=True)
class Drop:
    """Commits that are in the Hub's cache, and what goes with them.

    Attributes:
        commits: ``org/name@commit`` each.
        removed: Bytes of the files that lose their name there, each file once; also of those whose removal was killed.
        freed: Those of them that the disk gets back. A file that has a further name, such as one of this program's
            cache, or that another repo shares, stays.
        left: Folders that drops of others left, which this user can neither put back nor remove.
    """

    commits: tuple[str, ...] = ()
    removed: int = 0
    freed: int = 0
    left: tuple[Path, ...] = ()


@dataclass(frozen=True, slots=True)
class _Found:
    """What is dropped, what goes with it, what else is to be removed, and how the client removes."""

    drop: Drop
    going: tuple[Going, ...]
    doomed: tuple[Path, ...]
    nothing: DeleteCacheStrategy

    def remove(self, folder: Path) -> bool:
        """Remove a marked folder, and what only it needs of the shared store; whether it is gone."""
        with _quiet(), suppress(OSError):  # it warns with tracebacks
            replace(self.nothing, repos=frozenset({folder})).execute()
        return not os.path.lexists(folder)


def look(commits: Mapping[str, Collection[str]], linking: Path) -> Drop:
    """What dropping these commits would take out; without what a killed drop had taken, which a drop puts back first.

    Args:
        commits: By repo id.
        linking: A folder beside the Hub's cache whose links must go on leading somewhere.

    Raises:
        BrokenInput: The client cannot tell what a repo's folder holds, or what would go holds what is not the client's,
            leads out of the cache, or is needed by something that stays.
        TryAgain: A download lies there that is not finished.
    """
    return _look(commits, linking).drop if hub_cache().is_dir() else Drop()


def drop(
    commits: Mapping[str, Collection[str]],
    linking: Path,
    turn: AbstractContextManager[Callable[[], None]],
    *,
    timeout: float,
    on_wait: Callable[[str], None] | None = None,
) -> Drop:
    """Take these commits out.

    Args:
        commits: By repo id.
        linking: A folder beside the Hub's cache whose links must go on leading somewhere.
        turn: Held while things move, not while they are looked at or removed. It may raise, and what it yields is
            called before each move, and may raise; nothing goes then.
        timeout: Seconds to wait for another drop from this Hub cache.
        on_wait: Called once when waiting begins.

    Raises:
        BrokenInput: As :func:`look`.
        CannotWrite: The system refuses. All is in its place, or the error names the folder where it is
            (``not-put-back``, and the next drop tries again), or that could not be removed.
        TryAgain: Another drop is at work, or something was downloaded meanwhile; all is in its place.
    """
    if not any(map(os.path.lexists, map(storage_folder, commits))) and not _folders(commits):
        return Drop()  # also where this user may write no lock
    with _alone(timeout, on_wait):
        left = [folder for folder in _folders(commits, _ASIDE) if not _put_back(folder)]
        found = _look(commits, linking)
        stuck = [str(folder) for folder in _taken(found.going, linking, turn) if not found.remove(folder)]
        left += [folder for folder in found.doomed if not found.remove(folder)]
        for name in commits:
            remove_emptied(storage_folder(name))
    if stuck:
        raise CannotWrite(
            f"{stuck[0]}: could not be removed from the Hub's cache",
            code="not-permitted",
            hint=f"run the same command again as a user who may write there: ls -ld {stuck[0]}",
            where=stuck[0],
            left=stuck,
        )
    return replace(found.drop, left=(*found.drop.left, *left))


def _look(commits: Mapping[str, Collection[str]], linking: Path) -> _Found:
    store = hub_cache().resolve()
    try:
        scan = scan_cache_dir(store)
        found = [
            going_of(name, sorted(commits[name]), store / storage_folder(name).name, scan) for name in sorted(commits)
        ]
    except RecursionError:
        raise unclear(store, "folders lie in it too deep to be looked through") from None
    all_going = tuple(going for going in found if going is not None)
    for going in all_going:
        require_own(going)
    if needing := link_to(all_going, (store, linking), _folders(commits)):
        link, place, taken = needing
        what = f"{link} needs {place.relative_to(taken.folder)} of it"
        raise unclear(taken.folder, what, f"keep both; or, if nobody needs the link, remove it: rm {link}")
    marked = _folders(commits, _DOOMED)
    doomed = tuple(folder for folder in marked if os.access(folder, os.W_OK | os.X_OK))
    blobs = {blob for going in all_going for blob in going.blobs}
    blobs |= {path for folder in doomed for path in folder.glob("blobs/*") if path.exists()}
    drop = Drop(
        tuple(f"{going.repo}@{commit}" for going in all_going for commit in going.commits),
        *_sizes(blobs, scan),
        tuple(folder for folder in marked if folder not in doomed),
    )
    return _Found(drop, all_going, doomed, scan.delete_revisions())


def _folders(commits: Iterable[str], *kinds: str) -> list[Path]:
    """What drops of these repos left aside."""
    store = hub_cache().resolve()
    names = [f"{storage_folder(repo).name}{kind}" for repo in sorted(commits) for kind in kinds or (_ASIDE, _DOOMED)]
    found = [path for name in names for path in sorted(store.glob(f"{name}*"))]
    return [path for path in found if path.is_dir() and not path.is_symlink()]


def _sizes(doomed: Collection[Path], scan: HFCacheInfo) -> tuple[int, int]:
    """Bytes that lose a name, and those of them that lose the last one."""
    every = {file.blob_path for repo in scan.repos for revision in repo.revisions for file in revision.files}
    shared = {path.resolve() for path in every - set(doomed) if path.is_symlink()}
    sizes: dict[tuple[int, int], tuple[int, int]] = {}
    going: Counter[tuple[int, int]] = Counter()
    for path in {path.resolve() for path in doomed}:
        status = path.stat()
        inode = (status.st_dev, status.st_ino)
        sizes[inode] = (status.st_size, status.st_nlink)
        going[inode] += path not in shared
    names = sum(size for size, _ in sizes.values())
    return names, sum(size for inode, (size, links) in sizes.items() if going[inode] == links)


def _taken(all_going: Iterable[Going], linking: Path, turn: AbstractContextManager[Callable[[], None]]) -> list[Path]:
    """Folders that are to be removed, with what goes; all of it is in its place where that is not possible."""
    aside: dict[Path, Going] = {}
    try:
        for going in all_going:
            require_writable(going)
            aside[going.folder.with_name(f"{going.folder.name}{_ASIDE}{os.urandom(6).hex()}")] = going
        if aside:
            with turn as step:
                for folder, going in aside.items():
                    _move(going, folder, step)
            _require_unused(aside, linking)
        return [folder.rename(folder.with_name(folder.name.replace(_ASIDE, _DOOMED))) for folder in aside]
    except BaseException as error:
        if stuck := [str(folder) for folder in aside if not _put_back(folder)]:
            raise CannotWrite(
                f"{', '.join(stuck)}: what was taken out of the Hub's cache could not be put back",
                code="not-put-back",
                hint=f"run the same command again, which first puts it back: ls -ld {stuck[0]}",
                where=stuck[0],
                left=stuck,
            ) from error
        if isinstance(error, OSError) and not isinstance(error, OverlayError):
            elsewhere = "move the Hub's cache with HF_HUB_CACHE"
            raise cannot_write(error, str(hub_cache()), "take the source out", elsewhere=elsewhere) from error
        raise


def _move(going: Going, aside: Path, step: Callable[[], None]) -> None:
    """Blobs keep their depth, so that one that is a link to the shared store leads there still."""
    for path in going.paths:
        step()
        to = aside / path.relative_to(going.folder)
        to.parent.mkdir(parents=True, exist_ok=True)
        path.rename(to)


def _require_unused(taken: Mapping[Path, Going], linking: Path) -> None:
    """Refuse where somebody downloads, or links to what is aside, or wrote into it before it was."""
    came: list[str] = []
    for aside, going in taken.items():
        came += unfinished_in(going.folder)
        came += [str(path) for path in going.paths if os.path.lexists(path)]
        new = {path.relative_to(aside) for path in below(aside / "snapshots")} - going.files
        came += [str(going.folder / path) for path in sorted(new)]
    if needing := link_to(taken.values(), (hub_cache(), linking), taken):
        came.append(str(needing[0]))
    if came:
        raise TryAgain(
            f"{came[0]}: came while the source was taken out of the Hub's cache, so all of that is back",
            code="download-unfinished",
            hint="wait until nobody downloads there, then run the same command again",
            where=came[0],
            files=came,
        )


def _put_back(aside: Path) -> bool:
    """Bring what is aside to its place: blobs before the commits that need them, branches last.

    Returns:
        Whether nothing is left of it.
    """
    folder = aside.with_name(aside.name.partition(_ASIDE)[0])
    with suppress(OSError):
        for part in ("blobs", "trees", ".no_exist", "snapshots", "refs", "."):
            _merge(aside / part, folder / part)
    return not os.path.lexists(aside)


def _merge(source: Path, target: Path) -> None:
    """Of what is there again, by name the same, ours goes."""
    if not os.path.lexists(source):
        return
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        source.rename(target)
    elif source.is_dir() and not source.is_symlink():
        for entry in sorted(source.iterdir()):
            _merge(entry, target / entry.name)
        source.rmdir()
    elif not target.is_dir():
        source.unlink()


@contextmanager
def _alone(timeout: float, on_wait: Callable[[str], None] | None) -> Iterator[None]:
    """Hold the lock of drops from this Hub cache."""
    file = hub_cache() / ".locks" / "overlay-dropping.lock"  # where the client has its own
    lock = FileLock(file, mode=0o666)
    try:
        file.parent.mkdir(exist_ok=True)
        try:
            lock.acquire(timeout=0)
        except Timeout:
            if on_wait is not None:
                on_wait("waiting for another process that drops from the Hub's cache")
            lock.acquire(timeout=timeout)
    except Timeout:
        raise TryAgain(
            f"{file}: another process drops from this Hub cache; gave up after {timeout:g} s",
            code="lock-busy",
            hint="run the same command again once that one is done, or wait for it longer with --lock-timeout",
            lock=str(file),
        ) from None
    except OSError as error:
        elsewhere = "take the source out with the Hub's client: hf cache"
        raise cannot_write(error, str(file), "lock the Hub's cache", elsewhere=elsewhere) from error
    try:
        yield
    finally:
        lock.release()


@contextmanager
def _quiet() -> Iterator[None]:
    logger = logging.getLogger("huggingface_hub")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(level)
