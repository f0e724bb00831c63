"""What ``overlay prewarm`` does to the Hub's cache beside the build: filled for a server, or emptied of the source."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from overlay.cli._output import style
from overlay.errors import InvalidUsage
from overlay.formats.wording import counted, format_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from overlay.materialization.serving.by_name import Staged
    from overlay.materialization.serving.dropping import Dropped

__all__ = [
    "DroppedSource",
    "StagedSource",
    "dropped_source",
    "dropped_text",
    "one_way",
    "staged_source",
    "staged_text",
]


@dataclass(frozen=True, slots=True)
class StagedSource:
    """What a server that is given the model's name finds in the Hub's cache.

    Attributes:
        files: That it asks for, of the overlay and of the source.
        bytes_staged: Of whole files fetched for it alone; what the build needs too is in ``bytes_downloaded``.
        branches: Files written so that a branch leads to the pinned commit.
    """

    files: int
    bytes_staged: int
    branches: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class DroppedSource:
    """What was taken out of the Hub's cache.

    Attributes:
        commits: ``org/name@commit`` each; none where nothing of the source was there.
        bytes_removed: Of the files that lost their name there.
        bytes_freed: Those of them that the disk got back. The others have another name, as a hardlink in the cache.
    """

    commits: tuple[str, ...]
    bytes_removed: int
    bytes_freed: int


def one_way(*, stage_source: bool, drop_source: bool, only: tuple[str, ...]) -> None:
    """Refuse flags that contradict each other.

    Raises:
        InvalidUsage: ``option-conflict``.
    """
    if stage_source and drop_source:
        raise InvalidUsage(
            "--stage-source fills the Hub's cache with the source, and --drop-source takes it out",
            code="option-conflict",
            hint="stage it to serve by name, drop it to serve by path",
        )
    if (stage_source or drop_source) and only:
        flag = "--stage-source" if stage_source else "--drop-source"
        raise InvalidUsage(
            f"{flag} is for a model that is served, and --only publishes none",
            code="option-conflict",
            hint="leave --only away",
        )


def staged_source(staged: Staged) -> StagedSource:
    """As it is printed."""
    return StagedSource(staged.files, staged.nbytes, staged.branches)


def dropped_source(dropped: Dropped) -> DroppedSource:
    """As it is printed."""
    return DroppedSource(dropped.commits, dropped.removed, dropped.freed)


def staged_text(staged: StagedSource | None, verb: str) -> Iterator[str]:
    """Lines of the text output; ``verb``: what is or will be done to the bytes."""
    if staged is None:
        return
    fetched = f" · {verb} {format_bytes(staged.bytes_staged)}" if staged.bytes_staged else ""
    yield f"  by name: {counted(staged.files, 'file')} in the Hub's cache{fetched}"
    yield from (f"  {style('branch', 'strong')}  {branch}" for branch in staged.branches)


def dropped_text(dropped: DroppedSource | None, verb: str) -> Iterator[str]:
    """Lines of the text output; ``verb``: what is or will be done to the source."""
    if dropped is None:
        return
    if not dropped.commits and not dropped.bytes_removed:
        yield "  source: not in the Hub's cache, nothing to drop"
        return
    names = ", ".join(commit[: commit.index("@") + 13] for commit in dropped.commits)
    names = names or "what a killed run left of the source"
    kept = dropped.bytes_removed - dropped.bytes_freed
    why = (
        f", the other {format_bytes(kept)} stay under another name (links from this cache, other repos)" if kept else ""
    )
    freed = f"{format_bytes(dropped.bytes_freed)} of {format_bytes(dropped.bytes_removed)}"
    yield f"  {verb} {names}: the disk gets {freed}{why}"
