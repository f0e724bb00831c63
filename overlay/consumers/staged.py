"""What a server that is given a name asks the Hub's cache for, and what of it is not there.

Staging fills it, a check reports it and a start warns of it, all by what is here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from overlay.consumers.sglang.fingerprint import extra_files
from overlay.errors import NotHere
from overlay.formats.overlay_repo import is_metadata
from overlay.formats.wording import some
from overlay.hub.serving import Branch, not_in_snapshot, require_listing
from overlay.registry import COMMIT

if TYPE_CHECKING:
    from overlay.consumers.sglang.asked import Asked
    from overlay.hub import HubRepo

__all__ = ["Part", "extra_in_snapshot", "overlay_part", "source_part"]


@dataclass(frozen=True, slots=True)
class Part:
    """One repo: the files that are asked for, and the branch that must lead to its commit, where one is asked for.

    Attributes:
        asked: The revision as the server names it.
    """

    repo: HubRepo
    paths: tuple[str, ...]
    asked: str

    @property
    def branch(self) -> Branch | None:
        """The branch that is asked for; None where a commit is."""
        return None if COMMIT.fullmatch(self.asked) else Branch(self.repo.repo, self.asked)

    @property
    def is_complete(self) -> bool:
        """Whether a server finds all of it."""
        return not self.lacks() and (self.branch is None or self.branch.commit() == self.repo.revision)

    def lacks(self) -> str:
        """What a server would ask the Hub for, in words; empty where there is nothing.

        Of a branch, only that it leads somewhere is looked at.
        """
        try:
            require_listing(self.repo)
            missing = not_in_snapshot(self.repo, self.paths)
        except NotHere as error:  # there is no listing, or a file has another size
            return error.message
        if missing:
            return f"{len(missing)} of the {len(self.paths)} files of {self.repo.name} are not there: {some(missing)}"
        branch = self.branch
        return f"{branch.file} is not there" if branch and branch.commit() is None else ""


def overlay_part(overlay: HubRepo, asked: Asked) -> Part:
    """What is asked of the overlay: the files that a server fetches."""
    return Part(overlay, _fetched(overlay), asked.overlay)


def extra_in_snapshot(overlay: HubRepo) -> tuple[str, ...]:
    """What lies in the overlay's snapshot beside what a server fetches, and has it look for another directory."""
    return extra_files(overlay.in_snapshot(), _fetched(overlay))


def _fetched(overlay: HubRepo) -> tuple[str, ...]:
    return tuple(path for path in overlay.paths() if is_metadata(path))


def source_part(source: HubRepo, asked: Asked) -> Part:
    """What is asked of the source."""
    return Part(source, tuple(path for path in source.paths() if asked.wants(path)), asked.source)
