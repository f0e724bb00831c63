"""What is printed and how: data on stdout, the rest on stderr, colour on terminals only."""

from __future__ import annotations

import dataclasses
import errno
import json
import os
import re
import shutil
import sys
from typing import TYPE_CHECKING, Any, Literal, Protocol

import click

from overlay.errors import CannotWrite
from overlay.formats.wording import format_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

__all__ = [
    "SCHEMA_VERSION",
    "Output",
    "columns",
    "format_age",
    "format_seconds",
    "moved_bytes",
    "say",
    "say_document",
    "say_lines",
    "style",
    "terminal_width",
]

SCHEMA_VERSION = 1
# Every control character and line break but tab and the start of a colour.
_CONTROL = re.compile(r"\x1b(?!\[[0-9;]*m)|[\x00-\x08\x0a-\x1a\x1c-\x1f\x7f-\x9f\u2028\u2029]")
# What a GitHub workflow takes for a command: colons that begin a line, and the old form wherever it stands.
_COMMAND = re.compile(r"^(?:\s|\x1b\[[0-9;]*m)*(?=::)|(?<=#)(?=#\[)")
Role = Literal["good", "warn", "bad", "dim", "strong"]
_STYLES: dict[Role, dict[str, Any]] = {
    "good": {"fg": "green"},
    "warn": {"fg": "yellow"},
    "bad": {"fg": "red", "bold": True},
    "dim": {"dim": True},
    "strong": {"bold": True},
}


@dataclasses.dataclass(frozen=True, slots=True)
class Output:
    """Where a command's result and remarks go.

    Attributes:
        json: The result is one JSON document on stdout.
        quiet: No remarks and no progress; errors stay.
        verbose: More lines in the result.
    """

    json: bool
    quiet: bool
    verbose: bool

    def result(self, document: Any, text: Callable[[], Iterable[str]]) -> None:
        """Print a result: the dataclass ``document`` with ``--json``, else the lines of ``text()``."""
        if self.json:
            say_document(dataclasses.asdict(document), os.fspath)
        else:
            for line in text():
                say(line)

    def remark(self, message: str) -> None:
        """Something that helps a reader but is not the result."""
        if not self.quiet:
            say(message, err=True)


def style(text: str, role: Role) -> str:
    """``text`` in the colour of its role; :func:`say` takes the colour out again where it does not belong."""
    return click.style(text, **_STYLES[role])


def say_document(fields: dict[str, Any], default: Callable[[Any], Any]) -> None:
    """Print a JSON document.

    Args:
        default: Turns what JSON has no form for into something that it has.

    Raises:
        OSError: As :func:`say`.
    """
    text = json.dumps({"schema_version": SCHEMA_VERSION} | fields, indent=2, default=default)
    # What JSON leaves of the characters that say would show.
    _send(text.replace("\x7f", "\\u007f").replace("##[", "#\\u0023["), err=False)


def say(text: str, *, err: bool = False, command: bool = False) -> None:
    """Print one line, in colour where the stream shows it.

    ``NO_COLOR`` beats ``FORCE_COLOR``, which beats whether the stream is a terminal. Control characters and line
    breaks, which names from a repo may hold, are shown and not sent, and no name gives a command to the workflow whose
    log this is; a path that is no valid text comes out as the bytes that it is. What stderr does not take is lost: no
    remark is worth a run.

    Args:
        command: The line is meant as a command for a GitHub workflow.

    Raises:
        BrokenPipeError: Nobody reads stdout any more.
        CannotWrite: stdout cannot be written.
    """
    stream = sys.stderr if err else sys.stdout
    if os.environ.get("NO_COLOR"):
        color = False
    else:
        color = bool(os.environ.get("FORCE_COLOR")) or (stream.isatty() and os.environ.get("TERM") != "dumb")
    visible = _CONTROL.sub(lambda found: found[0].encode("unicode_escape").decode(), text)
    plain = visible if color else click.unstyle(visible)
    if os.environ.get("GITHUB_ACTIONS") == "true" and not command:
        plain = _COMMAND.sub(r"\g<0>\\", plain)
    _send(plain, err=err)


def say_lines(text: str) -> None:
    """Print on stderr what this program means to stand on several lines."""
    for line in text.splitlines():
        say(line, err=True)


def _send(plain: str, *, err: bool) -> None:
    try:
        try:
            click.echo(plain, err=err, color=True)
        except UnicodeEncodeError:
            click.echo(plain.encode(errors="surrogateescape"), err=err)
    except BrokenPipeError:
        if not err:
            raise
    except OSError as error:
        if not err:
            raise CannotWrite(
                f"standard output: cannot be written: {error.strerror}",
                code="output-failed",
                hint="the command itself was done; send its output elsewhere",
                errno=errno.errorcode.get(error.errno or 0),
            ) from error


def terminal_width() -> int | None:
    """Columns of the terminal that stdout is; None where it is none. ``COLUMNS`` beats what the terminal says."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def columns(rows: Sequence[Sequence[str]], *, indent: str = "  ", gap: str = "  ") -> list[str]:
    """Rows of cells as aligned lines. Widths ignore colour codes; the last column is never padded."""
    count = max((len(row) for row in rows), default=0)
    widths = [max((len(click.unstyle(row[i])) for row in rows if i < len(row) - 1), default=0) for i in range(count)]
    lines = []
    for row in rows:
        padded = [cell + " " * (widths[i] - len(click.unstyle(cell))) for i, cell in enumerate(row[:-1])]
        lines.append((indent + gap.join([*padded, *row[-1:]])).rstrip())
    return lines


def format_seconds(seconds: float) -> str:
    """A duration for people: ``0.8 s``, ``42 s``, ``2 min 05 s``, ``1 h 03 min``."""
    if seconds < 9.95:  # noqa: PLR2004  # below ten seconds a decimal is worth reading
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:  # noqa: PLR2004  # seconds a minute
        return f"{whole} s"
    if whole < 3600:  # noqa: PLR2004  # seconds an hour
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


class _Counters(Protocol):
    """A document with the counters of a build."""

    @property
    def bytes_downloaded(self) -> int: ...
    @property
    def bytes_read(self) -> int: ...
    @property
    def bytes_written(self) -> int: ...
    @property
    def bytes_linked(self) -> int: ...


def moved_bytes(counters: _Counters, *, done: bool) -> str:
    """What a build moved, or will move: ``download 4 GB · write 62 GB``."""
    verbs = ("downloaded", "read", "wrote", "linked") if done else ("download", "read", "write", "link")
    counts = (counters.bytes_downloaded, counters.bytes_read, counters.bytes_written, counters.bytes_linked)
    moved = [f"{verb} {format_bytes(count)}" for verb, count in zip(verbs, counts, strict=True) if count]
    return " · ".join(moved) or "nothing to move"


def format_age(seconds: float) -> str:
    """How long ago, in its largest unit: ``now``, ``5 min``, ``3 h``, ``12 d``."""
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{int(seconds // size)} {unit}"
    return "now"
