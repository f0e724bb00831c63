"""Other hosts, simulated: processes with namespaces of their own, who see neither each other nor this test."""

from __future__ import annotations

import ctypes
import os
import pickle
import signal
import socket
from typing import TYPE_CHECKING, Any

from support.children import start_child

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["may_be_a_host", "start_on_host"]

_NEWNS, _NEWUTS, _NEWPID = 0x00020000, 0x04000000, 0x20000000
_REC_PRIVATE = 16384 | 1 << 18


def may_be_a_host() -> bool:
    """Whether this user may make namespaces."""
    pid = os.fork()
    if pid == 0:
        os._exit(0 if _leave() else 1)
    return os.waitpid(pid, 0)[1] == 0


def start_on_host(name: str, work: Callable[[], Any]) -> tuple[int, int]:
    """As ``start_child``, but the work runs as the first process of a host with this name.

    What kills it, kills the child likewise.
    """

    def on_host() -> Any:
        if not _leave():
            raise PermissionError("no namespaces here")
        readable, writable = os.pipe()
        pid = os.fork()
        if pid == 0:
            ctypes.CDLL(None).mount(b"proc", b"/proc", b"proc", ctypes.c_ulong(0), None)
            socket.sethostname(name)
            try:
                outcome: tuple[Any, BaseException | None] = (work(), None)
            except BaseException as error:  # noqa: BLE001 - handed on
                outcome = (None, error)
            with os.fdopen(writable, "wb") as pipe:
                pipe.write(pickle.dumps(outcome))
            os._exit(0)
        os.close(writable)
        with os.fdopen(readable, "rb") as pipe:
            given = pipe.read()
        _, status = os.waitpid(pid, 0)
        if os.WIFSIGNALED(status):
            os.kill(os.getpid(), signal.SIGKILL)
        value, error = pickle.loads(given)  # noqa: S301 - our own child wrote it
        if error is not None:
            raise error
        return value

    return start_child(on_host)


def _leave() -> bool:
    libc = ctypes.CDLL(None, use_errno=True)
    return (
        libc.unshare(_NEWNS | _NEWUTS | _NEWPID) == 0
        and libc.mount(b"none", b"/", None, ctypes.c_ulong(_REC_PRIVATE), None) == 0
    )
