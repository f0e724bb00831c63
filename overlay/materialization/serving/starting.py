"""How a server is started on a model: by path on what is here, or by name on what it will look up."""

from __future__ import annotations

import shlex
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from overlay.consumers import sglang
from overlay.consumers.launch import FilesBelow, by_name, by_path, native_partitions, why_not_known
from overlay.consumers.layouts import transformer_of, why_not_loaded
from overlay.consumers.staged import Lacking
from overlay.errors import CheckFailed, InvalidUsage, NotHere, OverlayError
from overlay.hub.hub_cache import hub_cache
from overlay.materialization.request import DEFAULTS, Options, open_cache
from overlay.materialization.resolve import present, prewarm_words, resolve
from overlay.materialization.serving.asking import lacking
from overlay.materialization.serving.checks import no_overlay, refused, require_known
from overlay.registry import LOCAL

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from overlay.consumers.launch import By, Start
    from overlay.consumers.server import Server
    from overlay.registry import Resolution

__all__ = ["require_name", "start", "start_by_name", "start_by_path", "way"]

_TRUST = "--trust-remote-code"


def start(model: str, options: Options = DEFAULTS, *, by: By | None = None, flags: Sequence[str] = ()) -> Start:
    """Everything that it takes to start a server on a model. Nothing is started, asked or written.

    Args:
        options: They name the server.
        by: What the server is given: the directory (``path``), or the model's name (``name``). By default the
            directory; the name where the server is started with an override.
        flags: Words to put behind those of the model on the command line.

    Raises:
        InvalidUsage: No server is named, or not one that is started in this way.
        NotHere: The model is not here as the registry pins it, and as this server looks for it; or, by name, what the
            server looks up first is not in the Hub's cache.
        CheckFailed: The server loads another layout, or does not look for what is built here.
    """
    if way(options.server, by) == "path":
        found, tree = present(model, options, in_force=True)
        return start_by_path(found.resolution, tree, options, flags)
    require_name(model, options)
    found, _ = present(model, options, by_name=True, in_force=True)
    return start_by_name(found.resolution, model, options, flags)


def require_name(model: str, options: Options) -> None:
    """Refuse a model that the server of these options does not look up by name, whether it is here or not.

    Raises:
        InvalidUsage: ``no-overlay``.
        CheckFailed: ``server-unknown`` or ``server-looks-elsewhere``.
    """
    resolution = resolve(model, options).resolution
    if resolution.entry.overlay is None:
        raise no_overlay(model, options.server)
    require_known(model, resolution, options)


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
            f"{server.name} is given a folder: it looks up no name of a model that is built here",
            code="option-conflict",
            hint="leave out --by name: it is started by path",
        )
    return by or ("name" if server.with_override else "path")


def start_by_path(resolution: Resolution, tree: Path, options: Options, flags: Sequence[str] = ()) -> Start:
    """The start on a directory that is here.

    Args:
        tree: The materialization.
        options: They name the server.
        flags: As of :func:`start`.

    Raises:
        CheckFailed: ``layout-not-loaded``.
    """
    server = _named(options)
    why = why_not_loaded(server, FilesBelow(tree), transformer_of(tree))
    if why is not None:
        other = "vllm-omni" if server.name == "sglang" else "sglang"
        raise CheckFailed(
            f"{resolution.model}: {tree}: {why}",
            code="layout-not-loaded",
            hint=shlex.join(["overlay", "env", resolution.model, "--for", other]),
            model=resolution.model,
            where=str(tree),
        )
    found = by_path(resolution.entry, server, tree, open_cache(options, create=False).root.path)
    command = (*found.command, *flags)
    return replace(found, command=command, notes=tuple(_notes_by_path(resolution, tree, server, command)))


def start_by_name(resolution: Resolution, model: str, options: Options, flags: Sequence[str] = ()) -> Start:
    """The start of a server that looks the model up.

    Args:
        resolution: Of a model that :func:`require_name` does not refuse.
        model: What the resolution is of, as it was named: a server's key may hold it as it is spelt.
        options: They name the server.
        flags: As of :func:`start`.

    Raises:
        NotHere: The Hub's cache lacks what the server asks for first, or leads it elsewhere (``source-not-staged``).
    """
    entry, source, server = resolution.entry, resolution.source_folder, _named(options)
    if entry.overlay is None:
        raise no_overlay(model, server)
    given, folders = str(source or entry.model), [source] if source else []
    is_direct = entry.server is not None and entry.server.overlay_repo_id == model
    if is_direct:
        given = model
    if entry.overlay.revision == LOCAL:
        folders.append(Path(model if is_direct else entry.overlay.repo))
    root = open_cache(options, create=False).root.path
    found = by_name(entry, server, given, folders, root, hub_cache())
    notes = (*_notes_of_entry(resolution, server), *_require_staged(model, resolution, options))
    return replace(found, command=(*found.command, *flags), notes=notes)


def _require_staged(model: str, resolution: Resolution, options: Options) -> tuple[str, ...]:
    """Refuse what the server asks the Hub's cache for in vain, before it looks for the directory; gives the doubts."""
    server = _named(options)
    if options.hub is not None:
        return (
            f"whether {server} finds overlay and source in the Hub's cache was not looked at: {options.hub} stands in",
        )
    try:
        obstacles = lacking(resolution, options)
    except OverlayError as error:
        return (f"whether {server} finds overlay and source in the Hub's cache cannot be told: {error.message}",)
    if not obstacles:
        return ()
    first, lacks = obstacles[0], [obstacle.said(server) for obstacle in obstacles]
    staged = shlex.join(["overlay", *prewarm_words(model, resolution, options, by_name=True)])
    raise NotHere(
        f"{model}: {server} will not find it: it looks overlay and source up first, and without a connection;"
        f" {'; '.join(lacks)}",
        code="source-not-staged",
        hint=staged if isinstance(first, Lacking) else refused(first, resolution.entry, options).hint,
        model=model,
        lacks=lacks,
    )


def _named(options: Options) -> Server:
    if options.server is None:
        raise ValueError("options that name no server")
    return options.server


def _notes_of_entry(resolution: Resolution, server: Server) -> Iterator[str]:
    from overlay.registry.load import is_packaged

    yield from resolution.moved
    if (not_known := why_not_known(server)) is not None:
        yield not_known
    entry = resolution.entry
    stage = entry.recipe.options.get("stage") if entry.recipe.name == "vdn-h3" else None
    if server.name == "sglang" and stage not in (None, sglang.STAGE):
        yield (
            f"{server} refuses requests for another number of grid points than the {sglang.GRID_POINTS} of"
            f" {sglang.STAGE}, and this is {stage}"
        )
    launch = entry.serve.get(server.name)
    if launch and not is_packaged(launch.place.file):
        yield f"flags, variables and requests are those of {launch.place}"


def _notes_by_path(resolution: Resolution, tree: Path, server: Server, command: Sequence[str]) -> Iterator[str]:
    """What keeps the server from doing what is meant, as far as that can be told from here."""
    yield from _notes_of_entry(resolution, server)
    if server.name == "sglang":
        release = sglang.release_of(server.version)
        if taken := sglang.source_at(tree, sglang.built_in(release.version), release):
            yield f"{server} takes a folder at {tree} for the source of {taken}; move the cache root"
        return
    partitions = native_partitions(tree)
    for other in partitions[1:]:
        yield f"the partition {other.name} lies beside it: {other}"
    has_python = any(next(folder.rglob("*.py"), None) for folder in partitions)
    if has_python and _TRUST not in command:
        again = shlex.join(["overlay", "env", resolution.model, *server.flags, "--", _TRUST])
        yield f"it holds Python of its release, which no registry lets run; if you trust it: {again}"
