"""Where sglang looks for a materialization, release by release, and what marks it as finished.

The server derives a directory name from what it was told about the overlay (its built-in table, or an exported
registry) and from the overlay's own small files. Everything here repeats that derivation to the byte; nothing of it is
this program's choice.
"""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from overlay.consumers.sglang.table import built_in
from overlay.consumers.sglang.versions import NEWEST_RELEASE, Release, release_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from overlay.registry import Entry

__all__ = ["Identity", "identity_of", "location_name", "marker_bytes"]

_LONGEST_NAME = 255


@dataclass(frozen=True, slots=True)
class Identity:
    """What the server hashes into the name of a directory; strings as it was told them.

    Attributes:
        source_model_id: The registry key, whatever the server was started with; the manifest's for a direct overlay.
        overlay_revision: The literal text (``main``, a commit, ``local``), never what it resolved to.
        source_revision: None or empty: the field is left out of the key.
        release: Decides which of these enter the key.
    """

    source_model_id: str
    overlay_repo_id: str
    overlay_revision: str
    materializer_version: str
    overlay_fingerprint: str
    source_revision: str | None = None
    release: Release = NEWEST_RELEASE

    @property
    def fields(self) -> dict[str, str]:
        """Four fields, from 0.5.11 the fingerprint too, from 0.5.22 ``source_revision`` where there is one."""
        fields = {
            "source_model_id": self.source_model_id,
            "overlay_repo_id": self.overlay_repo_id,
            "overlay_revision": self.overlay_revision,
            "materializer_version": self.materializer_version,
        }
        if self.release.hashes_fingerprint:
            fields["overlay_fingerprint"] = self.overlay_fingerprint
        if self.release.hashes_source_revision and self.source_revision:
            fields["source_revision"] = self.source_revision
        return fields

    @property
    def key16(self) -> str:
        """First 16 hex digits of the SHA-256 of the fields as JSON."""
        return _key16(self.fields)

    @property
    def location_name(self) -> str:
        """Directory under ``materialized_models`` where the server looks."""
        return _location_name(self.source_model_id, self.key16)

    @property
    def lock_name(self) -> str:
        """File in the host's temporary folder that the server locks while it builds.

        Neither the fingerprint nor the cache root is in it: servers of two roots wait for each other.
        """
        text = f"overlay-materialize::{self.source_model_id}::{self.overlay_repo_id}::{self.overlay_revision}"
        text = text.replace("/", "-")
        digest = hashlib.sha256(text.encode()).hexdigest()
        name = f"{digest}{text}.lock"
        too_long = self.release.shortens_lock_names and len(os.fsencode(name)) > _LONGEST_NAME
        return f"{digest}.lock" if too_long else name


def _key16(document: Mapping[str, object]) -> str:
    return hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()[:16]


def _location_name(model: str, key: str) -> str:
    return f"{model.replace('/', '__')}-{key}"


def identity_of(
    entry: Entry, fingerprint: str, materializer_version: str = "v1", *, manifest_source_revision: str | None = None
) -> Identity:
    """The identity that a server computes for an entry that has an overlay.

    With an exported registry (or an overlay folder) that is what the server was told; else what its built-in table
    would hold with the entry's pins: a source commit enters only where the table has one for this model.

    Args:
        entry: The model; its overlay's pin is given.
        fingerprint: Of the overlay, see :func:`overlay_fingerprint`.
        materializer_version: From the overlay's manifest.
        manifest_source_revision: ``source_revision`` of the overlay's manifest: used where the server was told none.
    """
    if entry.overlay is None:
        raise ValueError(f"{entry.model} has no overlay, so no server has a key for it")
    release = release_of(entry.server.version if entry.server else None)
    if entry.server is not None:
        repo, revision = entry.server.overlay_repo_id, entry.server.overlay_revision
        source_revision = entry.server.source_revision
    else:
        repo, revision = entry.overlay.repo, entry.overlay.revision or "main"
        row = built_in(release.version).get(entry.model)
        source_revision = entry.source.revision if row and row.source_revision else None
    source_revision = source_revision or manifest_source_revision
    return Identity(entry.model, repo, revision, materializer_version, fingerprint, source_revision, release)


def location_name(
    entry: Entry,
    fingerprint: str | None,
    materializer_version: str = "v1",
    *,
    manifest_source_revision: str | None = None,
) -> str:
    """Directory name of an entry's location, such as ``OpenVDN__vdn-minimax-h3-e541eaf4b41d4e5c``.

    An entry without an overlay has no key of the server's; its location is named by its pins and its recipe.

    Args:
        entry: The model.
        fingerprint: Of the overlay; None only where the entry has none.
        materializer_version: From the overlay's manifest.
        manifest_source_revision: From the overlay's manifest.
    """
    if entry.overlay is None:
        return _location_name(entry.model, _key16(_own_identity(entry)))
    if fingerprint is None:
        raise ValueError(f"the location of {entry.model} depends on its overlay's fingerprint")
    return identity_of(
        entry, fingerprint, materializer_version, manifest_source_revision=manifest_source_revision
    ).location_name


def _own_identity(entry: Entry) -> dict[str, object]:
    return {
        "source": [entry.source.repo, entry.source.revision],
        "needs": [[need.pin.repo, need.pin.revision, *need.components] for need in entry.needs],
        "recipe": {"name": entry.recipe.name, **entry.recipe.options},
    }


def marker_bytes(identity: Identity, source: str) -> bytes:
    """Content of the marker file, in the server's own form.

    Args:
        identity: What the directory is named by.
        source: ``org/name@revision``. The server puts the absolute folder here and never reads it back; a
            materialization that can move between hosts names none.
    """
    marker: dict[str, str | None] = {**identity.fields, "source_dir": source}
    if identity.release.hashes_source_revision:
        marker["source_revision"] = identity.source_revision
    return json.dumps(marker, indent=2, sort_keys=True).encode()
