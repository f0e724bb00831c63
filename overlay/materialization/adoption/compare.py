"""Every file of a server's folder held against what the inputs give. Nothing is written.

What the cache or the lock in force knows of an output is compared by digest, and so are files that were carried over;
what a build would write is computed again, block by block, and compared with the bytes that are there.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from overlay.errors import BrokenInput, NotHere
from overlay.fingerprint import bytes_digest, file_digests, git_blob_digest, part_digest
from overlay.formats.header import read_header
from overlay.formats.layout import canonical_layout
from overlay.formats.local import read_small_file
from overlay.formats.materialized import MARKER_NAME
from overlay.fusion.compared import ComparedFile, file_differs
from overlay.materialization.build import Builder, Carried, Made, start_engine
from overlay.materialization.content import content_problems
from overlay.materialization.inputs import Checks, fetch
from overlay.materialization.record import RecordedFile, RecordedTensor
from overlay.planning.outputs import AliasFile, GeneratedFile, SafetensorsFile

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from overlay.fingerprint import DigestMemo
    from overlay.fusion.build import BuiltFile
    from overlay.fusion.engine import Engine
    from overlay.hub import Repo
    from overlay.materialization.build import Write
    from overlay.materialization.job import Job
    from overlay.materialization.request import Phase
    from overlay.materialization.survey import Step, Work
    from overlay.planning.outputs import Input
    from overlay.planning.plan import Plan
    from overlay.registry.lock import Expected

__all__ = [
    "compare_computed",
    "compare_known",
    "compare_left_out",
    "compare_small",
    "input_here",
    "is_computed",
    "known_by_lock",
]

_BY_LOCK = "as the lock expects"


def known_by_lock(steps: Sequence[Step], expected: Expected | None) -> tuple[Step, ...]:
    """The steps, with what the lock expects of files that the cache has not got: these need not be computed."""
    if expected is None:
        return tuple(steps)
    return tuple(_as_expected(step, expected) if is_computed(step) else step for step in steps)


def _as_expected(step: Step, expected: Expected) -> Step:
    file = expected.files.get(step.output.path)
    if file is None or file.size != step.size or file.tensors is None or not isinstance(step.output, SafetensorsFile):
        return step
    layout = canonical_layout(((t.name, t.dtype, t.shape) for t in step.output.tensors), step.output.metadata)
    if {info.name for info in layout.tensors} != file.tensors.keys():
        return step
    tensors = tuple(
        RecordedTensor(info.name, info.dtype, info.shape, file.tensors[info.name]) for info in layout.tensors
    )
    entry = RecordedFile(step.output.path, file.digest, file.size, tensors)
    return replace(step, how="present", found=replace(step.found, entry=entry, why=_BY_LOCK))


def is_computed(step: Step) -> bool:
    """Whether a file has to be computed again to be compared."""
    return isinstance(step.output, SafetensorsFile) and step.moves_bytes


def compare_small(folder: Path, plan: Plan) -> None:
    """Compare files whose bytes the plan holds; the marker tells more of the server's host, and is checked by itself.

    Raises:
        CheckFailed: One differs.
    """
    for output in plan.outputs:
        if isinstance(output, GeneratedFile) and output.path != MARKER_NAME:
            path = folder / output.path
            if path.stat().st_size != len(output.data) or read_small_file(path) != output.data:
                raise file_differs(path, f"not the {len(output.data)} bytes that the inputs give")


def compare_left_out(folder: Path, left_out: Mapping[str, Input], job: Job) -> None:
    """Compare hidden files that the overlay maps, which are in no tree, so that none goes that is somebody's own.

    Raises:
        CheckFailed: One is not that of the source.
    """
    for path, source in left_out.items():
        _compare_carried(folder / path, source, job.inventory.repos[source.repo], job.memo)


def compare_known(
    folder: Path, work: Work, expected: Expected | None, memo: DigestMemo, jobs: int | None, phase: Phase
) -> None:
    """Compare files of known digests, and second names, by digest.

    What only the lock knows is compared by sha256, since the bytes become objects that others trust.

    Args:
        expected: By the lock.

    Raises:
        CheckFailed: Some differ; the first file is named with its tensors.
    """
    by_cache: list[RecordedFile] = []
    by_lock: list[RecordedFile] = []
    for step in work.steps:
        file = step.found.entry
        if step.how != "present" or file is None or not (folder / file.path).is_file():
            continue
        if expected is not None and step.found.why == _BY_LOCK:
            by_lock.append(replace(file, digest=f"sha256:{expected.files[file.path].sha256}"))
        else:
            by_cache.append(file)
    with phase("compare", sum(file.size for file in (*by_cache, *by_lock))) as update:
        read = partial(content_problems, folder, memo=memo, update=update, jobs=jobs)
        problems = [*read(by_cache, only_sha256=False), *read(by_lock, only_sha256=True)]
    for problem in problems:
        raise file_differs(folder / problem.path, problem.what, list(problem.tensors))


def compare_computed(folder: Path, job: Job, work: Work) -> tuple[Made, Engine | None]:
    """Compute what a build would write and compare it; compare what it would carry over, by digest.

    Inputs that are missing and needed for that are fetched first.

    Returns:
        What all files were found to be, and what computed them.

    Raises:
        CheckFailed: A file differs; it is named, and so are its tensors where they are known.
        OverlayError: As ``materialize``.
    """
    repos, options = job.inventory.repos, job.options
    there = tuple(step for step in work.steps if (folder / step.output.path).is_file())
    computed = replace(work, steps=tuple(step for step in there if is_computed(step)))
    engine = start_engine(computed.steps, options.device)
    inputs = fetch(computed, repos, job.phase)
    with Checks(computed, inputs, repos, job.memo) as checks:
        sink = _ComparingSink(folder, repos, checks, job.memo)
        builder = Builder(inputs.path, sink, engine, options.rule, options.jobs, options.memory)
        made = builder.run(there, "compare", job.phase)
    _compare_second_names(folder, there)
    return made, engine


def input_here(repo: Repo, path: str) -> Path | None:
    """Where an input lies on this host; None also where what lies there is not the commit's file."""
    with suppress(NotHere):
        return repo.local(path)
    return None


@dataclass(frozen=True, slots=True)
class _ComparingSink:
    """In the place of one that takes files: compares them with those that are there."""

    folder: Path
    repos: Mapping[str, Repo]
    checks: Checks
    memo: DigestMemo

    def build(self, step: Step, write: Write) -> BuiltFile:
        """See :class:`Sink`."""
        built = write(self.folder / step.output.path, ComparedFile)
        self.checks.wait(step)
        return built

    def carry(self, step: Step, source: Input) -> Carried:
        """See :class:`Sink`."""
        place = self.folder / step.output.path
        return Carried("hardlink", _compare_carried(place, source, self.repos[source.repo], self.memo), place)

    def is_last_reader(self, source: Input) -> bool:
        """See :class:`Sink`."""
        return self.checks.is_done(source)


def _compare_carried(place: Path, source: Input, repo: Repo, memo: DigestMemo) -> str:
    """Hold a file against the digest of the input that it is; gives its sha256."""
    here = input_here(repo, source.path)
    if place.stat().st_size != source.size:
        raise file_differs(place, f"{place.stat().st_size} bytes, expected {source.size}")
    if source.digest.startswith("sha1-git:"):  # a small file
        data = read_small_file(place)
        found, digest = git_blob_digest(data), bytes_digest(data, "sha256")
    else:
        # Of an inode of the Hub's cache the memo knows the digest by its name there.
        same = here is not None and here.samefile(place)
        found = digest = memo.sha256(here if here is not None and same else place)
    if found != source.digest:
        tensors = _differing_tensors(place, here) if here is not None else []
        raise file_differs(place, f"{found}, expected {source.digest}", tensors)
    return digest


def _compare_second_names(folder: Path, steps: Sequence[Step]) -> None:
    for step in steps:
        if isinstance(step.output, AliasFile):
            path, of = folder / step.output.path, folder / step.output.of
            # The other was compared; of an equal copy the plain digest of its bytes is that of this one.
            if not path.samefile(of) and file_digests(path).xxh3_128 != file_digests(of).xxh3_128:
                tensors = _differing_tensors(path, of)
                raise file_differs(path, f"not the bytes of {step.output.of}, whose second name it is", tensors)


def _differing_tensors(found: Path, expected: Path) -> list[str]:
    """Names of tensors that two safetensors files hold otherwise; empty where that is no question."""
    if found.suffix != ".safetensors":
        return []
    try:
        one, other = read_header(found), read_header(expected)
    except BrokenInput:
        return []
    return [
        name
        for name, info in other.tensors.items()
        if (its := one.tensors.get(name)) is None
        or (its.dtype, its.shape) != (info.dtype, info.shape)
        or part_digest(found, (one.offset(name), its.nbytes))
        != part_digest(expected, (other.offset(name), info.nbytes))
    ]
