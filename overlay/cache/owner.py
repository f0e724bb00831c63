"""Which process holds a lock or a staging folder, and whether it still lives.

A process is told apart by PID, start time, and the place that its PID belongs to (host, boot, PID namespace), so that a
reused PID, a rebooted host or another container is never taken for the owner.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from overlay.formats.local import read_small_file

__all__ = ["Owner", "is_alive", "process_name"]

_NAME = re.compile(r"([0-9]{1,10})-([0-9]{1,20})-([0-9a-f]{12})(?:-.*)?")


def process_name() -> str:
    """A name for this process, unlike that of any other ever: ``<pid>-<start>-<place>``."""
    pid = os.getpid()
    process = _process(pid)
    return f"{pid}-{process[1] if process else 0}-{_place()}"


def is_alive(name: str) -> bool | None:
    """Whether the process that a name begins with runs; None where that cannot be seen from here."""
    match = _NAME.fullmatch(name)
    if match is None or match[3] != _place():
        return None
    process = _process(int(match[1]))
    return process is not None and process[0] not in "ZX" and process[1] == int(match[2])


@dataclass(frozen=True, slots=True)
class Owner:
    """Who holds a lock, for those who wait.

    Attributes:
        since: When it got the lock, in seconds since the epoch.
    """

    host: str
    pid: int
    since: float

    @classmethod
    def me(cls) -> Owner:
        """This process, owner from now on."""
        return cls(os.uname().nodename, os.getpid(), time.time())

    @classmethod
    def read(cls, path: Path) -> Owner | None:
        """The owner that a file names; None where there is none, or nothing that makes sense."""
        try:
            document: Any = json.loads(read_small_file(path))
            return cls(str(document["host"]), int(document["pid"]), float(document["since"]))
        except (OSError, ValueError, TypeError, KeyError, OverflowError, RecursionError):
            return None

    def to_json(self) -> bytes:
        """The bytes that :meth:`read` takes."""
        return json.dumps(asdict(self), sort_keys=True).encode()

    def describe(self) -> str:
        """For messages: ``pid 123 on host, since 2026-11-30 12:00:03 (42 s)``."""
        try:
            since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(self.since))
        except (OverflowError, ValueError, OSError):
            since = "an odd time"
        return f"pid {self.pid} on {self.host}, since {since} ({max(0, time.time() - self.since):.0f} s)"


def _place() -> str:
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii")
        namespace = str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        boot = namespace = "unknown"
    return hashlib.sha256(f"{os.uname().nodename}\n{boot}\n{namespace}".encode()).hexdigest()[:12]


def _process(pid: int) -> tuple[str, int] | None:
    """State letter and start time of a process; None where it is gone."""
    try:
        # The command's name, in parentheses, may hold anything; what follows the last one does not.
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        return fields[0], int(fields[19])
    except (OSError, ValueError, IndexError):
        return None
