"""What would keep a server that is given a model's name from finding it, though the Hub's cache is filled."""

from __future__ import annotations

import shlex
from dataclasses import replace
from typing import TYPE_CHECKING

from overlay.consumers import sglang
from overlay.consumers.server import version_text
from overlay.consumers.staged import extra_in_snapshot
from overlay.errors import BrokenInput, CheckFailed, InvalidUsage
from overlay.formats.overlay_repo import MANIFEST_PATH
from overlay.formats.wording import some
from overlay.materialization.resolve import prewarm_words

if TYPE_CHECKING:
    from collections.abc import Collection

    from overlay.consumers.server import Server
    from overlay.consumers.sglang.asked import Asked
    from overlay.formats.manifest import Manifest
    from overlay.hub import HubRepo
    from overlay.hub.serving import Branch
    from overlay.materialization.request import Options
    from overlay.registry import Entry, Resolution

__all__ = [
    "elsewhere",
    "no_overlay",
    "require_asked_commit",
    "require_hub_cache",
    "require_known",
    "require_named_source",
    "require_no_extras",
    "require_required_files",
]

_OVERRIDE = "add --with-override, here and to `overlay env`; or "


def require_hub_cache(options: Options) -> None:
    """Refuse options that name no server which asks the Hub's cache, or no Hub cache.

    Raises:
        InvalidUsage: ``option-conflict``.
    """
    if options.server is None or options.server.name != "sglang":
        raise InvalidUsage(
            "the Hub's cache is filled as a server asks for it, and sglang is not named",
            code="option-conflict",
            hint="add --for sglang, or --for sglang==VERSION",
        )
    if options.hub is not None:
        raise InvalidUsage(
            f"{options.hub}: stands for the Hub, so there is no Hub cache to fill",
            code="option-conflict",
            hint="leave --hub away (unset OVERLAY_HUB), or serve by path, which needs no source",
            where=str(options.hub),
        )
    if options.only:
        raise InvalidUsage(
            "--only publishes nothing, so no server could find it",
            code="option-conflict",
            hint="leave --only away",
        )


def no_overlay(model: str, server: Server | None) -> InvalidUsage:
    """The error of a model that no server looks up."""
    return InvalidUsage(
        f"{model}: has no overlay, so no server looks it up by name",
        code="no-overlay",
        hint=f"serve by path: {shlex.join(['overlay', 'env', model, '--for', str(server or 'sglang')])}",
        model=model,
    )


def require_known(model: str, resolution: Resolution, options: Options) -> None:
    """Refuse a model of which the server knows nothing, or something else, by the table that it was built with.

    Args:
        model: What the resolution is of, as it was named.
        options: They name the server.

    Raises:
        CheckFailed: ``server-unknown`` or ``server-looks-elsewhere``.
    """
    entry, server = resolution.entry, options.server
    told = entry.server
    if told is None or server is None or not told.of_entry or _is_direct(entry) or server.with_override:
        return  # it is told so by somebody, or needs to know nothing
    row = sglang.built_in(sglang.release_of(told.version).version).get(entry.model)
    ours = (told.overlay_repo_id, told.overlay_revision, told.source_revision)
    theirs = (row.overlay_repo_id, row.overlay_revision, row.source_revision) if row else None
    if theirs == ours:
        return
    found = "@".join(filter(None, theirs[:2])) if theirs else "nothing"
    why = ", and not the pinned commit of the source" if theirs and theirs[:2] == ours[:2] else ""
    with_override = replace(options, server=replace(server, with_override=True))
    raise CheckFailed(
        f"{entry.model}: {_server(entry)} has {found} built in for this name{why}, pinned is {entry.overlay}: it"
        " does not look for what is built here, unless it is told the pins (--with-override) or given the directory",
        code="server-looks-elsewhere" if row else "server-unknown",
        hint=shlex.join(["overlay", *prewarm_words(model, resolution, with_override, by_name=True)]),
        model=entry.model,
    )


def elsewhere(branch: Branch, commit: str, entry: Entry) -> CheckFailed:
    """The finding that a branch of the Hub's cache leads to another commit than the pinned one."""
    found = branch.commit()
    said = f"says {found!r}" if found is not None else "no file that can be read is there"
    is_overlay = entry.overlay is not None and entry.overlay.repo == branch.repo
    if is_overlay:
        then = "takes the overlay's files there, looks in another directory, and builds by itself"
        way = f"start it with --model-path {entry.model}; or " if _is_direct(entry) else _OVERRIDE
    else:
        then = "takes the source there, and fetches what is missing of it"
        way = _OVERRIDE if _may_be_told_source(entry) else ""
    return CheckFailed(
        f"{branch.file}: {said}, expected {commit}, the pinned commit of {branch.repo}; {_server(entry)} asks "
        f"for {branch.name}, {then}",
        code="branch-elsewhere",
        hint=f"{way}remove the file, if nobody needs what it says; or {_by_path(entry)}",
        where=str(branch.file),
        found=found,
        expected=commit,
        repo=branch.repo,
        branch=branch.name,
    )


def require_asked_commit(repo: HubRepo, asked: str, entry: Entry) -> None:
    """Refuse a source of which the server asks for another commit than the pinned one.

    Raises:
        CheckFailed: ``source-revision-differs``.
    """
    if asked != repo.revision:
        raise CheckFailed(
            f"{repo.repo}: pinned to {repo.revision}, but {_server(entry)} asks for {asked}, which is what it was told "
            "or what the overlay's manifest says",
            code="source-revision-differs",
            hint=f"pin that commit in the registry, or {_by_path(entry)}",
            repo=repo.repo,
            asked=asked,
            revision=repo.revision,
        )


def require_named_source(entry: Entry, overlay: HubRepo, manifest: Manifest) -> None:
    """Refuse an overlay that is served by its own name and names another source than its entry is of.

    Raises:
        BrokenInput: ``other-source-model``.
    """
    if _is_direct(entry) and manifest.source_model_id != entry.model:
        where = overlay.where(MANIFEST_PATH)
        raise BrokenInput(
            f"{where}: source_model_id is {manifest.source_model_id!r}, expected {entry.model}, whose overlay it is",
            code="other-source-model",
            hint=f"start the server with --model-path {entry.model}",
            where=where,
        )


def require_no_extras(overlay: HubRepo, entry: Entry) -> None:
    """Refuse a snapshot that holds more than a server fetches: it hashes all that it finds there.

    Raises:
        CheckFailed: ``snapshot-extras``.
    """
    if extras := extra_in_snapshot(overlay):
        raise CheckFailed(
            f"{overlay.snapshot}: holds more than a server fetches ({some(extras)}); one that finds them there looks in"
            " another directory, and builds by itself",
            code="snapshot-extras",
            hint=f"remove them from there, or {_by_path(entry)}",
            where=str(overlay.snapshot),
            files=list(extras),
        )


def require_required_files(source: HubRepo, wanted: Collection[str], asked: Asked, entry: Entry) -> None:
    """Refuse a source without the files that the manifest requires: a server fetches all of it anew, and gives up.

    Raises:
        CheckFailed: ``required-not-asked``.
    """
    below = {
        "/".join(parts[:end]) for path in wanted for parts in [path.split("/")] for end in range(1, len(parts) + 1)
    }
    if missing := [path for path in asked.required if path not in below]:
        raise CheckFailed(
            f"{source.name}: no {some(missing)} among the files that a server asks for, but the overlay's manifest "
            "requires them",
            code="required-not-asked",
            hint=f"pin a revision of the source that has them, or {_by_path(entry)}",
            repo=source.repo,
            missing=missing,
        )


def _by_path(entry: Entry) -> str:
    version = entry.server.version if entry.server else None
    server = f"sglang=={version_text(version)}" if version else "sglang"
    return f"serve by path: {shlex.join(['overlay', 'env', entry.model, '--for', server])}"


def _server(entry: Entry) -> str:
    version = entry.server.version if entry.server else None
    return f"sglang {version_text(version)}" if version else "sglang"


def _may_be_told_source(entry: Entry) -> bool:
    """Whether this server, started another way, would ask for the commit itself."""
    release = sglang.release_of(entry.server.version if entry.server else None)
    return release.hashes_source_revision and not _is_direct(entry)


def _is_direct(entry: Entry) -> bool:
    """Whether the server is given the overlay's name, so that it asks for its main; else it was told the pin."""
    return entry.server is not None and entry.server.of_entry and entry.server.overlay_revision == "main"
