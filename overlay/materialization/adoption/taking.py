"""From a compared folder to objects and a tree: nothing is shown at the location but what was read, or was compared.

What the cache holds already is believed by nobody here: once the server's folder is gone, it is all that there is.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

from overlay.fingerprint import file_digest
from overlay.materialization.adoption.stamps import Stamps, written_meanwhile
from overlay.materialization.adoption.survey import in_shared_store
from overlay.materialization.content import content_problems
from overlay.materialization.lookup import remember
from overlay.planning.outputs import CarriedFile

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from overlay.cache import LinkMode
    from overlay.cache.links import How
    from overlay.materialization.adoption.found import FoundFolder
    from overlay.materialization.adoption.survey import AdoptionWork
    from overlay.materialization.build import Linked, Made
    from overlay.materialization.publishing import Sealed
    from overlay.materialization.record import RecordedFile
    from overlay.materialization.survey import Step

__all__ = ["Taking"]


@dataclass(frozen=True, slots=True)
class Taking:
    """Brings the files of a folder into the cache.

    Attributes:
        stamps: Tell whether the files of the folder are those that are compared.
        proven: Digests of objects that hold what their name says.
        taken: By output path: how a file of the folder became an object.
    """

    found: FoundFolder
    stamps: Stamps
    proven: set[str] = field(default_factory=set)
    taken: dict[str, Linked] = field(default_factory=dict)

    def drop_damaged(self, files: Iterable[RecordedFile]) -> bool:
        """Read what the cache has of these files; objects that are not what their name says are dropped, and noted.

        Returns:
            Whether one was dropped.
        """
        cache, folder = self.found.job.cache, self.found.folder
        objects = cache.root.objects
        unread: dict[str, RecordedFile] = {}
        for file in files:
            place = cache.object_path(file.digest)
            # What shares the inode of the server's file is compared with that, and refused with it.
            is_unknown = file.digest not in self.proven and not _is_same(folder / file.path, place)
            if is_unknown and cache.has_object(file.digest, file.size):
                name = place.relative_to(objects).as_posix()
                unread[name] = replace(file, path=name)
        problems = self._problems(objects, list(unread.values()))
        self.proven.update(file.digest for name, file in unread.items() if name not in problems)
        for name, what in problems.items():
            cache.drop_object(unread[name].digest)
            cache.notes.append(f"{objects / name}: {what}; dropped. Trees may share it: overlay cache repair")
        return bool(problems)

    def take(self, adoption: AdoptionWork, made: Made) -> None:
        """Bring every file of the folder into the objects, and let it be found by its keys.

        Raises:
            TryAgain: A file was changed since it was compared.
        """
        steps = [step for step in adoption.work.steps if adoption.in_folder(step)]
        self.drop_damaged(made.files[step.output.path] for step in steps)  # an object may be there under no known key
        for step in steps:
            self._take(step, adoption, made.files[step.output.path])
        self.found.require_unchanged()

    def is_sound(self, sealed: Sealed, tree: Path) -> bool:
        """Whether a tree that is there already may be shown: every file of it is a proven object, or is read."""
        if not sealed.is_sound(tree):
            return False
        objects = {file.path: self.found.job.cache.object_path(file.digest) for file in sealed.files}
        unread = [file for file in sealed.files if not _is_same(tree / file.path, objects[file.path])]
        problems = self._problems(tree, unread)
        if problems:
            note = f"{tree}: was damaged, and is replaced: {next(iter(problems.values()))}"
            if note not in self.found.job.cache.notes:
                self.found.job.cache.notes.append(note)
        return not problems

    def settle(self, made: Made) -> None:
        """Before the tree is shown: from here on, no link of ours moves the times of the files that it shares.

        Raises:
            TryAgain: Somebody wrote into one.
        """
        for path, place in self._shared(made).items():
            self.stamps.renew(path, place)

    def require_unwritten(self, made: Made) -> None:
        """When the tree is shown: what it shares with the folder, wherever that is now, must be what was compared.

        Raises:
            TryAgain: Somebody wrote into a file.
        """
        for path, place in self._shared(made).items():
            self.stamps.require_unwritten(path, place, made.files[path])

    def forget_changed(self, adoption: AdoptionWork, made: Made, tree: Path | None) -> None:
        """After a failure: leave nothing that shares its bytes with a file that somebody wrote into.

        Args:
            tree: That was to be published.
        """
        cache, shared = self.found.job.cache, self._shared(made)
        for step in adoption.work.steps:
            path = step.output.path
            if path not in shared or not self.stamps.is_written(path, shared[path]):
                continue
            if tree is not None and _is_same(tree / path, shared[path]):
                cache.move_aside(tree.name)
            cache.drop_object(made.files[path].digest)
            for key in filter(None, (step.found.action, step.found.factor_action)):
                cache.drop_action(key, "its file was changed while it was taken")

    def _shared(self, made: Made) -> dict[str, Path]:
        """The objects that have the inode of a file of the folder, by its path, whoever linked them."""
        places = {path: self.found.job.cache.object_path(file.digest) for path, file in made.files.items()}
        return {path: place for path, place in places.items() if self.stamps.shares(path, place)}

    def _take(self, step: Step, adoption: AdoptionWork, file: RecordedFile) -> None:
        cache, path, how = self.found.job.cache, self.found.folder / step.output.path, adoption.ways[step.output.path]
        shared = in_shared_store(path, step, self.found.job)
        mode: LinkMode = "copy" if how == "present" else how  # should the object be gone by now, which nobody expects
        if how == "hardlink" or self.stamps.shares(file.path, cache.object_path(file.digest)):
            self.stamps.require_unwritten(file.path, path, file)
        check = partial(_require_copied, path, file)
        self.taken[file.path] = cache.link_object(path, file.digest, mode, shared_store=shared, check=check).how
        if self.taken[file.path] == "hardlink":
            self.stamps.renew(file.path, path)
        self.proven.add(file.digest)
        if isinstance(step.output, CarriedFile):
            if step.found.action:
                cache.put_action(step.found.action, {"digest": file.digest, "size": file.size})
        elif step.found.entry is not file or how != "present":
            remember(cache, step.output, step.found, file)

    def _problems(self, folder: Path, files: list[RecordedFile]) -> dict[str, str]:
        job = self.found.job
        with job.phase("verify", sum(file.size for file in files)) as update:
            problems = content_problems(folder, files, job.memo, update, jobs=job.options.jobs, only_sha256=False)
        return {problem.path: problem.what for problem in problems}


def _require_copied(source: Path, file: RecordedFile, copy: Path, how: How) -> None:
    """Refuse a copy that is not what was compared; a hardlink is told by its stamp."""
    if how != "hardlink" and file_digest(copy, file.algorithm) != file.digest:
        raise written_meanwhile(source)


def _is_same(path: Path, other: Path) -> bool:
    try:
        return path.samefile(other)
    except OSError:
        return False
