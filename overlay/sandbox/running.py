"""Run a script in a sandbox and take over what it left."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import overlay
from overlay.errors import BrokenInput
from overlay.sandbox import inside
from overlay.sandbox.backends import Unusable, given_paths, guard_order, unprivileged_user
from overlay.sandbox.job import Ran
from overlay.sandbox.outputs import checked_output, give, make_removable

if TYPE_CHECKING:
    from overlay.sandbox.job import Job

__all__ = ["run_in"]

_TAIL = 2**16  # bytes of its output that are kept
_LAST = 1000  # characters of these that tell how a process ended which raised nothing
_START = "import sys; sys.path.insert(0, sys.argv[1]); from overlay.sandbox.guard import main; main()"
_PATIENCE = 60  # seconds that a guard may take beyond the time limit, to end what it started
_UNITS = {"seconds": "seconds", "memory": "bytes of memory", "processes": "processes", "disk": "bytes on disk"}
_UNITS |= {"files": "files and folders", "depth": "folders within one another"}
_REFUSALS = {
    "disk": ("File too large", "SIGXFSZ"),
    # Of Python, libgomp, OpenBLAS and the thread pool of Rust's libraries.
    "processes": ("can't start new thread", "hread creation failed", "pthread_create failed", "ThreadPoolBuildError"),
}
_MOST_MISSED = 8  # of so many processes that are started at once, a look may see one
_NO_PROCESS = "Resource temporarily unavailable"


def run_in(backend: str, job: Job) -> Ran:
    """As ``run``, in one backend.

    Raises:
        Unusable: The backend cannot be used.
        BrokenInput: As ``run``.
        OSError: As ``run``.
    """
    _require_sound(job)
    user = unprivileged_user()
    try:
        # Beside the output: on the same disk, whatever TMPDIR is, and removed with it should this process be killed.
        with tempfile.TemporaryDirectory(prefix="scratch-", dir=job.output_dir.parent) as scratch:
            order = guard_order(backend, job, Path(scratch), user)
            try:
                if user is not None:
                    give(job.output_dir, user, user)
                    os.chown(scratch, user, user)
                report, tail = _guarded(order)
            finally:
                os.chown(job.output_dir, os.geteuid(), os.getegid())
                make_removable(Path(scratch))
        _require_confined(report, tail)
        _require_success(job, order, report, tail)
        files = checked_output(job.output_dir, given_paths(job))
    except BaseException:
        make_removable(job.output_dir)
        raise
    if user is not None:
        give(job.output_dir, os.geteuid(), os.getegid())
    return Ran(backend, report["seconds"], report["peak_memory"], tail, files)


def _require_sound(job: Job) -> None:
    """What would make the limits or the confinement void is a fault of the caller."""
    output = job.output_dir.resolve()
    inner = [path for path in (*given_paths(job), *job.python_path) if path.resolve().is_relative_to(output)]
    if inner:
        raise ValueError(f"{output}: expected a folder apart from the inputs")
    if any(path.is_file() and not path.is_symlink() and path.stat().st_nlink > 1 for path in output.rglob("*")):
        raise ValueError(f"{output}: hard links in it would be the script's to write")
    if min(job.limits.seconds, job.limits.memory, job.limits.processes, job.limits.disk) <= 0:
        raise ValueError(f"limits that are not positive: {job.limits}")


def _guarded(order: dict[str, Any]) -> tuple[dict[str, Any], str]:
    """Start the guard and hear it and the script to their end: the guard's report, and the end of the output."""
    home = Path(overlay.__file__).parent.parent
    guard = subprocess.Popen(  # noqa: S603 - this program's own module
        [sys.executable, "-I", "-S", "-B", "-c", _START, home],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={},
        start_new_session=True,  # an interrupt from the keyboard reaches it through this process, in order
    )
    with guard:
        try:
            assert guard.stdin is not None  # noqa: S101 - pipes were asked for
            assert guard.stdout is not None  # noqa: S101 - pipes were asked for
            assert guard.stderr is not None  # noqa: S101 - pipes were asked for
            with guard.stdin as stdin:
                stdin.write(json.dumps(order).encode())
            group = guard.stdout.readline()
            patience = order["limits"]["seconds"] + _PATIENCE
            tail = _heard(guard, int(group or 0), patience)
            report = guard.stdout.read()
        finally:
            guard.terminate()
            guard.wait()
    if not report:
        raise Unusable(f"its guard ended with status {guard.returncode}: {tail}")
    return json.loads(report), tail


def _heard(guard: subprocess.Popen[bytes], group: int, patience: float) -> str:
    """Read to the end; give back the last 64 KiB as harmless text.

    Where the guard is killed, or does not end, the process group that it started is killed here.
    """
    assert guard.stderr is not None  # noqa: S101 - it was asked for
    until = time.monotonic() + patience
    tail = b""
    while True:
        if time.monotonic() > until:
            guard.kill()
        if guard.poll() not in {None, 0} and group:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(group, signal.SIGKILL)
        if not select.select([guard.stderr], [], [], 0.2)[0]:
            continue
        chunk = os.read(guard.stderr.fileno(), _TAIL)
        if not chunk:
            return _harmless(tail.decode(errors="replace"))
        tail = (tail + chunk)[-_TAIL:]


def _harmless(text: str) -> str:
    """No character that a terminal could take for a command."""
    return "".join(letter if letter.isprintable() or letter in "\n\t" else "\ufffd" for letter in text)


def _require_confined(report: dict[str, Any], tail: str) -> None:
    if not report["confined"] and report["limit"] is None:
        raise Unusable(tail.strip())


def _require_success(job: Job, order: dict[str, Any], report: dict[str, Any], tail: str) -> None:
    script = str(job.overlay_dir / str(job.manifest.get("custom_materializer", "materialize.py")))
    status = report["status"]
    limit = report["limit"]
    if limit is None and status != 0:
        limit = _refused(report["raised"] or tail[-_LAST:], job, report["peak_processes"])
    if limit is not None:
        most = order["limits"][limit]
        raise BrokenInput(
            f"{script}: stopped at its limit of {most} {_UNITS[limit]}",
            code="script-limit",
            hint="a script that needs more than this is rarely what it should be; look at what it does",
            where=script,
            limit=limit,
            most=most,
            output=tail,
        )
    if status != 0 or report["left"]:
        how = f"was killed by signal {-status}" if status < 0 else f"ended with status {status}"
        if status == inside.FAILED:
            how = _harmless(report["raised"].partition("\n")[0]) or how
        elif status == 0:
            how = "left processes behind, which were killed"
        raise BrokenInput(
            f"{script}: {how}",
            code="script-failed",
            hint="see what it printed; it had no network, no environment and one folder to write",
            where=script,
            status=status,
            output=tail,
        )


def _refused(said: str, job: Job, peak_processes: int) -> str | None:
    """The limit that the kernel held a script to before the guard saw it there, by the words for its refusal.

    A file that may not grow is often removed at once. Threads that may not start are told by the library that wanted
    them, which may end the process itself. The words for a process can mean other things, and count only if the script
    had so many that this may be: the last look may miss most.
    """
    limit = next((limit for limit, words in _REFUSALS.items() if any(each in said for each in words)), None)
    if limit is None and _NO_PROCESS in said and _MOST_MISSED * peak_processes >= job.limits.processes:
        limit = "processes"
    return limit
