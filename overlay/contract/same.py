"""Proving that parts of a repo are equal at two revisions, by the digests of the Hub's listings alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from overlay.contract.reading import is_below

if TYPE_CHECKING:
    from collections.abc import Sequence

    from overlay.hub import Repo

__all__ = ["SamePath", "compare_paths"]


@dataclass(frozen=True, slots=True)
class SamePath:
    """A file or folder at two revisions.

    Attributes:
        path: As it was asked for; empty for the whole repo.
        result: ``equal``: the same files with the same content. ``differs``: some are not. ``absent``: one of the
            revisions, or both, have nothing there.
        files: How many there are, at either revision.
        size: Their bytes at the first one.
        differing: Files that only one revision has, or that have another content.
        absent_at: Revisions that have nothing there.
    """

    path: str
    result: Literal["equal", "differs", "absent"]
    files: int
    size: int
    differing: tuple[str, ...]
    absent_at: tuple[str, ...]


def compare_paths(one: Repo, other: Repo, paths: Sequence[str]) -> tuple[SamePath, ...]:
    """Compare files and folders of two revisions of a repo; no content is fetched.

    Args:
        paths: POSIX paths; the whole repo where there is none.
    """
    return tuple(_compare(one, other, path) for path in (paths or ("",)))


def _compare(one: Repo, other: Repo, path: str) -> SamePath:
    folder = path.strip("/")
    inside = [{name for name in repo.paths() if is_below(name, folder)} for repo in (one, other)]
    absent = tuple(repo.revision for repo, found in zip((one, other), inside, strict=True) if not found)
    both, either = inside[0] & inside[1], inside[0] | inside[1]
    differing = tuple(sorted(name for name in either if name not in both or one.digest(name) != other.digest(name)))
    result: Literal["equal", "differs", "absent"] = "absent" if absent else "differs" if differing else "equal"
    return SamePath(path, result, len(either), sum(one.size(name) for name in inside[0]), differing, absent)
