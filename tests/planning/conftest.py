"""From a hub folder and a registry to a plan, with nothing built."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import pytest

from overlay.fingerprint import DigestMemo
from overlay.hub import take_inventory
from overlay.planning.recipes import check_buildable, make_plan
from overlay.registry import load_registry, resolve

if TYPE_CHECKING:
    from pathlib import Path

    from overlay.materialization.request import Options
    from overlay.planning.plan import Plan


class Planner(Protocol):
    """Plans a model by the registry and the hub folder of options."""

    def __call__(self, model: str, options: Options) -> Plan: ...


@pytest.fixture
def plan_of() -> Planner:
    """The planner."""

    def planned(model: str, options: Options) -> Plan:
        resolution = resolve(model, load_registry(options.registry))
        check_buildable(resolution.entry)
        inventory = take_inventory(
            resolution,
            hub=options.hub,
            offline=True,
            memo=DigestMemo(None),
            allow_floating=options.allow_floating,
        )
        return make_plan(inventory, options.rule)

    return planned


@pytest.fixture
def hub(tmp_path: Path) -> Path:
    """An empty hub folder."""
    folder = tmp_path / "hub"
    folder.mkdir()
    return folder
