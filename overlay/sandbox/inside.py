"""The program inside a sandbox: shuts the last doors behind itself, then calls the script's ``materialize``.

Started as a file of its own by the interpreter in isolated mode, so it imports nothing of this package. What to do
comes as one JSON object on standard input, its scratch folder as the only argument. It is two processes. The first, in
bubblewrap the first of its namespace, confines itself, waits for the second, takes in what loses its parent, and tells
the guard how it ended, on a pipe that the script never has. The second calls the script; it cannot look into the first
nor end it, and tells it what was raised, on another pipe. Nothing of the script runs before both are confined, and any
part of that which fails ends all.
"""

from __future__ import annotations

import base64
import ctypes
import json
import os
import resource
import select
import signal
import sys
import time
import traceback
from types import ModuleType
from typing import Any, NoReturn

MODULE = "_sglang_overlay_materializer"
CONFINED = b"confined\n"
"""Said to the guard before the script runs; then, once it has ended, one JSON object."""
FAILED = 91
"""Exit status of the script's process where it raised something."""

_MOST_SAID = 512  # bytes of what was raised: escaped, too, no more than goes into a pipe at once
_DEEPEST_CAUSE = 8
_GRACE = 0.3  # seconds; helpers of libraries end when they see that the script has

_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_SET_KEEPCAPS, _PR_SET_SECCOMP = 1, 4, 8, 22
_PR_SET_CHILD_SUBREAPER, _PR_SET_NO_NEW_PRIVS, _PR_SET_THP_DISABLE = 36, 38, 41
_PR_CAP_AMBIENT, _CAP_AMBIENT_RAISE = 47, 2
_SECCOMP_MODE_FILTER = 2
_CAPABILITY_VERSION_3 = 0x20080522
_TO_READ_ALL = (
    2,
    1,
)  # CAP_DAC_READ_SEARCH; else CAP_DAC_OVERRIDE, all that containers have: Landlock bounds its writing
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF, _RULE_PATH_BENEATH = 444, 445, 446, 1

# Rights of Landlock. None to make devices, sockets and pipes, or to run a program from a folder that can be written.
_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
_TRUNCATE, _IOCTL_DEVICE = 1 << 14, 1 << 15
_READ = _EXECUTE | _READ_FILE | _READ_DIR
_WRITE = (1 << 1) | (1 << 2) | (1 << 3) | (1 << 4) | (1 << 5) | (1 << 7) | (1 << 8) | (1 << 12) | (1 << 13) | _TRUNCATE
_OF_A_FILE = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE | _IOCTL_DEVICE


class _Ruleset(ctypes.Structure):
    _fields_ = (("files", ctypes.c_uint64), ("network", ctypes.c_uint64), ("scoped", ctypes.c_uint64))


class _PathBeneath(ctypes.Structure):
    _pack_ = 1
    _layout_ = "ms"  # asked for beside _pack_ since Python 3.14; without effect here
    _fields_ = (("allowed", ctypes.c_uint64), ("parent", ctypes.c_int32))


class _Filter(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("steps", ctypes.c_char_p))


_libc = ctypes.CDLL(None, use_errno=True)


def main() -> NoReturn:
    """Confine this process, run the script in another, and say how that ended; then wait to be killed."""
    order = json.load(sys.stdin)
    channel = order["channel"]
    heard, said = os.pipe()
    script = None
    try:
        _confine(order)
        first = os.getpid()
        script = os.fork()
        if script == 0:
            _confine_script(order, first)
            os.write(channel, CONFINED)
            os.close(channel)
    except OSError as error:
        print(f"cannot be confined: {error}", flush=True)  # noqa: T201 - its output is how it speaks
        os._exit(1)
    if script == 0:
        os.close(heard)
        os._exit(_run(order, said))
    os.close(said)
    _watch(script, channel, heard)


def _confine(order: dict[str, Any]) -> None:
    """All that both processes give up."""
    os.dup2(os.open("/dev/null", os.O_RDONLY), 0)
    os.chdir(sys.argv[1])
    _check(_libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0), "subreaper")  # to see what the script leaves behind
    _check(_libc.prctl(_PR_SET_THP_DISABLE, 1, 0, 0, 0), "huge pages")  # unmapped in part, one is held but not counted
    with open("/proc/self/oom_score_adj", "w", encoding="ascii") as score:  # noqa: PTH123 - as above
        score.write("1000")  # of all processes of this machine, the kernel shall take these first
    _check(_libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "no_new_privs")
    if order["landlock"] is not None:
        _restrict_paths(**order["landlock"] | {"proc": ["/proc"]})
    for name, most in order["rlimits"].items():
        resource.setrlimit(getattr(resource, name), (most, most))
    _drop_privileges(order["user"])
    # After the change of user, which would undo it.
    _check(_libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0), "death signal")
    _check(_libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0), "dumpable")  # the script may not look into this process
    steps = base64.b64decode(order["seccomp"])
    program = _Filter(len(steps) // 8, steps)
    _check(_libc.prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.byref(program), 0, 0), "seccomp")


def _confine_script(order: dict[str, Any], first: int) -> None:
    """What the script's own process gives up beside; a domain within the first's, from which it cannot reach that."""
    _check(_libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0), "death signal")
    if os.getppid() != first:
        os._exit(1)
    _check(_libc.prctl(_PR_SET_DUMPABLE, 1, 0, 0, 0), "dumpable")  # else the guard may not look at what it uses
    if order["landlock"] is not None:
        _restrict_paths(**order["landlock"])


def _restrict_paths(*, abi: int, read: list[str], proc: list[str], write: list[str], devices: list[str]) -> None:
    """Landlock: nothing of the filesystem but these; no TCP; no signals and abstract sockets to the outside."""
    handled = (1 << (16 if abi >= 5 else 15)) - 1  # noqa: PLR2004 - the version that added the last right
    ruleset = _Ruleset(handled, 0b11 if abi >= 4 else 0, 0b11 if abi >= 6 else 0)  # noqa: PLR2004 - as above
    size = 24 if abi >= 6 else 16 if abi >= 4 else 8  # noqa: PLR2004 - as above
    descriptor = _check(_libc.syscall(_CREATE_RULESET, ctypes.byref(ruleset), size, 0), "landlock")
    device = _READ_FILE | _WRITE_FILE
    for paths, allowed in ((read, _READ), (proc, _READ_FILE | _READ_DIR), (write, _WRITE), (devices, device)):
        for path in paths:
            beneath = os.open(path, os.O_PATH | os.O_CLOEXEC)
            mine = allowed if os.path.isdir(path) else allowed & _OF_A_FILE  # noqa: PTH112 - as above
            rule = _PathBeneath(mine, beneath)
            _check(_libc.syscall(_ADD_RULE, descriptor, _RULE_PATH_BENEATH, ctypes.byref(rule), 0), path)
            os.close(beneath)
    _check(_libc.syscall(_RESTRICT_SELF, descriptor, 0), "landlock")
    os.close(descriptor)


def _drop_privileges(user: int | None) -> None:
    """Become an ordinary user where this is root, and keep no privilege but, if it is had, to read all that is in view.

    Folders of root are often closed to others (a cache below ``/root``); what is in view is bounded elsewhere.
    """
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0)
    had = (ctypes.c_uint32 * 6)()
    _check(_libc.capget(header, had), "capget")
    kept = None
    if user is not None:
        kept = next((number for number in _TO_READ_ALL if had[1] & 1 << number), None)
        _check(_libc.prctl(_PR_SET_KEEPCAPS, 1, 0, 0, 0), "keepcaps")
        os.setgroups([])
        os.setresgid(user, user, user)
        os.setresuid(user, user, user)
    bit = 0 if kept is None else 1 << kept
    _check(_libc.capset(header, (ctypes.c_uint32 * 6)(bit, bit, bit, 0, 0, 0)), "capset")
    if kept is not None:  # also for programs that the script starts
        _check(_libc.prctl(_PR_CAP_AMBIENT, _CAP_AMBIENT_RAISE, kept, 0, 0), "ambient capability")


def _check(answer: int, what: str) -> int:
    if answer < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), what)
    return answer


def _run(order: dict[str, Any], said: int) -> int:
    """Import and call the script as sglang does; its exit status. What it raises is also told to the first process."""
    script = os.getpid()
    sys.path += order["python_path"]
    module = ModuleType(MODULE)
    module.__file__ = order["file"]
    sys.modules[MODULE] = module
    try:
        exec(compile(base64.b64decode(order["script"]), order["file"], "exec"), module.__dict__)  # noqa: S102 - the job
        module.materialize(**order["call"])
    except BaseException as error:  # noqa: BLE001 - whatever it is, it is a failure of the script
        traceback.print_exc()
        if os.getpid() == script:  # not what it started and let return here
            os.write(said, _raised(error, order["file"]).encode(errors="replace")[:_MOST_SAID])
        return FAILED
    finally:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
    return 0


def _raised(error: BaseException | None, file: str) -> str:
    """What was raised and the line of the script that it came through; below it, a line each, what that was due to."""
    told: list[str] = []
    while error is not None and len(told) < _DEEPEST_CAUSE:
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == file]
        said = str(error).strip().splitlines() or [""]
        if any("Traceback (most recent call last)" in line for line in said):  # of a worker, told by its parent
            said[0] += f" {said[-1]}"
        place = f"line {lines[-1]}: " if lines else ""
        told.append(f"{place}{type(error).__name__}: {said[0]}".removesuffix(": "))
        error = error.__cause__ or error.__context__
    return "\n".join(told)


def _watch(script: int, channel: int, heard: int) -> NoReturn:
    """Say how the script ended and wait to be killed; end, and with this all, once nobody listens any more.

    The kernel's death signal does not come to a user that the dying parent may not signal.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Python would raise an exception
    signal.signal(signal.SIGCHLD, lambda *_: None)
    woken, wake = os.pipe()
    for end in (wake, heard):
        os.set_blocking(end, False)
    signal.set_wakeup_fd(wake)
    events = select.poll()
    events.register(woken, select.POLLIN)
    events.register(channel, 0)  # it has an error when its reader is gone
    ended = None
    while True:
        if ended is None and (ended := _ended(script)) is not None:
            os.write(channel, json.dumps(ended | {"raised": _said(heard)}, ensure_ascii=False).encode())
        if any(descriptor == channel for descriptor, _ in events.poll()):
            os._exit(1)
        os.read(woken, 2**12)


def _said(heard: int) -> str:
    try:
        return os.read(heard, _MOST_SAID).decode(errors="ignore")
    except BlockingIOError:
        return ""


def _ended(script: int) -> dict[str, Any] | None:
    """Take in what has ended; once the script's process has, its status, and whether others that it started still run.

    They would be killed now, so the script cannot have meant to leave them; those that are about to end may do so.
    """
    status, until = None, None
    try:
        while until is None or time.monotonic() < until:
            pid, found = os.waitpid(-1, os.WNOHANG)
            if pid == script:
                status, until = os.waitstatus_to_exitcode(found), time.monotonic() + _GRACE
            elif pid == 0 and until is None:
                return None
            elif pid == 0:
                time.sleep(0.005)
    except ChildProcessError:
        return {"status": status, "left": False}
    return {"status": status, "left": True}


if __name__ == "__main__":
    main()
