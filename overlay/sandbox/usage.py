"""What the processes of a sandbox use: read from ``/proc`` and from the folders that they may write."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["MAX_ENTRIES", "Usage", "descendants", "measured", "tasks_of_user"]

MAX_ENTRIES = 100_000
"""Files and folders that a script may leave. With more, or with paths too long to open, it is over its disk limit."""

_COUNTED = ("RssAnon:", "RssShmem:", "VmSwap:", "VmPTE:", "HugetlbPages:")
_COUNTED_FAIRLY = ("Pss_Anon:", "Pss_Shmem:", "SwapPss:")


@dataclass(frozen=True, slots=True)
class Usage:
    """At one moment: bytes of memory, processes and threads, bytes on disk."""

    memory: int
    processes: int
    disk: int


def descendants(pid: int) -> list[int]:
    """All processes below ``pid``, parents first. One that is just being adopted by another parent may be missing."""
    found = [pid]
    for parent in found:
        for thread in _names(f"/proc/{parent}/task"):
            found += [int(child) for child in _read(f"/proc/{parent}/task/{thread}/children").split()]
    return found[1:]


def measured(pids: list[int], folders: Iterable[str], *, enough: int) -> Usage:
    """What these processes and folders use; memory is measured exactly only where a first sum exceeds ``enough``."""
    memory = sum(_kilobytes(f"/proc/{pid}/status", _COUNTED) for pid in pids)
    if memory > enough:  # pages that processes share were counted once each
        memory = sum(
            _kilobytes(f"/proc/{pid}/smaps_rollup", _COUNTED_FAIRLY) or _kilobytes(f"/proc/{pid}/status", _COUNTED)
            for pid in pids
        )
    processes = sum(len(_names(f"/proc/{pid}/task")) for pid in pids)
    return Usage(memory, processes, _on_disk(folders) + _unlinked(pids))


def tasks_of_user(user: int) -> int:
    """Processes and threads of a user on this machine, as far as they can be seen."""
    count = 0
    for name in _names("/proc"):
        if name.isdigit():
            try:
                if os.stat(f"/proc/{name}").st_uid == user:  # noqa: PTH116 - no Path for each process
                    count += len(_names(f"/proc/{name}/task"))
            except OSError:
                continue  # it has ended
    return count


def _on_disk(folders: Iterable[str]) -> int:
    """Bytes below the folders, holes of files included; more than can be had where they cannot be measured."""
    total, entries = 0, 0
    seen = set()
    waiting = list(folders)
    while waiting:
        try:
            with os.scandir(waiting.pop()) as found:
                for entry in found:
                    entries += 1
                    details = entry.stat(follow_symlinks=False)
                    if (details.st_dev, details.st_ino) not in seen:
                        seen.add((details.st_dev, details.st_ino))
                        total += _size(details)
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(entry.path)
        except (FileNotFoundError, NotADirectoryError):
            continue  # removed meanwhile
        except OSError:
            return 2**63
        if entries > MAX_ENTRIES:
            return 2**63
    return total


def _unlinked(pids: list[int]) -> int:
    """Bytes of files that no name is left of and that a process still holds open."""
    sizes = {}
    for pid in pids:
        for name in _names(f"/proc/{pid}/fd"):
            try:
                details = os.stat(f"/proc/{pid}/fd/{name}")  # noqa: PTH116 - no Path for each descriptor
            except OSError:
                continue  # closed meanwhile
            if stat.S_ISREG(details.st_mode) and details.st_nlink == 0:
                sizes[details.st_dev, details.st_ino] = _size(details)
    return sum(sizes.values())


def _size(details: os.stat_result) -> int:
    return max(details.st_size, details.st_blocks * 512)


def _kilobytes(path: str, names: tuple[str, ...]) -> int:
    return sum(int(line.split()[1]) * 1024 for line in _read(path).splitlines() if line.startswith(names))


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:  # noqa: PTH123 - no Path for each process
            return file.read()
    except OSError:
        return ""  # it has ended


def _names(path: str) -> list[str]:
    try:
        return os.listdir(path)  # noqa: PTH208 - no Path for each process
    except OSError:
        return []  # it has ended
