"""Where a consumer looks for a model, worked out from the overlay's own files."""

from __future__ import annotations

from typing import TYPE_CHECKING

from overlay.consumers import sglang
from overlay.errors import BrokenInput
from overlay.formats.manifest import read_manifest
from overlay.formats.overlay_repo import is_metadata

if TYPE_CHECKING:
    from overlay.consumers.sglang import Identity
    from overlay.hub import Repo
    from overlay.registry import Entry

__all__ = ["overlay_identity"]


def overlay_identity(entry: Entry, overlay: Repo) -> Identity:
    """What a server's directory for this model is named by.

    Raises:
        BrokenInput: A commit of the Hub does not have the fingerprint that the registry holds for it. A folder may:
            its name is no proof of what is in it.
    """
    manifest = read_manifest(overlay)
    fingerprint = _fingerprint(overlay)
    if overlay.shared_store and entry.overlay_fingerprint not in (None, fingerprint):
        raise BrokenInput(
            f"{overlay.name}: its files have the fingerprint {fingerprint}; "
            f"the registry says {entry.overlay_fingerprint}",
            code="overlay-fingerprint",
            hint="the overlay's files were changed or are incomplete: fetch it again, or correct the registry",
            found=fingerprint,
            expected=entry.overlay_fingerprint,
        )
    return sglang.identity_of(
        entry, fingerprint, manifest.materializer_version, manifest_source_revision=manifest.source_revision
    )


def _fingerprint(overlay: Repo) -> str:
    """Of a folder that is used in place everything counts; of a repo, what a server downloads."""
    wanted = [
        path
        for path in overlay.paths()
        if sglang.enters_fingerprint(path) and (overlay.revision == "local" or is_metadata(path))
    ]
    return sglang.overlay_fingerprint([(path, overlay.read_bytes(path)) for path in wanted])
