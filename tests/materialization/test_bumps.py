"""What a bump changes in the tree, and that the former generation stays; what it costs is in ``test_bump_table``."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import pytest
from support.checkpoints import copy_hub
from support.models import VDN, options
from support.published_rule import files_of

from overlay.demo.revisions import bump_readme, bump_rename
from overlay.materialization.materialize import Materialization, materialize, plan
from overlay.materialization.record import RECORD_NAME

if TYPE_CHECKING:
    from pathlib import Path

    from conftest import Built

    from overlay.demo.checkpoint import HubFolder

SHARDS = [f"transformer/diffusion_pytorch_model-0000{number}-of-00003.safetensors" for number in (1, 2, 3)]


@pytest.fixture
def old(tmp_path_factory: pytest.TempPathFactory) -> HubFolder:
    """A hub folder whose specs have their former name."""
    return copy_hub(tmp_path_factory, "adapter_config.json")


def run(hub: HubFolder, root: Path) -> Materialization:
    """Materialize, after a look at what the plan counts: the run must count the same, or less where that says so."""
    planned = plan(VDN, options(hub, root))
    done = materialize(VDN, options(hub, root))
    if planned.is_most:
        most = asdict(planned.counters)
        assert all(count <= most[name] for name, count in asdict(done.counters).items())
    else:
        assert done.counters == planned.counters
    return done


def record(done: Materialization) -> Any:
    assert done.path is not None
    return json.loads((done.path / RECORD_NAME).read_bytes())


def tree(done: Materialization) -> dict[str, bytes]:
    assert done.path is not None
    files = files_of(done.path)
    del files[RECORD_NAME]
    return files


def test_a_rename_bump_changes_what_names_the_file_and_no_other_byte(old: HubFolder, tmp_path: Path) -> None:
    """Old and new tree differ in the marker alone: its overlay is another."""
    before, after = tree(run(old, tmp_path / "root")), tree(run(bump_rename(old), tmp_path / "root"))
    assert {path for path in before.keys() | after.keys() if before.get(path) != after.get(path)} == {
        ".sglang_overlay_materialized.json",
    }


def test_h01_both_names_of_a_spec_give_the_same_tree_but_for_the_marker(
    old: HubFolder, built: Built, tmp_path: Path
) -> None:
    """``adapter_config.json`` is read as ``adapter_spec.json`` is."""
    former = tree(run(old, tmp_path / "former"))
    present = files_of(built.tree)
    assert {path for path in former if former[path] != present[path]} == {".sglang_overlay_materialized.json"}


def test_going_back_to_the_former_pins_swings_the_location_back(
    built: Built, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Both generations stay; a rollback moves one link."""
    bumped = bump_readme(copy_hub(tmp_path_factory))
    run(bumped, built.root)
    back = run(built.hub, built.root)
    assert back.result == "reused"
    assert back.path is not None
    assert built.result.path is not None
    assert back.path.name == built.result.path.name
    assert built.location.resolve() == back.path
    assert len(list((built.root / ".overlay/trees").iterdir())) == 2


def test_another_rule_is_another_tree_at_the_same_location(built: Built) -> None:
    """The published rule and OpenVDN's give different bytes; what is carried is shared."""
    first = tree(materialize(VDN, built.options()))
    other = materialize(VDN, built.options(rule="openvdn"))
    assert other.result == "built"
    second = tree(other)
    changed = {path for path in first if first[path] != second[path]}
    assert changed & set(SHARDS)
    assert changed <= {*SHARDS, "transformer/sglang_vdn_prefused.json"}
    provenance = json.loads(second["transformer/sglang_vdn_prefused.json"])
    assert "rounded to the stored dtype" in provenance["merge"]["rule"]
    assert record(other)["rule"] == "openvdn"
