"""The folder that is adopted as it was first seen, and whether it is that still."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from overlay.errors import OverlayError, TryAgain
from overlay.formats.wording import counted, some
from overlay.materialization.adoption.survey import AdoptionWork, survey_adoption
from overlay.materialization.adoption.target import entries_in
from overlay.materialization.inputs import file_identity
from overlay.materialization.locking.in_force import why_not_comparable

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from overlay.cache.tensors import TensorDigests
    from overlay.materialization.job import Job
    from overlay.materialization.locking.in_force import LockInForce
    from overlay.planning.outputs import Input
    from overlay.planning.plan import Plan
    from overlay.registry.lock import Expected

__all__ = ["FoundFolder"]


@dataclass(frozen=True, slots=True)
class FoundFolder:
    """A folder whose marker and names are those of the plan.

    Attributes:
        absent: Outputs that no server makes and that are not in the folder.
        left_out: Hidden files in the folder that the overlay's mappings take of the source and no tree of ours holds.
        entries: Everything in it, and what tells that it is still the same (``entries_in``).
        seen: What tells that each file is, and of each link what it leads to.
        status: Stat of the folder itself.
    """

    job: Job
    in_force: LockInForce | None
    plan: Plan
    folder: Path
    absent: frozenset[str]
    left_out: Mapping[str, Input]
    entries: Mapping[str, tuple[int, ...]]
    seen: Mapping[str, tuple[int, ...]]
    status: os.stat_result

    @property
    def expected(self) -> Expected | None:
        """What the lock in force expects of a build by this rule and program."""
        expected = self.in_force.locked.expected if self.in_force else None
        return None if expected is None or why_not_comparable(expected, self.job.options.rule) else expected

    @property
    def is_at_location(self) -> bool:
        """Whether the folder is where servers look, so that our link takes its place."""
        location = self.job.cache.location_path(self.plan.location)
        return not location.is_symlink() and location.is_dir() and os.path.samestat(location.stat(), self.status)

    def survey(self, tensors: TensorDigests) -> AdoptionWork:
        """What is to be done."""
        found = survey_adoption(self.folder, self.plan, self.absent, self.job, self.expected, tensors)
        if not self.left_out:
            return found
        what = f"{counted(len(self.left_out), 'hidden file')} of the source ({some(self.left_out)})"
        note = f"{what}: the overlay maps them, no server reads them; left out of the tree"
        return replace(found, work=replace(found.work, notes=(*found.work.notes, note)))

    def changed(self, place: Path) -> str:
        """What came, went or was written since the first look, by its path; empty where nothing was.

        Args:
            place: Where the folder is now.
        """
        try:
            found = entries_in(place)
        except OverlayError as error:
            return str(error.data.get("where", "."))
        return next((path for path in sorted({*found, *self.entries}) if found.get(path) != self.entries.get(path)), "")

    def is_file_changed(self, path: str) -> bool:
        """Whether a file is not the one that was seen first."""
        try:
            return file_identity(self.folder / path) != self.seen[path]
        except OverlayError:
            return True

    def require_unchanged(self) -> None:
        """Refuse to go on with a folder that is not the one that was compared.

        Raises:
            TryAgain: Somebody wrote into it, or another one is in its place.
        """
        if self.folder.is_dir() and not os.path.samestat(self.folder.stat(), self.status):
            raise TryAgain(
                f"{self.folder}: another folder than at first: a server built it anew while this ran",
                code="location-changed",
                hint="run the same command again",
                path=str(self.folder),
            )
        what = self.changed(self.folder) or next(filter(self.is_file_changed, self.seen), "")
        if what:
            raise TryAgain(
                f"{self.folder / what}: not as at first: it was changed while this ran",
                code="input-changed",
                hint="let whatever writes it finish, then run the same command again",
                path=str(self.folder / what),
            )
