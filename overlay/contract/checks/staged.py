"""Whether a server that is given a name gets as far as its directory on this host."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from overlay.consumers.staged import Elsewhere, Extras, Lookup, NotAsked, OtherCommit
from overlay.contract.checks.look import prewarm_fix
from overlay.contract.finding import found
from overlay.errors import NotHere
from overlay.hub.lock_repo import LockRepo
from overlay.registry import LOCAL

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from overlay.consumers.server import Server
    from overlay.contract.checks.look import Look, Warmed
    from overlay.contract.finding import Finding
    from overlay.contract.subject import Subject
    from overlay.hub import Repo
    from overlay.registry import Entry, Pin

__all__ = ["check_staged"]


def check_staged(
    subject: Subject, look: Look, warmed: Warmed, open_other: Callable[[Pin], Repo], *, is_ours: bool
) -> Iterator[Finding]:
    """``snapshot-extras`` and ``branch-elsewhere``; without them ``source-not-staged`` or ``server-finds``.

    The last two are told where the server's directory is here: it looks overlay and source up before it.

    Args:
        is_ours: Whether the server looks for what is built here; else only the branches that it asks for are looked at.
    """
    if look.manifest is None:
        return
    entry, resolution = subject.entry, replace(subject.inventory.resolution, entry=look.entry)
    overlay, source, lacks = _opened(subject, open_other) if is_ours else (None, None, [])
    lookup = Lookup(resolution, look.manifest, overlay, source)
    is_led, fix = True, prewarm_fix(subject, look.server)
    for obstacle in lookup.obstacles():
        match obstacle:
            case Extras():
                is_led = False
                yield _extras(entry, obstacle, look.server)
            case Elsewhere():
                is_led = False
                yield _elsewhere(entry, obstacle, look.server)
            case OtherCommit():
                is_led = False  # source-revision-differs, which is found without a server
            case _:
                lacks.append(obstacle.said(look.server))
                if isinstance(obstacle, NotAsked):  # which staging refuses
                    fix = _by_path(entry, look.server)
    if not is_led or not is_ours or look.identity is None or look.identity.location_name not in warmed.locations:
        return
    name = look.identity.location_name
    if lacks:
        yield found(
            "source-not-staged",
            entry,
            f"{look.server} looks overlay and source up before the directory, and without a connection it does not"
            f" start: {'; '.join(lacks)}",
            place=entry.source.place,
            fix=fix,
            server=str(look.server),
            lacks=lacks,
        )
        return
    in_hub_cache = bool(lookup.parts)
    asks = resolution.source_folder is None or entry.overlay is None or entry.overlay.revision != LOCAL
    before = ", and what it asks for before that in the Hub cache"
    if not in_hub_cache:
        before = "; whether the Hub cache has what it asks for before that was not looked at" if asks else ""
    yield found(
        "server-finds",
        entry,
        f"{look.server} finds {name} in {warmed.root}{before}",
        server=str(look.server),
        location=name,
        root=warmed.root,
        hub_cache=in_hub_cache,
    )


def _opened(subject: Subject, open_other: Callable[[Pin], Repo]) -> tuple[Repo | None, Repo | None, list[str]]:
    """Overlay and source as this host has them, of which a lock knows nothing; and in words, what is not here."""
    entry, repos, lacks = subject.entry, [], []
    for repo, pin in ((subject.inventory.overlay, entry.overlay), (subject.source, entry.source)):
        try:
            repos.append(open_other(pin) if isinstance(repo, LockRepo) and pin else repo)
        except NotHere as error:
            repos.append(None)
            lacks.append(error.message)
    return repos[0], repos[1], lacks


def _extras(entry: Entry, extras: Extras, server: Server) -> Finding:
    files, folder = extras.files, extras.overlay.snapshot
    return found(
        "snapshot-extras",
        entry,
        extras.said(server),
        place=entry.overlay.place if entry.overlay else None,
        fix=f"rm {' '.join(files)} in that folder" if len(files) <= 5 else f"rm -r {folder}",  # noqa: PLR2004
        folder=str(folder),
        files=list(files),
    )


def _elsewhere(entry: Entry, elsewhere: Elsewhere, server: Server) -> Finding:
    return found(
        "branch-elsewhere",
        entry,
        elsewhere.said(server),
        place=elsewhere.pin.place,
        fix=_by_path(entry, server),
        server=str(server),
        file=str(elsewhere.branch.file),
        commit=str(elsewhere.found)[:40],
        pinned=elsewhere.pin.revision,
    )


def _by_path(entry: Entry, server: Server) -> str:
    return f"overlay env {entry.model} --for {server}"
