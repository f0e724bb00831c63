"""What the system's refusals mean: one code and one advice for each errno, wherever it is met."""

from __future__ import annotations

import errno
import os
from typing import Any

from overlay.errors import BrokenInput, CannotWrite, NotHere, OverlayError, Refused

__all__ = [
    "MAY_NOT_WRITE",
    "OUT_OF_MEMORY",
    "cannot_read",
    "cannot_write",
    "errno_name",
    "is_out_of_memory",
    "meaning_of",
]

_LOCAL_DISK = "use a local disk, because this filesystem lacks the operation (overlay doctor tells)"
_PERMITTED = "run as a user who may write there"
_ONE_PLACE = (
    "let all of it lie on one filesystem, mount and project quota; to copy inputs from elsewhere, use --link copy"
)
_FEWER_FILES = "allow more open files: ulimit -n 4096"

OUT_OF_MEMORY = (
    "out-of-memory",
    "lower --memory or --jobs, or let this process have more (ulimit -v, ulimit -u, the container's limits)",
)
"""Code and advice where a process gets no more memory or threads."""

_NO_MEMORY_WORDS = ("can't allocate memory", "can't start new thread")  # as torch and Python put it

_WRITING = {
    errno.ENOSPC: ("no-room", "free some room there"),
    errno.EDQUOT: ("quota-exceeded", "raise the quota or free some room"),
    errno.EFBIG: ("file-too-large", "lift the limit of the filesystem or of this shell (ulimit -f)"),
    errno.EROFS: ("read-only", "mount it so that it can be written, because it is read-only now"),
    errno.EACCES: ("not-permitted", _PERMITTED),
    errno.EPERM: ("not-permitted", f"{_PERMITTED}, or use a filesystem that has the operation (overlay doctor tells)"),
    errno.EXDEV: ("other-filesystem", _ONE_PLACE),
    errno.ENOSYS: ("operation-missing", _LOCAL_DISK),
    errno.EOPNOTSUPP: ("operation-missing", _LOCAL_DISK),
    errno.EINVAL: ("operation-missing", _LOCAL_DISK),
    errno.EMLINK: ("too-many-links", "use --link copy, because this filesystem allows a file no more links"),
    errno.EEXIST: ("exists", "remove what is there, because nothing is overwritten"),
    errno.ENOENT: ("no-such-folder", "make the folder first"),
    errno.ENOTDIR: ("not-a-folder", "remove the file that is in the place of a folder"),
    errno.EMFILE: ("too-many-open-files", _FEWER_FILES),
    errno.ENFILE: ("too-many-open-files", _FEWER_FILES),
    errno.ENAMETOOLONG: ("name-too-long", "use a shorter path"),
    errno.ELOOP: ("link-loop", "remove the link that leads back to itself"),
    errno.EIO: ("disk-error", "look for faults of that disk in the kernel log: dmesg"),
    errno.ENOMEM: OUT_OF_MEMORY,
}
_OUT_OF_ROOM = ("no-room", "quota-exceeded")

MAY_NOT_WRITE = ("read-only", "not-permitted")
"""Codes that mean: this user may not write there, and can still read."""


def meaning_of(error: OSError) -> tuple[str, str] | None:
    """Code and advice of a refused write; None for an errno that has none of its own."""
    return _WRITING.get(error.errno or 0)


def is_out_of_memory(error: Exception) -> bool:
    """Whether Python, torch or the system says that there is no more memory, or no more threads."""
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM
    return isinstance(error, MemoryError) or any(words in str(error) for words in _NO_MEMORY_WORDS)


def errno_name(error: OSError) -> str:
    """The symbol of its errno (``ENOSPC``), for ``data``."""
    return errno.errorcode.get(error.errno or 0, "unknown")


def cannot_write(
    error: OSError, where: str, operation: str, *, first: str = "", elsewhere: str, detail: str = "", **data: Any
) -> CannotWrite:
    """The error of this program for a write that the system refused.

    Args:
        error: The system's.
        where: The place that is being written.
        operation: What was being done there.
        first: How room is made at this place, where there is a command for it; said only when room lacks.
        elsewhere: How this place is moved: the option or variable that names it.
        detail: More than the system says of the cause.
        data: More facts.
    """
    code, advice = meaning_of(error) or ("write-failed", "look at that disk")
    room = f" ({first})" if first and code in _OUT_OF_ROOM else ""
    name = error.filename
    return CannotWrite(
        f"{where}: {operation}: {error.strerror or error}{detail}",
        code=code,
        hint=f"{advice}{room}, or {elsewhere}",
        where=where,
        operation=operation,
        errno=errno_name(error),
        path=os.fsdecode(name) if isinstance(name, str | bytes) else None,
        **data,
    )


def cannot_read(error: OSError, where: str, *, look: str | None = None, at: int | None = None) -> OverlayError:
    """The error of this program for a file or folder that the system did not let be read.

    Args:
        error: The system's.
        where: The file or folder.
        look: Command that shows what is there.
        at: Offset of the byte that could not be read.
    """
    if isinstance(error, FileNotFoundError | NotADirectoryError):
        return NotHere(f"{where}: no such file", code="no-such-file", hint=look, where=where)
    if isinstance(error, PermissionError):
        return Refused(f"{where}: no permission to read it", code="unreadable", hint=look, where=where)
    message = f"{where}: cannot be read{'' if at is None else f' at byte {at}'}: {error.strerror or error}"
    if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOMEM):
        code, advice = _WRITING[error.errno]
        return CannotWrite(message, code=code, hint=advice, where=where)
    if error.errno in (errno.ENAMETOOLONG, errno.ELOOP):
        code, advice = _WRITING[error.errno]
        return BrokenInput(message, code=code, hint=advice, where=where)
    hint = "the disk or network share reports a fault: see dmesg, then fetch the file again"
    return BrokenInput(message, code="unreadable", hint=hint, where=where, errno=errno_name(error))
