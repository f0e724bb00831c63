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
from overlay.errors import CheckFailed, InvalidUsage, NotHere, OverlayError
from overlay.formats.local import explain_os_error
from overlay.formats.manifest import read_manifest
from overlay.formats.tree_files import is_hidden
from overlay.formats.wording import some
from overlay.materialization.adoption.compare import compare_computed, compare_known, compare_left_out, compare_small
from overlay.materialization.adoption.found import FoundFolder
from overlay.materialization.adoption.stamps import Stamps
from overlay.materialization.adoption.taking import Taking
from overlay.materialization.adoption.target import (
    check_marker,
    entries_in,
    files_in,
    find_target,
    require_files,
    telling_what_else,
)
from overlay.materialization.inputs import file_identity
from overlay.materialization.job import Job
from overlay.materialization.learning import learn
from overlay.materialization.locking.deviations import deviations
from overlay.materialization.locking.in_force import lock_in_force
from overlay.materialization.preparing import (
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
from overlay.planning.mappings import hidden_from_trees
from overlay.planning.outputs import Input
from overlay.registry import load_registry

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping
    from pathlib import Path

    from overlay.cache import Cache
    from overlay.hub import Inventory
    from overlay.materialization.adoption.survey import AdoptionWork
    from overlay.materialization.build import Linked, Made
    from overlay.materialization.locking.in_force import LockInForce
    from overlay.materialization.request import Phase
    from overlay.materialization.survey import Step
    from overlay.planning.plan import Plan
    from overlay.registry import Registry, Resolution

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


def plan_adoption(target: str, options: Options = DEFAULTS, *, phase: Phase = silent) -> AdoptionWork | None:
    """What :func:`adopt` would do: the marker, names and sizes are checked, no weight is compared, nothing is written.

    Returns:
        None where the model is published already.

    Raises:
        OverlayError: As :func:`adopt` up to its first comparison.
    """
    run = _begin(target, options, phase, write=False)
    return run.survey(TensorDigests(run.job.cache.root)) if isinstance(run, FoundFolder) else None


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
    cache = run.job.cache
    with cache.lock(run.plan.location, timeout=options.lock_timeout, on_wait=on_wait), building(cache.root):
        # Another run may have adopted it, or built the model, while this one waited.
        done = _published(run.job.inventory.resolution, load_registry(options.registry), options)
        done = done or _adopted(run, phase, started)
    return replace(done, seconds=time.monotonic() - started)


def _adopted(run: FoundFolder, phase: Phase, started: float) -> Adoption:
    """Compare, take and publish, under the lock of the location."""
    job, cache, inventory, options = run.job, run.job.cache, run.job.inventory, run.job.options
    taking = Taking(run, Stamps(run.folder))
    is_at_location = run.is_at_location
    adoption = _settled(run, phase)
    if taking.drop_damaged(adoption.known()):
        adoption = _settled(run, phase)
    cache.require_room(adoption.work.room)
    taking.stamps.take(adoption.ways)
    with telling_what_else(inventory.resolution, options):
        compare_small(run.folder, run.plan)
        compare_left_out(run.folder, run.left_out, job)
        compare_known(run.folder, adoption.work, run.expected, job.memo, options.jobs, phase)
        made, engine = compare_computed(run.folder, job, adoption.work)
    run.require_unchanged()
    _require_expected(run, made)
    _make_absent(job, adoption, made)
    if taking.drop_damaged(made.files[path] for path in run.absent):
        _make_absent(job, adoption, made)
    blobs = sha256_of_blobs(adoption.work, made, inventory)
    if run.in_force is not None:
        run.in_force.require_contents(blobs)
    tree: Path | None = None
    try:
        taking.take(adoption, made)
        made.links |= taking.taken
        work = replace(adoption.work, steps=tuple(_as_taken(step, made.links) for step in adoption.work.steps))
        links = made.links | shared_with_sources(work, made, inventory.repos, cache)
        report = run_report(work, replace(made, links=links), engine, time.monotonic() - started)
        adopted = sorted(path for path, how in taking.taken.items() if how != "present")
        sealed = seal(work, made, identity_of_work(work, inventory, blobs), {**report, "adopted": adopted})
        tree = cache.tree_path(sealed.name)
        swing = partial(_swing, run, taking, made, is_at_location=is_at_location)
        published = publish(work, made, cache, sealed, swing, partial(taking.is_sound, sealed))
    except BaseException:
        taking.forget_changed(adoption, made, tree)
        raise
    if published.tree is None or published.location is None:
        raise AssertionError
    notes = (*run.plan.notes, *work.notes, *cache.notes)
    return Adoption(
        run.plan.model, published.tree, published.location, "adopted", made.links, work.counters, 0.0, notes
    )


def _swing(run: FoundFolder, taking: Taking, made: Made, name: str, tree: str, *, is_at_location: bool) -> Path:
    """Let the location lead to the tree; a folder that is there gives way if nobody wrote into it meanwhile.

    What the tree shares with the folder is looked at before and after: what was written in between is not shown.
    """
    check = partial(taking.require_unwritten, made)
    is_there = is_at_location and os.path.lexists(run.folder)
    if is_there:
        run.require_unchanged()
    taking.settle(made)
    if not is_there:
        return run.job.cache.swing_checked(name, tree, check)
    return run.job.cache.replace_folder(name, tree, folder=run.status, check=check, changed=run.changed)


def _published(resolution: Resolution, registry: Registry, options: Options) -> Adoption | None:
    """The model, if it is published."""
    state = present_state(resolution, registry, options)
    if state is None or state.tree is None or state.location is None:
        return None
    return Adoption(resolution.model, state.tree, state.location, "present", {}, Counters(), 0.0)


def _begin(target: str, options: Options, phase: Phase, *, write: bool) -> FoundFolder | Adoption:
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
    if done := _published(resolution, registry, options):
        return done
    in_force = lock_in_force(resolution)
    cache = open_cache(options, create=write)
    memo = open_memo(cache, write=write)
    inventory = inventory_of(resolution, options, memo)
    plan = plan_of(inventory, in_force, replace(options, only=()), memo, phase)
    job = Job(inventory, cache, memo, options, phase)
    try:
        run = _look(found.folder or _at_location(resolution, cache, plan, options), plan, in_force, job)
    except OverlayError:
        if done := _published(resolution, registry, options):  # by another run, at this moment
            return done
        raise
    if run.is_at_location:
        check_locations(cache.root)
        cache.require_replaceable(plan.location)
    else:
        check_location(cache.root, plan.location)
    return run


def _look(folder: Path, plan: Plan, in_force: LockInForce | None, job: Job) -> FoundFolder:
    """Hold the marker and the names of a folder against the plan."""
    try:
        status = folder.stat()
    except OSError as error:
        raise explain_os_error(folder, error) from error
    with telling_what_else(job.inventory.resolution, job.options):
        check_marker(folder, plan)
        entries, files = entries_in(folder), files_in(folder)
        left_out = _left_out(job.inventory, files)
        absent = require_files(folder, plan, files, left_out)
    seen = {path: file_identity(folder / path) for path in files}
    return FoundFolder(job, in_force, plan, folder, absent, left_out, entries, seen, status)


def _left_out(inventory: Inventory, files: Collection[str]) -> dict[str, Input]:
    """Those of the files that a server took of the source because the overlay maps them, and a build leaves out."""
    source, overlay = inventory.source, inventory.overlay
    if overlay is None or not any(map(is_hidden, files)):
        return {}
    return {
        out: Input(source.repo, source.revision, path, source.size(path), source.digest(path))
        for out, path in hidden_from_trees(read_manifest(overlay), source.paths()).items()
        if out in files
    }


def _at_location(resolution: Resolution, cache: Cache, plan: Plan, options: Options) -> Path:
    """The real folder at the location of a model."""
    location = cache.location_path(plan.location)
    if location.is_symlink() or not location.is_dir():
        if location.is_symlink():
            check_location(cache.root, plan.location)  # says what to do with a link that is not ours
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


def _settled(run: FoundFolder, phase: Phase) -> AdoptionWork:
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


def _require_expected(run: FoundFolder, made: Made) -> None:
    """Hold what was found against the lock.

    Raises:
        CheckFailed: The lock expects other output than the inputs give here.
    """
    if run.in_force is None or run.expected is None:
        return
    differing = deviations(run.expected, made.files, whole=True, but=run.absent)
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


def _as_taken(step: Step, links: Mapping[str, Linked]) -> Step:
    return replace(step, how=links[step.output.path]) if step.output.path in links else step
