"""``overlay env``: how a server is started on a model, as text that a shell, Docker or Kubernetes takes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import click

import overlay
from overlay.cli._options import Common, common_options, rule_flags, rule_option, server_flags, server_options
from overlay.cli.resolve import present
from overlay.consumers.launch_forms import FORMS, Form, lines_of
from overlay.errors import InvalidUsage

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from overlay.consumers.launch import Start
    from overlay.consumers.server import Server
    from overlay.registry import Entry

__all__ = ["Launched", "env"]

By = Literal["path", "name"]


@dataclass(frozen=True, slots=True)
class Launched:
    """What ``overlay env`` prints.

    Attributes:
        by: ``path``: the server is given the directory. ``name``: it looks the model up.
        command: Words of the command line.
        env: Variables of the server.
        folders: What the server reads, each wanted under its own path.
        request: What each request says unless it means something else.
        grid_points: Points of the noise schedule, one more than evaluations of the model; null where it fixes none.
        image: A container image of the release, as its publisher names it; that it exists was not looked at.
        state: Of the model, as ``overlay resolve`` has it.
        notes: What the user should know.
    """

    model: str
    server: str
    by: By
    command: tuple[str, ...]
    env: dict[str, str]
    folders: tuple[str, ...]
    request: dict[str, str]
    grid_points: int | None
    image: str
    state: Literal["present", "stale", "damaged", "absent", "unknown"]
    notes: tuple[str, ...]


@click.command(short_help="Print how a server is started on a model.")
@click.argument("model")
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
def env(common: Common, model: str, by: By | None, form: Form, rule: str, server: Server | None) -> None:
    """Print everything that it takes to start a server on a model: variables, command, flags of the model.

    By path the server loads the directory: no source, no Hub, no key; status 3 when it is not there. By name it looks
    for the directory by itself, and needs the source in the Hub's cache before it does; with --with-override it is told
    the pins in force.

    For example: eval "$(overlay env MODEL --for sglang)"
    """
    if server is None:
        raise click.UsageError("Missing option '--for': the server that is to be started.")
    by = by or ("name" if server.with_override else "path")
    _check_way(by, server)
    options = common.options(rule=rule, server=server)
    found = (
        present(common, "env", model, rule, server, *_flags(by, server, form))
        if by == "path"
        else overlay.resolve(model, options)
    )
    start = _by_path(found, options) if by == "path" else _by_name(found, model, options)
    notes = tuple(_notes(common, model, found, start, server, rule_flags(rule)))
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
        found.state.name,
        notes,
    )
    common.output.result(document, lambda: lines_of(start, form))
    for note in notes:
        common.output.remark(note)


def _check_way(by: By, server: Server) -> None:
    if by == "path" and server.with_override:
        raise InvalidUsage(
            "--with-override tells a server what to look up, and by path it looks nothing up",
            code="option-conflict",
            hint="leave out one of --by path and --with-override",
        )
    if by == "name" and server.name != "sglang":
        raise InvalidUsage(
            f"{server.name} looks nothing up by name that is built here",
            code="option-conflict",
            hint="serve by path: leave out --by name",
        )


def _flags(by: By, server: Server, form: Form) -> tuple[str, ...]:
    is_default = by == ("name" if server.with_override else "path")
    return (*([] if is_default else ["--by", by]), *([] if form == "shell" else ["--format", form]))


def _by_path(found: overlay.Resolved, options: overlay.Options) -> Start:
    from overlay.consumers.launch import by_path
    from overlay.materialization.request import open_cache

    tree, server = found.state.tree, options.server
    if tree is None or server is None:
        raise ValueError("a model that is present has a tree, and --for was given")
    return by_path(found.resolution.entry, server, tree, open_cache(options, create=False).root.path)


def _by_name(found: overlay.Resolved, model: str, options: overlay.Options) -> Start:
    from pathlib import Path

    from overlay.consumers.launch import by_name
    from overlay.hub.hub_cache import hub_cache
    from overlay.materialization.request import open_cache
    from overlay.registry import LOCAL

    entry, source, server = found.resolution.entry, found.resolution.source_folder, options.server
    if entry.overlay is None or server is None:
        raise InvalidUsage(
            f"{model}: has no overlay, so no server looks it up by name",
            code="no-overlay",
            hint="serve by path: leave out --by name and --with-override",
            model=model,
        )
    given, folders = str(source or entry.model), [source] if source else []
    told = entry.server
    if told and told.overlay_repo_id == model:
        given = model  # an overlay that was named itself: the server's key holds it as it is spelt
    if entry.overlay.revision == LOCAL:
        folders.append(Path(model if given == model else entry.overlay.repo))
    return by_name(entry, server, given, folders, open_cache(options, create=False).root.path, hub_cache())


def _notes(
    common: Common, model: str, found: overlay.Resolved, start: Start, server: Server, flags: tuple[str, ...]
) -> Iterator[str]:
    """What keeps the server from doing what is meant, as far as that can be told from here."""
    from overlay.registry.load import is_packaged

    entry = found.resolution.entry
    launch = entry.serve.get(server.name)
    if launch and not is_packaged(launch.place.file):
        yield f"flags, variables and requests are those of {launch.place}"
    if start.by == "path":
        yield from _notes_by_path(entry, found.state.tree, server)
        return
    if found.state.name != "present":
        command = common.command("prewarm", model, "--stage-source", *flags, *server_flags(server))
        yield f"{found.state.name}: the server would build it by itself; before it starts: {command}"
    yield from _notes_by_name(entry, model, server)
    yield f"what this server finds, and what not: {common.command('check', model, *server_flags(server))}"


def _notes_by_path(entry: Entry, tree: Path | None, server: Server) -> Iterator[str]:
    from overlay.consumers import sglang
    from overlay.consumers.launch import native_partitions

    if tree is None:
        return
    if server.name == "sglang":
        release = sglang.release_of(server.version)
        if taken := sglang.source_at(tree, sglang.built_in(release.version), release):
            yield f"{server} takes a folder at {tree} for the source of {taken}; move the cache root"
        return
    partitions = native_partitions(tree)
    if entry.recipe.name == "vdn-h3" and not partitions:
        yield (
            "vllm-omni reads this family in the native layout, below FL2VA/ or Ref2VA/; this directory has the"
            " Diffusers layout, which it cannot load"
        )
    for other in partitions[1:]:
        yield f"the partition {other.name} lies beside it: {other}"
    if any(next(folder.rglob("*.py"), None) for folder in partitions):
        yield "it holds Python of its release: add --trust-remote-code if you trust that; no registry does it for you"


def _notes_by_name(entry: Entry, model: str, server: Server) -> Iterator[str]:
    from overlay.consumers import sglang

    release = sglang.release_of(server.version)
    told = entry.server
    is_told = told is not None and (server.with_override or not told.of_entry or told.overlay_repo_id == model)
    if not is_told and entry.model not in sglang.built_in(release.version):
        yield f"{server} has no overlay built in for {entry.model}: it needs --with-override, or to be served by path"
