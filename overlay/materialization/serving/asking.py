"""What a server that is given a model's name asks the Hub's cache for, opened there."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from overlay.consumers.staged import Lacking, Lookup
from overlay.errors import InvalidUsage, NotHere
from overlay.formats.manifest import read_manifest
from overlay.formats.overlay_repo import METADATA_PATTERNS
from overlay.hub import HubRepo, open_repo
from overlay.hub.serving import require_listing
from overlay.materialization.request import open_cache, open_memo

if TYPE_CHECKING:
    from collections.abc import Sequence

    from overlay.consumers.staged import Obstacle
    from overlay.hub import Repo
    from overlay.materialization.request import Options
    from overlay.registry import Pin, Resolution

__all__ = ["asking", "lacking"]


def asking(resolution: Resolution, options: Options) -> Lookup:
    """What a server asks for that was told of the model.

    Args:
        resolution: As the server of the options is told; its entry has an overlay.

    Raises:
        InvalidUsage: ``floating-pin``.
        NotHere: Offline, and a repo or its listing is not in the Hub's cache.
        OverlayError: A repo or the manifest cannot be read.
    """
    entry = resolution.entry
    if entry.overlay is None:
        raise ValueError(f"{entry.model} is looked up by no server")
    overlay = _opened(entry.overlay, options, METADATA_PATTERNS)
    source = _opened(entry.source, options) if resolution.source_folder is None else None
    return Lookup(resolution, read_manifest(overlay), overlay, source)


def lacking(resolution: Resolution, options: Options) -> tuple[Obstacle, ...]:
    """What keeps a server without a connection from its directory.

    Raises:
        OverlayError: As of :func:`asking`, but that something is not here, which is an obstacle.
    """
    try:
        return tuple(asking(resolution, replace(options, offline=True)).obstacles())
    except NotHere as error:
        return (Lacking(error.message),)


def _opened(pin: Pin, options: Options, only: Sequence[str] | None = None) -> Repo:
    if pin.floating:
        raise InvalidUsage(
            f"{pin.repo}: not pinned to a commit ({pin.floating}), so there is none to stage",
            code="floating-pin",
            hint="pin it in the registry (overlay bump), or serve by path",
            repo=pin.repo,
        )
    memo = open_memo(open_cache(options, create=False), write=False)
    repo = open_repo(pin, hub=None, offline=options.offline, memo=memo, allow_floating=False, only=only)
    if isinstance(repo, HubRepo):
        require_listing(repo)
    return repo
