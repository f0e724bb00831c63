"""What a build and an adoption begin with: whether the model is here, its repos, their plan; what names the tree."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from overlay.errors import InvalidUsage
from overlay.fingerprint import bytes_digest
from overlay.materialization.inputs import hash_ahead
from overlay.materialization.locking.of_tree import expected_tree
from overlay.materialization.publishing import Materialization
from overlay.materialization.record import read_record
from overlay.materialization.request import Options, open_cache
from overlay.materialization.resolve import location_at_hand
from overlay.materialization.rollback import hit_notes
from overlay.materialization.sealing import identity_of, pins_of
from overlay.materialization.state import find_state, is_settled
from overlay.materialization.survey import Counters, Work, components
from overlay.planning.outputs import CarriedFile

if TYPE_CHECKING:
    from collections.abc import Mapping

    from overlay.fingerprint import DigestMemo
    from overlay.hub import Inventory
    from overlay.materialization.build import Made
    from overlay.materialization.locking.in_force import LockInForce
    from overlay.materialization.request import Phase
    from overlay.materialization.state import State
    from overlay.planning.plan import Plan
    from overlay.registry import Registry, Resolution

__all__ = ["found_present", "identity_of_work", "inventory_of", "plan_of", "present_state", "sha256_of_blobs"]


def present_state(resolution: Resolution, registry: Registry, options: Options) -> State | None:
    """The state of a model that is here, as pins and record can tell; None where a run has to look closer.

    That is also where the lock in force expects another output than the record tells of. What a user rolled back to
    counts as here: no run takes that back.
    """
    if not is_settled(resolution) or options.only:
        return None
    cache = open_cache(options, create=False)
    state = find_state(resolution, cache, options.rule, location_at_hand(resolution, options))
    if state.rolled_back_from is not None:
        return state
    if state.name != "present" or state.tree is None:
        return None
    record = read_record(state.tree)
    expected = expected_tree(record, registry) if record else None
    return None if record and expected and expected.problems(record) else state


def found_present(resolution: Resolution, state: State, options: Options, started: float) -> Materialization:
    """What a run gives that has nothing to do.

    Args:
        started: When it began, by ``time.monotonic``.
    """
    notes = (*resolution.moved, *hit_notes(state, options))
    seconds = time.monotonic() - started
    return Materialization(resolution.model, state.tree, state.location, "present", Counters(), seconds, notes)


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
