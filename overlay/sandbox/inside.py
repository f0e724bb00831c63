"""The program inside a sandbox: shuts the last doors behind itself, then calls the script's ``materialize``.

Started as a file of its own by the interpreter in isolated mode, so it imports nothing of this package. What to do
comes as one JSON object on standard input, its scratch folder as the only argument. Nothing of the script runs before
``_confine`` is done, and any part of that which fails ends the process.
"""

from __future__ import annotations

import base64
import ctypes
import errno
import json
import os
import resource
import signal
import sys
import traceback
from types import ModuleType
from typing import Any, NoReturn

MODULE = "_sglang_overlay_materializer"
FAILED, NOT_CONFINED, NO_PROCESSES, NO_DISK, LEFT_BEHIND = 91, 92, 93, 94, 95
_ENDS = {errno.EAGAIN: NO_PROCESSES, errno.EFBIG: NO_DISK}

_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_SET_KEEPCAPS, _PR_SET_SECCOMP = 1, 4, 8, 22
_PR_SET_CHILD_SUBREAPER, _PR_SET_NO_NEW_PRIVS = 36, 38
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
    """Confine this process, then run the script; the exit status says how that ended."""
    order = json.load(sys.stdin)
    try:
        _confine(order)
    except OSError as error:
        print(f"cannot be confined: {error}", flush=True)  # noqa: T201 - its output is how it speaks
        os._exit(NOT_CONFINED)
    os._exit(_run(order))


def _confine(order: dict[str, Any]) -> None:
    os.dup2(os.open("/dev/null", os.O_RDONLY), 0)
    os.chdir(sys.argv[1])
    _check(_libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0), "subreaper")  # to see what the script leaves behind
    with open("/proc/self/oom_score_adj", "w", encoding="ascii") as score:  # noqa: PTH123 - pathlib costs start-up time
        score.write("1000")  # of all processes of this machine, the kernel shall take these first
    _check(_libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "no_new_privs")
    if order["landlock"] is not None:
        _restrict_paths(**order["landlock"])
    for name, most in order["rlimits"].items():
        resource.setrlimit(getattr(resource, name), (most, most))
    _drop_privileges(order["user"])
    if order["landlock"] is not None:  # after the change of user, which would undo it; bubblewrap has its own
        _check(_libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0), "death signal")
    _check(_libc.prctl(_PR_SET_DUMPABLE, 1, 0, 0, 0), "dumpable")  # else the guard may not look at what it uses
    steps = base64.b64decode(order["seccomp"])
    program = _Filter(len(steps) // 8, steps)
    _check(_libc.prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.byref(program), 0, 0), "seccomp")


def _restrict_paths(*, abi: int, read: list[str], write: list[str], devices: list[str]) -> None:
    """Landlock: nothing of the filesystem but these; no TCP; no signals and abstract sockets to the outside."""
    handled = (1 << (16 if abi >= 5 else 15)) - 1  # noqa: PLR2004 - the version that added the last right
    ruleset = _Ruleset(handled, 0b11 if abi >= 4 else 0, 0b11 if abi >= 6 else 0)  # noqa: PLR2004 - as above
    size = 24 if abi >= 6 else 16 if abi >= 4 else 8  # noqa: PLR2004 - as above
    descriptor = _check(_libc.syscall(_CREATE_RULESET, ctypes.byref(ruleset), size, 0), "landlock")
    device = _READ_FILE | _WRITE_FILE
    for paths, allowed in ((read, _READ), (write, _WRITE), (devices, device)):
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


def _run(order: dict[str, Any]) -> int:
    """Import and call the script as sglang does; its exit status."""
    sys.path += order["python_path"]
    module = ModuleType(MODULE)
    module.__file__ = order["file"]
    sys.modules[MODULE] = module
    try:
        exec(compile(base64.b64decode(order["script"]), order["file"], "exec"), module.__dict__)  # noqa: S102 - the job
        module.materialize(**order["call"])
    except BaseException as error:  # noqa: BLE001 - whatever it is, it is a failure of the script
        traceback.print_exc()
        return _ENDS.get(error.errno or 0, FAILED) if isinstance(error, OSError) else FAILED
    finally:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
    return LEFT_BEHIND if _has_children() else 0


def _has_children() -> bool:
    """Whether a process runs that the script started. It would be killed now, so the script cannot have meant it."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return False
    return True


if __name__ == "__main__":
    main()
