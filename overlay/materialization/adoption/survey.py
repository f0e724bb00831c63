"""What adopting a folder will cost: how each file is compared, how it becomes an object, the bytes of both."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from overlay.cache import is_small
from overlay.cache.outlook import link_outlook, sample_of
from overlay.errors import CannotWrite
from overlay.formats.wording import counted
from overlay.materialization.adoption.compare import input_here, is_computed, known_by_lock
from overlay.materialization.links import Links
from overlay.materialization.resolve import prewarm_words
from overlay.materialization.room import room_for
from overlay.materialization.survey import (
    Counters,
    Work,
    downloading_counters,
    learning_counters,
    survey,
)
from overlay.planning.outputs import AliasFile, CarriedFile, GeneratedFile, SafetensorsFile
from overlay.planning.plan import inputs_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from overlay.cache.tensors import TensorDigests
    from overlay.materialization.build import Linked
    from overlay.materialization.job import Job
    from overlay.materialization.record import RecordedFile
    from overlay.materialization.survey import Step
    from overlay.planning.outputs import Input
    from overlay.planning.plan import Plan
    from overlay.registry.lock import Expected

__all__ = ["AdoptionWork", "in_shared_store", "survey_adoption"]


_PER_FILE, _PER_TENSOR = 8 * 4096, 1024
"""Bytes that are written beside a file: folders, two action entries, what the memo knows of it, its part of the record,
and the rest of a block for each. Entries and record name its tensors."""


@dataclass(frozen=True, slots=True)
class AdoptionWork:
    """A plan held against a server's folder and the cache.

    Attributes:
        folder: The server's.
        work: The steps say how files are compared: ``build``: computed again; ``present``: by a digest that cache or
            lock know; others by that of the input. Counters and room are those of the adoption.
        ways: By output path, how a file of the folder becomes an object; ``present``: the cache has it.
        absent: Outputs that no server makes and that are not in the folder; they are made as in a build.
    """

    folder: Path
    work: Work
    ways: Mapping[str, Linked]
    absent: frozenset[str]

    def in_folder(self, step: Step) -> bool:
        """Whether it is a file of the folder that becomes an object."""
        return not isinstance(step.output, AliasFile | GeneratedFile) and step.output.path not in self.absent

    def known(self) -> list[RecordedFile]:
        """Outputs that the cache, or the lock in force, knows before they are compared."""
        steps = [step for step in self.work.steps if not isinstance(step.output, AliasFile | GeneratedFile)]
        return [step.found.entry for step in steps if step.found.entry is not None]


def survey_adoption(
    folder: Path, plan: Plan, absent: frozenset[str], job: Job, expected: Expected | None, tensors: TensorDigests
) -> AdoptionWork:
    """Hold a plan against a folder and the cache. Reads headers and metadata only, writes nothing that stays.

    Args:
        folder: It has all outputs but ``absent``.
        expected: What the lock in force expects.
        tensors: Digests of the adapters' tensors, as far as they are known.

    Raises:
        CannotWrite: The folder's files cannot be linked into the cache.
    """
    repos, cache = job.inventory.repos, job.cache
    # How files would come from their repos is asked of nobody: they come from the folder.
    found = survey(plan, repos, cache, "copy", tensors, publishes=False)
    work = replace(found, steps=known_by_lock(found.steps, expected), counters=Counters(), notes=())
    empty = AdoptionWork(folder, work, {}, absent)
    links = Links(cache.root, job.options.link, repos.values())
    taken = [step for step in work.steps if empty.in_folder(step)]
    ways = {step.output.path: _way(folder, step, job, links) for step in taken}
    links.require_possible()
    _require_hardlinks(folder, ways, job)
    computed = [step for step in taken if is_computed(step)]
    missing = _missing([*computed, *(step for step in work.steps if step.output.path in absent)], job)
    unlearned = tuple(dict.fromkeys(source for step in computed for source in step.found.unlearned))
    counters = Counters(
        read=sum(_bytes_compared(folder, step, job) for step in taken),
        written=_payload(taken, ways, "copy"),
        linked=_payload(taken, ways, "hardlink", "reflink"),
    )
    counters += learning_counters(unlearned, repos) + downloading_counters(missing, repos)
    copied = sum(step.size for step in taken if ways[step.output.path] == "copy")
    in_tree = sum(step.size for step in work.steps if is_small(step.output.path, step.size))
    told = sum(_PER_FILE + _PER_TENSOR * _tensors_of(step) for step in work.steps)
    work = replace(
        work,
        counters=counters,
        missing=missing,
        unlearned=unlearned,
        room=copied + in_tree + told + room_for(missing, repos, cache),
        notes=_notes(folder, ways, cache.location_path(plan.location)),
    )
    return AdoptionWork(folder, work, ways, absent)


def _way(folder: Path, step: Step, job: Job, links: Links) -> Linked:
    """How a file becomes an object: a large one as a further name of itself, unless it is a link to somewhere else."""
    entry, path = step.found.entry, folder / step.output.path
    if entry is not None and job.cache.has_object(entry.digest, entry.size):
        return "present"
    if path.is_symlink():
        return links.of_file(path.resolve(), step.size, shared_store=in_shared_store(path, step, job)).how
    return "copy" if is_small(step.output.path, step.size) else "hardlink"


def in_shared_store(place: Path, step: Step, job: Job) -> bool:
    """Whether a file of the folder is a link to an input in the Hub's cache, which nobody edits in place."""
    if not isinstance(step.output, CarriedFile):
        return False
    repo = job.inventory.repos[step.output.input.repo]
    here = input_here(repo, step.output.input.path)
    return here is not None and repo.shared_store and here.samefile(place)


def _bytes_compared(folder: Path, step: Step, job: Job) -> int:
    """Payload that is read to compare a file, of its inputs too where it is computed again."""
    if isinstance(step.output, CarriedFile) and step.how != "present":
        source = step.output.input
        here = input_here(job.inventory.repos[source.repo], source.path)
        if here is not None and here.samefile(folder / step.output.path) and job.memo.knows(here):
            return 0  # the very file of the Hub's cache, whose digest was taken before
        return step.payload
    entry = step.found.entry
    is_object = entry is not None and job.cache.has_object(entry.digest, entry.size)
    if entry is not None and is_object and not job.cache.object_path(entry.digest).samefile(folder / step.output.path):
        return 2 * step.payload  # the object is read as well
    return step.payload + (step.bytes_read if is_computed(step) else 0)


def _payload(steps: Iterable[Step], ways: Mapping[str, Linked], *of: Linked) -> int:
    return sum(step.payload for step in steps if ways[step.output.path] in of)


def _tensors_of(step: Step) -> int:
    output, entry = step.output, step.found.entry
    if isinstance(output, SafetensorsFile):
        return len(output.tensors)
    return len(entry.tensors or ()) if entry is not None else 0


def _missing(steps: Iterable[Step], job: Job) -> tuple[Input, ...]:
    wanted = dict.fromkeys(source for step in steps for source in inputs_of(step.output))
    return tuple(source for source in wanted if input_here(job.inventory.repos[source.repo], source.path) is None)


def _require_hardlinks(folder: Path, ways: Mapping[str, Linked], job: Job) -> None:
    """Try with the smallest file beside each folder's first: whether the kernel links from there to the cache."""
    places = {(folder / path).parent: folder / path for path, how in ways.items() if how == "hardlink"}
    resolution = job.inventory.resolution
    command = shlex.join(["overlay", *prewarm_words(resolution.model, resolution, job.options)])
    for place in places.values():
        outlook = link_outlook(job.cache.root, sample_of(place)[0], ("hardlink",))
        if outlook.how is None and outlook.tried:
            raise CannotWrite(
                f"{place}: cannot be linked into {job.cache.root.path}: {outlook.why}; adopting writes no weights anew",
                code="link-impossible",
                hint="name a --cache-root on the filesystem of the folder, and adopt as its owner; or move the folder "
                f"away, then build the model: {command}",
                where=str(job.cache.root.path),
                path=str(place),
            )


def _notes(folder: Path, ways: Mapping[str, Linked], location: Path) -> tuple[str, ...]:
    notes = []
    if known := [path for path, how in ways.items() if how == "present"]:
        notes.append(f"{counted(len(known), 'file')} in the cache already: their objects are kept")
    links = [path for path in ways if (folder / path).is_symlink()]
    if links:
        notes.append(f"{counted(len(links), 'file')} of the folder led elsewhere: taken as a build takes them")
    if folder != location:
        notes.append(f"{folder} stays as it is, and shares its weights with the cache: do not edit them in place")
    return tuple(notes)
