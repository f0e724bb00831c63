"""The ways in which ``hub_server`` can be told to misbehave."""

from __future__ import annotations

import argparse
import fnmatch
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass(slots=True)
class Fault:
    """One way to misbehave, for the requests that match.

    Attributes:
        method: Glob on the method.
        path: Glob on the decoded path, without the query.
        times: How many requests it strikes; None for all.
        status: Answer with this status and no content.
        code: ``X-Error-Code`` that goes with ``status``.
        message: ``X-Error-Message`` that goes with ``status``.
        retry_after: Seconds, as ``Retry-After`` beside ``status``.
        redirect: Answer 308 to this endpoint, without ``X-Repo-Commit``.
        drop_after: Close the connection after so many bytes of the body.
        delay: Seconds to wait before answering.
        chunk_delay: Seconds to wait before each chunk of the body.
        flip: Offset in the file of one byte that is sent inverted.
        no_commit: Leave out ``X-Repo-Commit``.
        ignore_range: Answer a ranged request with the whole file.
    """

    method: str = "*"
    path: str = "*"
    times: int | None = None
    status: int | None = None
    code: str | None = None
    message: str | None = None
    retry_after: int | None = None
    redirect: str | None = None
    drop_after: int | None = None
    delay: float = 0.0
    chunk_delay: float = 0.0
    flip: int | None = None
    no_commit: bool = False
    ignore_range: bool = False

    def strikes(self, method: str, path: str) -> bool:
        """Whether this fault applies to a request; counts it if so."""
        if self.times == 0 or not (fnmatch.fnmatchcase(method, self.method) and fnmatch.fnmatchcase(path, self.path)):
            return False
        if self.times is not None:
            self.times -= 1
        return True


def parse_fault(text: str) -> Fault:
    """Read ``key=value,key=value`` into a :class:`Fault`.

    Raises:
        argparse.ArgumentTypeError: A key is no attribute of a fault, or a value does not fit it.
    """
    read: dict[str, Callable[[str], Any]] = {
        "int": int,
        "float": float,
        "bool": lambda value: value in {"1", "true"},
        "str": str,
    }
    types = {item.name: str(item.type).split(" ")[0] for item in fields(Fault)}
    options: dict[str, Any] = {}
    for pair in text.split(","):
        key, _, value = pair.partition("=")
        if key not in types:
            raise argparse.ArgumentTypeError(f"{key!r} is none of {', '.join(types)}")
        try:
            options[key] = read[types[key]](value)
        except ValueError as error:
            raise argparse.ArgumentTypeError(f"{pair!r}: {error}") from None
    return Fault(**options)
