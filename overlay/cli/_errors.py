"""The one place that turns an exception into a message and an exit status."""

from __future__ import annotations

import errno
import os
import platform
import re
import shlex
import sys
import traceback
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import click

import overlay
from overlay.cli._output import say, say_document, say_lines, style
from overlay.errors import BrokenInput, CannotWrite, NotHere, OverlayError, TryAgain
from overlay.formats.os_errors import OUT_OF_MEMORY, errno_name, is_out_of_memory, meaning_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = ["ErrorDocument", "ErrorReport", "Terminated", "failure_of", "redact", "report", "reported"]

USAGE = 2
BUG = 70
INTERRUPTED = 130
PIPE_CLOSED = 141
TERMINATED = 143

_OF_THE_PATH = {errno.ENAMETOOLONG, errno.ELOOP}
_TRANSIENT = {errno.ETIMEDOUT, errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EAGAIN, errno.EBUSY, errno.ESTALE}


@dataclass(frozen=True, slots=True)
class ErrorReport:
    """What went wrong.

    Attributes:
        code: Stable identifier.
        message: The place, what was found, what was expected.
        hint: What to do next.
        status: Exit status.
        data: The facts of the message by name.
    """

    code: str
    message: str
    hint: str | None
    status: int
    data: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ErrorDocument:
    """What every command prints when it fails."""

    error: ErrorReport


class Terminated(BaseException):
    """SIGTERM arrived."""


def failure_of(error: BaseException, args: Sequence[str]) -> ErrorReport | int:  # noqa: C901, PLR0911  # one line a kind
    """Describe ``error``; a bare status where nothing is to be said."""
    match error:
        case OverlayError():
            return reported(error)
        case click.exceptions.Exit():
            return error.exit_code
        case click.exceptions.NoArgsIsHelpError():
            say_lines(error.format_message())
            return USAGE
        case click.ClickException():
            return _usage(error, args)
        case KeyboardInterrupt() | EOFError() | click.Abort():
            return ErrorReport("interrupted", "interrupted", "run the same command again to go on", INTERRUPTED)
        case Terminated():
            return ErrorReport("terminated", "terminated by SIGTERM", "run the same command again to go on", TERMINATED)
        case SystemExit():
            return error.code if isinstance(error.code, int) else BUG
        case BrokenPipeError():
            return PIPE_CLOSED
        case MemoryError() | RuntimeError() | OSError() if is_out_of_memory(error):
            message = f"no more memory or threads for this process ({error})" if str(error) else "out of memory"
            return ErrorReport("out-of-memory", message, OUT_OF_MEMORY[1], TryAgain.exit_status)
        case OSError():
            return _os_error(error) or _bug(error, args)
        case RuntimeError() if str(error).startswith("Symlink loop"):  # how pathlib puts ELOOP before Python 3.13
            return _os_error(OSError(errno.ELOOP, str(error))) or _bug(error, args)
        case _:
            return _bug(error, args)


def reported(error: OverlayError) -> ErrorReport:
    """An error as part of a document."""
    return ErrorReport(error.code, error.message, error.hint, error.exit_status, error.data)


def report(failure: ErrorReport | int, args: Sequence[str], error: BaseException) -> int:
    """Print ``failure`` and return the exit status. Never raises: there is nobody left to tell."""
    if isinstance(failure, int):
        if failure == PIPE_CLOSED:
            _silence()
        return failure
    try:
        if failure.status == BUG and (os.environ.get("OVERLAY_DEBUG") or {"-v", "--verbose"} & set(args)):
            say_lines(redact("".join(traceback.format_exception(error))))
        if {"-v", "--verbose"} & set(args) and isinstance(printed := failure.data.get("output"), str):
            say_lines(redact(printed.rstrip()))  # of an overlay's script
        if _wants_json(args) and failure.code != "output-failed":  # raw arguments: they may not have been parsed
            with suppress(CannotWrite):  # it is said on stderr as well
                say_document(asdict(ErrorDocument(failure)), str)
        for line in _lines(failure):
            say(line, err=True)
        sys.stdout.flush()
    except OSError:
        _silence()
    return failure.status


def _lines(failure: ErrorReport) -> Iterator[str]:
    """The error as printed; only what this program itself puts into several lines gets several."""
    first, *more = failure.message.split("\n") if "problems" in failure.data else [failure.message]
    yield f"{style(f'error[{failure.code}]', 'bad')}: {first}"
    yield from more
    if failure.hint:
        first, *more = failure.hint.split("\n") if failure.status == BUG else [failure.hint]
        yield f"{style('hint', 'dim')}: {first}"
        yield from more


def _wants_json(args: Sequence[str]) -> bool:
    return "--json" in args or "--output=json" in args or ("--output", "json") in pairwise(args)


def redact(text: str) -> str:
    """Remove what may be a secret: tokens, and the user part of URLs."""
    text = re.sub(r"\bhf_\w+", "hf_***", text)
    text = re.sub(r"://[^/\s@]+@", "://***@", text)
    token = os.environ.get("HF_TOKEN")
    return text.replace(token, "***") if token else text


def _usage(error: click.ClickException, args: Sequence[str]) -> ErrorReport:
    ctx = error.ctx if isinstance(error, click.UsageError) else None
    # Where an option lacks its value, click does not say of which command.
    where = ctx.command_path if ctx else shlex.join(["overlay", *args[: 2 if args[:1] == ["cache"] else 1]])
    return ErrorReport("usage", error.format_message(), f"{where} --help", USAGE)


def _os_error(error: OSError) -> ErrorReport | None:
    """A system error that no part of the program expected but that is no bug."""
    place = f"{error.filename}: " if error.filename is not None else ""
    message = f"{place}{error.strerror or error}"
    data = {"errno": errno_name(error), "where": _text(error.filename)}
    if isinstance(error, FileNotFoundError | NotADirectoryError):
        hint = "it may have been removed while this ran; run the same command again"
        return ErrorReport("no-such-file", message, hint, NotHere.exit_status, data)
    if isinstance(error, ConnectionError | TimeoutError) or error.errno in _TRANSIENT:
        return ErrorReport("transient", message, "run the same command again", TryAgain.exit_status, data)
    if meaning := meaning_of(error):
        code, hint = meaning
        kind = BrokenInput if error.errno in _OF_THE_PATH else CannotWrite
        return ErrorReport(code, message, hint, kind.exit_status, data)
    return None


def _bug(error: BaseException, args: Sequence[str]) -> ErrorReport:
    message = f"{type(error).__name__}: {redact(str(error))}"
    hint = "this is a bug in overlay; please report it with the line below and the output of: overlay doctor"
    command = redact(shlex.join(["overlay", *args]))
    versions = f"overlay {overlay.__version__}, Python {platform.python_version()}, {platform.platform()}"
    return ErrorReport("bug", message, f"{hint}\n  {versions}, command: {command}", BUG, {"command": command})


def _text(path: object) -> str | None:
    return None if path is None else os.fsdecode(path) if isinstance(path, str | bytes | os.PathLike) else str(path)


def _silence() -> None:
    # Python flushes stdout once more when it exits; that must not print a second complaint about it.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
