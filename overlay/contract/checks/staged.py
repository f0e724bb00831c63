"""Whether a server that is given a name gets as far as its directory on this host."""

from __future__ import annotations

from typing import TYPE_CHECKING

from overlay.consumers.sglang.asked import asked_of
from overlay.consumers.staged import overlay_part, source_part
from overlay.contract.checks.look import prewarm_fix
from overlay.contract.finding import found
from overlay.errors import NotHere
from overlay.hub import HubRepo
from overlay.hub.lock_repo import LockRepo

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from overlay.contract.checks.look import Look, Warmed
    from overlay.contract.finding import Finding
    from overlay.contract.subject import Subject
    from overlay.hub import Repo
    from overlay.registry import Pin

__all__ = ["check_staged"]


def check_staged(subject: Subject, look: Look, warmed: Warmed, open_other: Callable[[Pin], Repo]) -> Iterator[Finding]:
    """``source-not-staged`` or ``server-finds``, for a server whose directory is here.

    It looks overlay and source up before it looks for the directory.
    """
    if look.identity is None or look.manifest is None or not warmed.root:
        return
    entry, asked = subject.entry, asked_of(look.told, look.manifest)
    lacks, in_hub_cache = [], False
    for repo, pin, part_of in (
        (subject.inventory.overlay, look.entry.overlay, overlay_part),
        (subject.source, entry.source, source_part),
    ):
        if repo is None or pin is None:
            continue
        try:
            opened = open_other(pin) if isinstance(repo, LockRepo) else repo  # which knows only what a build takes
        except NotHere as error:
            lacks.append(error.message)
            continue
        if isinstance(opened, HubRepo):  # else a folder stands in for it
            in_hub_cache = True
            lacks.append(part_of(opened, asked).lacks())
    if lacks := [text for text in lacks if text]:
        yield found(
            "source-not-staged",
            entry,
            f"{look.server} looks overlay and source up before the directory, and without a connection it does not"
            f" start: {'; '.join(lacks)}",
            place=entry.source.place,
            fix=prewarm_fix(subject, look.server),
            server=str(look.server),
            lacks=lacks,
        )
        return
    name = look.identity.location_name
    yield found(
        "server-finds",
        entry,
        f"{look.server} finds {name} in {warmed.root}"
        f"{', and what it asks for before that in the Hub cache' if in_hub_cache else ''}",
        server=str(look.server),
        location=name,
        root=warmed.root,
        hub_cache=in_hub_cache,
    )
