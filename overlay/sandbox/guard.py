"""The process between this program and a sandbox: starts it, watches what it uses, and ends it as a whole.

A process of its own, so that nothing which the caller is busy with delays a limit, so that all that the script started
becomes its child in the end (it is their subreaper), and so that the sandbox ends even if the caller is killed. It gets
its order as JSON on standard input and gives one JSON object back on standard output; what the script prints goes to
its standard error.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

from overlay.sandbox.usage import Usage, descendants, measured

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["main"]

_PR_SET_CHILD_SUBREAPER = 36
_SHORTEST = 0.02  # seconds between two looks; longer where a look takes long, so that looking takes a quarter at most


def main() -> None:
    """Run the sandbox that the order describes to its end, and report."""
    order = json.load(sys.stdin)
    caller = order["caller"]
    stopped: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: stopped.append(number))
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    began = time.monotonic()
    child = subprocess.Popen(  # noqa: S603 - the command that backends.py put together
        order["command"], stdin=subprocess.PIPE, stdout=2, stderr=2, env=order["environ"], start_new_session=True
    )
    peak, over = 0, None
    try:
        assert child.stdin is not None  # noqa: S101 - it was asked for
        with child.stdin as inside:
            inside.write(json.dumps(order["inside"]).encode())
        if order["inside"]["user"] is not None:
            _look_as(order["inside"]["user"])
        for usage in _looks(child.pid, order["folders"], order["limits"]["memory"]):
            peak = max(peak, usage.memory)
            over = _over(usage, time.monotonic() - began, order["limits"])
            if over or stopped or os.getppid() != caller:
                break
    except BrokenPipeError:
        pass  # it ended before it had read all of its order; its status tells
    finally:
        status = _end(child)
    json.dump(
        {"status": status, "limit": over, "peak_memory": peak, "seconds": time.monotonic() - began},
        sys.stdout,
    )


def _look_as(user: int) -> None:
    """Read files as the script's user: root may not look at others' processes in most containers."""
    libc = ctypes.CDLL(None)
    libc.setfsgid(user)
    libc.setfsuid(user)
    header, mine = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()
    libc.capget(header, mine)
    mine[0], mine[3] = mine[1], mine[4]  # what is permitted is effective again, as before the change
    libc.capset(header, mine)


def _looks(pid: int, folders: list[str], memory: int) -> Iterator[Usage]:
    """Usage again and again until the process has ended, and once after it: it may have left others."""
    running = True
    while running:
        running = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None
        before = time.monotonic()
        yield measured(descendants(os.getpid()), folders, enough=memory)
        if running:
            _wait(pid, max(_SHORTEST, 3 * (time.monotonic() - before)))


def _wait(pid: int, seconds: float) -> None:
    """Until the time is over or the process has ended."""
    until = time.monotonic() + seconds
    while time.monotonic() < until and os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
        time.sleep(0.005)


def _over(usage: Usage, seconds: float, limits: dict[str, Any]) -> str | None:
    """Name of the limit that is reached."""
    used = {"memory": usage.memory, "processes": usage.processes, "disk": usage.disk, "seconds": seconds}
    return next((name for name, amount in used.items() if amount >= limits[name]), None)


def _end(child: subprocess.Popen[bytes]) -> int:
    """Kill what is left and wait until all of it is gone; the status of the first process.

    In Landlock's sandbox nothing can leave the process group, and a group is killed as one, forks under way included.
    In bubblewrap's the first process of its namespace is among the descendants, and all others end with it.
    """
    with contextlib.suppress(ProcessLookupError, PermissionError):  # only its own, ended process is left
        os.killpg(child.pid, signal.SIGKILL)
    status = child.wait()
    while True:
        for pid in descendants(os.getpid()):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        try:
            if os.waitpid(-1, os.WNOHANG)[0] == 0:
                time.sleep(0.001)
        except ChildProcessError:
            return status


if __name__ == "__main__":
    main()
