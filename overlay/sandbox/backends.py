"""The two ways to confine a script, as commands and orders for the processes that carry them out.

Both run the same program (``inside.py``) under the same seccomp filter, resource limits and user; they differ in what
bounds the filesystem, processes and network: namespaces, or Landlock.
"""

from __future__ import annotations

import base64
import ctypes
import os
import pwd
import re
import secrets
import sys
import sysconfig
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from overlay.sandbox import inside
from overlay.sandbox.seccomp import filter_program
from overlay.sandbox.usage import MAX_DEPTH, MAX_ENTRIES, tasks_of_user

if TYPE_CHECKING:
    from collections.abc import Iterable

    from overlay.sandbox.job import Job, Limits

__all__ = ["BACKENDS", "Unusable", "given_paths", "guard_order", "unprivileged_user"]

BACKENDS: tuple[Literal["bubblewrap", "landlock"], ...] = ("bubblewrap", "landlock")
"""Best first."""

_BWRAP = (Path("/usr/bin/bwrap"), Path("/usr/local/bin/bwrap"))  # never from PATH, which the caller may share
_SYSTEM = (
    *("/lib", "/lib32", "/lib64", "/usr/lib", "/usr/lib32", "/usr/lib64", "/usr/local/lib", "/etc/ld.so.cache"),
    *("/etc/ssl/certs", "/etc/pki/tls/certs"),  # the Hub's client reads them also where it is to stay offline
    *("/sys/devices/system/cpu", "/sys/devices/system/node"),  # from these, libraries choose their kernels
)
_DEVICES = ("/dev/null", "/dev/random", "/dev/urandom")  # not zero: mapped, it is memory that no process has
_PROC = (
    *("/proc/cpuinfo", "/proc/meminfo", "/proc/stat"),
    *(f"/proc/self/{name}" for name in ("cmdline", "fd", "limits", "maps", "smaps", "stat", "statm", "status")),
)
"""Of itself no more than libraries read: not mem, net, mountinfo, cgroup."""

_MOST_BOUND = 2500  # bwrap takes 9000 words
_LEAST_ABI, _ABI_OF_SCOPES = 3, 6  # Linux 6.2: no truncation of others' files; 6.12: no signals to others
_OPEN_FILES, _OPEN_FILES_OF_ALL, _FEWEST_OPEN_FILES = 1024, 2**16, 128  # the guard looks at each of them
_TO_BECOME_ANOTHER = 0b11100011  # CAP_CHOWN, CAP_DAC_OVERRIDE, CAP_KILL, CAP_SETGID, CAP_SETUID
_MEANWHILE = 16  # processes that an ordinary user may start beside the script: the guard, and others


class Unusable(Exception):  # noqa: N818 - it says what the backend is
    """Why a backend cannot be used here."""


def guard_order(backend: str, job: Job, scratch: Path, user: int | None) -> dict[str, Any]:
    """The order for ``guard.py``.

    Raises:
        Unusable: The backend lacks something on this machine.
    """
    read = _with_real(path for path in (*_program_paths(), *job.python_path, *given_paths(job)) if path.exists())
    write = _with_real((job.output_dir, scratch))
    if backend == "bubblewrap":
        abi, signals = _landlock_abi_or_none(), True
        wrapper = _bubblewrap(_in_view(read, abi), write, scratch, user)
    else:
        abi, wrapper = _landlock_abi(), []
        signals = abi >= _ABI_OF_SCOPES
    named = {"read": read, "proc": _PROC, "write": write, "devices": _DEVICES}
    landlock = {"abi": abi, **named} if abi is not None else None
    program = filter_program(signals=signals)
    if program is None:
        raise Unusable("the seccomp filter is not written for this architecture")
    return {
        "caller": os.getpid(),
        "command": [
            *wrapper,
            str(_interpreter()),
            *("-I", "-S", "-B", "-u", "-X", "utf8"),
            inside.__file__,
            str(scratch),
        ],
        "environ": {
            **job.environ,
            "HOME": str(scratch),
            "TMPDIR": str(scratch),
            "USER": "overlay",
            "LANG": "C.UTF-8",
        },
        "own": 2 if wrapper else 1,  # processes that are not the script's
        "folders": [str(job.output_dir), str(scratch)],
        "limits": {**asdict(job.limits), "files": MAX_ENTRIES, "depth": MAX_DEPTH},
        "inside": {
            "landlock": landlock,
            "rlimits": _rlimits(job.limits, user),
            "user": user,
            "seccomp": base64.b64encode(program).decode(),
            "script": base64.b64encode(job.script).decode(),
            "file": str(job.overlay_dir / str(job.manifest.get("custom_materializer", "materialize.py"))),
            "python_path": [str(path) for path in job.python_path],
            "call": {
                **{name: str(getattr(job, name)) for name in ("overlay_dir", "source_dir", "output_dir")},
                "manifest": job.manifest,
            },
        },
    }


def given_paths(job: Job) -> tuple[Path, ...]:
    """What the job gives the script to read."""
    return (job.overlay_dir, job.source_dir, *job.readable)


def unprivileged_user() -> int | None:
    """A user number that nobody has, for a script that is started by root; None where the caller is an ordinary user.

    As root, limits on processes stop nobody and every file of root is the script's.

    Raises:
        Unusable: Root cannot become anybody else here.
    """
    if os.geteuid() != 0:
        return None
    ranges = [tuple(map(int, line.split())) for line in Path("/proc/self/uid_map").read_text().splitlines()]
    first, _, count = max(ranges, key=lambda found: found[2])
    effective = re.search(r"^CapEff:\s*(\w+)$", Path("/proc/self/status").read_text(), re.MULTILINE)
    if effective is None or int(effective[1], 16) & _TO_BECOME_ANOTHER != _TO_BECOME_ANOTHER:
        raise Unusable("root lacks the privileges here to give the script a user of its own")
    if count < 2**15:
        raise Unusable("there is no unprivileged user number in this container to give the script")
    lowest = 2 * 10**9 if count > 2**31 else first + count // 2
    users = min(2**16, first + count - 2 - lowest)
    for _ in range(100):
        user = lowest + secrets.randbelow(users)  # not from random, which callers seed alike: users must not be shared
        try:
            pwd.getpwuid(user)
        except KeyError:
            return user
    raise Unusable("all user numbers that were tried are taken")


def _bubblewrap(read: list[str], write: list[str], scratch: Path, user: int | None) -> list[str]:
    bwrap = next((path for path in _BWRAP if path.exists()), None)
    if bwrap is None:
        raise Unusable("bwrap is not installed (package bubblewrap)")
    found = bwrap.stat()
    if found.st_uid != 0 or found.st_mode & 0o022:
        raise Unusable(f"{bwrap} can be changed by others than root")
    command = [str(bwrap), "--die-with-parent", "--new-session", "--as-pid-1", "--hostname", "sandbox"]
    command += ["--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts", "--unshare-cgroup-try"]
    if user is None:
        command += ["--unshare-user"]
    else:  # root needs no namespace of users; what is kept serves to become the other user
        kept = ("CAP_SETUID", "CAP_SETGID", "CAP_DAC_READ_SEARCH")
        command += ["--cap-drop", "ALL", *(word for name in kept for word in ("--cap-add", name))]
    for path in read:
        command += ["--ro-bind", path, path]
    command += ["--proc", "/proc"]
    for device in _DEVICES:
        command += ["--dev-bind", device, device]
    for path in write:
        command += ["--bind", path, path]
    return [*command, "--remount-ro", "/", "--chdir", str(scratch), "--"]


def _in_view(read: list[str], abi: int | None) -> list[str]:
    """What bubblewrap shows of the filesystem: of very many files the folders, where Landlock opens but these files."""
    if len(read) <= _MOST_BOUND:
        return read
    if abi is None:
        raise Unusable(
            f"bwrap takes {_MOST_BOUND} inputs, found {len(read)}; more need Landlock in the kernel (Linux 6.2)"
        )
    return _with_real(path if path.is_dir() else path.parent for path in map(Path, read))


def _landlock_abi() -> int:
    version = ctypes.CDLL(None, use_errno=True).syscall(444, None, 0, 1)  # LANDLOCK_CREATE_RULESET_VERSION
    if version < 0:
        raise Unusable(f"Landlock: {os.strerror(ctypes.get_errno())} (Linux 6.2 or newer, with landlock in its lsm=)")
    if version < _LEAST_ABI:
        raise Unusable(f"Landlock has version {version} here, expected {_LEAST_ABI} or newer (Linux 6.2)")
    return int(version)


def _landlock_abi_or_none() -> int | None:
    """Beside bubblewrap it is a second wall, where the kernel has it."""
    try:
        return _landlock_abi()
    except Unusable:
        return None


def _rlimits(limits: Limits, user: int | None) -> dict[str, int]:
    own = 0 if user is not None else tasks_of_user(os.geteuid()) + _MEANWHILE
    return {
        "RLIMIT_CPU": int(limits.seconds + 1) * (os.cpu_count() or 1),
        "RLIMIT_FSIZE": limits.disk,
        "RLIMIT_NPROC": own
        + 2
        + limits.processes,  # the first inside; the script's own, which may have ended when seen
        "RLIMIT_NOFILE": max(_FEWEST_OPEN_FILES, min(_OPEN_FILES, _OPEN_FILES_OF_ALL // limits.processes)),
        "RLIMIT_CORE": 0,
        "RLIMIT_MEMLOCK": 0,
        "RLIMIT_MSGQUEUE": 0,
    }


def _interpreter() -> Path:
    """The interpreter itself: a virtual environment's link to it would have its folder read."""
    return Path(getattr(sys, "_base_executable", sys.executable)).resolve()


def _program_paths() -> list[Path]:
    """The interpreter with its standard library, what both load, and the program inside."""
    base = Path(sys.base_prefix)
    library = [Path(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib")]
    return [*map(Path, _SYSTEM), _interpreter(), base / "lib", base / "lib64", *library, Path(inside.__file__)]


def _with_real(paths: Iterable[Path]) -> list[str]:
    """Each path and, where a link leads there, its real one; those that lie in another of the list left out."""
    kept: dict[Path, Path] = {}  # to their real ones
    for path in sorted({each for given in paths for each in (given.absolute(), given.resolve())}):
        above = next((each for each in path.parents if each in kept), None)
        real = path.resolve()
        if above is None or kept[above] / path.relative_to(above) != real:
            kept[path] = real
    return [str(path) for path in kept]
