"""What takes long to look at: files in the folders that a sandbox may write, open files without a name, mappings."""

from __future__ import annotations

import contextlib
import os
import signal
import stat
import threading
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from overlay.sandbox.usage import MAX_DEPTH, MAX_ENTRIES, descendants, live, mapping_memory, names, status_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

__all__ = ["OnDisk", "SlowWatch", "on_disk"]

_TOO_MUCH = 2**63
_SHORTEST = 0.05  # seconds between two looks; longer where they take long, so that looking takes a quarter at most
_STILL = 1.0  # seconds between two looks at processes that are stopped meanwhile; longer likewise
_LONGEST_STOP = 0.2  # seconds to wait until all are stopped: one that waits for a disk cannot be


class SlowWatch(threading.Thread):
    """Looks beside all else at what can take long: the disk, and how much is mapped.

    A file can be renamed, or handed to another process, just where a look has been. So every second or so, one is taken
    with all processes stopped.

    Args:
        folders: What the script may write.
        own: Processes, the first of the sandbox, that are not the script's. They go on, for they end it all should this
            process be killed.
    """

    def __init__(self, folders: list[str], own: int) -> None:
        super().__init__(daemon=True)
        self.found, self.mappings = OnDisk(), 0
        self._folders, self._own = folders, own
        self._ended = threading.Event()

    def run(self) -> None:
        """Look until it is ended."""
        pause, next_still = 0.0, 0.0
        while not self._ended.wait(pause):
            began = time.monotonic()
            still = began >= next_still
            with _stopped(self._own) if still else contextlib.nullcontext():
                pids = descendants(os.getpid())
                found = on_disk(self._folders)
                self.found = replace(found, disk=found.disk + _unlinked(pids))
            self.mappings = mapping_memory(pids)
            took = time.monotonic() - began
            pause = max(_SHORTEST, 3 * took)
            if still:
                next_still = began + max(_STILL, 4 * took)

    def end(self) -> None:
        """Look no more."""
        self._ended.set()
        self.join()


@dataclass(slots=True)
class OnDisk:
    """What is below some folders, each by the name of its limit; looked at no further than to one of these.

    Attributes:
        disk: Bytes, holes of files included; more than can be had where they cannot be measured.
        files: Files and folders.
        depth: Folders within one another.
    """

    disk: int = 0
    files: int = 0
    depth: int = 0


def on_disk(folders: Iterable[str]) -> OnDisk:
    """What is below the folders.

    They are opened one from another, not by path: what is moved meanwhile is still looked at.
    """
    found = OnDisk()
    seen: set[tuple[int, int]] = set()
    try:
        for folder in folders:
            _count(os.open(folder, os.O_RDONLY | os.O_DIRECTORY), 0, found, seen)
    except OSError:
        found.disk = _TOO_MUCH
    return found


def _count(folder: int, depth: int, found: OnDisk, seen: set[tuple[int, int]]) -> None:
    try:
        found.depth = max(found.depth, depth)
        with os.scandir(folder) as entries:
            for entry in entries:
                if found.files >= MAX_ENTRIES or found.depth >= MAX_DEPTH:
                    return
                found.files += 1
                with contextlib.suppress(FileNotFoundError, NotADirectoryError):  # moved or removed meanwhile
                    details = entry.stat(follow_symlinks=False)
                    if (details.st_dev, details.st_ino) not in seen:
                        seen.add((details.st_dev, details.st_ino))
                        found.disk += _size(details)
                    if stat.S_ISDIR(details.st_mode):
                        _count(_opened(entry.name, folder), depth + 1, found, seen)
    finally:
        os.close(folder)


def _opened(name: str, parent: int) -> int:
    """A folder of the script's; one that it closed to everybody, its owner included, is opened to that."""
    try:
        return os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=parent)
    except PermissionError:
        handle = os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=parent)
        try:
            os.chmod(f"/proc/self/fd/{handle}", 0o700)  # noqa: PTH101 - by descriptor
            return os.open(f"/proc/self/fd/{handle}", os.O_RDONLY | os.O_DIRECTORY)
        finally:
            os.close(handle)


def _unlinked(pids: list[int]) -> int:
    """Bytes of files that no name is left of and that a process still holds open."""
    sizes = {}
    for pid in pids:
        folder = f"{live(pid)}/fd"
        for name in names(folder):
            try:
                details = os.stat(f"{folder}/{name}")  # noqa: PTH116 - no Path for each descriptor
            except OSError:
                continue  # closed meanwhile
            if stat.S_ISREG(details.st_mode) and details.st_nlink == 0:
                sizes[details.st_dev, details.st_ino] = _size(details)
    return sum(sizes.values())


def _size(details: os.stat_result) -> int:
    return max(details.st_size, details.st_blocks * 512)


@contextlib.contextmanager
def _stopped(own: int) -> Iterator[None]:
    """All processes of the script stand still, those included that are started meanwhile."""
    until = time.monotonic() + _LONGEST_STOP
    try:
        while (running := [pid for pid in _of_script(own) if _runs(pid)]) and time.monotonic() < until:
            _send(signal.SIGSTOP, running)
            time.sleep(0.001)
        yield
    finally:
        _send(signal.SIGCONT, _of_script(own))


def _of_script(own: int) -> list[int]:
    return descendants(os.getpid())[own:]


def _runs(pid: int) -> bool:
    return status_of(live(pid)).get("State", "Z")[:1] not in "TtZX"


def _send(number: signal.Signals, pids: Iterable[int]) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
