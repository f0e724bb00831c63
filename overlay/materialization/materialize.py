"""The whole job: resolve, take inventory, plan, fetch, build, seal, publish."""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from overlay.cache.trees import check_location
from overlay.errors import BrokenInput, InvalidUsage, TryAgain
from overlay.fingerprint import bytes_digest
from overlay.materialization import build
from overlay.materialization.record import identity_of, pins_of, read_record, record_bytes, tree_name, versions
from overlay.materialization.request import DEFAULTS, Options, open_cache, open_memo, silent
from overlay.materialization.resolve import location_at_hand
from overlay.materialization.state import find_state, is_settled
from overlay.materialization.survey import Counters, Work, components, survey
from overlay.materialization.verify import quick_problems
from overlay.planning.outputs import CarriedFile
from overlay.registry import load_registry
from overlay.registry import resolve as resolve_model

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from overlay.cache import Cache
    from overlay.fusion.engine import Engine
    from overlay.hub import Inventory, Repo
    from overlay.materialization.request import Phase
    from overlay.planning.plan import Plan
    from overlay.registry import Resolution

__all__ = ["Materialization", "materialize", "plan"]


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
    result: Literal["built", "reused", "adopted", "present"]
    counters: Counters
    seconds: float
    notes: tuple[str, ...] = ()


def plan(model: str, options: Options = DEFAULTS) -> Work:
    """What :func:`materialize` would do, with every byte counted. Reads metadata and headers; builds nothing.

    Raises:
        OverlayError: As :func:`materialize` up to its first write.
    """
    resolution = resolve_model(model, load_registry(options.registry))
    cache = open_cache(options, create=False)
    inventory = _inventory(resolution, options, cache, write=False)
    the_plan = _plan(inventory, options)
    if not options.only:
        check_location(cache.root, the_plan.location)
    return survey(the_plan, _repos(inventory), cache, options.link)


def _inventory(resolution: Resolution, options: Options, cache: Cache, *, write: bool) -> Inventory:
    from overlay.hub import take_inventory
    from overlay.planning.recipes import check_buildable

    check_buildable(resolution.entry)
    return take_inventory(
        resolution,
        hub=options.hub,
        offline=options.offline,
        memo=open_memo(cache, write=write),
        allow_floating=options.allow_floating,
    )


def _plan(inventory: Inventory, options: Options) -> Plan:
    from overlay.planning.recipes import make_plan

    whole = make_plan(inventory, options.rule)
    if not options.only:
        return whole
    known = components(whole.outputs)
    unknown = sorted(set(options.only) - set(known))
    if unknown:
        raise InvalidUsage(
            f"{whole.model}: no component {', '.join(unknown)}",
            code="unknown-component",
            hint=f"components are {', '.join(known)}",
        )
    return replace(whole, outputs=tuple(o for o in whole.outputs if o.path.split("/", 1)[0] in options.only))


def _repos(inventory: Inventory) -> dict[str, Repo]:
    repos = [inventory.source, inventory.overlay, *inventory.needs.values()]
    return {repo.repo: repo for repo in repos if repo is not None}


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
    resolution = resolve_model(model, load_registry(options.registry))
    if is_settled(resolution) and not options.only:
        here = open_cache(options, create=False)
        state = find_state(resolution, here, options.rule, location_at_hand(resolution, options))
        if state.name == "present":
            seconds = time.monotonic() - started
            return Materialization(resolution.model, state.tree, state.location, "present", Counters(), seconds)
    cache = open_cache(options, create=True)
    inventory = _inventory(resolution, options, cache, write=True)
    the_plan = _plan(inventory, options)
    if not options.only:
        check_location(cache.root, the_plan.location)
    with cache.lock(the_plan.location, timeout=options.lock_timeout, on_wait=on_wait):
        work = survey(the_plan, _repos(inventory), cache, options.link)
        cache.require_room(work.room)
        engine = build.start_engine(options) if build.needs_engine(work) else None
        made = _make(work, inventory, cache, options, engine, phase)
        done = Materialization(the_plan.model, None, None, "reused" if work.is_done else "built", work.counters, 0.0)
        if not options.only:
            run = _run_report(work, made, engine, time.monotonic() - started)
            done = _publish(done, work, made, cache, _identity(work, made, inventory), run)
    return replace(done, seconds=time.monotonic() - started, notes=(*the_plan.notes, *cache.notes))


def _make(
    work: Work, inventory: Inventory, cache: Cache, options: Options, engine: Engine | None, phase: Phase
) -> build.Made:
    repos = _repos(inventory)
    inputs = build.fetch(work, repos, phase)
    with build.Checks(work, inputs, repos, open_memo(cache, write=True)) as checks:
        return build.Builder(inputs, checks, cache, repos, options, engine).run(work, phase)


def _publish(
    done: Materialization,
    work: Work,
    made: build.Made,
    cache: Cache,
    identity: Mapping[str, Any],
    run: Mapping[str, Any],
) -> Materialization:
    """Seal the tree, move it in, swing the location."""
    outputs = [{"path": step.output.path, **made.entries[step.output.path]} for step in work.steps]
    name = tree_name(work.plan.model, identity, outputs)
    tree, result = cache.tree_path(name), done.result

    def is_sound(found: Path) -> bool:
        try:
            record = read_record(found)
        except BrokenInput:
            return False
        return record is not None and record["outputs"] == outputs and not quick_problems(found, record)

    if tree.is_dir() and is_sound(tree):
        if work.is_done and cache.location_target(work.plan.location) == tree:
            result = "present"
    else:
        record = {**identity, "tree": name, "location": work.plan.location, "outputs": outputs, "run": run}
        with cache.staging() as staging:
            build.place_tree(work, made, cache, staging / "tree", record_bytes(record))
            published = cache.publish_tree(staging / "tree", name, verify=is_sound)
        if published.result == "adopted":
            result = "adopted"
    location = cache.swing_location(work.plan.location, name)
    if not tree.is_dir():
        raise TryAgain(
            f"{tree}: was removed while this ran",
            code="tree-removed",
            hint="another process removes from this cache (overlay cache rm, gc); run the same command again",
            path=str(tree),
        )
    return replace(done, path=tree, location=location, result=result)


def _identity(work: Work, made: build.Made, inventory: Inventory) -> dict[str, Any]:
    recipe = inventory.resolution.entry.recipe
    digests = _sha256_of_blobs(work, made, _repos(inventory))
    return identity_of(work.plan, _pins(inventory), {"name": recipe.name, **recipe.options}, digests)


def _sha256_of_blobs(work: Work, made: build.Made, repos: Mapping[str, Repo]) -> dict[tuple[str, str], str]:
    """Of inputs that the Hub names by a git blob: so a record does not tell whether they came from it or a folder."""
    carried = {
        step.output.input: made.entries[step.output.path]["digest"]
        for step in work.steps
        if isinstance(step.output, CarriedFile)
    }
    return {
        (item.repo, item.path): carried.get(item)
        or bytes_digest(repos[item.repo].read_bytes(item.path), "sha256")  # the plan has read it
        for item in work.plan.inputs()
        if item.digest.startswith("sha1-git:")
    }


def _pins(inventory: Inventory) -> dict[str, Any]:
    revisions = {"source": inventory.source.revision}
    if inventory.overlay is not None:
        revisions["overlay"] = inventory.overlay.revision
    revisions.update({name: repo.revision for name, repo in inventory.needs.items()})
    return pins_of(inventory.resolution, revisions)


def _run_report(work: Work, made: build.Made, engine: Engine | None, seconds: float) -> dict[str, Any]:
    reused = [
        {"path": step.output.path, "digest": step.entry["digest"], "why": "same action key" if step.action else ""}
        for step in work.steps
        if step.how == "present" and step.entry is not None
    ]
    return {
        "counters": asdict(work.counters),
        "seconds": round(seconds, 3),
        "kernels": dict(made.kernels),
        "engine": engine.describe() if engine is not None else None,
        "links": made.links,
        "reused": reused,
        "versions": versions(),
        "created": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }
