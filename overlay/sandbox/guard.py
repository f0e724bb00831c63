"""The process between this program and a sandbox: starts it, watches what it uses, and ends it as a whole.

A process of its own, so that nothing which the caller is busy with delays a limit, so that all that the script started
becomes its child in the end (it is their subreaper), and so that the sandbox ends even if the caller is killed. It gets
its order as JSON on standard input. On standard output it gives the process group of what it started, then one JSON
object; what the script prints goes to its standard error. From the sandbox's first process it hears on a pipe of its
own, so nothing that the script prints, and no status that it ends with, is taken for what the sandbox says.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import signal
import subprocess
import sys
import time
from dataclasses import asdict
from typing import Any

from overlay.sandbox.disk import SlowWatch, on_disk
from overlay.sandbox.inside import CONFINED
from overlay.sandbox.usage import descendants, measured

__all__ = ["main"]

_PR_SET_CHILD_SUBREAPER = 36
_SHORTEST, _LONGEST = 0.02, 0.2  # seconds between two looks; longer where a look takes long


def main() -> None:
    """Run the sandbox that the order describes to its end, and report."""
    order = json.load(sys.stdin)
    caller = order["caller"]
    stopped: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: stopped.append(number))
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    began = time.monotonic()
    heard, said = os.pipe()
    child = subprocess.Popen(  # noqa: S603 - the command that backends.py put together
        order["command"],
        stdin=subprocess.PIPE,
        stdout=2,
        stderr=2,
        env=order["environ"],
        start_new_session=True,
        pass_fds=(said,),
    )
    os.close(said)
    print(child.pid, flush=True)  # noqa: T201 - to the caller, which ends the group should this process be killed
    slow = SlowWatch(order["folders"], order["own"])
    peak, most, over, answer = 0, 0, None, b""
    try:
        assert child.stdin is not None  # noqa: S101 - it was asked for
        with child.stdin as inside:
            inside.write(json.dumps(order["inside"] | {"channel": said}).encode())
        if order["inside"]["user"] is not None:
            _look_as(order["inside"]["user"])
        slow.start()
        pause, ended = 0.0, False
        while not (ended or over or stopped or os.getppid() != caller):
            if select.select([heard], [], [], pause)[0]:
                chunk = os.read(heard, 2**12)
                answer += chunk
                ended = not chunk or answer.endswith(b"}")
            before = time.monotonic()
            usage = measured(descendants(os.getpid()), enough=order["limits"]["memory"])
            processes = usage.processes - order["own"]
            memory = usage.memory + slow.mappings
            peak, most = max(peak, memory), max(most, processes)
            used = {"processes": processes, "memory": memory, "seconds": time.monotonic() - began}
            over = _over(used | asdict(slow.found), order["limits"])
            pause = min(max(_SHORTEST, 3 * (time.monotonic() - before)), _LONGEST)
        slow.end()
    except BrokenPipeError:
        pass  # it ended before it had read all of its order
    finally:
        _end(child)
    over = over or _over(asdict(on_disk(order["folders"])), order["limits"])  # nothing changes any more
    report = {"confined": answer.startswith(CONFINED), "limit": over, "peak_memory": peak, "peak_processes": most}
    print(json.dumps(report | _ending(answer) | {"seconds": time.monotonic() - began}))  # noqa: T201 - as above


def _ending(answer: bytes) -> dict[str, Any]:
    """What the first process said at the end; where it could not, it was killed."""
    said = answer.removeprefix(CONFINED)
    return json.loads(said) if said else {"status": -signal.SIGKILL, "left": False, "raised": ""}


def _look_as(user: int) -> None:
    """Read files as the script's user: root may not look at others' processes in most containers."""
    libc = ctypes.CDLL(None)
    libc.setfsgid(user)
    libc.setfsuid(user)
    header, mine = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()
    libc.capget(header, mine)
    mine[0], mine[3] = mine[1], mine[4]  # what is permitted is effective again, as before the change
    libc.capset(header, mine)


def _over(used: dict[str, float], limits: dict[str, float]) -> str | None:
    """Name of the limit that is reached."""
    return next((name for name, amount in used.items() if amount >= limits[name]), None)


def _end(child: subprocess.Popen[bytes]) -> None:
    """Kill what is left and wait until all of it is gone.

    In Landlock's sandbox nothing can leave the process group, and a group is killed as one, forks under way included.
    In bubblewrap's the first process of its namespace is among the descendants, and all others end with it.
    """
    with contextlib.suppress(ProcessLookupError, PermissionError):  # only its own, ended process is left
        os.killpg(child.pid, signal.SIGKILL)
    child.wait()
    while True:
        for pid in descendants(os.getpid()):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        try:
            if os.waitpid(-1, os.WNOHANG)[0] == 0:
                time.sleep(0.001)
        except ChildProcessError:
            return


if __name__ == "__main__":
    main()
