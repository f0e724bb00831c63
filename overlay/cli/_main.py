"""The ``overlay`` command: runs a subcommand, and ends with the right status."""

from __future__ import annotations

import os
import signal
import sys
from typing import TYPE_CHECKING, NoReturn

import click

import overlay
from overlay.cli._errors import Terminated, failure_of, report
from overlay.cli._lazy import LazyGroup

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import FrameType

__all__ = ["COMMANDS", "cli", "main", "run"]

COMMANDS = (
    "resolve",
    "path",
    "env",
    "check",
    "lock",
    "prewarm",
    "adopt",
    "push",
    "pull",
    "lease",
    "rollback",
    "fuse",
    "verify",
    "compare",
    "init",
    "add",
    "bump",
    "outdated",
    "cache",
    "doctor",
    "demo",
)
_PLACES = {name: name for name in COMMANDS} | {"path": "resolve:path"}


@click.command(
    cls=LazyGroup,
    places=_PLACES,
    aliases={"materialize": "prewarm"},
    context_settings={"help_option_names": ["-h", "--help"], "auto_envvar_prefix": "OVERLAY"},
    epilog="Exit statuses: 0 done, 1 a check failed, 2 usage, 3 not here, 4 cannot write, 5 try again, 6 refused, "
    "7 untrusted, 70 a bug.",
)
@click.version_option(overlay.__version__, prog_name="overlay", message="%(prog)s %(version)s")
def cli() -> None:
    """Turn pinned deltas (a base, adapters, an overlay) into one verified directory of plain safetensors."""


def run(args: Sequence[str]) -> int:
    """Run one command line and return its exit status; every error is reported here and nowhere else."""
    try:
        with cli.make_context("overlay", list(args)) as ctx:
            cli.invoke(ctx)
        sys.stdout.flush()
    except BaseException as caught:  # noqa: BLE001  # the last place: whatever it is gets its message and status
        # A library may have caught what a signal raised, and failed for that: imports of numpy and torch do.
        error = _signalled[0] if _signalled else caught
        return report(failure_of(error, args), args, error)
    return 0


def main() -> NoReturn:
    """Entry point of the ``overlay`` program."""
    if sys.platform != "linux":
        click.echo("error[not-linux]: overlay runs on Linux only: it relies on Linux file operations", err=True)
        click.echo("hint: run it in a Linux container or virtual machine", err=True)
        sys.exit(2)
    if "_OVERLAY_COMPLETE" in os.environ:
        cli.main(prog_name="overlay")
    _open_streams()
    signal.signal(signal.SIGTERM, _unwind)
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # else somebody wants it ignored
        signal.signal(signal.SIGINT, _unwind)
    sys.exit(run(sys.argv[1:]))


def _open_streams() -> None:
    """Replace streams that the caller closed: the next file opened would get their number, and what a library prints.

    A daemon has none; its work is done all the same.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest free number is this one
    sys.stdin = sys.stdin or open(0, encoding="utf-8")  # noqa: SIM115 - a stream for good
    sys.stdout = sys.stdout or open(1, "w", encoding="utf-8")  # noqa: SIM115 - as above
    sys.stderr = sys.stderr or open(2, "w", encoding="utf-8")  # noqa: SIM115 - as above


_signalled: list[BaseException] = []


def _unwind(signum: int, _frame: FrameType | None) -> NoReturn:
    # Raised rather than fatal, so that staging is cleaned up on the way out; a second signal does not wait for that.
    signal.signal(signum, signal.SIG_DFL)
    _signalled.append(Terminated() if signum == signal.SIGTERM else KeyboardInterrupt())
    raise _signalled[0]
