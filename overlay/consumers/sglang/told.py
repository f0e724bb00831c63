"""What a server is told about a model: by the table that it was built with, or by an exported registry.

The one place that decides it: what ``overlay env`` exports and what a build is named by are both read from here.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from overlay.consumers.sglang.table import built_in
from overlay.consumers.sglang.versions import release_of
from overlay.registry.entries import ServerSpec

if TYPE_CHECKING:
    from overlay.consumers.server import Server
    from overlay.registry import Entry

__all__ = ["for_server", "goes_by", "override_of"]


def for_server(entry: Entry, server: Server | None) -> Entry:
    """The entry as it is built for a server: with what that is told about the model.

    A server that was told by its own variable, or that is given an overlay folder, is told so by every release.

    Raises:
        InvalidUsage: This release of sglang knows no overlays.
    """
    if server is None or server.name != "sglang" or entry.overlay is None:
        return entry
    release = release_of(server.version)
    if server.with_override:
        return replace(entry, server=replace(override_of(entry), version=release.version))
    if entry.server is not None:
        return replace(entry, server=replace(entry.server, version=release.version))
    row = built_in(release.version).get(entry.model)
    source = entry.source.revision if row and row.source_revision else None
    spec = ServerSpec(entry.overlay.repo, entry.overlay.revision or "main", source, release.version, by="table")
    return replace(entry, server=spec)


def goes_by(entry: Entry) -> ServerSpec | None:
    """What a server that is given the name goes by: another than ``entry.server`` where its own table is another.

    Args:
        entry: As :func:`for_server` returns it for an sglang.

    Returns:
        None where no server, or not this release, knows anything of the name.
    """
    told = entry.server
    if told is None or told.by != "table":
        return told
    row = built_in(release_of(told.version).version).get(entry.model)
    if row is None:
        return None
    pins = (row.overlay_repo_id, row.overlay_revision, row.source_revision)
    return ServerSpec(*pins, told.version, by="table")


def override_of(entry: Entry) -> ServerSpec:
    """What an exported registry says of the entry: its pins, the source's among them.

    Args:
        entry: It has an overlay.
    """
    if entry.overlay is None:
        raise ValueError(f"{entry.model} has no overlay, so there is nothing to tell a server")
    return ServerSpec(entry.overlay.repo, entry.overlay.revision or "main", entry.source.revision, by="export")
