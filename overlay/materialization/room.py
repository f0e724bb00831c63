"""The room that work takes of the disks, and work refused that does not fit."""

from __future__ import annotations

from typing import TYPE_CHECKING

from overlay.cache.disk import existing, free_room
from overlay.cache.incoming import arrived
from overlay.errors import CannotWrite
from overlay.formats.wording import format_bytes
from overlay.hub import HubRepo
from overlay.planning.outputs import AliasFile, GeneratedFile

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from overlay.cache import Cache
    from overlay.hub import Repo
    from overlay.materialization.links import Links
    from overlay.materialization.survey import Step, Work
    from overlay.planning.outputs import Input

__all__ = ["require_room", "require_room_at", "room_for", "room_of_tree"]


def room_for(missing: Iterable[Input], repos: Mapping[str, Repo], cache: Cache) -> int:
    """Bytes that fetching these files takes of the cache root's filesystem."""
    return sum(i.size for i in missing if _same_filesystem(repos[i.repo], cache))


def room_of_tree(steps: Sequence[Step], links: Links) -> int:
    """Bytes of what is copied from the objects into the tree."""
    sizes = {step.output.path: step.size for step in steps}
    room = 0
    for step in steps:
        if isinstance(step.output, AliasFile):
            room += sizes.get(step.output.of, 0) if links.copied_within_tree() else 0
        elif not isinstance(step.output, GeneratedFile) and links.copied_into_tree(step.output.path, step.size):
            room += step.size
    return room


def require_room(work: Work, repos: Mapping[str, Repo], cache: Cache) -> None:
    """Refuse work that does not fit where it goes; what is left of a transfer that was cut has its room already.

    Raises:
        CannotWrite: Less is free than it needs, in the cache root or in the Hub's cache.
    """
    cache.require_room(work.room - arrived(cache.root, {file.digest: file.size for file in work.pulled}))
    _require_room_for_downloads(work, repos, cache)


def _require_room_for_downloads(work: Work, repos: Mapping[str, Repo], cache: Cache) -> None:
    """Refuse a job whose downloads do not fit where the Hub's cache lies, if that is another disk than the root's.

    Raises:
        CannotWrite: Less is free there than is to be downloaded.
    """
    elsewhere = [source for source in work.missing if not _same_filesystem(repos[source.repo], cache)]
    stores = [repo.snapshot for repo in repos.values() if isinstance(repo, HubRepo)]
    if not elsewhere or not stores:
        return
    require_room_at(stores[0], sum(source.size for source in elsewhere))


def require_room_at(store: Path, needed: int) -> None:
    """Refuse downloads that do not fit where the Hub's cache lies.

    Raises:
        CannotWrite: Less than ``needed`` bytes are free there.
    """
    where, free = existing(store), free_room(store)
    if free < needed:
        raise CannotWrite(
            f"{where}: {format_bytes(needed)} to download, {format_bytes(free)} free",
            code="no-room",
            hint="free some room there (hf cache ls), or move the Hub's cache with HF_HOME or HF_HUB_CACHE",
            where=str(where),
            needed=needed,
            free=free,
        )


def _same_filesystem(repo: Repo, cache: Cache) -> bool:
    store = repo.snapshot if isinstance(repo, HubRepo) else cache.root.path
    return existing(store).stat().st_dev == existing(cache.root.path).stat().st_dev
