"""Who holds a staging folder or a lock, and whether that process still lives.

A process is told apart by host, boot, PID namespace, PID and start time, so that a reused PID, a rebooted host or
another container is never taken for the owner.
"""

from __future__ import annotations

import json
import os
import socket
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

__all__ = ["Owner"]


@dataclass(frozen=True, slots=True)
class Owner:
    """One process.

    Attributes:
        started: Start of the process in clock ticks since boot, from ``/proc``.
        since: When it became the owner, in seconds since the epoch.
    """

    host: str
    boot: str
    namespace: str
    pid: int
    started: int
    since: float

    @classmethod
    def me(cls) -> Owner:
        """This process, owner from now on."""
        pid = os.getpid()
        process = _process(pid)
        return cls(*_here(), pid=pid, started=process[1] if process else 0, since=time.time())

    @classmethod
    def read(cls, path: Path) -> Owner | None:
        """The owner that a file names; None where there is none, or nothing that makes sense."""
        try:
            document: Any = json.loads(path.read_bytes())
            fields = {name: kind(document[name]) for name, kind in _FIELDS.items()}
        except (OSError, ValueError, TypeError, KeyError, OverflowError, RecursionError):
            return None
        return cls(**fields)

    def to_json(self) -> bytes:
        """The bytes that :meth:`read` takes."""
        return json.dumps(asdict(self), sort_keys=True).encode()

    def alive(self) -> bool | None:
        """Whether the process runs; None where that cannot be seen from here."""
        if (self.host, self.boot, self.namespace) != _here():
            return None
        process = _process(self.pid)
        return process is not None and process[0] not in "ZX" and process[1] == self.started

    def describe(self) -> str:
        """For messages: ``pid 123 on host a, since 2026-11-30 12:00:03 (42 s)``."""
        since = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(self.since))
        return f"pid {self.pid} on {self.host}, since {since} ({max(0, time.time() - self.since):.0f} s)"


_FIELDS: dict[str, Any] = {"host": str, "boot": str, "namespace": str, "pid": int, "started": int, "since": float}


def _here() -> tuple[str, str, str]:
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        namespace = str(Path("/proc/self/ns/pid").readlink())
    except OSError:
        boot = namespace = "unknown"
    return socket.gethostname(), boot, namespace


def _process(pid: int) -> tuple[str, int] | None:
    """State letter and start time of a process; None where it is gone."""
    try:
        # The command's name, in parentheses, may hold anything; what follows the last one does not.
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        return fields[0], int(fields[19])
    except (OSError, ValueError, IndexError):
        return None
