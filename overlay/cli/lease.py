"""``overlay lease``: read a model so that no collector takes it meanwhile."""

from __future__ import annotations

import os
import shlex
import signal
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

import click

from overlay.cli._options import Common, common_options, rule_option, server_options_as
from overlay.cli._types import AGE
from overlay.errors import InvalidUsage
from overlay.formats.wording import iso_time

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    import overlay

__all__ = ["TimedLease", "lease"]

VARIABLE = "OVERLAY_MODEL_PATH"
PLACEHOLDER = "{path}"


@dataclass(frozen=True, slots=True)
class TimedLease:
    """What ``overlay lease --for`` prints without a command.

    Attributes:
        path: The model's directory.
        until: When the lease ends, ISO 8601.
        file: What holds it in the cache; removing it ends the lease.
    """

    model: str
    path: str
    until: str
    file: str


@click.command(short_help="Run a command on a model that stays while it runs.")
@click.argument("model")
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
@click.option("--for", "seconds", type=AGE, help="How long (12h): without COMMAND, the lease; with it, see above.")
@rule_option
@server_options_as("--server")
@common_options
def lease(
    common: Common,
    model: str,
    command: tuple[str, ...],
    seconds: int | None,
    **choices: Any,
) -> None:
    """Keep a model where it is while a command runs, or for a time: gc leaves it alone, and rm refuses it.

    For example: overlay lease MODEL -- sglang serve --model-path {path}

    COMMAND takes the place of this process, so signals and its exit status are its own. {path} in its words becomes the
    model's directory, which is also in OVERLAY_MODEL_PATH. Where the cache root is read-only it runs without a lease.
    Collectors that see neither the process nor its lock, from another host on some network filesystems, believe the
    lease for a day, or as long as --for says.

    Without COMMAND, the lease lasts as long as --for says, and the directory is printed.
    """
    if command:
        _run(common, model, command, seconds, common.options(**choices))
    if seconds is None:
        raise InvalidUsage(
            f"{model}: neither a command nor a time was given",
            code="lease-without-end",
            hint="say what is to run (-- COMMAND), or how long the lease lasts (--for 12h)",
        )
    from overlay.materialization.lease import timed_lease

    path, taken = timed_lease(model, seconds, common.options(**choices))
    document = TimedLease(model, str(path), iso_time(taken.until or 0), str(taken.file))
    common.output.result(document, lambda: [document.path])
    common.output.remark(f"leased until {document.until}; to end it sooner: rm {shlex.quote(document.file)}")


def _run(common: Common, model: str, command: Sequence[str], seconds: int | None, options: overlay.Options) -> NoReturn:
    from overlay.cache.leases import BELIEVED
    from overlay.materialization.lease import reading

    with reading(model, options, believed=seconds or BELIEVED) as found:
        if found.note:
            common.output.remark(found.note)
        if found.descriptor is not None:
            os.set_inheritable(found.descriptor, True)  # noqa: FBT003 - its signature
        _become(command, found.path)


def _become(command: Sequence[str], path: Path) -> NoReturn:
    """Turn into another program; the number and the start of this process stay, and with them its leases."""
    words = [word.replace(PLACEHOLDER, str(path)) for word in command]
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    # Python ignores these for itself; whatever comes next expects them as they were.
    ignored = [signal.SIGPIPE, signal.SIGXFSZ]
    before = [signal.signal(number, signal.SIG_DFL) for number in ignored]
    try:
        os.execvpe(words[0], words, os.environ | {VARIABLE: str(path)})  # noqa: S606 - what the user asked for
    except OSError as error:
        for number, handler in zip(ignored, before, strict=True):
            signal.signal(number, handler)
        raise InvalidUsage(
            f"{words[0]}: cannot be run: {error.strerror}",
            code="command-not-run",
            hint="say the command as the shell would find it, after --",
            command=words[0],
        ) from error
