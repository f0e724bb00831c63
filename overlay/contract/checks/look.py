"""One server, one model and one host: what the checks of a server share."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING

from overlay.registry import LOCAL

if TYPE_CHECKING:
    from overlay.consumers.server import Server
    from overlay.consumers.sglang import Identity
    from overlay.contract.subject import Subject
    from overlay.formats.manifest import Manifest
    from overlay.registry import Entry, ServerSpec

__all__ = ["Look", "Warmed", "prewarm_fix"]


@dataclass(frozen=True, slots=True)
class Warmed:
    """What a server finds on this host.

    Attributes:
        root: Where it looks; empty where there is no such folder, and nothing is said of it.
        locations: Names of the finished directories there.
        ignores_xdg: Whether ``XDG_CACHE_HOME`` is set and this release does not look there.
    """

    root: str = ""
    locations: frozenset[str] = frozenset()
    ignores_xdg: bool = False


@dataclass(frozen=True, slots=True)
class Look:
    """One server and one model.

    Attributes:
        entry: As the server is told of it: by the entry, by somebody's variable, or by its own table.
        identity: What it looks for; None where that could not be told.
        manifest: Of the overlay that it takes; None likewise.
    """

    server: Server
    entry: Entry
    identity: Identity | None
    manifest: Manifest | None

    @property
    def told(self) -> ServerSpec:
        """What the server was told."""
        if self.entry.server is None:
            raise ValueError("an entry that a server was told of says what it was told")
        return self.entry.server


def prewarm_fix(subject: Subject, server: Server) -> str | None:
    """What warms this host for the server; None where nothing here builds the model."""
    if not subject.entry.is_buildable:
        return None
    resolution = subject.inventory.resolution
    script = ["--allow-script"] if resolution.script_is_found else []
    floating = ["--allow-floating"] if resolution.floats else []
    return shlex.join(["overlay", "prewarm", _given(subject), "--stage-source", *script, *floating, *server.flags])


def _given(subject: Subject) -> str:
    """What the server is given, and so how a build for it is named: the model, or a folder or an overlay itself."""
    resolution, told = subject.inventory.resolution, subject.entry.server
    if resolution.source_folder is not None:
        return str(resolution.source_folder)
    is_direct = told is not None and (told.overlay_revision == LOCAL or told.by == "name")
    return told.overlay_repo_id if told is not None and is_direct else subject.entry.model
