"""What of one repo of the Hub's cache goes when commits of it are dropped, and what forbids that.

The client would remove whatever lies below a repo's folder, and looks at no other repo. Here nothing goes that its
cache does not consist of: no file of somebody's own, no folder that lies there for another purpose, and nothing that is
linked to from elsewhere.
"""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from overlay.errors import BrokenInput, CannotWrite, TryAgain
from overlay.formats.wording import some

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

__all__ = [
    "Going",
    "require_nothing_else",
    "require_own",
    "require_unlinked",
    "require_writable",
    "unclear",
    "unfinished_in",
]

_PARTS = {"blobs", "snapshots", "refs", "trees", ".no_exist"}
_LITTER = {".DS_Store", "Thumbs.db", "desktop.ini"}
"""Of file managers; the client passes over them, too."""
_AWAY = "move it to where nothing is removed, then run the same command again"


@dataclass(frozen=True, slots=True)
class Going:
    """What goes of a repo.

    Attributes:
        repo: Its id.
        folder: Its folder in the Hub's cache.
        commits: That go; none where a removal is finished that was killed.
        whole: Whether no other commit is there, so that the folder goes with everything in it.
        snapshots: Folders of the commits.
        refs: Files of branches and tags that lead to them.
        blobs: That no other commit has, as far as a link leads there in one step.
    """

    repo: str
    folder: Path
    commits: tuple[str, ...]
    whole: bool
    snapshots: tuple[Path, ...]
    refs: tuple[Path, ...]
    blobs: frozenset[Path]

    def takes(self, path: Path) -> bool:
        """Whether a path goes with it."""
        if self.whole:
            return path.is_relative_to(self.folder)
        return path in self.blobs or any(path.is_relative_to(snapshot) for snapshot in self.snapshots)


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
    parts = [folder, *(folder / name for name in ("blobs", "snapshots", "refs")), *going.snapshots]
    if out := [path for path in parts if path.is_symlink()]:
        raise unclear(folder, f"{out[0]} leads out of the Hub's cache ({out[0].resolve()})")
    for snapshot in going.snapshots:
        for path in _below(snapshot):
            if not path.is_symlink():
                what = f"{path} is a file of its own and no link to a blob"
                raise unclear(folder, what, _AWAY)
            if one_step(path).parent != folder / "blobs":
                raise unclear(folder, f"{path} leads out of {folder / 'blobs'} ({path.resolve()})")
    if not going.whole:
        return
    if strange := sorted(path.name for path in folder.iterdir() if not _is_known(path.name)):
        raise unclear(folder, f"{some(strange)}: not of the Hub's client", _AWAY)
    strange = [path.name for path in _entries(folder / "blobs") if path.is_dir()]
    strange += [path.name for path in _entries(folder / "snapshots") if path not in going.snapshots]
    if strange := sorted(set(strange) - _LITTER):
        raise unclear(folder, f"{some(strange)}: not of the Hub's client", _AWAY)
    if unfinished := unfinished_in(folder):
        raise TryAgain(
            f"{unfinished[0]}: a download that is not finished, and that would go with the rest of {going.repo}",
            code="download-unfinished",
            hint=f"wait for it; if nobody downloads there, remove what was left: rm {' '.join(unfinished)}",
            where=unfinished[0],
            files=unfinished,
        )


def require_nothing_else(going: Going, root: Path) -> None:
    """Refuse where the cache root lies among what goes.

    Raises:
        BrokenInput: ``hub-cache-unclear``.
    """
    if going.takes(root.resolve()):
        hint = "choose a root outside the Hub's cache with --cache-root or OVERLAY_CACHE_ROOT, and build there"
        raise unclear(going.folder, f"the cache root {root} lies in it", hint)


def require_unlinked(all_going: Iterable[Going], folders: Iterable[Path], but: Iterable[Path]) -> None:
    """Refuse where a link that stays leads to what goes: of another repo or commit, or beside the Hub's cache.

    Args:
        folders: Below these links are looked for.
        but: Folders that go as well.

    Raises:
        BrokenInput: ``hub-cache-unclear``; the first such link is named.
    """
    everything, others = tuple(all_going), tuple(but)
    if not everything:
        return
    for top in folders:
        for link in _links(top.resolve()):
            if any(map(link.is_relative_to, others)) or any(going.takes(link) for going in everything):
                continue
            for place in _steps(link):
                if taken := next((going for going in everything if going.takes(place)), None):
                    what = f"{link} needs {place.relative_to(taken.folder)} of it"
                    raise unclear(taken.folder, what, f"keep both; or, if nobody needs the link, remove it: rm {link}")


def require_writable(going: Going) -> None:
    """Refuse before anything is moved what this user may not remove.

    Raises:
        CannotWrite: ``not-permitted``.
    """
    if going.whole:
        folders = {going.folder.parent, *(Path(parent) for parent, _, _ in os.walk(going.folder))}
    else:
        folders = {going.folder.parent, *(path.parent for path in (*going.snapshots, *going.refs, *going.blobs))}
        folders |= {Path(parent) for snapshot in going.snapshots for parent, _, _ in os.walk(snapshot)}
    for folder in sorted(folders):
        if not os.access(folder, os.W_OK | os.X_OK):
            raise CannotWrite(
                f"{folder}: this user may not remove anything there, so {going.repo} stays in the Hub's cache",
                code="not-permitted",
                hint=f"run as a user who may write there: ls -ld {folder}",
                where=str(folder),
            )


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


def _below(folder: Path) -> Iterator[Path]:
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


def _is_known(name: str) -> bool:
    """Whether the client has it in a repo's folder; or a killed staging left it there (``overlay.hub.serving``)."""
    return name in _PARTS | _LITTER or (name.startswith(".overlay-") and name.endswith(".tmp"))


def _entries(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir()) if stat.S_ISDIR(folder.lstat().st_mode) else []
    except OSError:
        return []
