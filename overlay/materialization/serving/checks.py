"""What would keep a server that is given a model's name from finding it, though the Hub's cache is filled."""

from __future__ import annotations

import shlex
from dataclasses import replace
from typing import TYPE_CHECKING

from overlay.consumers import sglang
from overlay.consumers.staged import Elsewhere, Extras, NotAsked, OtherCommit
from overlay.errors import BrokenInput, CheckFailed, InvalidUsage
from overlay.formats.overlay_repo import MANIFEST_PATH
from overlay.materialization.resolve import prewarm_words

if TYPE_CHECKING:
    from overlay.consumers.server import Server
    from overlay.consumers.staged import Lookup, Obstacle
    from overlay.materialization.request import Options
    from overlay.registry import Entry, Pin, Resolution

__all__ = [
    "no_overlay",
    "refused",
    "require_hub_cache",
    "require_known",
    "require_named_source",
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
    row = sglang.goes_by(entry)
    if server is None or row == entry.server:
        return
    found = f"{row.overlay_repo_id}@{row.overlay_revision}" if row else "nothing"
    other_source = entry.overlay and row and row.overlay_revision == entry.overlay.revision
    why = ", and not the pinned commit of the source" if other_source else ""
    with_override = replace(options, server=replace(server, with_override=True))
    raise CheckFailed(
        f"{entry.model}: {server} has {found} built in for this name{why}, pinned is {entry.overlay}: it"
        " does not look for what is built here, unless it is told the pins (--with-override) or given the directory",
        code="server-looks-elsewhere" if row else "server-unknown",
        hint=shlex.join(["overlay", *prewarm_words(model, resolution, with_override, by_name=True)]),
        model=entry.model,
    )


def require_named_source(entry: Entry, lookup: Lookup) -> None:
    """Refuse an overlay that is served by its own name and names another source than its entry is of.

    Raises:
        BrokenInput: ``other-source-model``.
    """
    named = lookup.manifest.source_model_id
    if _is_direct(entry) and lookup.overlay is not None and named != entry.model:
        where = lookup.overlay.where(MANIFEST_PATH)
        raise BrokenInput(
            f"{where}: source_model_id is {named!r}, expected {entry.model}, whose overlay it is",
            code="other-source-model",
            hint=f"start the server with --model-path {entry.model}",
            where=where,
        )


def refused(obstacle: Obstacle, entry: Entry, options: Options) -> CheckFailed:
    """The error that something keeps the server of these options from its directory, which staging does not mend."""
    server = options.server
    said = obstacle.said(server)
    by_path = f"serve by path: {shlex.join(['overlay', 'env', entry.model, '--for', str(server)])}"
    match obstacle:
        case Extras(overlay, files):
            return CheckFailed(
                said,
                code="snapshot-extras",
                hint=f"remove them from there, or {by_path}",
                where=str(overlay.snapshot),
                files=list(files),
            )
        case NotAsked(source, missing):
            return CheckFailed(
                said,
                code="required-not-asked",
                hint=f"pin a revision of the source that has them, or {by_path}",
                repo=source.repo,
                missing=list(missing),
            )
        case OtherCommit(pin, asked):
            return CheckFailed(
                said,
                code="source-revision-differs",
                hint=f"pin that commit in the registry, or {by_path}",
                repo=pin.repo,
                asked=asked,
                revision=pin.revision,
            )
        case Elsewhere(pin, branch, found):
            return CheckFailed(
                said,
                code="branch-elsewhere",
                hint=f"{_by_commit(entry, pin)}remove the file, if nobody needs what it says; or {by_path}",
                where=str(branch.file),
                found=found,
                expected=pin.revision,
                repo=branch.repo,
                branch=branch.name,
            )
    raise ValueError(f"what staging mends is not refused: {said}")


def _by_commit(entry: Entry, pin: Pin) -> str:
    """How this server is started so that it asks for the commit and not for a branch; empty where it never does."""
    is_overlay = entry.overlay is not None and entry.overlay.repo == pin.repo
    if _is_direct(entry):
        return f"start it with --model-path {entry.model}; or " if is_overlay else ""
    release = sglang.release_of(entry.server.version if entry.server else None)
    return _OVERRIDE if is_overlay or release.hashes_source_revision else ""


def _is_direct(entry: Entry) -> bool:
    """Whether the server is given the overlay's name, so that it asks for its main."""
    return entry.server is not None and entry.server.by == "name"
