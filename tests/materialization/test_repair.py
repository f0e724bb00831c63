"""Repairing a cache: what does not verify goes, what does stays where it is, and only the rest is built again."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from support.checkpoints import copy_hub
from support.models import VDN, options

from overlay.demo.revisions import bump_overlay_readme, bump_readme
from overlay.materialization.materialize import materialize
from overlay.materialization.record import RECORD_NAME
from overlay.materialization.repair import repair
from overlay.materialization.verify import verify

if TYPE_CHECKING:
    from pathlib import Path

    from conftest import Built

SHARD = "transformer/diffusion_pytorch_model-00002-of-00003.safetensors"
SMALL = "tokenizer/vocab.json"


def rot(path: Path) -> None:
    """Flip a bit under every name of the inode, size and name unchanged."""
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


def test_a_sound_cache_is_left_alone(built: Built) -> None:
    """Everything is read, nothing is moved."""
    before = built.objects()
    assert [(done.result, done.problems) for done in repair((), built.options())] == [("sound", ())]
    assert built.objects() == before


@pytest.mark.parametrize("path", [SHARD, SMALL, "transformer/config.json"])
def test_only_what_does_not_verify_is_built_again(built: Built, path: str) -> None:
    """The model is whole again at its location; objects that were sound keep their inode."""
    before = built.objects()
    rot(built.tree / path)
    assert materialize(VDN, built.options()).result == "present"  # stat cannot tell, which is why there is a repair

    [done] = repair([VDN], built.options())

    assert (done.result, [problem.path for problem in done.problems]) == ("rebuilt", [path])
    assert verify(built.location).ok
    changed = {name for name, inode in built.objects().items() if before.get(name) != inode}
    assert len(changed) == (1 if path == SHARD else 0)


def test_a_damaged_object_is_repaired_in_every_generation(
    built: Built, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Generations share objects, so all are looked at: the current one is rebuilt, one that nothing points to goes."""
    old_tree = built.tree
    newer = options(bump_readme(copy_hub(tmp_path_factory)), built.root)
    new_tree = materialize(VDN, newer).path
    assert new_tree is not None
    assert new_tree != old_tree
    superseded = [tree for tree in (old_tree, new_tree) if tree not in {link.resolve() for link in locations(built)}]
    rot(new_tree / SHARD)

    results = {done.name: done.result for done in repair((), newer)}

    assert results[new_tree.name] == "rebuilt"
    assert results[old_tree.name] == ("removed" if superseded else "rebuilt")
    assert {done.result for done in repair((), newer)} == {"sound"}


def test_a_generation_of_other_pins_is_taken_out(built: Built, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Today's registry does not build it, so its location leads nowhere and goes too; the other stays as it is."""
    old_tree, old_location = built.tree, built.location
    newer = options(bump_overlay_readme(copy_hub(tmp_path_factory)), built.root)
    new_tree = materialize(VDN, newer).path
    rot(old_tree / SMALL)

    said = {done.name: (done.result, done.path) for done in repair((), newer, dry_run=True)}
    done = {done.name: (done.result, done.path) for done in repair((), newer)}

    assert new_tree is not None
    assert said == done == {old_tree.name: ("removed", None), new_tree.name: ("sound", new_tree)}
    assert not old_location.is_symlink()
    assert [link.resolve() for link in locations(built)] == [new_tree]
    assert materialize(VDN, built.options()).result == "reused"
    assert verify(old_location).ok


def test_a_generation_is_repaired_under_the_registry_that_pins_it(
    built: Built, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Whatever else is there."""
    tree = built.tree
    materialize(VDN, options(bump_overlay_readme(copy_hub(tmp_path_factory)), built.root))
    rot(tree / SMALL)

    results = {done.name: (done.result, done.path) for done in repair((), built.options())}

    assert results[tree.name] == ("rebuilt", tree)
    assert {result for result, _ in results.values()} == {"rebuilt", "sound"}


def locations(built: Built) -> list[Path]:
    return list((built.root / "materialized_models").iterdir())


def test_a_model_is_built_again_by_its_own_rule(built: Built) -> None:
    """A location that led to a tree of the rule openvdn leads to one of that rule again."""
    by_rule = built.options(rule="openvdn")
    first = materialize(VDN, by_rule).path
    assert first is not None
    rot(first / SHARD)

    results = {done.name: done for done in repair((), built.options())}

    assert (results[first.name].result, results[first.name].path) == ("rebuilt", first)
    assert built.location.resolve() == first.resolve()
    assert verify(built.location).ok


def test_a_model_made_of_a_folder_is_taken_out(built: Built, tmp_path: Path) -> None:
    """Its pins name no repo that it could be made of again."""
    chosen = built.options()
    folder = tmp_path / "vdn-minimax-h3"
    folder.symlink_to(built.hub.source_folder)
    made = materialize(str(folder), chosen).path
    assert made is not None
    rot(made / SHARD)

    result = {done.name: done.result for done in repair((), chosen)}[made.name]

    assert result == "removed"
    assert not made.exists()


def test_a_dry_run_looks_and_changes_nothing(built: Built) -> None:
    """It says what would be rebuilt."""
    rot(built.tree / SHARD)
    before = built.objects()
    assert [done.result for done in repair((), built.options(), dry_run=True)] == ["rebuilt"]
    assert built.objects() == before
    assert not verify(built.tree).ok


def test_a_model_of_no_registry_is_taken_out(built: Built) -> None:
    """What cannot be built again is removed with its location, so that no server finds it."""
    record = built.tree / RECORD_NAME
    location = built.location
    record.write_text(record.read_text().replace(f'"model": "{VDN}"', '"model": "acme/gone"'))

    [done] = repair((), built.options())

    assert (done.result, done.path) == ("removed", None)
    assert not location.is_symlink()
