"""What of one repo of the Hub's cache goes when commits of it are dropped, and what forbids that.

The client would remove whatever lies below a repo's folder, and looks at no other repo. Here nothing goes that its
cache does not consist of: no file of somebody's own, no folder that lies there for another purpose, and nothing that is
linked to from elsewhere.
"""

from __future__ import annotations

import os
import re
import stat
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from overlay.errors import BrokenInput, CannotWrite, TryAgain

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

    from huggingface_hub import HFCacheInfo

__all__ = [
    "Going",
    "below",
    "going_of",
    "link_to",
    "remove_emptied",
    "require_own",
    "require_writable",
    "unclear",
    "unfinished_in",
]

_LITTER = {".DS_Store", "Thumbs.db", "desktop.ini"}
"""Of file managers; the client passes over them, too."""
_BLOB = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
"""How the Hub's client names a blob. One that no commit has goes, too; a file of another name is somebody's own."""
_LISTS = ("trees", ".no_exist")
"""Folders of what the client knows of commits: the listing of one, and what it lacks."""


@dataclass(frozen=True, slots=True)
class Going:
    """What goes of a repo.

    Attributes:
        repo: Its id.
        folder: Its folder in the Hub's cache.
        commits: That go; none where only blobs of no commit do.
        refs: Files of branches and tags that lead to them.
        snapshots: Folders of the commits.
        files: What lies in these, relative to ``folder``.
        lists: What else the client knows of the commits; and what this program left, where no other commit is there.
        blobs: That no other commit has, as far as a link leads there in one step.
    """

    repo: str
    folder: Path
    commits: tuple[str, ...]
    refs: tuple[Path, ...]
    snapshots: tuple[Path, ...]
    files: frozenset[Path]
    lists: tuple[Path, ...]
    blobs: frozenset[Path]

    @property
    def paths(self) -> tuple[Path, ...]:
        """All that goes. Branches first: one that leads nowhere makes the client pass over the whole repo."""
        return (*self.refs, *self.snapshots, *self.lists, *sorted(self.blobs))

    def takes(self, path: Path) -> bool:
        """Whether a path that somebody may link to goes with it."""
        return path in self.blobs or any(path.is_relative_to(snapshot) for snapshot in self.snapshots)


def going_of(name: str, wanted: Collection[str], folder: Path, scan: HFCacheInfo) -> Going | None:
    """What goes of one repo; None where nothing of it is here.

    Raises:
        BrokenInput: ``hub-cache-unclear``: a commit is here, and the client passes over the repo.
    """
    repo = next((repo for repo in scan.repos if repo.repo_type == "model" and repo.repo_id == name), None)
    if repo is None and any((folder / "snapshots").glob("*")):
        _require_absent(folder, wanted, scan)
        return None
    revisions = repo.revisions if repo is not None else frozenset()
    gone = sorted((found for found in revisions if found.commit_hash in wanted), key=lambda found: found.commit_hash)
    others = [found for found in revisions if found not in gone]
    kept = {file.blob_path for found in others for file in found.files}
    blobs = {file.blob_path for found in gone for file in found.files}
    if not unfinished_in(folder):  # else somebody may be downloading what no commit has
        blobs |= {path for path in _entries(folder / "blobs") if _BLOB.fullmatch(path.name)}
    blobs = {path for path in blobs - kept if path.parent == folder / "blobs" and path.is_file()}
    if not gone and not blobs:
        return None
    names = {found.commit_hash for found in gone}
    lists = [path for part in _LISTS for path in _entries(folder / part)]
    if others:
        refs = [folder / "refs" / ref for found in gone for ref in found.refs]
        lists = [path for path in lists if path.name.removesuffix(".json") in names]
    else:
        refs = [path for path in (folder / "refs").rglob("*") if not path.is_dir()]
        lists += folder.glob(".overlay-*.tmp")  # of a killed staging (overlay.hub.serving)
    snapshots = tuple(found.snapshot_path for found in gone)
    return Going(
        name,
        folder,
        tuple(sorted(names)),
        tuple(sorted(refs)),
        snapshots,
        frozenset(path.relative_to(folder) for snapshot in snapshots for path in below(snapshot)),
        tuple(lists),
        frozenset(blobs),
    )


def _require_absent(folder: Path, commits: Collection[str], scan: HFCacheInfo) -> None:
    """The client passes over a repo that it cannot make sense of."""
    if any(os.path.lexists(folder / "snapshots" / commit) for commit in commits):
        why = next((str(said) for said in scan.warnings if str(folder) in str(said)), "it is no repo of the cache")
        raise unclear(folder, f"the Hub's client cannot tell what it holds ({why})")


def unclear(folder: Path, what: str, hint: str = "") -> BrokenInput:
    """The error of a repo of the Hub's cache of which nothing is removed.

    Args:
        hint: What to do, where it is not the repo that is at fault.
    """
    return BrokenInput(
        f"{folder}: {what}, so nothing of it is removed",
        code="hub-cache-unclear",
        hint=hint or f"look at it, and remove it by hand if nobody needs it: ls -R {folder}",
        where=str(folder),
    )


def require_own(going: Going) -> None:
    """Refuse where anything lies among what goes that the client did not put there.

    Raises:
        BrokenInput: ``hub-cache-unclear``; it is named.
        TryAgain: A download lies there that is not finished.
    """
    folder = going.folder
    parts = [folder, *(folder / name for name in ("blobs", "snapshots", "refs", *_LISTS)), *going.snapshots]
    if out := [path for path in parts if path.is_symlink()]:
        raise unclear(folder, f"{out[0]} leads out of the Hub's cache ({out[0].resolve()})")
    for path in sorted(folder / file for file in going.files):
        if not path.is_symlink():
            hint = "move it to where nothing is removed, then run the same command again"
            raise unclear(folder, f"{path} is a file of its own and no link to a blob", hint)
        if one_step(path).parent != folder / "blobs":
            raise unclear(folder, f"{path} leads out of {folder / 'blobs'} ({path.resolve()})")
    if unfinished := unfinished_in(folder):
        raise TryAgain(
            f"{unfinished[0]}: a download of {going.repo} that is not finished, and that may need what would go",
            code="download-unfinished",
            hint=f"wait for it; if nobody downloads there, remove what was left: rm {' '.join(unfinished)}",
            where=unfinished[0],
            files=unfinished,
        )


def link_to(
    all_going: Iterable[Going], folders: Iterable[Path], but: Collection[Path]
) -> tuple[Path, Path, Going] | None:
    """A link that stays and leads to what goes: of another repo or commit, or beside the Hub's cache.

    Args:
        folders: Below these links are looked for.
        but: Folders that do not count.

    Returns:
        The first such link, where it leads, and with what that goes.
    """
    everything = tuple(all_going)
    if not everything:
        return None
    for top in folders:
        for link in _links(top.resolve()):
            if any(map(link.is_relative_to, but)) or any(going.takes(link) for going in everything):
                continue
            for place in _steps(link):
                if taken := next((going for going in everything if going.takes(place)), None):
                    return link, place, taken
    return None


def require_writable(going: Going) -> None:
    """Refuse before anything is moved what this user may not remove.

    Raises:
        CannotWrite: ``not-permitted``.
    """
    folders = {going.folder.parent, *(path.parent for path in going.paths)}
    folders |= {Path(parent) for path in (*going.snapshots, *going.lists) for parent, _, _ in os.walk(path)}
    for folder in sorted(folders):
        if not os.access(folder, os.W_OK | os.X_OK):
            raise CannotWrite(
                f"{folder}: this user may not remove anything there, so {going.repo} stays in the Hub's cache",
                code="not-permitted",
                hint=f"run as a user who may write there: ls -ld {folder}",
                where=str(folder),
            )


def remove_emptied(folder: Path) -> None:
    """Remove a repo's folder where nothing is in it any more, nor any folder that a download has begun to fill."""
    refs = [Path(parent) for parent, _, _ in os.walk(folder / "refs", topdown=False)]
    with suppress(OSError):
        for path in (folder / "snapshots", *refs, *(folder / part for part in (*_LISTS, "blobs")), folder):
            if path.is_dir():
                path.rmdir()


def unfinished_in(folder: Path) -> list[str]:
    """Downloads of a repo that are not finished."""
    return [str(path) for path in _entries(folder / "blobs") if path.name.endswith(".incomplete")]


def one_step(link: Path) -> Path:
    """Where a link leads in one step."""
    place = link.parent.resolve() / link.readlink()
    return place.parent.resolve() / place.name


def _steps(link: Path) -> Iterator[Path]:
    """Every place that a link leads to, one after the other."""
    seen: set[Path] = set()
    while link.is_symlink() and link not in seen:
        seen.add(link)
        link = one_step(link)
        yield link


def below(folder: Path) -> Iterator[Path]:
    """Everything below a folder but real folders and litter."""
    for parent, folders, names in os.walk(folder):
        links = [name for name in folders if Path(parent, name).is_symlink()]
        yield from (Path(parent, name) for name in (*names, *links) if name not in _LITTER)


def _links(folder: Path) -> Iterator[Path]:
    for parent, _, _ in os.walk(folder):
        try:
            found = [entry.path for entry in os.scandir(parent) if entry.is_symlink()]
        except OSError:
            continue
        yield from map(Path, found)


def _entries(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir()) if stat.S_ISDIR(folder.lstat().st_mode) else []
    except OSError:
        return []
