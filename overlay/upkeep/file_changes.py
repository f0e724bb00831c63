"""What became of the files that a model needs, between the commit it is pinned to and the head: by listings alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from overlay.contract.checks.required import requirements
from overlay.errors import OverlayError, TryAgain
from overlay.planning.recipes import make_plan, stand_in_digest
from overlay.planning.renames import Former, find_renames

if TYPE_CHECKING:
    from collections.abc import Mapping
    from collections.abc import Set as AbstractSet

    from overlay.contract.subject import Subject
    from overlay.hub import Repo

__all__ = ["UNCHANGED", "Changes", "changes", "needed_files"]


@dataclass(frozen=True, slots=True)
class Changes:
    """Needed files that are not what they were.

    Attributes:
        added: New, and needed at the head.
        removed: Needed at the pin, and gone.
        renamed: From the old path to the new one.
        changed: Other content under the same name.
    """

    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    renamed: tuple[tuple[str, str], ...] = ()
    changed: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.added or self.removed or self.renamed or self.changed)


UNCHANGED = Changes()


def needed_files(subject: Subject) -> Mapping[str, AbstractSet[str]]:
    """By repo the paths that the model is made of, and that something requires by name, there or not.

    Of an overlay these are all files that count, and of the other repos likewise where only its own Python knows.
    Where no plan can be made, what is required by name is all that is known.

    Raises:
        TryAgain: It cannot be told now.
    """
    inventory = subject.inventory
    repos, overlay = inventory.repos, inventory.overlay
    if not subject.entry.is_buildable:
        return {name: set(repo.paths()) for name, repo in repos.items()}
    needed: dict[str, set[str]] = {name: set() for name in repos}
    if overlay is not None:
        needed[overlay.repo] = set(overlay.paths())
    for one in requirements(subject):
        needed[one.repo.repo].add(one.path)
    try:
        for item in make_plan(inventory, digest=stand_in_digest).inputs():
            needed[item.repo].add(item.path)
    except TryAgain:
        raise
    except OverlayError:  # the contract does not hold there, which is found by its checks
        pass
    return needed


def changes(before: Repo, needed_before: AbstractSet[str], after: Repo, needed_after: AbstractSet[str]) -> Changes:
    """What became of needed files of one repo.

    Raises:
        OverlayError: A small file that helps to find a rename cannot be read.
    """
    old, new = set(before.paths()), set(after.paths())
    gone = (needed_before & old) - new
    # What has always been there is no new name.
    former = {path: Former(before.size(path), repo=before) for path in old}
    renames = {path: rename.found for path, rename in find_renames(after, gone, former).items()}
    return Changes(
        added=tuple(sorted((needed_after & new) - old - set(renames.values()))),
        removed=tuple(sorted(gone - renames.keys())),
        renamed=tuple(sorted(renames.items())),
        changed=tuple(path for path in sorted(needed_before & old & new) if not _same(before, after, path)),
    )


def _same(before: Repo, after: Repo, path: str) -> bool:
    return before.size(path) == after.size(path) and before.digest(path) == after.digest(path)
