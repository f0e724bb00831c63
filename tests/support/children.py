"""Work done in a forked child: as a plain user, with mounts of its own, or killed half-way.

A fork needs no second import of the program, and what a test patched beforehand holds in the child.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import pickle
import signal
import sys
import traceback
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from collections.abc import Callable

NOBODY = 65534

_CLONE_NEWNS, _CLONE_NEWUSER = 0x00020000, 0x10000000
_MS_RDONLY, _MS_REMOUNT, _MS_BIND, _MS_REC, _MS_PRIVATE = 1, 32, 4096, 16384, 1 << 18


def start_child(work: Callable[[], Any], *, uid: int | None = None) -> tuple[int, int]:
    """Fork. Returns the pid and the descriptor that the pickled outcome will be read from."""
    readable, writable = os.pipe()
    with warnings.catch_warnings():
        # Newer Pythons warn where threads run, those of numeric libraries too; the work here needs none of them.
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid == 0:
        os.close(readable)
        _work_and_exit(work, uid, writable)
    os.close(writable)
    return pid, readable


def end_child(pid: int, readable: int) -> Any:
    """What the child's work returned; what it raised is raised here; the signal number if it was killed."""
    with os.fdopen(readable, "rb") as pipe:
        outcome = pipe.read()
    _, status = os.waitpid(pid, 0)
    if os.WIFSIGNALED(status):
        return signal.Signals(os.WTERMSIG(status))
    value, error = pickle.loads(outcome)  # noqa: S301 - our own child wrote it
    if error is not None:
        raise error
    return value


def in_child(work: Callable[[], Any], *, uid: int | None = None) -> Any:
    """Fork, wait, and hand over what the work returned or raised."""
    return end_child(*start_child(work, uid=uid))


def as_plain_user(work: Callable[[], Any]) -> Any:
    """Run the work where permissions bite: root sees past them, so as somebody else then."""
    return in_child(work, uid=NOBODY if os.geteuid() == 0 else None)


def open_to_all(folder: Path) -> None:
    """Let the plain user of :func:`as_plain_user` work in a folder."""
    folder.chmod(0o755)
    if os.geteuid() == 0:
        with contextlib.suppress(PermissionError):
            os.chown(folder, NOBODY, NOBODY)


def _work_and_exit(work: Callable[[], Any], uid: int | None, writable: int) -> NoReturn:
    try:
        if uid is not None:
            with contextlib.suppress(PermissionError):  # a root without privileges is as plain as any user
                os.setgroups([])
                os.setresgid(uid, uid, uid)
                os.setresuid(uid, uid, uid)
        outcome: tuple[Any, BaseException | None] = (work(), None)
    except BaseException as error:  # noqa: BLE001 - handed to the parent
        error.add_note("".join(traceback.format_exception(error)))
        outcome = (None, error)
    try:
        with os.fdopen(writable, "wb") as pipe:
            pipe.write(pickle.dumps(outcome))
    finally:
        sys.stdout.flush()
        os._exit(0)


def own_mounts() -> bool:
    """Give this (child) process mounts that nobody else sees. False where it may not."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_CLONE_NEWNS) != 0 and not _own_users(libc):
        return False
    return libc.mount(b"none", b"/", None, _MS_REC | _MS_PRIVATE, None) == 0


def _own_users(libc: ctypes.CDLL) -> bool:
    """Make a plain user the root of a user namespace of its own, where it may mount."""
    uid, gid = os.geteuid(), os.getegid()
    if libc.unshare(_CLONE_NEWUSER | _CLONE_NEWNS) != 0:
        return False
    own = Path("/proc/self")
    (own / "setgroups").write_text("deny")
    (own / "uid_map").write_text(f"0 {uid} 1")
    (own / "gid_map").write_text(f"0 {gid} 1")
    return True


def mount_tmpfs(folder: Path, size: str) -> None:
    """Mount a small filesystem of its own."""
    _mount(b"tmpfs", folder, b"tmpfs", 0, f"size={size}".encode())


def mount_again(folder: Path, place: Path) -> None:
    """Let a folder be seen at a second place: another mount of one filesystem."""
    _mount(os.fsencode(folder), place, None, _MS_BIND, None)


def mount_layers(lower: Path, upper: Path, scratch: Path, place: Path) -> bool:
    """Mount what a container sees: an image with a writable layer on it. False where the kernel has no such thing."""
    options = f"lowerdir={lower},upperdir={upper},workdir={scratch}"
    try:
        _mount(b"overlay", place, b"overlay", 0, options.encode())
    except OSError:
        return False
    return True


def mount_read_only(folder: Path) -> None:
    """Make a folder read-only, for root too."""
    _mount(os.fsencode(folder), folder, None, _MS_BIND, None)
    _mount(None, folder, None, _MS_BIND | _MS_REMOUNT | _MS_RDONLY, None)


def _mount(source: bytes | None, target: Path, kind: bytes | None, flags: int, options: bytes | None) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mount(source, os.fsencode(target), kind, ctypes.c_ulong(flags), options) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), str(target))
