"""How files that are carried over will come in: found out before any of them does, and kept to by the run."""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass
from threading import Lock
from typing import TYPE_CHECKING, TypeVar

from overlay.cache.disk import free_room
from overlay.cache.links import SMALL_FILE, is_small, ways, ways_into_tree
from overlay.cache.outlook import LinkOutlook, link_outlook, outlook_within, sample_of
from overlay.cache.probe import LAYERED, filesystem_of
from overlay.errors import CannotWrite, OverlayError
from overlay.formats.wording import counted, format_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from overlay.cache import CacheRoot, How, LinkMode
    from overlay.hub import Repo
    from overlay.materialization.survey import Step

__all__ = ["ASKED_FOR", "Fallback", "Links", "Way", "copies"]

_T = TypeVar("_T")
ASKED_FOR = "asked for"
_NOTHING_HERE = "no file is there yet to try with, so copies are counted"


@dataclass(frozen=True, slots=True)
class Way:
    """How one file will come in.

    Attributes:
        why: What keeps it from a cheaper way; empty where nothing does.
        tried: False where nothing could be tried: ``how`` is then the dearest way that is allowed, and the run takes
            the first that works.
        takes_room: Whether it needs the room of a copy; so do hardlinks on the layers of a container, which copy a file
            of a lower layer whole before they link it.
    """

    how: How
    why: str = ""
    tried: bool = True
    takes_room: bool = False


class Links:
    """Tries with a file of each folder and owner, the smallest.

    Args:
        root: Where files are brought to.
        mode: How they may come.
        repos: Where they come from. Of a repo nothing may be here yet, but small files of another one in the Hub's
            store are: a plan has read them.
    """

    def __init__(self, root: CacheRoot, mode: LinkMode, repos: Iterable[Repo] = ()) -> None:
        self._root = root
        self._mode: LinkMode = mode
        self._in_store = [repo for repo in repos if repo.shared_store]
        self._tried: dict[tuple[object, ...], LinkOutlook] = {}
        self._samples: dict[str, Path | None] = {}
        self._layered: dict[Path, bool] = {}
        self._refused: list[tuple[Path, str]] = []

    def of_repo(self, repo: Repo, path: str, size: int) -> Way:
        """How a file of this repo will come in, which may not be here yet."""
        return self.of_file(repo.local(path) or self._sample(repo), size, shared_store=repo.shared_store)

    def of_file(self, place: Path | None, size: int, *, shared_store: bool) -> Way:
        """How a file like the one at ``place`` will come in; None where there is none to try with."""
        allowed = ways(self._mode, shared_store=shared_store, size=size)
        if allowed == ("copy",):
            return Way("copy", ASKED_FOR, takes_room=True)
        outlook = self._outlook(place, allowed) if place else LinkOutlook(None, _NOTHING_HERE, tried=False)
        if outlook.how is None:
            if place and outlook.tried:
                self._refused.append((place, outlook.why))
            return Way(allowed[-1], outlook.why, tried=False, takes_room=True)
        why = outlook.why
        if outlook.how == "copy" and "hardlink" not in allowed:
            why += f"; no hardlink: {_not_shared(shared_store=shared_store)}"
        layered = outlook.how == "hardlink" and place is not None and self._is_layered(place)
        return Way(outlook.how, why, takes_room=layered or outlook.how == "copy")

    def require_possible(self) -> None:
        """Refuse a job whose files cannot be linked as was asked for.

        Raises:
            CannotWrite: Some cannot.
        """
        if not self._refused:
            return
        place, why = self._refused[0]
        others = f", nor can {counted(len(self._refused) - 1, 'other file')}" if len(self._refused) > 1 else ""
        raise CannotWrite(
            f"{place}: cannot be brought to {self._root.path} as --link {self._mode} asks: {why}{others}",
            code="link-impossible",
            hint=f"leave --link away: what cannot be linked is copied, and the dry run counts the room; {_fix(why)}",
            where=str(self._root.path),
            path=str(place),
            mode=self._mode,
            files=len(self._refused),
        )

    def copied_into_tree(self, path: str, size: int) -> bool:
        """Whether an object is copied to its place in a tree."""
        return self._within(ways_into_tree(path, small=is_small(path, size))).how == "copy"

    def copied_within_tree(self) -> bool:
        """Whether a second name in a tree is a copy."""
        return self._within(("hardlink", "reflink", "copy")).how == "copy"

    def notes(self) -> tuple[str, ...]:
        """What takes more room than one would think."""
        outlook, found = self._tried.get(("hardlink", "reflink", "copy")), []
        if outlook is not None and outlook.how == "copy":
            found.append(f"{self._root.path}: the tree takes the room of its weights once more ({outlook.why})")
        if any(self._layered.values()):
            found.append(
                f"{self._root.path}: hardlinks are counted as copies: a container copies files of its image for them"
            )
        return tuple(found)

    def _is_layered(self, place: Path) -> bool:
        if place.parent not in self._layered:
            self._layered[place.parent] = filesystem_of(place).kind in LAYERED
        return self._layered[place.parent]

    def _outlook(self, place: Path, allowed: tuple[How, ...]) -> LinkOutlook:
        sample, alike = sample_of(place)
        key = (*alike, allowed)
        if key not in self._tried:
            self._tried[key] = link_outlook(self._root, sample, allowed)
        return self._tried[key]

    def _within(self, allowed: tuple[How, ...]) -> LinkOutlook:
        if allowed not in self._tried:
            self._tried[allowed] = outlook_within(self._root, allowed)
        return self._tried[allowed]

    def _sample(self, repo: Repo) -> Path | None:
        """A file that lies where those of the repo will: one of its own, else of the same store; best this user's."""
        if repo.repo not in self._samples:
            places = [(_here(repo), 0), *((_here(other), 1) for other in self._in_store if other is not repo)]
            found = [(rank, path.stat().st_uid != os.geteuid(), path) for paths, rank in places for path in paths]
            self._samples[repo.repo] = min(found, default=(0, False, None))[2]
        return self._samples[repo.repo]


class Fallback:
    """A copy in the place of a link that fails though one like it worked: within the room that the plan leaves.

    Args:
        mode: Only ``auto`` falls back.
        place: Where the files go.
        room: What the plan counts.
        notes: Takes what was copied, and why.
    """

    def __init__(self, mode: LinkMode, place: Path, room: int, notes: list[str]) -> None:
        self._mode: LinkMode = mode
        self._left = free_room(place) - room
        self._lock = Lock()
        self._notes = notes

    def bring(self, step: Step, source: Path, by: Callable[[LinkMode], _T]) -> _T:
        """Bring one file as the plan says.

        Args:
            step: Its step.
            source: Where it lies.
            by: Brings it; called once more, with ``copy``, where the link fails.

        Raises:
            CannotWrite: The link fails and there is no room for a copy.
            OSError: As ``by``.
        """
        try:
            return by(step.how if step.tried else self._mode)  # type: ignore[arg-type] # a carried file's how is a mode
        except OSError as error:
            is_ours = isinstance(error, OverlayError) and not isinstance(error, CannotWrite)
            if is_ours or self._mode != "auto" or step.how == "copy" or not step.tried:
                raise
            with self._lock:
                self._left -= step.size
                if self._left < 0:
                    raise _no_room_to_copy(step, source, error) from error
                self._notes.append(f"{source}: copied, because the {step.how} that the plan had tried failed: {error}")
        return by("copy")


def _no_room_to_copy(step: Step, source: Path, error: OSError) -> CannotWrite:
    return CannotWrite(
        f"{source}: the {step.how} that the plan had tried failed ({error}), and a copy needs {format_bytes(step.size)}"
        " more than the plan has counted",
        code="no-room",
        hint="run it with --link copy --dry-run, which counts copies, and free that room",
        path=str(source),
        needed=step.size,
    )


def copies(files: Iterable[tuple[int, str]]) -> list[str]:
    """What is copied though nobody asked for that, and why.

    Args:
        files: Size of each copied file, and why it is not linked.
    """
    sizes: dict[str, list[int]] = {}
    for size, why in files:
        if why != ASKED_FOR:
            sizes.setdefault(why, []).append(size)
    return [f"{counted(len(found), 'file')}, {format_bytes(sum(found))}: {why}" for why, found in sizes.items()]


def _here(repo: Repo) -> list[Path]:
    found = []
    for path in repo.paths():
        try:
            place = repo.local(path)
        except OverlayError:  # damaged: whoever needs it, says so
            continue
        if place is not None:
            found.append(place)
    return found


def _not_shared(*, shared_store: bool) -> str:
    if not shared_store:
        return "people edit such a folder in place"
    return f"under {SMALL_FILE // 2**20} MiB, where programs rewrite files in place"


def _fix(why: str) -> str:
    """What would make the links possible, by what is in their way."""
    if errno.errorcode[errno.EXDEV] in why:
        return "or choose a --cache-root on the same filesystem, mount and project quota"
    if "protected_hardlinks" in why:
        return "or run as the owner of these files"
    return "or use a filesystem that can (overlay doctor tells)"
