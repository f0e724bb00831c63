"""Where a consumer looks for a model, worked out from the overlay's own files."""

from __future__ import annotations

from typing import TYPE_CHECKING

from overlay.consumers import sglang
from overlay.formats.manifest import read_manifest
from overlay.formats.overlay_repo import is_metadata

if TYPE_CHECKING:
    from overlay.consumers.sglang import Identity
    from overlay.hub import Repo
    from overlay.registry import Entry

__all__ = ["fingerprint_notes", "overlay_identity"]


def overlay_identity(entry: Entry, overlay: Repo) -> Identity:
    """What a server's directory for this model is named by."""
    manifest = read_manifest(overlay)
    return sglang.identity_of(
        entry,
        _fingerprint(overlay),
        manifest.materializer_version,
        manifest_source_revision=manifest.source_revision,
    )


def fingerprint_notes(entry: Entry, identity: Identity) -> tuple[str, ...]:
    """A note where the overlay's files are not those whose fingerprint the registry holds."""
    if entry.overlay_fingerprint in (None, identity.overlay_fingerprint):
        return ()
    return (
        (
            f"the files of {entry.overlay} have the fingerprint {identity.overlay_fingerprint[:16]}, the registry says "
            f"{str(entry.overlay_fingerprint)[:16]}: a server with the published overlay looks in another directory"
        ),
    )


def _fingerprint(overlay: Repo) -> str:
    """Of a folder that is used in place everything counts; of a repo, what a server downloads."""
    wanted = [
        path
        for path in overlay.paths()
        if sglang.enters_fingerprint(path) and (overlay.revision == "local" or is_metadata(path))
    ]
    return sglang.overlay_fingerprint([(path, overlay.read_bytes(path)) for path in wanted])
