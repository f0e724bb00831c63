"""The whole job: resolve, take inventory, plan, fetch, build, seal, publish."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from overlay.cache.presence import building
from overlay.cache.tensors import TensorDigests
from overlay.cache.trees import check_location
from overlay.errors import InvalidUsage
from overlay.fingerprint import bytes_digest
from overlay.materialization.build import start_engine
from overlay.materialization.inputs import hash_ahead
from overlay.materialization.job import Job
from overlay.materialization.learning import settled_survey
from overlay.materialization.locking.enforcing import enforced
from overlay.materialization.locking.in_force import lock_in_force
from overlay.materialization.locking.of_tree import expected_tree
from overlay.materialization.lookup import remember
from overlay.materialization.publishing import Published, publish, seal, where_one_may
from overlay.materialization.record import read_record
from overlay.materialization.request import DEFAULTS, Options, open_cache, open_memo, resolved, silent
from overlay.materialization.resolve import location_at_hand
from overlay.materialization.scripted.run import known_plan, require_trusted, script_notes, settled_by_script
from overlay.materialization.sealing import identity_of, pins_of, run_report
from overlay.materialization.sinks import shared_with_sources
from overlay.materialization.state import find_state, is_settled
from overlay.materialization.survey import Counters, Work, as_linked, components, survey
from overlay.planning.outputs import CarriedFile
from overlay.registry import load_registry

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from overlay.cache import LinkMode
    from overlay.fingerprint import DigestMemo
    from overlay.hub import Inventory
    from overlay.materialization.build import Made
    from overlay.materialization.locking.deviations import Rebuilt
    from overlay.materialization.locking.in_force import LockInForce
    from overlay.materialization.publishing import Result, Sealed
    from overlay.materialization.request import Phase
    from overlay.materialization.state import State
    from overlay.planning.plan import Plan
    from overlay.registry import Registry, Resolution

__all__ = [
    "Materialization",
    "identity_of_work",
    "inventory_of",
    "materialize",
    "plan",
    "plan_of",
    "present_state",
    "sha256_of_blobs",
]


@dataclass(frozen=True, slots=True)
class Materialization:
    """Outcome of a run.

    Attributes:
        path: The published directory, links resolved; None with ``only``, which publishes nothing.
        location: Where the consumer looks.
        result: ``built``: something was made. ``reused``: every object was in the cache, a new tree was linked.
            ``adopted``: another process published the same tree first. ``present``: there was nothing to do.
        counters: What was moved.
        seconds: From the call to its return.
    """

    model: str
    path: Path | None
    location: Path | None
    result: Result
    counters: Counters
    seconds: float
    notes: tuple[str, ...] = ()


def plan(model: str, options: Options = DEFAULTS, *, phase: Phase = silent) -> Work:
    """What :func:`materialize` would do, with every byte counted. Reads metadata and headers; builds nothing.

    Raises:
        OverlayError: As :func:`materialize` up to its first write, and that this write is not possible.
    """
    registry = load_registry(options.registry)
    resolution = resolved(model, registry, options)
    cache = open_cache(options, create=False)
    memo = open_memo(cache, write=False)
    is_present = present_state(resolution, registry, options) is not None
    in_force = None if is_present else lock_in_force(resolution)
    require_trusted(resolution, allowed=options.allow_script or is_present)
    inventory = inventory_of(resolution, options, memo)
    the_plan = plan_of(inventory, in_force, options, memo, phase)
    if not options.only:
        check_location(cache.root, the_plan.location)
    the_plan = replace(the_plan, script=None) if is_present else known_plan(the_plan, cache)
    link: LinkMode = "auto" if is_present else options.link  # a hit links nothing, so nothing is refused
    publishes = not (is_present or options.only)
    work = survey(the_plan, inventory.repos, cache, link, TensorDigests(cache.root), publishes=publishes)
    if is_present:
        return replace(work, is_present=True)
    if not work.is_done or cache.location_target(the_plan.location) is None:
        cache.require_writable()
    return replace(work, notes=(*work.notes, *script_notes(the_plan)))


def present_state(resolution: Resolution, registry: Registry, options: Options) -> State | None:
    """The state of a model that is here, as pins and record can tell; None where a run has to look closer.

    That is also where the lock in force expects another output than the record tells of.
    """
    if not is_settled(resolution) or options.only:
        return None
    cache = open_cache(options, create=False)
    state = find_state(resolution, cache, options.rule, location_at_hand(resolution, options))
    if state.name != "present" or state.tree is None:
        return None
    record = read_record(state.tree)
    expected = expected_tree(record, registry) if record else None
    return None if record and expected and expected.problems(record) else state


def inventory_of(resolution: Resolution, options: Options, memo: DigestMemo) -> Inventory:
    """The repos of a model that this version can build.

    Raises:
        OverlayError: As :func:`materialize`.
    """
    from overlay.hub import take_inventory
    from overlay.planning.recipes import check_buildable

    check_buildable(resolution.entry)
    return take_inventory(
        resolution, hub=options.hub, offline=options.offline, memo=memo, allow_floating=options.allow_floating
    )


def plan_of(
    inventory: Inventory, in_force: LockInForce | None, options: Options, memo: DigestMemo, phase: Phase
) -> Plan:
    """The plan of these inputs, if the lock has them.

    Raises:
        OverlayError: As :func:`materialize`.
    """
    from overlay.planning.recipes import make_plan

    hash_ahead(inventory, options.rule, memo, phase)
    whole = make_plan(inventory, options.rule)
    if in_force is not None:
        in_force.require_inputs(whole, inventory)
        whole = replace(whole, notes=(*whole.notes, *in_force.notes(options.rule)))
    if not options.only:
        return whole
    if whole.script is not None:
        raise InvalidUsage(
            f"{whole.model}: the overlay's script makes all components at once",
            code="option-conflict",
            hint="leave --only away",
        )
    known = components(whole.outputs)
    unknown = sorted(set(options.only) - set(known))
    if unknown:
        raise InvalidUsage(
            f"{whole.model}: no component {', '.join(unknown)}",
            code="unknown-component",
            hint=f"components are {', '.join(known)}",
        )
    return replace(whole, outputs=tuple(o for o in whole.outputs if o.path.split("/", 1)[0] in options.only))


def materialize(
    model: str,
    options: Options = DEFAULTS,
    *,
    phase: Phase = silent,
    on_wait: Callable[[str], None] | None = None,
) -> Materialization:
    """Bring a model into the cache and publish it, or find that it is there.

    Args:
        model: As for :func:`resolve`.
        phase: Called for each stretch of work to show its progress.
        on_wait: Called with who holds the lock while another process builds this model.

    Raises:
        OverlayError: See ``docs/reference/exit-statuses.md``; nothing is published then, and finished files are kept.
    """
    started = time.monotonic()
    registry = load_registry(options.registry)
    resolution = resolved(model, registry, options)
    if state := present_state(resolution, registry, options):
        return Materialization(
            resolution.model,
            state.tree,
            state.location,
            "present",
            Counters(),
            time.monotonic() - started,
            resolution.moved,
        )
    in_force = lock_in_force(resolution)
    require_trusted(resolution, allowed=options.allow_script)
    cache = open_cache(options, create=True)
    memo = open_memo(cache, write=True)
    inventory = inventory_of(resolution, options, memo)
    the_plan = plan_of(inventory, in_force, options, memo, phase)
    if not options.only:
        check_location(cache.root, the_plan.location)
    lock = cache.lock(the_plan.location, timeout=options.lock_timeout, on_wait=on_wait)
    job = Job(inventory, cache, memo, options, phase)
    with lock, where_one_may(building(cache.root)):  # from here on no collector takes what the survey finds
        the_plan, script = settled_by_script(the_plan, job)
        work = settled_survey(the_plan, inventory.repos, cache, memo, options, phase)
        for step in work.steps:
            if step.found.entry and step.found.factor_action:  # the next run need not know of factors
                remember(cache, step.output, step.found, step.found.entry)
        engine = start_engine(work.steps, options.device)
        made = job.make(work, engine, "build")
        work = as_linked(work, made.links)
        made.links.update(shared_with_sources(work, made, inventory.repos, cache))
        work = replace(work, counters=work.counters + script.counters) if script is not None else work
        blobs = sha256_of_blobs(work, made, inventory)
        if in_force is not None:
            in_force.require_contents(blobs)

        def sealed(work: Work, made: Made, rebuilt: Rebuilt | None) -> Sealed:
            run = run_report(work, made, engine, time.monotonic() - started, rebuilt, script)
            return seal(work, made, identity_of_work(work, inventory, blobs), run)

        work, made, rebuilt = enforced(in_force, job, work, made, sealed)
        published = Published(None, None, "reused" if work.is_done else "built")
        if not options.only:
            published = publish(work, made, cache, sealed(work, made, rebuilt))
    return Materialization(
        the_plan.model,
        published.tree,
        published.location,
        published.result,
        work.counters,
        time.monotonic() - started,
        (*the_plan.notes, *(rebuilt.notes() if rebuilt else ()), *cache.notes),
    )


def identity_of_work(work: Work, inventory: Inventory, blobs: Mapping[tuple[str, str], str]) -> dict[str, Any]:
    """What a tree of this work is named by, its outputs excepted.

    Args:
        blobs: Of :func:`sha256_of_blobs`.
    """
    recipe = inventory.resolution.entry.recipe
    return identity_of(work.plan, pins_of(inventory), {"name": recipe.name, **recipe.options}, blobs)


def sha256_of_blobs(work: Work, made: Made, inventory: Inventory) -> dict[tuple[str, str], str]:
    """Of inputs that the Hub names by a git blob: so a record does not tell whether they came from it or a folder."""
    carried = {
        step.output.input: made.files[step.output.path].digest
        for step in work.steps
        if isinstance(step.output, CarriedFile)
    }
    return {
        (item.repo, item.path): carried.get(item)
        or bytes_digest(inventory.repos[item.repo].read_bytes(item.path), "sha256")  # the plan has read it
        for item in work.plan.inputs()
        if item.digest.startswith("sha1-git:")
    }
