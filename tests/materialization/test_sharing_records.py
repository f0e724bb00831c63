"""Stores whose records are named by their content and make no sense, and stores that list more than they should."""

from __future__ import annotations

import json
from copy import deepcopy
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from support.models import VDN, copy_root, options
from support.published_rule import files_of

from overlay.cache import Cache
from overlay.errors import BrokenInput, CannotWrite, TryAgain
from overlay.fingerprint.entries import entry_bytes
from overlay.formats.materialized import MARKER_NAME
from overlay.materialization.materialize import materialize
from overlay.materialization.record import RECORD_NAME, record_bytes, tree_name
from overlay.materialization.sharing.pull import pull
from overlay.materialization.sharing.push import push
from overlay.materialization.verify import verify
from overlay.store import Store

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from conftest import Built

    from overlay.materialization.request import Options

    Change = Callable[[list[dict[str, Any]]], object]

SHARD = "transformer/diffusion_pytorch_model-00001-of-00003.safetensors"


@pytest.fixture
def store(tmp_path: Path, shared_build: Built) -> Path:
    """A store that has the tiny checkpoint."""
    push(VDN, str(tmp_path / "store"), options(shared_build.hub, shared_build.root))
    return tmp_path / "store"


def elsewhere(shared_build: Built, tmp_path: Path) -> Options:
    """A host with an empty root."""
    return options(shared_build.hub, tmp_path / "other/root")


def rewrite(store: Path, change: Change, actions: Iterable[str] = ()) -> None:
    """Let the store have a record with other outputs, well named, and offer it for the same pins."""
    [tree] = (store / "v1/trees").iterdir()
    record = json.loads(json.loads(tree.read_bytes())["entry"]["record"])
    change(record["outputs"])
    identity = {key: value for key, value in record.items() if key not in ("tree", "location", "outputs", "run")}
    name = record["tree"] = tree_name(record["model"], identity, record["outputs"])
    entry = {"record": record_bytes(record).decode(), "actions": list(actions)}
    tree.with_name(f"{name}.json").write_bytes(entry_bytes(1, name, entry))
    [model] = (path for path in (store / "v1/models").rglob("*") if path.is_file())
    model.write_bytes(entry_bytes(1, str(model.relative_to(store)), name))


def shard(**changes: Any) -> Change:
    def change(outputs: list[dict[str, Any]]) -> None:
        next(item for item in outputs if item["path"] == SHARD).update(changes)

    return change


def tensor(**changes: Any) -> Change:
    return shard(tensors=[{"name": "a", "dtype": "F32", "shape": [1]} | changes])


def first_tensor(**changes: Any) -> Change:
    def change(outputs: list[dict[str, Any]]) -> None:
        next(item for item in outputs if item["path"] == SHARD)["tensors"][0].update(changes)

    return change


def same_bytes_of_another_size(outputs: list[dict[str, Any]]) -> None:
    file = next(item for item in outputs if item["path"] == SHARD)
    outputs.append({"path": "zz.bin", "digest": file["digest"], "size": file["size"] + 1})


def without_marker(outputs: list[dict[str, Any]]) -> None:
    outputs[:] = [item for item in outputs if item["path"] != MARKER_NAME]


SENSELESS = [
    pytest.param(lambda outputs: outputs.append(deepcopy(outputs[0])), id="twice"),
    pytest.param(lambda outputs: outputs.append({**outputs[0], "path": f"{SHARD}/x"}), id="file-and-folder"),
    pytest.param(shard(path="a" * 256), id="long-name"),
    pytest.param(shard(path="/".join(["ä" * 100] * 20)), id="long-path"),
    pytest.param(shard(path="a\x1b[2J"), id="control"),
    pytest.param(shard(path=RECORD_NAME), id="reserved"),
    pytest.param(shard(path=f"{RECORD_NAME}/x"), id="below-reserved"),
    pytest.param(shard(path="transformer/.git/config"), id="hidden"),
    pytest.param(shard(path="../x"), id="outside"),
    pytest.param(shard(size=2**60), id="huge"),
    pytest.param(shard(size=-1), id="negative-size"),
    pytest.param(shard(size=1.5), id="float-size"),
    pytest.param(shard(size=3), id="smaller-than-its-tensors"),
    pytest.param(tensor(shape=["x"]), id="shape-text"),
    pytest.param(tensor(shape=[-5]), id="shape-negative"),
    pytest.param(tensor(shape=[1.5]), id="shape-float"),
    pytest.param(tensor(shape=[10**50]), id="shape-huge"),
    pytest.param(tensor(dtype="ZZ"), id="dtype"),
    pytest.param(lambda outputs: outputs.clear(), id="no-outputs"),
    pytest.param(without_marker, id="no-marker"),
    # What only the files tell:
    pytest.param(tensor(), id="other-tensors"),
    pytest.param(first_tensor(name="another"), id="other-name"),
    pytest.param(lambda outputs: [item.update(tensors=[]) for item in outputs], id="tensors-of-text"),
    pytest.param(same_bytes_of_another_size, id="one-content-two-sizes"),
]


@pytest.mark.parametrize("change", SENSELESS)
def test_a_senseless_record_is_damage_of_the_store(
    shared_build: Built, store: Path, tmp_path: Path, change: Change
) -> None:
    """No fault of this host: a pull names it and no location leads to it; a build notes it and does without."""
    rewrite(store, change)
    host = elsewhere(shared_build, tmp_path)
    with pytest.raises(BrokenInput) as caught:
        pull(VDN, str(store), host)
    assert (caught.value.code, caught.value.exit_status) == ("store-damaged", 1)
    assert f"{store}: tree " in caught.value.message
    assert not list((tmp_path / "other/root").glob("materialized_models/*"))

    root = copy_root(shared_build.root, tmp_path / "third/root")
    for location in (root / "materialized_models").iterdir():
        location.unlink()
    done = materialize(VDN, replace(host, cache_root=root, store=str(store)))
    assert done.result == "reused"
    assert any(str(store) in note and "built here" in note for note in done.notes)
    assert done.path is not None
    assert files_of(done.path) == files_of(shared_build.tree)
    assert verify(done.path).ok


def test_a_tree_of_a_store_that_needs_too_much_room_is_built(
    shared_build: Built, store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A store could say any size; what a build takes is told by the build itself."""
    rewrite(store, shard(size=2**49))
    monkeypatch.setattr("overlay.cache.store.free_room", lambda _: 2**48)
    host = elsewhere(shared_build, tmp_path)
    with pytest.raises(CannotWrite, match="needed"):
        pull(VDN, str(store), host)
    done = materialize(VDN, replace(host, store=str(store)))
    assert done.result == "built"
    assert any("for the tree of the store: built here" in note for note in done.notes)


@pytest.mark.parametrize("gone", [False, True])
def test_a_store_that_lists_actions_without_end_is_asked_for_some(
    shared_build: Built, store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, gone: bool
) -> None:
    """As many as the files could have, and no more once it is gone."""
    asked: list[str] = []

    def find(_: Store, key: str) -> None:
        asked.append(key)
        if gone:
            raise TryAgain("gone", code="gone")

    monkeypatch.setattr(Store, "find_action", find)
    rewrite(store, lambda _: None, (f"{number:064x}" for number in range(2000)))
    assert pull(VDN, str(store), elsewhere(shared_build, tmp_path)).result == "pulled"
    assert 0 < len(asked) <= (4 if gone else 200)


def test_an_action_of_another_size_is_not_taken(
    shared_build: Built, store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor one of another file: the cache keeps what it knows to be so."""
    digest = next(item["digest"] for item in json.loads((shared_build.tree / RECORD_NAME).read_bytes())["outputs"])
    other = f"xxh3_128:{'0' * 32}"
    entries = iter([{"digest": digest, "size": 2**60}, {"digest": other, "size": 1}])
    monkeypatch.setattr(Store, "find_action", lambda *_: next(entries))
    monkeypatch.setattr(Cache, "put_action", lambda *_: pytest.fail("it was taken"))
    rewrite(store, lambda _: None, ["0" * 64, "1" * 64])
    assert pull(VDN, str(store), elsewhere(shared_build, tmp_path)).result == "pulled"
