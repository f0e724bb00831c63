"""``overlay demo``: the whole story on a tiny checkpoint, each step as a user would type it."""

from __future__ import annotations

import contextlib
import io
import os
import shlex
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

import overlay
from overlay.cli._errors import PIPE_CLOSED
from overlay.cli._options import DIRECTORY, Common, common_options
from overlay.cli._output import format_seconds, style
from overlay.errors import CannotWrite, CheckFailed, InvalidUsage
from overlay.formats.wording import counted

if TYPE_CHECKING:
    from collections.abc import Iterator

    from overlay.demo.checkpoint import HubFolder

__all__ = ["DemoStep", "Demonstration", "demo"]


@dataclass(frozen=True, slots=True)
class DemoStep:
    """One command of the demo."""

    about: str
    command: str
    seconds: float


@dataclass(frozen=True, slots=True)
class Demonstration:
    """What ``overlay demo`` prints: what it ran, and where."""

    folder: str
    kept: bool
    steps: tuple[DemoStep, ...]
    seconds: float


@click.command(short_help="Run the whole job on a tiny made-up checkpoint.")
@click.option("--keep", type=DIRECTORY, help="Work in this new folder and keep it, to try commands on.")
@common_options
def demo(common: Common, keep: Path | None) -> None:
    """Run the whole job on a tiny made-up checkpoint, step by step.

    Resolve, plan, build, verify, a bump that only renames, compare. It needs no network and no GPU, and leaves
    nothing behind unless --keep is given.
    """
    started = time.monotonic()
    with _workplace(keep) as folder, _in_view(common):
        steps = tuple(_story(common, folder))
    found = Demonstration(str(folder), keep is not None, steps, round(time.monotonic() - started, 3))
    if not common.output.quiet:
        click.echo("", err=common.output.json)
    common.output.result(found, lambda: _text(found))


@contextlib.contextmanager
def _workplace(keep: Path | None) -> Iterator[Path]:
    if keep is None:
        with tempfile.TemporaryDirectory(prefix="overlay-demo-") as folder:
            yield Path(folder)
        return
    try:
        keep.mkdir(parents=True)
    except FileExistsError as error:
        hint = "name a folder that does not exist yet"
        raise InvalidUsage(f"{keep}: exists", code="demo-exists", hint=hint, where=str(keep)) from error
    except OSError as error:
        raise CannotWrite(
            f"{keep}: cannot be made: {error.strerror}",
            code="demo-not-made",
            hint="name a folder that you may write to with --keep",
            where=str(keep),
        ) from error
    yield keep.resolve()


@contextlib.contextmanager
def _in_view(common: Common) -> Iterator[None]:
    """What the steps print: nothing with --quiet, and on stderr with --json, where stdout holds one document."""
    spoken = sys.stderr if common.output.json else sys.stdout
    with contextlib.redirect_stdout(io.StringIO() if common.output.quiet else spoken):
        yield


def _story(common: Common, folder: Path) -> Iterator[DemoStep]:
    from overlay.demo.checkpoint import SOURCE_REPO, write_hub
    from overlay.demo.registry import write_registry
    from overlay.demo.revisions import bump_rename

    hub = write_hub(folder / "hub", spec_name="adapter_config.json")
    write_registry(folder / "registry.yaml", hub)
    bumped = bump_rename(hub)
    write_registry(folder / "bumped.yaml", bumped)
    places = {
        "OVERLAY_HUB": str(hub.root),
        "OVERLAY_CACHE_ROOT": str(folder / "cache"),
        "OVERLAY_REGISTRY": str(folder / "registry.yaml"),
    }
    with _variables(places):
        click.echo("".join(f"$ export {name}={shlex.quote(value)}\n" for name, value in places.items()), nl=False)
        yield _run(common, "Which repos, at which commits, and is it here?", "resolve", SOURCE_REPO)
        yield _run(common, "What would it take? Nothing is written yet.", "prewarm", SOURCE_REPO, "--dry-run")
        yield _run(common, "Build it: fetch, check, fuse, publish.", "prewarm", SOURCE_REPO)
        yield _run(common, "Prove it: every byte against the record.", "verify", SOURCE_REPO)
        before = _directory(hub)
        places["OVERLAY_REGISTRY"] = str(folder / "bumped.yaml")
    with _variables(places):
        click.echo("")
        click.echo(style("# Upstream renames adapter_config.json and the overlay follows: two new commits.", "dim"))
        click.echo(f"$ export OVERLAY_REGISTRY={shlex.quote(places['OVERLAY_REGISTRY'])}")
        yield _run(common, "The pins moved, and with them the place where a server looks.", "resolve", SOURCE_REPO)
        yield _run(
            common,
            "No weight changed: the new commit's files are hashed, and none is built or copied.",
            "prewarm",
            SOURCE_REPO,
        )
        yield _run(
            common,
            "Both generations hold the same tensors; only the marker names other commits.",
            "compare",
            before,
            _directory(bumped),
            may_differ=True,
        )


def _run(common: Common, about: str, *args: str, may_differ: bool = False) -> DemoStep:
    """Run one command line of this program in this process, shown as typed."""
    from overlay.cli._main import run

    line = shlex.join(["overlay", *args])
    click.echo("")
    click.echo(style(f"# {about}", "dim"))
    click.echo(style(f"$ {line}", "strong"))
    started = time.monotonic()
    status = run([*args, *(["--quiet"] if common.output.quiet else [])])
    if status == PIPE_CLOSED:
        raise click.exceptions.Exit(status)
    if status > may_differ:
        raise CheckFailed(
            f"{line}: ended with status {status}", code="demo-failed", hint="see what it said above", status=status
        )
    return DemoStep(about, line, round(time.monotonic() - started, 3))


def _directory(hub: HubFolder) -> str:
    from overlay.demo.checkpoint import SOURCE_REPO

    return str(overlay.resolve(SOURCE_REPO, overlay.Options(hub=hub.root)).state.tree)


@contextlib.contextmanager
def _variables(places: dict[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in places}
    os.environ.update(places)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name)
            if value is not None:
                os.environ[name] = value


def _text(found: Demonstration) -> Iterator[str]:
    kept = f", kept in {found.folder}" if found.kept else ", nothing left behind"
    yield f"{style('done', 'good')}: {counted(len(found.steps), 'command')} in {format_seconds(found.seconds)}{kept}"
