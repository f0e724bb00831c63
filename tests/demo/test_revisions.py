"""Upstream's changes to the made checkpoint: each changes what it says, and nothing else."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

import pytest
from support.checkpoints import copy_hub

from overlay.demo import revisions
from overlay.demo.revisions import (
    bump_alpha,
    bump_overlay_readme,
    bump_overlay_whitespace,
    bump_readme,
    bump_rename,
    bump_turbo_block,
    move_overlay,
    move_source,
    reshard_base,
)
from overlay.errors import InvalidUsage
from overlay.formats.checkpoint import read_checkpoint
from overlay.formats.files import Folder
from overlay.formats.header import read_header

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from overlay.demo.checkpoint import HubFolder
    from overlay.formats.checkpoint import Checkpoint

pytestmark = pytest.mark.no_torch

TURBO = "stage-dmd-step-250/adapters/turbo/adapter_model.safetensors"


@pytest.fixture
def hub(tmp_path_factory: pytest.TempPathFactory) -> HubFolder:
    return copy_hub(tmp_path_factory)


def contents(root: Path) -> dict[str, bytes]:
    return {file.relative_to(root).as_posix(): file.read_bytes() for file in root.rglob("*") if file.is_file()}


def changes(old: Path, new: Path) -> set[str]:
    before, after = contents(old), contents(new)
    return {path for path in before.keys() | after.keys() if before.get(path) != after.get(path)}


def test_rename_keeps_every_byte_and_the_overlay_requires_the_new_name(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """Three specs change their name; two entries of the manifest follow."""
    hub = copy_hub(tmp_path_factory, "adapter_config.json")
    bumped = bump_rename(hub)
    renamed = {
        path.replace("adapter_config.json", "adapter_spec.json"): content
        for path, content in contents(hub.source_folder).items()
    }
    assert contents(bumped.source_folder) == renamed
    assert sum(path.endswith("adapter_spec.json") for path in renamed) == 3
    assert changes(hub.overlay_folder, bumped.overlay_folder) == {"_overlay/overlay_manifest.json"}
    old, new = (
        (folder / "_overlay" / "overlay_manifest.json").read_text()
        for folder in (hub.overlay_folder, bumped.overlay_folder)
    )
    assert old.replace("adapter_config.json", "adapter_spec.json") == new != old


def test_rename_needs_the_former_name(hub: HubFolder) -> None:
    """Where the specs have their present name there is nothing to rename."""
    with pytest.raises(InvalidUsage, match=r"adapter_spec\.json already"):
        bump_rename(hub)


def test_readme_edit_changes_the_readme_alone(hub: HubFolder) -> None:
    """Only README.md differs."""
    assert changes(hub.source_folder, bump_readme(hub).source_folder) == {"README.md"}


def test_overlay_edits_change_what_they_say_alone(hub: HubFolder) -> None:
    """A README, or how JSON is spelled: what it says stays."""
    old, edited = hub.overlay_folder, bump_overlay_whitespace(hub).overlay_folder
    assert changes(old, bump_overlay_readme(hub).overlay_folder) == {"README.md"}
    spelled = {"model_index.json", "_overlay/overlay_manifest.json"}
    assert changes(old, edited) == spelled
    assert all(json.loads((old / path).read_bytes()) == json.loads((edited / path).read_bytes()) for path in spelled)


def test_a_moved_revision_holds_the_same(hub: HubFolder) -> None:
    """A new commit of source or overlay, and not a byte of difference."""
    source, overlay = move_source(hub), move_overlay(hub)
    assert source.source != hub.source
    assert overlay.overlay != hub.overlay
    assert changes(hub.source_folder, source.source_folder) == set()
    assert changes(hub.overlay_folder, overlay.overlay_folder) == set()


def test_turbo_block_edit_changes_that_blocks_pairs_alone(hub: HubFolder) -> None:
    """One file differs, in the tensors of block 1 and no other."""
    bumped = bump_turbo_block(hub, block=1)
    assert changes(hub.source_folder, bumped.source_folder) == {TURBO}
    old, new = ((root / TURBO).read_bytes() for root in (hub.source_folder, bumped.source_folder))
    header = read_header(hub.source_folder / TURBO)
    assert read_header(bumped.source_folder / TURBO) == header
    changed = {
        name
        for name, info in header.tensors.items()
        if old[(start := header.offset(name)) : start + info.nbytes] != new[start : start + info.nbytes]
    }
    assert changed == {name for name in header.tensors if name.startswith("transformer_blocks.1.")}


def test_alpha_edit_changes_spec_and_model_spec(hub: HubFolder) -> None:
    """Both files that state the alpha agree on the new one."""
    bumped = bump_alpha(hub, 4, adapter="turbo")
    spec = "stage-dmd-step-250/adapters/turbo/adapter_spec.json"
    assert changes(hub.source_folder, bumped.source_folder) == {spec, "stage-dmd-step-250/model_spec.json"}
    document = json.loads((bumped.source_folder / spec).read_bytes())
    model = json.loads((bumped.source_folder / "stage-dmd-step-250" / "model_spec.json").read_bytes())
    assert document["config"]["alpha"] == 4
    assert model["adapters"][1] == document


def test_reshard_keeps_every_tensor(hub: HubFolder) -> None:
    """More shards, same names and bytes of tensors, same config."""
    bumped = reshard_base(hub)
    old, new = (
        read_checkpoint(Folder(root), "h3-base/transformer") for root in (hub.source_folder, bumped.source_folder)
    )
    assert len(new.shards) > len(old.shards)
    assert new.weight_map.keys() == old.weight_map.keys()
    for name in old.weight_map:
        assert tensor_bytes(hub, old, name) == tensor_bytes(bumped, new, name)
    touched = changes(hub.source_folder, bumped.source_folder)
    assert all(path.startswith("h3-base/transformer/diffusion_pytorch_model") for path in touched)


def tensor_bytes(hub: HubFolder, checkpoint: Checkpoint, name: str) -> bytes:
    shard, info = checkpoint.tensor(name)
    start = checkpoint.shards[shard].offset(name)
    file = hub.source_folder / "h3-base" / "transformer" / shard
    return file.read_bytes()[start : start + info.nbytes]


SOURCE_BUMPS: list[Callable[[HubFolder], HubFolder]] = [
    move_source,
    bump_readme,
    bump_turbo_block,
    lambda hub: bump_turbo_block(hub, 2),
    lambda hub: bump_alpha(hub, 4),
    lambda hub: bump_alpha(hub, 2),
    reshard_base,
    lambda hub: reshard_base(hub, 10**6),
]


def test_revisions_are_commits_that_follow_from_the_change(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Every change has a 40-hex revision of its own, the same for the same checkpoint elsewhere."""
    here, there = copy_hub(tmp_path_factory), copy_hub(tmp_path_factory)
    found = [bump(here).source for bump in SOURCE_BUMPS]
    assert found == [bump(there).source for bump in SOURCE_BUMPS]
    assert len({here.source, *found}) == len(SOURCE_BUMPS) + 1
    assert all(re.fullmatch("[0-9a-f]{40}", revision) for revision in found)


def test_changes_follow_one_another(hub: HubFolder) -> None:
    """A bump starts from the revision that it is given."""
    bumped = bump_readme(bump_alpha(hub, 4))
    assert "README.md" in changes(hub.source_folder, bumped.source_folder)
    assert "stage-dmd-step-250/model_spec.json" in changes(hub.source_folder, bumped.source_folder)


def test_same_change_twice_is_refused(hub: HubFolder) -> None:
    """A revision that exists is never written again."""
    bump_readme(hub)
    with pytest.raises(InvalidUsage, match="exists already"):
        bump_readme(hub)


def test_block_that_does_not_exist_is_refused(hub: HubFolder) -> None:
    """The message says how many blocks there are."""
    with pytest.raises(InvalidUsage, match="found 3 blocks"):
        bump_turbo_block(hub, block=3)


@pytest.mark.parametrize("bump", SOURCE_BUMPS)
def test_linked_files_of_the_old_revision_never_change(
    bump: Callable[[HubFolder], HubFolder], hub: HubFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where weights are shared by a hardlink, a change writes a new file."""
    monkeypatch.setattr(revisions, "_LINK_FROM", 8 * 2**10)
    before = contents(hub.source_folder)
    bumped = bump(hub)
    assert contents(hub.source_folder) == before
    branch = "stage-dmd-step-250/linear_branch/model.safetensors"
    assert (bumped.source_folder / branch).samefile(hub.source_folder / branch)
