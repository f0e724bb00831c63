"""The output held against what the lock expects; what differs is built once more, by the ordered kernel.

A file that is not as expected may come of an arithmetic that does not follow the rule on this machine, or of an object
that a run like that left in the cache. The ordered kernel is right wherever there is IEEE arithmetic, so its bytes tell
these cases from a lock that is of something else.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from overlay.formats.materialized import MARKER_NAME
from overlay.formats.wording import counted
from overlay.materialization.build import start_engine
from overlay.materialization.room import require_room, room_for
from overlay.materialization.survey import (
    counters_of,
    downloading_counters,
)
from overlay.planning.outputs import AliasFile, SafetensorsFile, ScriptedFile
from overlay.planning.plan import inputs_of

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from overlay.cache import Cache
    from overlay.fusion.engine import Engine
    from overlay.materialization.build import Made
    from overlay.materialization.job import Job
    from overlay.materialization.record import RecordedFile
    from overlay.materialization.survey import Work
    from overlay.registry.lock import Expected, ExpectedFile

__all__ = ["Deviation", "Rebuilt", "build_again", "deviations", "drop_deviating"]


@dataclass(frozen=True, slots=True)
class Deviation:
    """An output file that is not as expected.

    Attributes:
        found: Its digest; None where it was not made.
        expected: Digest that was expected; None where the lock does not know the file.
        tensors: Names of the tensors that differ, where both sides know their tensors.
    """

    path: str
    found: str | None
    expected: str | None
    tensors: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """For records and errors."""
        return {"path": self.path, "found": self.found, "expected": self.expected, "tensors": list(self.tensors)}


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """What was built a second time.

    Attributes:
        files: As they were at first.
        engine: Of the second time; None where nothing in them is fused.
    """

    files: tuple[Deviation, ...]
    engine: Engine | None

    def notes(self) -> tuple[str, ...]:
        """What a user should know of it."""
        what = f"{counted(len(self.files), 'file')} as the lock expects only when built again by the ordered kernel"
        return (f"{what}: {', '.join(item.path for item in self.files)}; this machine's arithmetic or cache erred",)

    def to_json(self) -> dict[str, Any]:
        """For the record's ``run``."""
        return {
            "files": [item.to_json() for item in self.files],
            "engine": self.engine.describe() if self.engine else None,
        }


def deviations(
    expected: Expected, made: Mapping[str, RecordedFile], *, whole: bool, but: Collection[str] = ()
) -> tuple[Deviation, ...]:
    """Which files are not as expected, in the order of paths.

    SGLang's marker does not count: it holds what a server is told of the model, each server another, and none reads it.

    Args:
        made: By output path.
        whole: Whether these are all files of the model, so that none may be missing.
        but: Paths that do not count.
    """
    found = [
        deviation
        for path, file in made.items()
        if (deviation := _deviation(file, expected.files.get(path))) is not None
    ]
    if whole:
        found += [Deviation(path, None, expected.files[path].digest) for path in expected.files.keys() - made.keys()]
    but = {MARKER_NAME, *but}
    return tuple(sorted((item for item in found if item.path not in but), key=lambda item: item.path))


def _deviation(file: RecordedFile, expected: ExpectedFile | None) -> Deviation | None:
    if expected is None:
        return Deviation(file.path, file.digest, None)
    of_tensors = {item.name: item.digest for item in file.tensors or () if item.digest is not None}
    tensors: tuple[str, ...] = ()
    if of_tensors and expected.tensors is not None:
        names = sorted(of_tensors.keys() | expected.tensors.keys())
        tensors = tuple(name for name in names if of_tensors.get(name) != expected.tensors.get(name))
    # A file that was written has no sha256 until somebody verifies it at that level.
    wanted = f"sha256:{expected.sha256}" if file.algorithm == "sha256" else expected.digest
    same = file.size == expected.size and file.digest == wanted
    return None if same and not tensors else Deviation(file.path, file.digest, expected.digest, tensors)


def build_again(job: Job, work: Work, made: Made, deviating: Sequence[Deviation]) -> tuple[Work, Made, Rebuilt | None]:
    """Build deviating files anew, whatever the cache holds of them, by the ordered kernel alone.

    What the cache held is forgotten first. Files that are not written here cannot be built anew.

    Returns:
        The work and what was made, as they are now; and what was rebuilt, None where nothing could be.

    Raises:
        OverlayError: As ``materialize``.
    """
    paths = {item.path for item in deviating}
    again = {
        step.output.path: replace(step, how="build", found=replace(step.found, entry=None, why=""))
        for step in work.steps
        if isinstance(step.output, SafetensorsFile) and step.output.path in paths
    }
    if not again:
        return work, made, None
    repos = job.inventory.repos
    distinct = dict.fromkeys(source for step in again.values() for source in inputs_of(step.output))
    missing = tuple(source for source in distinct if repos[source.repo].local(source.path) is None)
    second_names = [step for step in work.steps if isinstance(step.output, AliasFile) and step.output.of in again]
    second = replace(
        work,
        steps=(*again.values(), *second_names),
        missing=missing,
        counters=counters_of(again.values()) + downloading_counters(missing, repos),
        room=sum(step.size for step in again.values()) + room_for(missing, repos, job.cache),
    )
    drop_deviating(job.cache, work, deviating)
    require_room(second, repos, job.cache)
    engine = start_engine(second.steps, job.options.device, ordered=True)
    anew = job.make(second, engine, "rebuild")
    made = replace(made, files=made.files | anew.files, built=made.built | anew.built)
    steps = tuple(again.get(step.output.path, step) for step in work.steps)
    rebuilt = Rebuilt(tuple(item for item in deviating if item.path in again), engine)
    return replace(work, steps=steps, counters=work.counters + second.counters), made, rebuilt


def drop_deviating(cache: Cache, work: Work, deviating: Sequence[Deviation]) -> None:
    """Forget the objects of deviating files that were written here, and with them every entry that leads to them.

    Those of a script are among them: the next run calls it again.

    Raises:
        CannotWrite: The filesystem refused.
    """
    written = {step.output.path for step in work.steps if isinstance(step.output, SafetensorsFile | ScriptedFile)}
    for item in deviating:
        if item.found is not None and item.path in written:
            cache.drop_object(item.found)
