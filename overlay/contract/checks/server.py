"""What a server that is given the model's name will look for, held against what is built and what this host has."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from overlay.consumers import sglang
from overlay.consumers.sglang.asked import asked_of
from overlay.contract.checks.layout import check_layout
from overlay.contract.checks.location import differences
from overlay.contract.checks.look import Look, prewarm_fix
from overlay.contract.checks.staged import check_staged
from overlay.contract.finding import found
from overlay.contract.reading import unless_broken
from overlay.errors import NotHere, OverlayError, Refused
from overlay.formats.manifest import read_manifest
from overlay.formats.wording import named
from overlay.planning.location import overlay_identity
from overlay.registry import COMMIT, LOCAL, Pin, ServerSpec

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from overlay.consumers.server import Server
    from overlay.contract.checks.look import Warmed
    from overlay.contract.finding import Finding
    from overlay.contract.subject import Subject
    from overlay.hub import Repo

__all__ = ["check_server"]


def check_server(
    subject: Subject, server: Server, warmed: Warmed, open_other: Callable[[Pin], Repo]
) -> Iterator[Finding]:
    """What such a server finds: ``server-unknown``, ``server-looks-elsewhere``, ``server-finds`` and so on.

    Args:
        subject: Its entry is the registry's, not yet a server's.
        server: An sglang.
        warmed: What this host has.
        open_other: Opens the overlay that the server's own table names, where the entry pins another.
    """
    entry, overlay, manifest = subject.entry, subject.inventory.overlay, subject.manifest
    if entry.overlay is None and (of_layout := list(check_layout(subject, server))):
        yield from of_layout
        return
    built = sglang.for_server(entry, server)
    spec = sglang.goes_by(built)
    if entry.overlay is None or spec is None:
        yield _unknown(subject, server)
        return
    if overlay is None or manifest is None:
        return  # the overlay cannot be read, which is said elsewhere
    here = Look(server, built, unless_broken(overlay_identity, built, overlay, manifest), manifest)
    look = here if spec == built.server else _by_table(subject, server, spec, open_other)
    if look is not here:
        yield from _looks_elsewhere(subject, look, here)
    yield from _not_warmed(subject, look, warmed)
    yield from check_staged(subject, look, warmed, open_other, is_ours=look is here)
    yield from _source_not_told(subject, look)


def _by_table(subject: Subject, server: Server, spec: ServerSpec, open_other: Callable[[Pin], Repo]) -> Look:
    """What the server finds in its own table, and the directory that follows from it."""
    entry, overlay, manifest = subject.entry, subject.inventory.overlay, subject.manifest
    pin = Pin(spec.overlay_repo_id, spec.overlay_revision)
    told = replace(entry, overlay=pin, server=spec)
    if pin != entry.overlay or overlay is None or manifest is None:
        try:
            overlay = open_other(pin)
            manifest = read_manifest(overlay)
        except (NotHere, Refused):
            return Look(server, told, None, None)
    try:
        return Look(server, told, overlay_identity(told, overlay, manifest), manifest)
    except OverlayError:
        return Look(server, told, None, manifest)


def _unknown(subject: Subject, server: Server) -> Finding:
    """The server takes the name for that of a model like any other."""
    entry, fix = subject.entry, _telling_fix(subject, server)
    if entry.overlay is None:
        why, fix = "the entry has no overlay", f"overlay env {entry.model} --for {server}"
    else:
        why = f"{server} has no overlay built in for it"
    return found(
        "server-unknown",
        entry,
        f"a server that is given this name looks for no directory of ours: {why}",
        place=(entry.overlay or entry.source).place,
        fix=fix,
        server=str(server),
    )


def _telling_fix(subject: Subject, server: Server) -> str | None:
    """What builds for a server that is told the pins in force; `overlay env` then says how it is told."""
    return prewarm_fix(subject, replace(server, with_override=True))


def _looks_elsewhere(subject: Subject, look: Look, here: Look) -> Iterator[Finding]:
    """The pins of the server's table are not those of the entry, so its directory is another one."""
    entry = subject.entry
    if here.identity is None:
        return
    ours = here.identity.location_name
    if look.identity is not None:
        theirs, fields = look.identity.location_name, (here.identity.fields, look.identity.fields)
    else:
        theirs, fields = "another directory", (_overlay_fields(here.told), _overlay_fields(look.told))
    why = differences(*fields, "{name} {after} instead of {before}")
    yield found(
        "server-looks-elsewhere",
        entry,
        f"{look.server} will look for {theirs}, and {ours} is what is built here: its own table has {why}",
        place=(entry.overlay or entry.source).place,
        fix=_telling_fix(subject, look.server),
        server=str(look.server),
        looks_for=look.identity.location_name if look.identity else None,
        built=ours,
    )


def _overlay_fields(told: ServerSpec) -> dict[str, str]:
    return {"overlay_repo_id": told.overlay_repo_id, "overlay_revision": told.overlay_revision}


def _not_warmed(subject: Subject, look: Look, warmed: Warmed) -> Iterator[Finding]:
    """Nothing is where the server will look, on this host."""
    entry = subject.entry
    if look.identity is None or not warmed.root or look.identity.location_name in warmed.locations:
        return
    prefix = f"{entry.model.replace('/', '__')}-"
    others = sorted(name for name in warmed.locations if name.startswith(prefix))
    has = f"which has {named(others)}" if others else "which has nothing of this model"
    xdg = f"; {look.server} does not go by XDG_CACHE_HOME" if warmed.ignores_xdg else ""
    yield found(
        "server-not-warmed",
        entry,
        f"{look.server} will look for {look.identity.location_name} in {warmed.root}, {has}{xdg}",
        fix=prewarm_fix(subject, look.server),
        server=str(look.server),
        looks_for=look.identity.location_name,
        root=warmed.root,
        warmed=others,
    )


def _source_not_told(subject: Subject, look: Look) -> Iterator[Finding]:
    """The server takes the source from wherever its branch stands, before it looks for the directory."""
    entry, is_given = subject.entry, subject.inventory.resolution.source_folder is not None
    if look.manifest is None or is_given or entry.source.revision in (None, LOCAL):
        return
    asked = asked_of(look.told, look.manifest).source
    if COMMIT.fullmatch(asked):
        return
    if not sglang.release_of(look.server.version).hashes_source_revision:
        why = "this release passes on no commit of a source, whatever it is told, and only by path it needs none"
        fix: str | None = f"overlay env {entry.model} --for {look.server}"
    else:
        why = "neither its table nor the overlay's manifest names a commit"
        fix = _telling_fix(subject, look.server)
    yield found(
        "source-not-told",
        entry,
        f"{look.server} resolves {entry.source.repo} at {asked} before it looks for the directory, and the entry pins"
        f" {entry.source}: {why}; with a connection it fetches what is there by then",
        place=entry.source.place,
        fix=fix,
        server=str(look.server),
        asked=asked,
        pinned=entry.source.revision,
    )
