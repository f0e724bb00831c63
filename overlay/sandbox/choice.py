"""Which sandbox is used: the first that was seen to hold on this machine, or none."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from overlay.errors import BrokenInput, Untrusted
from overlay.sandbox.backends import BACKENDS, Unusable
from overlay.sandbox.job import Job, Limits, Sandbox
from overlay.sandbox.running import run_in

if TYPE_CHECKING:
    from overlay.sandbox.job import Ran

__all__ = ["require_sandbox", "run", "sandboxes"]

_PREFIX = "overlay-probe-"
_SECRET = "no script may read this"  # noqa: S105 - it guards nothing, it is bait
# Tries what a sandbox must prevent and prints what was not; the limit of processes last, because that stops it.
_PROBE = b"""
import json, mmap, os, pathlib, socket, time

def materialize(*, overlay_dir, source_dir, output_dir, manifest):
    outside = pathlib.Path(manifest["outside"])
    attempts = {
        "open sockets": lambda: socket.socket(),
        "read other files": lambda: (outside / "secret").read_text(),
        "write elsewhere": lambda: (outside / "written").write_text("x"),
        "write to its inputs": lambda: (pathlib.Path(source_dir) / "written").write_text("x"),
        "leave its session": os.setsid,
        "trace processes": lambda: os.readlink(f"/proc/{manifest['caller']}/cwd"),
        "change the process that confines it": lambda: open(f"/proc/{os.getppid()}/mem", "r+b"),
        "have memory that nobody counts": lambda: mmap.mmap(-1, 4096),
    }
    escapes = []
    for name, attempt in attempts.items():
        try:
            attempt()
        except OSError:
            continue
        escapes.append(name)
    pathlib.Path(output_dir, "done").write_text("x")
    print(json.dumps(escapes), flush=True)
    for _ in range(3 * manifest["processes"]):
        if os.fork() == 0:
            time.sleep(5)
            os._exit(0)
"""
_PROBE_LIMITS = Limits(seconds=20, memory=2**30, processes=24, disk=2**20)


def run(job: Job, *, sandbox: Sandbox | None = None) -> Ran:
    """Call the job's ``materialize`` where it can reach nothing but what the job names, and check what it left.

    When this returns or raises, every process that the script started is gone. What is in the output folder is kept
    either way; the caller removes it.

    Args:
        job: What to run.
        sandbox: The one to use; the best that works here when None.

    Raises:
        Untrusted: ``sandbox-unavailable``: no sandbox works here.
        BrokenInput: ``script-failed``: it raised, exited or died; ``script-limit``: it reached the limit that
            ``data["limit"]`` names (seconds, memory, processes, disk, files, depth); ``script-output``: it left
            something that may not be taken over, as ``data["found"]`` says.
        OSError: The filesystem refused a scratch folder beside the output, or to give both to the script's user.
    """
    chosen = sandbox or require_sandbox()
    try:
        return run_in(chosen.name, job)
    except Unusable as error:  # no other is tried: the script may have run, and it may have said this itself
        raise _unavailable({chosen.name: str(error)}) from error


def require_sandbox() -> Sandbox:
    """The best sandbox that works here.

    Raises:
        Untrusted: ``sandbox-unavailable``: there is none.
    """
    found = sandboxes()
    usable = next((each for each in found if each.why_not is None), None)
    if usable is None:
        raise _unavailable({each.name: str(each.why_not) for each in found})
    return usable


def sandboxes() -> tuple[Sandbox, ...]:
    """All sandboxes, best first, those that do not work here with the reason.

    The first call tries them, which takes about a second.
    """
    return tuple(Sandbox(name, _why_not(name)) for name in BACKENDS)


def _unavailable(reasons: dict[str, str]) -> Untrusted:
    install = "" if shutil.which("bwrap") else "apt-get install bubblewrap; or "
    return Untrusted(
        "the overlay's own Python may run only in a sandbox, and none works here: "
        + "; ".join(f"{name}: {why_not}" for name, why_not in reasons.items()),
        code="sandbox-unavailable",
        hint=f"{install}build where one works (overlay doctor), and copy that cache root here",
        reasons=reasons,
    )


@cache
def _why_not(backend: str) -> str | None:
    """Run a script that tries to escape; once a process."""
    from overlay.cache.staging import owned_folder, remove_abandoned  # the guard, which has no packages, needs no cache

    remove_abandoned(Path(tempfile.gettempdir()), _PREFIX)
    with owned_folder(Path(tempfile.gettempdir()), _PREFIX) as folder:
        for name in ("in", "out", "outside"):
            (folder / name).mkdir()
        (folder / "outside/secret").write_text(_SECRET)
        job = Job(
            script=_PROBE,
            overlay_dir=folder / "in",
            source_dir=folder / "in",
            output_dir=folder / "out",
            manifest={"outside": str(folder / "outside"), "caller": os.getpid(), "processes": _PROBE_LIMITS.processes},
            readable=(),
            python_path=(),
            environ={},
            limits=_PROBE_LIMITS,
        )
        try:
            run_in(backend, job)
        except Unusable as error:
            return str(error)
        except OSError as error:  # such as a filesystem where root may not change owners
            return f"in {folder.parent} a first script could not be given its folders: {error.strerror}"
        except BrokenInput as error:
            if error.data.get("limit") != "processes":
                return f"a first script failed in it: {error}"
            escapes = json.loads(error.data["output"].splitlines()[0])
            return f"a script could {', '.join(escapes)} in it" if escapes else None
        return "a script could start processes without end in it"
