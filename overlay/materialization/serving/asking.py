"""What a server that is given a model's name asks the Hub's cache for, opened there."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from overlay.consumers.sglang.asked import asked_of
from overlay.consumers.staged import extra_in_snapshot, overlay_part, source_part
from overlay.errors import InvalidUsage, OverlayError
from overlay.formats.manifest import read_manifest
from overlay.formats.overlay_repo import METADATA_PATTERNS
from overlay.formats.wording import some
from overlay.hub import HubRepo, open_repo
from overlay.hub.serving import require_listing, require_unchanged
from overlay.materialization.request import open_cache, open_memo

if TYPE_CHECKING:
    from collections.abc import Sequence

    from overlay.consumers.sglang.asked import Asked
    from overlay.consumers.staged import Part
    from overlay.formats.manifest import Manifest
    from overlay.hub import Repo
    from overlay.materialization.request import Options
    from overlay.registry import Pin, Resolution

__all__ = ["Asking", "asking", "lacking"]


@dataclass(frozen=True, slots=True)
class Asking:
    """What is asked for; a part is None where a folder takes its place."""

    manifest: Manifest
    asked: Asked
    overlay: Part | None
    source: Part | None

    @property
    def parts(self) -> tuple[Part, ...]:
        """Those that must be in the Hub's cache."""
        return tuple(part for part in (self.overlay, self.source) if part is not None)


def asking(resolution: Resolution, options: Options) -> Asking:
    """What a server asks for that was told of the model.

    Args:
        resolution: As the server of the options is told; its entry has an overlay.

    Raises:
        InvalidUsage: ``floating-pin``.
        NotHere: Offline, and a repo or its listing is not in the Hub's cache, or the overlay is changed there.
        OverlayError: A repo or the manifest cannot be read.
    """
    entry = resolution.entry
    if entry.overlay is None or entry.server is None:
        raise ValueError(f"{entry.model} is looked up by no server")
    overlay = _opened(entry.overlay, options, METADATA_PATTERNS)
    if isinstance(overlay, HubRepo):
        require_unchanged(overlay, overlay.paths())
    manifest = read_manifest(overlay)
    asked = asked_of(entry.server, manifest)
    source = _opened(entry.source, options) if resolution.source_folder is None else None
    return Asking(
        manifest,
        asked,
        overlay_part(overlay, asked) if isinstance(overlay, HubRepo) else None,
        source_part(source, asked) if isinstance(source, HubRepo) else None,
    )


def lacking(resolution: Resolution, options: Options) -> str:
    """What keeps a server without a connection from its directory, in words; empty where it finds everything."""
    try:
        found = asking(resolution, replace(options, offline=True))
    except OverlayError as error:
        return error.message
    lacks = [part.lacks() for part in found.parts]
    if found.overlay is not None and (extras := extra_in_snapshot(found.overlay.repo)):
        lacks.append(f"{found.overlay.repo.snapshot} holds more than is fetched, which moves its key: {some(extras)}")
    return "; ".join(filter(None, lacks))


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
