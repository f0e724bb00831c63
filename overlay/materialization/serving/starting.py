"""How a server is started on a model: by path on what is here, or by name on what it will look up."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from overlay.consumers import sglang
from overlay.consumers.launch import by_name, by_path, native_partitions
from overlay.errors import InvalidUsage
from overlay.hub.hub_cache import hub_cache
from overlay.materialization.request import DEFAULTS, Options, open_cache
from overlay.materialization.resolve import present, resolve
from overlay.registry import LOCAL

if TYPE_CHECKING:
    from collections.abc import Iterator

    from overlay.consumers.launch import By, Start
    from overlay.consumers.server import Server
    from overlay.registry import Resolution

__all__ = ["start", "start_by_name", "start_by_path", "way"]


def start(model: str, options: Options = DEFAULTS, *, by: By | None = None) -> Start:
    """Everything that it takes to start a server on a model. Nothing is started, asked or written.

    Args:
        options: They name the server.
        by: What the server is given: the directory (``path``), or the model's name (``name``). By default the
            directory; the name where the server is started with an override.

    Raises:
        InvalidUsage: No server is named, or not one that is started in this way.
        NotHere: By path: the model is not here as the registry pins it.
    """
    if way(options.server, by) == "path":
        found, tree = present(model, options)
        return start_by_path(found.resolution, tree, options)
    return start_by_name(resolve(model, options).resolution, model, options)


def way(server: Server | None, by: By | None) -> By:
    """How a server is started that is to be started so, or as suits it.

    Raises:
        InvalidUsage: ``option-conflict``: none is named, or this one is not started so.
    """
    if server is None:
        raise InvalidUsage("no server is named that is to be started", code="option-conflict", hint="add --for sglang")
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
    return by or ("name" if server.with_override else "path")


def start_by_path(resolution: Resolution, tree: Path, options: Options) -> Start:
    """The start on a directory that is here.

    Args:
        tree: The materialization.
        options: They name the server.
    """
    server = _named(options)
    found = by_path(resolution.entry, server, tree, open_cache(options, create=False).root.path)
    return replace(found, notes=tuple(_notes_by_path(resolution, tree, server)))


def start_by_name(resolution: Resolution, model: str, options: Options) -> Start:
    """The start of a server that looks the model up.

    Args:
        model: What the resolution is of, as it was named: a server's key may hold it as it is spelt.
        options: They name the server.

    Raises:
        InvalidUsage: ``no-overlay``.
    """
    entry, source, server = resolution.entry, resolution.source_folder, _named(options)
    if entry.overlay is None:
        raise InvalidUsage(
            f"{model}: has no overlay, so no server looks it up by name",
            code="no-overlay",
            hint="serve by path: leave out --by name and --with-override",
            model=model,
        )
    given, folders = str(source or entry.model), [source] if source else []
    is_direct = entry.server is not None and entry.server.overlay_repo_id == model
    if is_direct:
        given = model
    if entry.overlay.revision == LOCAL:
        folders.append(Path(model if is_direct else entry.overlay.repo))
    root = open_cache(options, create=False).root.path
    found = by_name(entry, server, given, folders, root, hub_cache())
    is_told = is_direct or server.with_override or (entry.server is not None and not entry.server.of_entry)
    is_known = is_told or entry.model in sglang.built_in(sglang.release_of(server.version).version)
    unknown = f"{server} has no overlay built in for {entry.model}: it needs --with-override, or to be served by path"
    return replace(found, notes=(*_notes_of_entry(resolution, server), *([] if is_known else [unknown])))


def _named(options: Options) -> Server:
    if options.server is None:
        raise ValueError("options that name no server")
    return options.server


def _notes_of_entry(resolution: Resolution, server: Server) -> Iterator[str]:
    from overlay.registry.load import is_packaged

    launch = resolution.entry.serve.get(server.name)
    if launch and not is_packaged(launch.place.file):
        yield f"flags, variables and requests are those of {launch.place}"


def _notes_by_path(resolution: Resolution, tree: Path, server: Server) -> Iterator[str]:
    """What keeps the server from doing what is meant, as far as that can be told from here."""
    yield from _notes_of_entry(resolution, server)
    if server.name == "sglang":
        release = sglang.release_of(server.version)
        if taken := sglang.source_at(tree, sglang.built_in(release.version), release):
            yield f"{server} takes a folder at {tree} for the source of {taken}; move the cache root"
        return
    partitions = native_partitions(tree)
    if resolution.entry.recipe.name == "vdn-h3" and not partitions:
        yield (
            "vllm-omni reads this family in the native layout, below FL2VA/ or Ref2VA/; this directory has the"
            " Diffusers layout, which it cannot load"
        )
    for other in partitions[1:]:
        yield f"the partition {other.name} lies beside it: {other}"
    if any(next(folder.rglob("*.py"), None) for folder in partitions):
        yield "it holds Python of its release: add --trust-remote-code if you trust that; no registry does it for you"
