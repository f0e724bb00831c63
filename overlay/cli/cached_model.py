"""A materialization in the cache, as ``overlay cache`` prints it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Self

from overlay.formats.wording import format_bytes, iso_time

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

    from overlay.cache.generations import Standing
    from overlay.cache.kept import KeptFolder
    from overlay.cache.leases import Lease
    from overlay.cache.listing import TreeInfo
    from overlay.cache.pins import Pin

__all__ = ["CachedModel", "HeldLease", "TreePin", "kept_rows"]


def kept_rows(kept: Iterable[KeptFolder]) -> Iterator[str]:
    """Folders that an adoption kept, as text: where, why, and what to do."""
    for folder in kept:
        yield f"  kept  {folder.path}  {format_bytes(folder.size)}; removing it frees {format_bytes(folder.frees)}"
        yield f"        {folder.why}"
        yield f"        look into it, then: {folder.remove}"


@dataclass(frozen=True, slots=True)
class HeldLease:
    """One reader of a tree.

    Attributes:
        holder: Process and host; null where that cannot be read.
        since: ISO 8601; null likewise.
        until: End of a timed lease, ISO 8601; null for one that ends with its process.
        file: What holds it in the cache.
    """

    holder: str | None
    since: str | None
    until: str | None
    file: str

    @classmethod
    def of(cls, lease: Lease) -> Self:
        """A lease as it is printed."""
        owner = lease.owner
        return cls(
            f"pid {owner.pid} on {owner.host}" if owner else None,
            iso_time(owner.since) if owner else None,
            iso_time(lease.until) if lease.until is not None else None,
            str(lease.file),
        )


@dataclass(frozen=True, slots=True)
class TreePin:
    """A pin of a tree.

    Attributes:
        by: User and host; empty where that cannot be read.
        since: ISO 8601.
        reason: As the user gave it; may be empty.
    """

    by: str
    since: str
    reason: str

    @classmethod
    def of(cls, pin: Pin) -> Self:
        """A pin as it is printed."""
        return cls(pin.by, iso_time(pin.since), pin.reason)


@dataclass(frozen=True, slots=True)
class CachedModel:
    """One materialization in the cache.

    Attributes:
        model: What its record says it is; null where the record cannot be read.
        tree: Name of its tree.
        path: Its directory.
        locations: Names of the locations that lead to it; none for a superseded generation.
        size: Bytes of its files, each inode once.
        created: When it was published, ISO 8601.
        last_used: Last use as far as leases and the filesystem tell, ISO 8601.
        leases: Who reads it; what is leased is not collected.
        pin: Who wants it kept; null where nobody does.
        in_quarantine: It was not published, because its output is not what the lock expects.
        generation: What it is to its model: ``current``: the one that was published last, or that a user rolled back
            to. ``previous``: what a rollback goes to from there. ``rolled-back``: what was published later than the
            current one. Null where that is not known.
    """

    model: str | None
    tree: str
    path: str
    locations: tuple[str, ...]
    size: int
    created: str
    last_used: str
    leases: tuple[HeldLease, ...]
    pin: TreePin | None
    in_quarantine: bool
    generation: Literal["current", "previous", "older", "rolled-back"] | None

    @classmethod
    def of(cls, tree: TreeInfo, standings: Mapping[Path, Standing]) -> Self:
        """A tree as it is printed."""
        return cls(
            tree.model,
            tree.name,
            str(tree.path),
            tree.locations,
            tree.size,
            iso_time(tree.created),
            iso_time(tree.last_used),
            tuple(map(HeldLease.of, tree.leases)),
            TreePin.of(tree.pin) if tree.pin else None,
            tree.in_quarantine,
            standings.get(tree.path),
        )
