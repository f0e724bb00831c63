"""What a run writes into the record: the identity, which inputs alone decide, and the report of the run."""

from __future__ import annotations

import platform
import time
from contextlib import suppress
from dataclasses import asdict
from importlib import metadata
from typing import TYPE_CHECKING, Any

from overlay.formats.wording import iso_time
from overlay.materialization.record import SCHEMA_VERSION
from overlay.registry import LOCAL

if TYPE_CHECKING:
    from collections.abc import Mapping

    from overlay.fusion.engine import Engine
    from overlay.hub import Inventory
    from overlay.materialization.build import Made
    from overlay.materialization.locking.deviations import Rebuilt
    from overlay.materialization.scripted.run import ScriptRun
    from overlay.materialization.survey import Work
    from overlay.planning.outputs import Input, OutputFile
    from overlay.planning.plan import AdapterUse, Plan
    from overlay.registry import Pin

__all__ = ["identity_of", "pins_of", "portable", "run_report"]


def pins_of(inventory: Inventory) -> dict[str, Any]:
    """The repos of an inventory; a floating one shows the commit that it stood for."""
    entry = inventory.resolution.entry
    pins: dict[str, Any] = {"source": {"repo": portable(entry.source), "revision": inventory.source.revision}}
    if entry.overlay is not None and inventory.overlay is not None:
        pins["overlay"] = {"repo": portable(entry.overlay), "revision": inventory.overlay.revision}
    pins["needs"] = [
        {
            "repo": need.pin.repo,
            "revision": inventory.needs[need.pin.repo].revision,
            "components": list(need.components),
        }
        for need in entry.needs
    ]
    return pins


def portable(pin: Pin) -> str:
    """The repo as a record names it: of a folder only its name, since records say nothing of a host."""
    return pin.repo.rpartition("/")[2] if pin.revision == LOCAL else pin.repo


def identity_of(
    plan: Plan,
    pins: Mapping[str, Any] | None,
    recipe: Mapping[str, Any],
    digests: Mapping[tuple[str, str], str],
) -> dict[str, Any]:
    """The part of the record that depends on inputs alone, outputs excepted.

    Args:
        digests: By repo and path, for inputs whose sha256 the plan did not know.
    """
    from overlay.planning.actions import WRITER_VERSION  # a query reads records and makes no plan

    return {
        "schema_version": SCHEMA_VERSION,
        "model": plan.model,
        "pins": pins,
        "recipe": recipe,
        "rule": plan.rule,
        "writer_version": WRITER_VERSION,
        "adapters": [_adapter(use) for use in plan.adapters],
        "fused_before": list(plan.fused_before),
        "inputs": _inputs(plan, digests),
    }


def _adapter(use: AdapterUse) -> dict[str, Any]:
    document = asdict(use)
    document["weights"] = {"repo": use.weights.repo, "path": use.weights.path}
    document["spec"] = {"repo": use.spec.repo, "path": use.spec.path} if use.spec else None
    return document


def _inputs(plan: Plan, digests: Mapping[tuple[str, str], str]) -> list[dict[str, Any]]:
    from overlay.planning.plan import inputs_of  # as above

    def key(item: Input) -> tuple[str, str]:
        return item.repo, item.path

    roles = {key(item): "given" for item in plan.given}
    roles.update({key(read): "config" for read in plan.reads})
    roles.update({key(item): "base" for output in plan.outputs for item in inputs_of(output)})
    for use in plan.adapters:
        roles[key(use.weights)] = "adapter"
        if use.spec:
            roles[key(use.spec)] = "spec"
    return [
        {"role": roles[key(item)], **asdict(item), "digest": digests.get(key(item), item.digest)}
        for item in plan.inputs()
    ]


def run_report(
    work: Work,
    made: Made,
    engine: Engine | None,
    seconds: float,
    rebuilt: Rebuilt | None = None,
    script: ScriptRun | None = None,
) -> dict[str, Any]:
    """What this one run did."""
    from overlay.planning.outputs import AliasFile, CarriedFile  # as above

    def source(output: OutputFile) -> str:
        return output.of if isinstance(output, AliasFile) else output.path

    reused = [
        {"path": step.output.path, "digest": step.found.entry.digest, "why": step.found.why}
        for step in work.steps
        if step.how in ("present", "pull") and step.found.entry is not None
    ]
    carried = {step.output.path for step in work.steps if isinstance(step.output, CarriedFile)}
    claimed = [step.output.path for step in work.steps if source(step.output) in carried]
    return {
        "counters": asdict(work.counters),
        "seconds": round(seconds, 3),
        "kernels": dict(made.kernels),
        "engine": engine.describe() if engine is not None else None,
        "script": script.to_json() if script is not None else None,
        "rebuilt": rebuilt.to_json() if rebuilt is not None else None,
        "links": made.links,
        "reused": reused,
        "claimed": claimed,
        "versions": _versions(),
        "created": iso_time(time.time()),
    }


def _versions() -> dict[str, str]:
    """Versions of what takes part in a build, those that are installed."""
    found = {"python": platform.python_version()}
    for package in ("model-overlay", "torch", "safetensors", "huggingface_hub", "xxhash"):
        with suppress(metadata.PackageNotFoundError):
            found[package] = metadata.version(package)
    return found
