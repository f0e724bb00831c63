"""One error family: what was wrong, where, and what to do next.

Every error carries a stable ``code``, a ``hint`` (the next step, a command wherever one exists), the exit status of its
class, and the facts as ``data`` for ``--json``. Each class is also the builtin that it naturally is, so callers may
catch either. Errors survive pickling, so that worker processes can raise them.

A code says what was found, so that a script can act on it; the same finding has the same code everywhere, and where the
class differs the exit status tells the cases apart. ``docs/reference/errors.md`` lists all of them. In ``data``,
``where`` is the file or folder exactly as the message prints it, whether it is of this host or of a repo; ``path`` is
only ever added beside it, for a real path of this host; several things have plurals (``missing``, ``files``).
"""

from __future__ import annotations

from typing import Any, ClassVar

__all__ = [
    "BrokenInput",
    "CannotWrite",
    "CheckFailed",
    "InvalidRegistry",
    "InvalidUsage",
    "NotHere",
    "OverlayError",
    "Refused",
    "TryAgain",
    "Untrusted",
]


class OverlayError(Exception):
    """Something that the user can understand and act on.

    Args:
        message: What was found, where, and what was expected. One sentence; the place comes first.
        code: Stable identifier in kebab-case, for scripts and for ``--json``.
        hint: What to do next; a command wherever one exists.
        data: The facts of the message, JSON-representable, by name.
    """

    exit_status: ClassVar[int] = 70

    def __init__(self, message: str, *, code: str, hint: str | None = None, **data: Any) -> None:
        super().__init__(message)
        self.message = message
        self.code = code
        self.hint = hint
        self.data = data

    def __str__(self) -> str:
        return self.message

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.message, self.code, self.hint, self.data)


def _rebuild(cls: type[OverlayError], message: str, code: str, hint: str | None, data: dict[str, Any]) -> OverlayError:
    return cls(message, code=code, hint=hint, **data)


class BrokenInput(OverlayError, ValueError):
    """A file, adapter, index or repo is not what it must be. Trying again does not help."""

    exit_status = 1


class CheckFailed(OverlayError):
    """A check ran to its end and the answer is no: bytes differ, a contract is broken."""

    exit_status = 1


class InvalidUsage(OverlayError, ValueError):
    """The request itself makes no sense."""

    exit_status = 2


class InvalidRegistry(InvalidUsage):
    """``registry.yaml`` or an override of it cannot be used as it stands."""


class NotHere(OverlayError, FileNotFoundError):
    """Absent from the cache, or offline and not cached. A build or a connection would help."""

    exit_status = 3


class CannotWrite(OverlayError, OSError):
    """No room, no permission, or a filesystem that lacks an operation. Nothing was published."""

    exit_status = 4


class TryAgain(OverlayError, ConnectionError):
    """Transient: the same command may succeed later (429, 5xx, connection lost, lock busy)."""

    exit_status = 5


class Refused(OverlayError, PermissionError):
    """Refused for good by the other side: not found, gated, unauthorised."""

    exit_status = 6


class Untrusted(OverlayError, PermissionError):
    """Code from a repo that may not run, or a sandbox that cannot be had."""

    exit_status = 7
