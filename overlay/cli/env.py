"""``overlay env``: how a server is started on a model, as text that a shell, Docker or Kubernetes takes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import click

from overlay.cli._options import Common, common_options, rule_option, server_options
from overlay.consumers.launch_forms import FORMS, Form, lines_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from overlay.consumers.launch import By, Start
    from overlay.consumers.server import Server

__all__ = ["Launched", "env"]


@dataclass(frozen=True, slots=True)
class Launched:
    """What ``overlay env`` prints.

    Attributes:
        by: ``path``: the server is given the directory. ``name``: it looks the model up.
        command: Words of the command line, those that were given behind ``--`` among them.
        env: Variables of the server.
        folders: What the server reads, each wanted under its own path.
        request: What each request says unless it means something else; numbers are numbers.
        grid_points: Points of the noise schedule, one more than evaluations of the model; null where it fixes none.
        image: A container image of the release, as its publisher names it; that it exists was not looked at.
        notes: What the user should know.
    """

    model: str
    server: str
    by: Literal["path", "name"]
    command: tuple[str, ...]
    env: dict[str, str]
    folders: tuple[str, ...]
    request: dict[str, str | int | float | bool]
    grid_points: int | None
    image: str
    notes: tuple[str, ...]


@click.command(short_help="Print how a server is started on a model.")
@click.argument("model")
@click.argument("flags", nargs=-1, type=click.UNPROCESSED)
@click.option(
    "--by",
    type=click.Choice(["path", "name"]),
    help="What the server is given: the directory, or the model's name.  [default: path; name with --with-override]",
)
@click.option(
    "--format", "form", type=click.Choice(FORMS), default="shell", show_default=True, help="What the text is for."
)
@rule_option
@server_options
@common_options
def env(
    common: Common,
    model: str,
    flags: tuple[str, ...],
    by: By | None,
    form: Form,
    rule: str,
    server: Server | None,
) -> None:
    """Print everything that it takes to start a server on a model: one command, with variables and the model's flags.

    By path the server loads the directory: no source, no Hub, no key. By name it looks for the directory by itself, and
    needs the source in the Hub's cache before it does; with --with-override it is told the pins in force. Status 3, and
    nothing printed, when the model is not there or, by name, what the server looks up before it. What stands behind --
    becomes part of the command. With -q there are no comments.

    For example: launch=$(overlay env MODEL --for sglang -- --port 30000) && eval "$launch"
    """
    if server is None:
        raise click.UsageError("Missing option '--for': the server that is to be started.")
    if flags and not flags[0].startswith("-"):
        raise click.UsageError(f"Got unexpected extra argument ({flags[0]}); flags of the server begin with -")
    from overlay.materialization.resolve import present
    from overlay.materialization.serving.starting import require_name, start_by_name, start_by_path, way

    options, chosen = common.options(rule=rule, server=server), way(server, by)
    wanted_by = ("env", model, *_flags(by, form))
    if chosen == "path":
        found, tree = present(model, options, wanted_by=wanted_by, in_force=True)
        start = start_by_path(found.resolution, tree, options, flags)
    else:
        require_name(model, options)
        found, _ = present(model, options, by_name=True, wanted_by=wanted_by, in_force=True)
        start = start_by_name(found.resolution, model, options, flags)
    notes = (*start.notes, *_commands(common, model, start, server))
    document = Launched(
        start.model,
        start.server,
        start.by,
        start.command,
        dict(start.env),
        start.folders,
        dict(start.request),
        start.grid_points,
        start.image,
        notes,
    )
    common.output.result(document, lambda: lines_of(start, form, comments=not common.output.quiet))
    for note in notes:
        common.output.remark(note)


def _flags(by: By | None, form: Form) -> tuple[str, ...]:
    return (*(["--by", by] if by else []), *([] if form == "shell" else ["--format", form]))


def _commands(common: Common, model: str, start: Start, server: Server) -> Iterator[str]:
    """What tells whether a server will find the model by its name."""
    if start.by == "name":
        yield f"what this server finds, and what not: {common.command('check', model, *server.flags)}"
