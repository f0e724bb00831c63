"""Taking a tree that a server built: compared with what the inputs give, linked into the cache, published as our own.

Everything is compared before anything is linked, so a refusal changes nothing. No weight byte is written: the objects
are further names of the server's files.
"""

from __future__ import annotations

import os
import shlex
import time
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Literal

from overlay.cache.presence import building
from overlay.cache.tensors import TensorDigests
from overlay.cache.trees import check_location, check_locations
from overlay.errors import CheckFailed, InvalidUsage, NotHere, TryAgain
from overlay.formats.materialized import MARKER_NAME
from overlay.formats.wording import some
from overlay.materialization.adoption.compare import compare_computed, compare_known, compare_small
from overlay.materialization.adoption.survey import AdoptionWork, in_shared_store, survey_adoption
from overlay.materialization.adoption.target import (
    check_marker,
    files_in,
    find_target,
    require_files,
    telling_what_else,
)
from overlay.materialization.inputs import file_identity
from overlay.materialization.job import Job
from overlay.materialization.learning import learn
from overlay.materialization.locking.deviations import deviations
from overlay.materialization.locking.in_force import lock_in_force, why_not_comparable
from overlay.materialization.lookup import remember
from overlay.materialization.materialize import (
    identity_of_work,
    inventory_of,
    plan_of,
    present_state,
    sha256_of_blobs,
)
from overlay.materialization.publishing import publish, seal
from overlay.materialization.request import DEFAULTS, Options, open_cache, open_memo, silent
from overlay.materialization.resolve import prewarm_words
from overlay.materialization.sealing import run_report
from overlay.materialization.sinks import shared_with_sources
from overlay.materialization.survey import Counters, downloading_counters, learning_counters
from overlay.planning.outputs import CarriedFile
from overlay.registry import load_registry

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from overlay.cache import Cache, LinkMode
    from overlay.materialization.build import Linked, Made
    from overlay.materialization.locking.in_force import LockInForce
    from overlay.materialization.request import Phase
    from overlay.materialization.survey import Step
    from overlay.planning.plan import Plan
    from overlay.registry import Resolution
    from overlay.registry.lock import Expected

__all__ = ["Adoption", "adopt", "plan_adoption"]


@dataclass(frozen=True, slots=True)
class Adoption:
    """Outcome of an adoption.

    Attributes:
        path: The published directory, links resolved.
        location: Where the consumer looks.
        result: ``adopted``, or ``present``: the model was published already, and nothing was looked at.
        links: By output path, how a file became an object; ``present``: the cache had it, and its object was kept.
        counters: ``read``: what was compared, and the inputs for that; ``linked``: what was not written.
        seconds: From the call to its return.
    """

    model: str
    path: Path
    location: Path
    result: Literal["adopted", "present"]
    links: Mapping[str, Linked]
    counters: Counters
    seconds: float
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Run:
    """A folder whose marker and names are those of the plan.

    Attributes:
        seen: What tells that each file is still the one that was compared, and that the folder is.
    """

    job: Job
    in_force: LockInForce | None
    plan: Plan
    folder: Path
    absent: frozenset[str]
    seen: Mapping[Path, tuple[int, ...]]
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
        return survey_adoption(self.folder, self.plan, self.absent, self.job, self.expected, tensors)

    def require_unchanged(self) -> None:
        """Refuse to go on with files that are not those that were compared.

        Raises:
            TryAgain: Somebody wrote into the folder.
        """
        for path, seen in self.seen.items():
            if not path.is_file() or file_identity(path) != seen:
                raise TryAgain(
                    f"{path}: another file than at first: it was changed while this ran",
                    code="input-changed",
                    hint="let whatever writes it finish, then run the same command again",
                    path=str(path),
                )


def plan_adoption(target: str, options: Options = DEFAULTS, *, phase: Phase = silent) -> AdoptionWork | None:
    """What :func:`adopt` would do: the marker, names and sizes are checked, no weight is compared, nothing is written.

    Returns:
        None where the model is published already.

    Raises:
        OverlayError: As :func:`adopt` up to its first comparison.
    """
    run = _begin(target, options, phase, write=False)
    return run.survey(TensorDigests(run.job.cache.root)) if isinstance(run, _Run) else None


def adopt(
    target: str,
    options: Options = DEFAULTS,
    *,
    phase: Phase = silent,
    on_wait: Callable[[str], None] | None = None,
) -> Adoption:
    """Verify a tree that a server built against its inputs, and take it into the cache without writing its weights.

    Args:
        target: A model's name: what is at its location is taken, and our link comes in its place. Or a folder with the
            server's marker, on the filesystem of the cache root; one that is elsewhere than at the location stays.
        options: As for :func:`materialize`; ``link`` is for files of the folder that are links to somewhere else, and
            ``only`` is not used.
        phase: As for :func:`materialize`; ``on_wait`` likewise.

    Raises:
        CheckFailed: The folder is not what the inputs give: a file and its tensors, or a field of the marker is named.
            Nothing was changed.
        OverlayError: See ``docs/reference/exit-statuses.md``.
    """
    started = time.monotonic()
    run = _begin(target, options, phase, write=True)
    if isinstance(run, Adoption):
        return replace(run, seconds=time.monotonic() - started)
    job, cache, inventory = run.job, run.job.cache, run.job.inventory
    with cache.lock(run.plan.location, timeout=options.lock_timeout, on_wait=on_wait), building(cache.root):
        adoption = _settled(run, phase)
        cache.require_room(adoption.work.room)
        with telling_what_else(inventory.resolution, options):
            compare_small(run.folder, run.plan)
            compare_known(run.folder, adoption.work, run.expected, job.memo, options.jobs, phase)
            made, engine = compare_computed(run.folder, job, adoption.work)
        run.require_unchanged()
        _require_expected(run, made)
        _make_absent(job, adoption, made)
        blobs = sha256_of_blobs(adoption.work, made, inventory)
        if run.in_force is not None:
            run.in_force.require_contents(blobs)
        made.links = _taken(run, adoption, made)
        work = replace(adoption.work, steps=tuple(_as_taken(step, made.links) for step in adoption.work.steps))
        links = made.links | shared_with_sources(work, made, inventory.repos, cache)
        report = run_report(work, replace(made, links=links), engine, time.monotonic() - started)
        adopted = sorted(path for path, how in made.links.items() if how != "present" and path not in run.absent)
        sealed = seal(work, made, identity_of_work(work, inventory, blobs), {**report, "adopted": adopted})
        swing = partial(cache.replace_folder, folder=run.status) if run.is_at_location else cache.swing_location
        published = publish(work, made, cache, sealed, swing)
    if published.tree is None or published.location is None:
        raise AssertionError
    notes = (*run.plan.notes, *work.notes, *cache.notes)
    return Adoption(
        run.plan.model,
        published.tree,
        published.location,
        "adopted",
        made.links,
        work.counters,
        time.monotonic() - started,
        notes,
    )


def _begin(target: str, options: Options, phase: Phase, *, write: bool) -> _Run | Adoption:
    """Find the folder and hold its marker and its names against the plan; or find the model published."""
    registry = load_registry(options.registry)
    found = find_target(target, registry, options)
    resolution = found.resolution
    entry = resolution.entry
    if entry.overlay is None or entry.recipe.name == "python":
        why = "only its overlay's own Python knows what a tree must hold" if entry.overlay else "it has no overlay"
        raise InvalidUsage(
            f"{resolution.model}: no tree of a server to adopt: {why}",
            code="nothing-to-adopt",
            hint=shlex.join(["overlay", *prewarm_words(resolution.model, resolution, options)]),
            model=resolution.model,
        )
    state = present_state(resolution, registry, options)
    if state is not None and state.tree is not None and state.location is not None:
        return Adoption(resolution.model, state.tree, state.location, "present", {}, Counters(), 0.0)
    in_force = lock_in_force(resolution)
    cache = open_cache(options, create=write)
    memo = open_memo(cache, write=write)
    inventory = inventory_of(resolution, options, memo)
    plan = plan_of(inventory, in_force, replace(options, only=()), memo, phase)
    folder = found.folder or _at_location(resolution, cache, plan, options)
    with telling_what_else(resolution, options):
        check_marker(folder, plan)
        files = files_in(folder)
        absent = require_files(folder, plan, files)
    seen = {folder / path: file_identity(folder / path) for path in files}
    run = _Run(Job(inventory, cache, memo, options, phase), in_force, plan, folder, absent, seen, folder.stat())
    if run.is_at_location:
        check_locations(cache.root)
    else:
        check_location(cache.root, plan.location)
    return run


def _at_location(resolution: Resolution, cache: Cache, plan: Plan, options: Options) -> Path:
    """The real folder at the location of a model."""
    location = cache.location_path(plan.location)
    if location.is_symlink() or not location.is_dir():
        what = "a link" if location.is_symlink() else "a file" if location.exists() else "nothing"
        raise NotHere(
            f"{location}: {what} is there, expected the folder that a server built; one that lies elsewhere is named"
            " itself",
            code="nothing-to-adopt",
            hint=shlex.join(["overlay", *prewarm_words(resolution.model, resolution, options)]),
            model=resolution.model,
            location=str(location),
        )
    return location


def _settled(run: _Run, phase: Phase) -> AdoptionWork:
    """The survey, with adapters read first where what is to be computed hangs on their tensors."""
    job, tensors = run.job, TensorDigests(run.job.cache.root)
    adoption = run.survey(tensors)
    unlearned, repos = adoption.work.unlearned, job.inventory.repos
    if not unlearned:
        return adoption
    missing = tuple(source for source in adoption.work.missing if source in unlearned)
    learn(unlearned, missing, repos, job.memo, tensors, phase)
    adoption = run.survey(tensors)
    spent = learning_counters(unlearned, repos) + downloading_counters(missing, repos)
    return replace(adoption, work=replace(adoption.work, counters=adoption.work.counters + spent))


def _make_absent(job: Job, adoption: AdoptionWork, made: Made) -> None:
    """Make the small files that no server makes, as a build would."""
    work = adoption.work
    steps = tuple(step for step in work.steps if step.output.path in adoption.absent)
    own = job.make(replace(work, steps=steps), None, "fetch")
    made.files |= own.files
    made.links |= own.links


def _require_expected(run: _Run, made: Made) -> None:
    """Hold what was found against the lock.

    Raises:
        CheckFailed: The lock expects other output than the inputs give here.
    """
    if run.in_force is None or run.expected is None:
        return
    differing = deviations(run.expected, made.files, whole=True, but={MARKER_NAME, *run.absent})
    if differing:
        raise CheckFailed(
            f"{run.in_force.path}: the output of {run.plan.model} is not as expected in "
            f"{some(item.path for item in differing)}; not adopted",
            code="output-differs",
            hint=f"find out which is right: overlay lock {run.plan.model} --dry-run",
            where=str(run.in_force.path),
            model=run.plan.model,
            files=[item.to_json() for item in differing],
        )


def _taken(run: _Run, adoption: AdoptionWork, made: Made) -> dict[str, Linked]:
    """Bring every file of the folder into the objects, and let it be found by its keys; says how each came.

    Raises:
        TryAgain: A file was changed since it was compared.
    """
    cache, links = run.job.cache, dict(made.links)
    for step in adoption.work.steps:
        if not adoption.in_folder(step):
            continue
        path, file = run.folder / step.output.path, made.files[step.output.path]
        how = adoption.ways[step.output.path]
        shared = in_shared_store(path, step, run.job)
        mode: LinkMode = "copy" if how == "present" else how  # should the object be gone by now, which nobody expects
        links[step.output.path] = cache.link_object(path, file.digest, mode, shared_store=shared).how
        if isinstance(step.output, CarriedFile):
            if step.found.action:
                cache.put_action(step.found.action, {"digest": file.digest, "size": file.size})
        elif step.found.entry is not file or how != "present":
            remember(cache, step.output, step.found, file)
    try:
        run.require_unchanged()
    except TryAgain:  # of what was written into since it was compared, no object may be left
        for linked in (path for path, how in links.items() if how == "hardlink"):
            cache.drop_object(made.files[linked].digest)
        raise
    return links


def _as_taken(step: Step, links: Mapping[str, Linked]) -> Step:
    return replace(step, how=links[step.output.path]) if step.output.path in links else step
