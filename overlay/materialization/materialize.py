"""The whole job: resolve, take inventory, plan, fetch, build, seal, publish."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING

from overlay.cache.presence import building
from overlay.cache.tensors import TensorDigests
from overlay.cache.trees import check_location
from overlay.materialization.build import start_engine
from overlay.materialization.job import Job
from overlay.materialization.locking.enforcing import enforced
from overlay.materialization.locking.in_force import lock_in_force
from overlay.materialization.lookup import remember
from overlay.materialization.preparing import (
    found_present,
    identity_of_work,
    inventory_of,
    plan_of,
    present_state,
    sha256_of_blobs,
)
from overlay.materialization.publishing import Materialization, Published, publish, seal, where_one_may
from overlay.materialization.request import DEFAULTS, Options, open_cache, open_memo, resolved, silent
from overlay.materialization.rollback import rollback_notes
from overlay.materialization.scripted.run import known_plan, require_trusted, script_notes, settled_by_script
from overlay.materialization.sealing import run_report
from overlay.materialization.sharing.filling import filling_of
from overlay.materialization.sharing.pull import work_of
from overlay.materialization.sinks import shared_with_sources
from overlay.materialization.survey import Work, as_linked, survey
from overlay.registry import load_registry

if TYPE_CHECKING:
    from collections.abc import Callable

    from overlay.cache import LinkMode
    from overlay.materialization.build import Made
    from overlay.materialization.locking.deviations import Rebuilt
    from overlay.materialization.locking.in_force import LockInForce
    from overlay.materialization.publishing import Sealed
    from overlay.materialization.request import Phase
    from overlay.materialization.sharing.filling import Filling
    from overlay.registry import Resolution

__all__ = ["Materialization", "materialize", "plan"]


def plan(model: str, options: Options = DEFAULTS, *, phase: Phase = silent) -> Work:
    """What :func:`materialize` would do, with every byte counted. Reads metadata and headers; builds nothing.

    Raises:
        OverlayError: As :func:`materialize` up to its first write, and that this write is not possible.
    """
    registry = load_registry(options.registry)
    resolution = resolved(model, registry, options)
    state = present_state(resolution, registry, options)
    is_present = state is not None
    with filling_of(replace(options, store=None) if is_present else options) as filling:
        if offer := filling.tree(resolution, registry):
            cache = open_cache(options, create=False)
            check_location(cache.root, offer.location)
            cache.require_writable()
            return work_of(offer, cache)
        work = _planned(resolution, options, phase, filling, is_present=is_present)
        return replace(work, notes=(*work.notes, *filling.notes, *rollback_notes(state)))


def _planned(resolution: Resolution, options: Options, phase: Phase, filling: Filling, *, is_present: bool) -> Work:
    cache = open_cache(options, create=False)
    memo = open_memo(cache, write=False)
    in_force = None if is_present else lock_in_force(resolution)
    inventory = inventory_of(resolution, options, memo)
    the_plan = plan_of(inventory, in_force, options, memo, phase)
    if not options.only:
        check_location(cache.root, the_plan.location)
    the_plan = replace(the_plan, script=None) if is_present else known_plan(the_plan, cache)
    link: LinkMode = "auto" if is_present else options.link  # a hit links nothing, so nothing is refused
    publishes = not (is_present or options.only)
    tensors = TensorDigests(cache.root)
    work = survey(the_plan, inventory.repos, cache, link, tensors, publishes=publishes, fill=filling.fill)
    if is_present:
        return replace(work, is_present=True)
    if not work.is_done or cache.location_target(the_plan.location) is None:
        cache.require_writable()
    return replace(work, notes=(*work.notes, *script_notes(the_plan, resolution, allowed=options.allow_script)))


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
        return found_present(resolution, state, options, started)
    in_force = lock_in_force(resolution)
    with filling_of(options) as filling:
        offer = filling.tree(resolution, registry)
        done = filling.taken(offer, phase, on_wait) if offer else None
        if done is None:
            done = _built(resolution, in_force, options, phase, on_wait, filling)
            filling.offer(model, resolution, phase)
    return replace(done, seconds=time.monotonic() - started, notes=(*done.notes, *filling.notes))


def _built(
    resolution: Resolution,
    in_force: LockInForce | None,
    options: Options,
    phase: Phase,
    on_wait: Callable[[str], None] | None,
    filling: Filling,
) -> Materialization:
    started = time.monotonic()
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
        work = filling.filled(the_plan, job)
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
        published = Published(None, None, work.result)
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
