"""Ways to a tree that is whole and yet wrong: each must end in an error, or in the right bytes."""

from __future__ import annotations

import json
import os
import shutil
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from support.checkpoints import tiny_hub
from support.models import STAGE, VDN, copy_root, options

from overlay.cache import Cache
from overlay.cache.collecting import rm
from overlay.errors import BrokenInput, TryAgain
from overlay.formats.materialized import RECORD_NAME
from overlay.materialization.inputs import fetch
from overlay.materialization.materialize import materialize

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from overlay.demo.checkpoint import HubFolder

SHARD = "h3-base/transformer/diffusion_pytorch_model-00001-of-*.safetensors"


@pytest.fixture(autouse=True)
def _no_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing here is about power cuts."""
    monkeypatch.setattr(os, "fsync", lambda _descriptor: None)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> tuple[HubFolder, Path]:
    """A hub and a root that was built from it; both are to be copied."""
    hub, root = tiny_hub(tmp_path_factory), tmp_path_factory.mktemp("built") / "root"
    materialize(VDN, options(hub, root))
    return hub, root


def contents(tree: Path | None) -> dict[str, bytes]:
    assert tree is not None
    files = (path for path in tree.rglob("*") if path.is_file() and path.name != RECORD_NAME)
    return {path.relative_to(tree).as_posix(): path.read_bytes() for path in files}


@pytest.mark.parametrize(
    "edited",
    [
        pytest.param(SHARD, id="fused"),
        pytest.param(f"{STAGE}/adapters/turbo/adapter_model.safetensors", id="adapter"),
        pytest.param("h3-base/audio_vae/diffusion_pytorch_model.safetensors", id="carried"),
    ],
)
@pytest.mark.parametrize("settled_ns", [0, 10**12])
def test_a_folders_file_that_changes_during_a_run_makes_no_object(
    world: tuple[HubFolder, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, edited: str, settled_ns: int
) -> None:
    """Same size, other bytes between plan and build: refused, and a run on the restored file is right."""
    hub = replace(world[0], root=shutil.copytree(world[0].root, tmp_path / "hub"))
    [file] = hub.source_folder.glob(edited)
    original = file.read_bytes()
    monkeypatch.setattr("overlay.fingerprint.memo._SETTLED_NS", settled_ns)

    def fetch_and_edit(*args: Any) -> Any:
        found = fetch(*args)
        time.sleep(0.02)
        with file.open("r+b") as opened:
            opened.write(original[:-1] + bytes([original[-1] ^ 1]))
        return found

    with monkeypatch.context() as patch:
        patch.setattr("overlay.materialization.job.fetch", fetch_and_edit)
        with pytest.raises(BrokenInput) as caught:
            materialize(VDN, options(hub, tmp_path / "root"))
    assert caught.value.code == "input-changed"

    time.sleep(0.02)
    file.write_bytes(original)
    made = materialize(VDN, options(hub, tmp_path / "root"))
    expected = contents(next((world[1] / ".overlay/trees").iterdir()))
    assert contents(made.path) == expected


def _other(entry: dict[str, Any], entries: list[dict[str, Any]]) -> None:
    found = next(e for e in entries if e.get("tensors") and e["digest"] != entry["digest"])
    entry.update(found)


@pytest.mark.parametrize(
    "poison",
    [
        pytest.param(_other, id="another-object"),
        pytest.param(lambda entry, _: entry.pop("tensors"), id="no-tensors"),
        pytest.param(lambda entry, _: entry.update(tensors=7), id="tensors-number"),
        pytest.param(lambda entry, _: entry.update(tensors=[7]), id="tensors-numbers"),
        pytest.param(lambda entry, _: entry.update(tensors=[]), id="tensors-none"),
        pytest.param(lambda entry, _: entry["tensors"][0].update(digest="?"), id="tensor-digest"),
        pytest.param(lambda entry, _: entry["tensors"][0].update(shape=[1]), id="tensor-shape"),
        pytest.param(lambda entry, _: entry["tensors"][0].update(extra="\ud800"), id="lone-surrogate"),
    ],
)
def test_an_action_entry_that_cannot_be_of_this_file_is_not_believed(
    world: tuple[HubFolder, Path], tmp_path: Path, poison: Callable[[dict[str, Any], list[dict[str, Any]]], Any]
) -> None:
    """What an entry says is held against the plan's layout; a file is built again rather than mistaken for another."""
    root = copy_root(world[1], tmp_path / "root")
    expected = contents(next((root / ".overlay/trees").iterdir()))
    record = next((root / ".overlay/trees").glob(f"*/{RECORD_NAME}")).read_bytes()
    for folder in ("materialized_models", ".overlay/trees"):
        shutil.rmtree(root / folder)
    paths = sorted((root / ".overlay/actions").glob("*/*.json"))
    documents = [json.loads(path.read_bytes()) for path in paths]
    entries = [dict(document["entry"]) for document in documents]
    for path, document in zip(paths, documents, strict=True):
        if document["entry"].get("tensors"):
            poison(document["entry"], entries)
            path.write_text(json.dumps(document))

    made = materialize(VDN, options(world[0], root))

    assert contents(made.path) == expected
    assert made.path is not None
    found = json.loads((made.path / RECORD_NAME).read_bytes())
    assert found["outputs"] == json.loads(record)["outputs"]


def test_a_tree_that_is_removed_before_its_location_is_swung_is_no_success(
    world: tuple[HubFolder, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`cache rm --leased` at the wrong moment: the run claims no directory that is gone; the next one makes it."""
    root = copy_root(world[1], tmp_path / "root")
    [location] = (root / "materialized_models").iterdir()
    location.unlink()
    swing = Cache.swing_location

    def remove_and_swing(cache: Cache, name: str, tree: str) -> Path:
        rm(cache.root, [tree], leased=True)
        return swing(cache, name, tree)

    with monkeypatch.context() as patch:
        patch.setattr(Cache, "swing_location", remove_and_swing)
        with pytest.raises(TryAgain, match="was removed"):
            materialize(VDN, options(world[0], root))

    assert contents(materialize(VDN, options(world[0], root)).path) == contents(
        world[1] / "materialized_models" / location.name
    )
