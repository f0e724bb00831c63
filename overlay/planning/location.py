"""Where a consumer looks for a model, worked out from the overlay's own files."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from overlay.consumers import sglang
from overlay.consumers.staged import extra_in_snapshot
from overlay.hub import HubRepo
from overlay.registry import LOCAL

if TYPE_CHECKING:
    from overlay.consumers.sglang import Identity
    from overlay.formats.manifest import Manifest
    from overlay.hub import Repo
    from overlay.registry import Entry

__all__ = ["fingerprint_notes", "overlay_identity"]


def overlay_identity(entry: Entry, overlay: Repo, manifest: Manifest) -> Identity:
    """What a server's directory for this model is named by."""
    return sglang.identity_of(
        entry,
        _fingerprint(entry, overlay),
        manifest.materializer_version,
        manifest_source_revision=manifest.source_revision,
    )


def fingerprint_notes(entry: Entry, overlay: Repo, identity: Identity) -> tuple[str, ...]:
    """Why a server may look elsewhere: other overlay files than the registry's, or more than it fetches by itself."""
    notes = []
    if entry.overlay_fingerprint not in (None, identity.overlay_fingerprint):
        notes.append(
            f"the files of {entry.overlay} have the fingerprint {identity.overlay_fingerprint[:16]}, the registry says "
            f"{str(entry.overlay_fingerprint)[:16]}: a server with the published overlay looks in another directory"
        )
    if isinstance(overlay, HubRepo) and (extras := extra_in_snapshot(overlay)):
        notes.append(
            f"{overlay.snapshot} holds more than a server fetches ({', '.join(extras)}):"
            " a server that finds them there will look in another directory"
        )
    return tuple(notes)


def _fingerprint(entry: Entry, overlay: Repo) -> str:
    """Of a folder that is used in place everything counts, as the server walks it; of a repo, what it downloads."""
    if entry.overlay is not None and entry.overlay.revision == LOCAL:
        return sglang.overlay_fingerprint(Path(entry.overlay.repo))
    return sglang.overlay_fingerprint([(path, overlay.read_bytes(path)) for path in overlay.paths()])
