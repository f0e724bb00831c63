"""What a bump costs: nothing where content stays, exactly what changed where it does; the bytes are a fresh build's."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

import pytest
from support.checkpoints import copy_hub
from support.models import VDN, copy_root, options
from support.published_rule import files_of

from overlay.demo.checkpoint import OVERLAY_REVISION, write_overlay
from overlay.demo.revisions import bump_alpha, bump_readme, bump_rename, bump_turbo_block, reshard_base
from overlay.formats.header import read_header
from overlay.materialization.materialize import Materialization, materialize, plan
from overlay.materialization.record import RECORD_NAME
from overlay.materialization.survey import Counters

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from conftest import Built

    from overlay.demo.checkpoint import HubFolder

SHARDS = [f"transformer/diffusion_pytorch_model-0000{number}-of-00003.safetensors" for number in (1, 2, 3)]


@pytest.fixture
def old(tmp_path_factory: pytest.TempPathFactory) -> HubFolder:
    """A hub folder whose specs have their former name."""
    return copy_hub(tmp_path_factory, "adapter_config.json")


def bumped_overlay_readme(hub: HubFolder) -> HubFolder:
    """A new revision of the overlay in which a word of its README differs."""
    bumped = replace(hub, overlay=OVERLAY_REVISION[::-1])
    write_overlay(bumped)
    readme = bumped.overlay_folder / "README.md"
    readme.write_text(readme.read_text() + "\nThanks.\n")
    return bumped


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


def objects(root: Path) -> dict[Path, int]:
    return {path: path.stat().st_ino for path in (root / ".overlay/objects").glob("*/*/*")}


def record(done: Materialization) -> Any:
    assert done.path is not None
    return json.loads((done.path / RECORD_NAME).read_bytes())


def tree(done: Materialization) -> dict[str, bytes]:
    assert done.path is not None
    files = files_of(done.path)
    del files[RECORD_NAME]
    return files


@pytest.mark.parametrize("bump", [bump_rename, bump_readme, bumped_overlay_readme])
def test_a_bump_that_changes_no_weight_builds_reads_and_writes_nothing(
    old: HubFolder, tmp_path: Path, bump: Callable[[HubFolder], HubFolder]
) -> None:
    """A renamed spec, an edited README, a moved commit: a new tree of the same objects, and the record says why."""
    root = tmp_path / "root"
    first = run(old, root)
    before = objects(root)
    bumped = bump(old)
    second = run(bumped, root)

    assert (first.result, second.result) == ("built", "reused")
    assert second.counters == Counters()
    assert objects(root) == before
    assert second.path != first.path
    # The server's key holds the overlay's commit, not ours of the source.
    assert (second.location == first.location) == (bumped.overlay == old.overlay)
    assert second.location is not None
    assert second.location.resolve() == second.path
    assert first.path is not None
    assert first.path.is_dir()  # the former generation stays
    run_report = record(second)["run"]
    assert run_report["counters"] == asdict(Counters())
    reused = {item["path"]: item["why"] for item in run_report["reused"]}
    assert set(reused) >= {
        *SHARDS,
        "video_vae/source/model.safetensors",
        "audio_vae/diffusion_pytorch_model.safetensors",
    }
    assert set(reused.values()) == {"same inputs"}
    assert record(second)["pins"]["source"]["revision"] == bumped.source


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


@pytest.mark.parametrize(
    ("bump", "rebuilt"),
    [
        (lambda hub: bump_alpha(hub, 4.0, "default"), None),
        (lambda hub: bump_alpha(hub, 16.0, "turbo"), None),
        (lambda hub: bump_turbo_block(hub, 0), "transformer_blocks.0."),
        (lambda hub: bump_turbo_block(hub, 2), "transformer_blocks.2."),
    ],
    ids=["alpha-default", "alpha-turbo", "turbo-block-0", "turbo-block-2"],
)
def test_a_bump_of_an_adapter_gives_the_bytes_of_a_fresh_build(
    built: Built,
    tmp_path_factory: pytest.TempPathFactory,
    tmp_path: Path,
    bump: Callable[[HubFolder], HubFolder],
    rebuilt: str | None,
) -> None:
    """Shards of the transformer are made anew, and nothing else is; the tree equals one built in an empty root."""
    bumped = bump(copy_hub(tmp_path_factory))
    warm, fresh = run(bumped, built.root), run(bumped, tmp_path / "fresh")
    assert (warm.result, fresh.result) == ("built", "built")
    assert tree(warm) == tree(fresh)
    assert warm.path is not None
    assert fresh.path is not None
    assert warm.path.name == fresh.path.name
    assert 0 < warm.counters.written < fresh.counters.written

    before = files_of(built.root / ".overlay/trees" / built.result.path.name) if built.result.path else {}
    changed = {path for path, data in tree(warm).items() if data != before[path] and path.endswith(".safetensors")}
    assert changed
    assert changed <= set(SHARDS)
    if rebuilt is not None:
        holders = {path for path in SHARDS if any(n.startswith(rebuilt) for n in read_header(warm.path / path).tensors)}
        assert changed <= holders


def test_a_resharded_base_is_a_miss_with_the_same_tensors(
    built: Built, tmp_path_factory: pytest.TempPathFactory, tmp_path: Path
) -> None:
    """More and smaller shards are built anew; the warm and the fresh tree are the same."""
    bumped = reshard_base(copy_hub(tmp_path_factory))
    root = copy_root(built.root, tmp_path / "warm")
    warm, fresh = run(bumped, root), run(bumped, tmp_path / "fresh")
    assert tree(warm) == tree(fresh)
    shards = [path for path in tree(warm) if path.startswith("transformer/diffusion") and path.endswith(".safetensors")]
    assert len(shards) > len(SHARDS)


def test_going_back_to_the_former_pins_swings_the_location_back(
    built: Built, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Both generations stay; a rollback moves one link."""
    bumped = bump_readme(copy_hub(tmp_path_factory))
    run(bumped, built.root)
    back = run(built.hub, built.root)
    assert back.result == "reused"
    assert back.path is not None
    assert back.path.name == built.result.path.name if built.result.path else False
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
