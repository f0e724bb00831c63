"""What the processes of a sandbox use, read from ``/proc``."""

from __future__ import annotations

import os
from dataclasses import dataclass

__all__ = [
    "MAX_DEPTH",
    "MAX_ENTRIES",
    "Usage",
    "descendants",
    "live",
    "mapping_memory",
    "measured",
    "names",
    "status_of",
    "tasks_of_user",
]

MAX_ENTRIES, MAX_DEPTH = 100_000, 100
"""Files and folders that a script may have at one time, and folders within one another: stopped at either."""

_MAPPING = 256
"""Bytes that the kernel keeps for each mapping (``vm_area_struct``, and its place in a tree), rounded up."""

_COUNTED = ("RssAnon", "RssShmem", "VmSwap", "VmPTE", "HugetlbPages")
_COUNTED_FAIRLY = ("Pss_Anon", "Pss_Shmem", "SwapPss")


@dataclass(frozen=True, slots=True)
class Usage:
    """At one moment: bytes of memory, processes and threads."""

    memory: int
    processes: int


def descendants(pid: int) -> list[int]:
    """All processes below ``pid``, parents first. One that is just being adopted by another parent may be missing."""
    found = [pid]
    for parent in found:
        for thread in names(f"/proc/{parent}/task"):
            found += [int(child) for child in _read(f"/proc/{parent}/task/{thread}/children").split()]
    return found[1:]


def live(pid: int) -> str:
    """Folder of a process in ``/proc``; of its first thread that runs where the one that it is named by has ended."""
    folder = f"/proc/{pid}"
    if not status_of(folder).get("State", "Z").startswith("Z"):
        return folder
    threads = (f"{folder}/task/{thread}" for thread in names(f"{folder}/task"))
    return next((each for each in threads if not status_of(each).get("State", "Z").startswith("Z")), folder)


def measured(pids: list[int], *, enough: int) -> Usage:
    """What these processes use; memory is measured exactly only where a first sum exceeds ``enough``."""
    memory, processes = {}, 0
    for pid in pids:
        status = status_of(f"/proc/{pid}")
        processes += int(status.get("Threads", "0"))
        if "VmPTE" not in status and status.get("Threads", "1") != "1":
            status = status_of(live(pid))
        memory[pid] = _bytes(status, _COUNTED)
    if sum(memory.values()) > enough:  # pages that processes share were counted once each
        memory = {pid: _fair_memory(live(pid)) for pid in pids}
    return Usage(sum(memory.values()), processes)


def _fair_memory(folder: str) -> int:
    """Bytes of a process, with its part of what is shared, or all where that cannot be read; none once it has ended."""
    found = _fields(f"{folder}/smaps_rollup")
    return _bytes(found, _COUNTED_FAIRLY) if found else _bytes(status_of(folder), _COUNTED)


def mapping_memory(pids: list[int]) -> int:
    """Bytes that the kernel keeps for what these processes have mapped, be there memory behind it or not."""
    return sum(_MAPPING * _read(f"{live(pid)}/maps").count("\n") for pid in pids)


def status_of(folder: str) -> dict[str, str]:
    """Fields of a process or thread; none where it has ended."""
    return _fields(f"{folder}/status")


def tasks_of_user(user: int) -> int:
    """Processes and threads of a user on this machine, as far as they can be seen."""
    count = 0
    for name in names("/proc"):
        if name.isdigit():
            try:
                if os.stat(f"/proc/{name}").st_uid == user:  # noqa: PTH116 - no Path for each process
                    count += len(names(f"/proc/{name}/task"))
            except OSError:
                continue  # it has ended
    return count


def names(path: str) -> list[str]:
    """What is in a folder of ``/proc``."""
    try:
        return os.listdir(path)  # noqa: PTH208 - no Path for each process
    except OSError:
        return []  # it has ended


def _fields(path: str) -> dict[str, str]:
    found = (line.partition(":") for line in _read(path).splitlines())
    return {name: value.strip() for name, _, value in found}


def _bytes(fields: dict[str, str], counted: tuple[str, ...]) -> int:
    return sum(int(fields[name].split()[0]) * 1024 for name in counted if name in fields)


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:  # noqa: PTH123 - no Path for each process
            return file.read()
    except OSError:
        return ""  # it has ended
