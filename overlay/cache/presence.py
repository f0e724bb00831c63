"""Announce first, then look: how collectors and those whom they could rob see each other.

A collector announces itself, then looks who reads and who builds, then takes things out. A reader (its lease) or a
build (its staging folder) announces itself, then waits until no collector is at work, then looks what is there. Of the
two announcements one is the second, and whoever made that one sees the other. If it is the collector, it leaves alone
what the other may use. If it is the reader or the build, it looks only after the collector is done, and does not find
what is gone. Either way nobody is given what is about to go. If both see each other, the collector yields and the other
waits for that, so neither waits for ever.

No locks are needed, only that what one process made, others see: a network filesystem that shows an old listing of a
folder for seconds weakens this by as much. A collector needs its turn for renames alone, so what did not move for a
minute (stopped, or dead on another host) is not waited for, and a collector that was stopped for half of that starts
again.
"""

from __future__ import annotations

import os
import time
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from overlay.cache.disk import entries, make_folder, share_with_group, writing
from overlay.cache.staging import is_abandoned, owned_folder, staging
from overlay.errors import TryAgain

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from overlay.cache.layout import CacheRoot

__all__ = ["aside", "building", "builds_run", "collecting", "left_by_collectors", "wait_for_collectors"]

_PATIENCE = 60.0
_POLL = 0.02
_TURN, _ASIDE = "turn-", "aside-"


@contextmanager
def building(root: CacheRoot) -> Iterator[None]:
    """Announce a build, from before it looks what the cache holds until it has linked and published it."""
    with staging(root):
        wait_for_collectors(root)
        yield


def builds_run(root: CacheRoot) -> bool:
    """Whether a build may be at work, or anything else that stages files."""
    return not all(map(is_abandoned, entries(root.staging)))


@contextmanager
def collecting(root: CacheRoot) -> Iterator[Callable[[], None]]:
    """Announce a collector; what it yields is called before each thing that is taken out.

    Raises:
        CannotWrite: The filesystem refused.
        TryAgain: By what was yielded: this process was stopped for so long that others may no longer wait for it.
    """
    with _folder(root, _TURN) as turn:
        moved = time.monotonic()

        def step() -> None:
            nonlocal moved
            if time.monotonic() - moved > _PATIENCE / 2:
                raise TryAgain(
                    f"{root.path}: this process was stopped while it removed",
                    code="collector-stopped",
                    hint="run the same command again",
                )
            os.utime(turn)
            moved = time.monotonic()

        yield step


@contextmanager
def aside(root: CacheRoot) -> Iterator[Path]:
    """A folder that things are taken out to, by renames; it goes at the end, and a killed collector's with the next."""
    with _folder(root, _ASIDE) as folder:
        yield folder


def left_by_collectors(root: CacheRoot) -> list[Path]:
    """Folders of collectors that are gone."""
    return [folder for folder in entries(root.collecting) if is_abandoned(folder, _prefix_of(folder))]


def wait_for_collectors(root: CacheRoot) -> None:
    """Return when nobody collects, or only those who have not moved for a minute."""
    seen: dict[Path, tuple[int, float]] = {}
    while True:
        turns = [folder for folder in entries(root.collecting) if folder.name.startswith(_TURN)]
        at_work = [turn for turn in turns if not is_abandoned(turn, _TURN)]
        now = time.monotonic()
        for turn in at_work:
            moved = _moved(turn)
            if turn not in seen or seen[turn][0] != moved:  # compared, never held against a clock of this host
                seen[turn] = (moved, now)
        if all(now - seen[turn][1] > _PATIENCE for turn in at_work):
            return
        time.sleep(_POLL)


@contextmanager
def _folder(root: CacheRoot, prefix: str) -> Iterator[Path]:
    with ExitStack() as stack:
        with writing(root, "mkdir a collector's folder"):
            make_folder(root.collecting, root, durable=False)
            folder = stack.enter_context(owned_folder(root.collecting, prefix))
            share_with_group(folder, root)
        yield folder


def _prefix_of(folder: Path) -> str:
    return _TURN if folder.name.startswith(_TURN) else _ASIDE


def _moved(turn: Path) -> int:
    try:
        return turn.stat().st_mtime_ns
    except OSError:
        return 0
