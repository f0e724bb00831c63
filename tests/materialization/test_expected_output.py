"""Output that is not as the lock expects: rebuilt by the ordered kernel, refused and kept where that is no help."""

from __future__ import annotations

import json
import os
import shutil
import signal
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
import torch
from support.checkpoints import copy_hub
from support.children import end_child, in_child, mount_read_only, own_mounts, start_child
from support.locks import lock_of, write_lock
from support.models import VDN, copy_root, options
from support.published_rule import files_of

import overlay.fusion.engine
import overlay.materialization.locking.enforcing
from overlay.demo.revisions import bump_readme
from overlay.errors import CheckFailed
from overlay.fusion.library import Library
from overlay.fusion.products import Products
from overlay.fusion.self_test import SelfTest
from overlay.materialization.compare import compare
from overlay.materialization.locking.lock import lock
from overlay.materialization.materialize import materialize, plan
from overlay.materialization.record import RECORD_NAME
from overlay.materialization.resolve import resolve
from overlay.materialization.verify import verify
from overlay.registry import load_registry

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from conftest import Built

    from overlay.materialization.request import Options

SHARD = "transformer/diffusion_pytorch_model-00001-of-00003.safetensors"
RELAID = "transformer/sglang_rope_inv_freq.safetensors"
TWINS = ["video_vae/model.safetensors", "video_vae/source/model.safetensors"]
CARRIED = "audio_vae/diffusion_pytorch_model.safetensors"

Edit = "Callable[[dict[str, Any]], object]"


@pytest.fixture
def document(shared_build: Built) -> dict[str, Any]:
    """A lock entry of the shared build."""
    return lock_of(VDN, shared_build.options(), shared_build.hub.root, shared_build.tree)


@pytest.fixture
def chosen(shared_build: Built, tmp_path: Path) -> Options:
    """Options of a run on an empty root."""
    return options(shared_build.hub, tmp_path / "root")


@pytest.fixture
def flawed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A library that passed its test and flips a bit of every product that it makes all the same."""
    add_to = Products.add_to

    def flip(self: Products, total: torch.Tensor, b: torch.Tensor, a: torch.Tensor) -> None:
        add_to(self, total, b, a)
        if self._library is not None:
            total.view(torch.int32).view(-1)[0] ^= 1 << 21

    library = Library("flawed", {torch.float32: 4096, torch.float64: 4096})
    monkeypatch.setattr(overlay.fusion.engine, "mkl_library", lambda: (library, ""))
    monkeypatch.setattr(overlay.fusion.engine, "run_self_test", lambda *_, **__: SelfTest(1, ()))
    monkeypatch.setattr(Products, "add_to", flip)


def other_tensor(document: dict[str, Any], path: str = SHARD) -> str:
    """Change the digest that is expected of a file's first tensor; returns its name."""
    tensors = document["expected"]["files"][path]["tensors"]
    name = min(tensors)
    tensors[name] = tensors[name][:-1] + ("0" if tensors[name][-1] != "0" else "1")
    return name


def other_file(path: str) -> Edit:
    """Change the digests that are expected of a whole file."""

    def edit(document: dict[str, Any]) -> None:
        file = document["expected"]["files"][path]
        file["digest"] = f"{file['digest'].partition(':')[0]}:{'0' * len(file['digest'].partition(':')[2])}"
        file["sha256"] = "0" * 64

    return edit


def refused(chosen: Options) -> CheckFailed:
    """The error of a run; nothing is published by it."""
    assert chosen.cache_root is not None
    before = published(chosen.cache_root)
    with pytest.raises(CheckFailed) as caught:
        materialize(VDN, chosen)
    assert caught.value.code == "output-differs"
    assert published(chosen.cache_root) == before
    return caught.value


def published(root: Path) -> dict[str, Any]:
    """Locations with what they lead to, and trees."""
    locations = {path.name: path.readlink() for path in root.glob("materialized_models/*")}
    return {**locations, **{path.name: path.stat().st_ino for path in root.glob(".overlay/trees/*")}}


def quarantined(root: Path) -> list[Path]:
    return sorted(root.glob(".overlay/quarantine/*"))


def run_of(tree: Path) -> dict[str, Any]:
    run: dict[str, Any] = json.loads((tree / RECORD_NAME).read_bytes())["run"]
    return run


def objects(root: Path) -> set[str]:
    return {f"{path.parent.parent.name}:{path.name}" for path in root.glob(".overlay/objects/*/*/*")}


def forget_trees(root: Path) -> None:
    """Leave only what was built: objects, and the entries that lead to them."""
    for folder in (root / ".overlay/trees", root / "materialized_models"):
        shutil.rmtree(folder)
        folder.mkdir()


def test_output_as_expected_is_published(chosen: Options, shared_build: Built, document: dict[str, Any]) -> None:
    """Nothing is built twice, and the record says nothing of it."""
    write_lock(VDN, chosen, document)
    done = materialize(VDN, chosen)
    assert done.path is not None
    assert done.counters == shared_build.result.counters
    assert compare(done.path, shared_build.tree).identical
    assert run_of(done.path)["rebuilt"] is None


def test_what_stays_different_is_refused_and_kept(
    chosen: Options, shared_build: Built, document: dict[str, Any]
) -> None:
    """The tensor is named, the tree is in quarantine, whole, and can be compared, verified and locked from."""
    name = other_tensor(document)
    path = write_lock(VDN, chosen, document)
    error = refused(chosen)
    assert chosen.cache_root is not None
    [tree] = quarantined(chosen.cache_root)
    assert error.message == (
        f"{path}: the output of {VDN} is not as expected in 1 tensor of 1 file ({SHARD}: {name}), "
        "also when built again by the ordered kernel; not published"
    )
    assert error.data["quarantine"] == str(tree)
    assert [(item["path"], item["tensors"]) for item in error.data["files"]] == [(SHARD, [name])]
    assert error.hint == (f"look: {tree}; if the lock is what is wrong: overlay lock {VDN} --from-build {tree}")
    assert tree.name == shared_build.tree.name
    assert verify(tree).ok
    assert compare(tree, shared_build.tree).identical
    assert [item["path"] for item in run_of(tree)["rebuilt"]["files"]] == [SHARD]
    assert run_of(tree)["rebuilt"]["engine"]["library"] is None
    assert resolve(VDN, chosen).state.name == "absent"

    # The hint's way out: once the lock is of this build, the next run publishes the same.
    lock((VDN,), chosen, from_build=tree)
    done = materialize(VDN, chosen)
    assert done.path is not None
    assert compare(done.path, tree).identical
    assert run_of(done.path)["rebuilt"] is None


def test_what_stays_different_is_in_no_object(chosen: Options, shared_build: Built, document: dict[str, Any]) -> None:
    """The file that differs is made anew by the next run, the others are found; the same tree is kept once."""
    other_tensor(document)
    write_lock(VDN, chosen, document)
    root = chosen.cache_root
    assert root is not None
    refused(chosen)
    wrong = document["expected"]["files"][SHARD]["digest"]
    everything = objects(shared_build.root)
    assert wrong in everything
    assert objects(root) == everything - {wrong}
    [tree] = quarantined(root)
    inode = tree.stat().st_ino
    refused(chosen)
    assert [(tree, inode)] == [(path, path.stat().st_ino) for path in quarantined(root)]
    assert list((root / ".overlay/staging").glob("*")) == []


def test_another_sha256_of_a_carried_file_is_refused(chosen: Options, document: dict[str, Any]) -> None:
    """The sha256 of what is taken over is known, so the lock's counts, whatever its other digest says."""
    path = "transformer/sglang_vdn_linear_branch.safetensors"
    document["expected"]["files"][path]["sha256"] = "0" * 64
    write_lock(VDN, chosen, document)
    assert [item["path"] for item in refused(chosen).data["files"]] == [path]


def test_a_model_that_is_here_is_held_against_a_lock_that_came_later(chosen: Options, document: dict[str, Any]) -> None:
    """A host that built before anybody expected anything is told as well; what is published stays."""
    done = materialize(VDN, chosen)
    write_lock(VDN, chosen, document)
    assert materialize(VDN, chosen).result == "present"
    other_tensor(document)
    write_lock(VDN, chosen, document)
    refused(chosen)
    assert done.path is not None
    assert verify(done.path).ok
    assert not plan(VDN, chosen).is_present


@pytest.mark.usefixtures("flawed")
def test_a_tree_built_wrong_before_the_lock_came_is_replaced(
    chosen: Options, shared_build: Built, document: dict[str, Any]
) -> None:
    """By what the ordered kernel makes; the wrong tree is still there, and no location leads to it."""
    wrong = materialize(VDN, chosen)
    assert wrong.path is not None
    assert not compare(wrong.path, shared_build.tree).identical
    write_lock(VDN, chosen, document)
    right = materialize(VDN, chosen)
    assert right.path is not None
    assert compare(right.path, shared_build.tree).identical
    assert right.location is not None
    assert right.location.resolve() == right.path
    assert wrong.path.is_dir()
    assert materialize(VDN, chosen).result == "present"


def test_a_damaged_tree_in_quarantine_is_replaced(chosen: Options, document: dict[str, Any]) -> None:
    """By the next run that comes to the same tree."""
    other_tensor(document)
    write_lock(VDN, chosen, document)
    assert chosen.cache_root is not None
    refused(chosen)
    [tree] = quarantined(chosen.cache_root)
    (tree / SHARD).unlink()
    refused(chosen)
    assert verify(tree).ok


@pytest.mark.usefixtures("flawed")
def test_a_library_that_errs_is_overruled(chosen: Options, shared_build: Built, document: dict[str, Any]) -> None:
    """The files that it spoilt are rebuilt by the ordered kernel, the right ones are published, the record says so."""
    write_lock(VDN, chosen, document)
    root = chosen.cache_root
    assert root is not None
    done = materialize(VDN, chosen)
    assert done.path is not None
    assert done.result == "built"
    assert done.path.name == shared_build.tree.name
    assert compare(done.path, shared_build.tree).identical
    run = run_of(done.path)
    assert run["engine"]["library"] == "flawed"
    assert run["rebuilt"]["engine"]["library"] is None
    files = {item["path"]: item for item in run["rebuilt"]["files"]}
    assert set(files) == {
        path
        for path in document["expected"]["files"]
        if path.startswith("transformer/diff") and path.endswith(".safetensors")
    }
    assert all(files[path]["tensors"] for path in files)
    assert set(run["kernels"]) == {"ordered"}
    assert any(all(path in note for path in files) for note in done.notes)
    assert done.counters.written > shared_build.result.counters.written
    assert run["counters"]["written"] == done.counters.written
    assert quarantined(root) == []
    assert objects(root) == objects(shared_build.root)

    forget_trees(root)
    assert materialize(VDN, chosen).result == "reused"


@pytest.mark.usefixtures("flawed")
def test_spoilt_objects_of_an_earlier_run_are_not_used(
    chosen: Options, shared_build: Built, document: dict[str, Any]
) -> None:
    """A run without a lock left them; with one, they are compared like what is built, and made anew."""
    root = chosen.cache_root
    assert root is not None
    spoilt = materialize(VDN, chosen).path
    assert spoilt is not None
    assert not compare(spoilt, shared_build.tree).tensors_equal
    forget_trees(root)
    write_lock(VDN, chosen, document)
    done = materialize(VDN, chosen)
    assert done.path is not None
    assert done.result == "built"
    assert compare(done.path, shared_build.tree).identical
    assert run_of(done.path)["rebuilt"] is not None
    assert {item["path"] for item in run_of(done.path)["reused"]}.isdisjoint(
        item["path"] for item in run_of(done.path)["rebuilt"]["files"]
    )
    assert objects(root) == objects(shared_build.root)


@pytest.mark.usefixtures("flawed")
def test_without_a_lock_nobody_notices(chosen: Options, shared_build: Built) -> None:
    """The fault that these tests rely on is one."""
    done = materialize(VDN, chosen).path
    assert done is not None
    assert not compare(done, shared_build.tree).tensors_equal


@pytest.mark.parametrize("path", [CARRIED, "model_index.json", RELAID])
def test_every_file_is_compared(chosen: Options, document: dict[str, Any], path: str) -> None:
    """One that was taken over, one that was made of JSON, and one that is only laid out anew."""
    write_lock(VDN, chosen, document, other_file(path))
    error = refused(chosen)
    assert path in [item["path"] for item in error.data["files"]]
    assert ("the ordered kernel" in error.message) == (path == RELAID)


def test_a_file_with_two_names_is_rebuilt_once(chosen: Options, document: dict[str, Any]) -> None:
    """Both names differ, and in quarantine both are of the second build."""
    for path in TWINS:
        other_file(path)(document)
    write_lock(VDN, chosen, document)
    assert [item["path"] for item in refused(chosen).data["files"]] == TWINS
    assert chosen.cache_root is not None
    [tree] = quarantined(chosen.cache_root)
    assert verify(tree).ok
    assert (tree / TWINS[0]).samefile(tree / TWINS[1])
    assert len(run_of(tree)["rebuilt"]["files"]) == 1
    assert run_of(tree)["rebuilt"]["engine"] is None


def test_other_tensors_are_named_by_files_alone_where_the_lock_has_none(
    chosen: Options, document: dict[str, Any]
) -> None:
    """A lock that knows the file's digest only."""
    document["expected"]["files"][SHARD]["tensors"] = None
    write_lock(VDN, chosen, document, other_file(SHARD))
    error = refused(chosen)
    assert [(item["path"], item["tensors"]) for item in error.data["files"]] == [(SHARD, [])]
    assert f"in 1 file ({SHARD})" in error.message


def test_files_too_many_and_too_few_are_differences(chosen: Options, document: dict[str, Any]) -> None:
    """The output is these files and no others."""
    files = document["expected"]["files"]
    files["extra.json"] = files.pop("model_index.json")
    write_lock(VDN, chosen, document)
    found = {item["path"]: (item["found"], item["expected"]) for item in refused(chosen).data["files"]}
    assert found.keys() == {"extra.json", "model_index.json"}
    assert found["extra.json"][0] is None
    assert found["model_index.json"][1] is None


@pytest.mark.parametrize(
    ("key", "value", "why"),
    [
        ("rule", "openvdn", "expects the output of rule openvdn, this is fp32-once"),
        ("writer_version", 99, "expects the output of writer version 99, this is 1"),
    ],
)
def test_output_of_another_rule_or_writer_is_not_compared(
    chosen: Options, document: dict[str, Any], key: str, value: Any, why: str
) -> None:
    """A note says so, and why."""
    other_tensor(document)
    document["expected"][key] = value
    write_lock(VDN, chosen, document)
    done = materialize(VDN, chosen)
    assert done.result == "built"
    assert any(why in note for note in done.notes)


def test_only_what_was_made_is_compared(chosen: Options, document: dict[str, Any]) -> None:
    """With ``only``: another component's difference does not count, one of this component does."""
    other_tensor(document)
    write_lock(VDN, chosen, document)
    vae, transformer = replace(chosen, only=("video_vae",)), replace(chosen, only=("transformer",))
    assert materialize(VDN, vae).path is None
    with pytest.raises(CheckFailed) as caught:
        materialize(VDN, transformer)
    assert caught.value.code == "output-differs"
    assert [item["path"] for item in caught.value.data["files"]] == [SHARD]
    assert chosen.cache_root is not None
    [tree] = quarantined(chosen.cache_root)
    assert verify(tree).ok


def test_what_is_published_stays(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, document: dict[str, Any]
) -> None:
    """The location leads to the generation before, and a reader of it sees the same files."""
    hub = copy_hub(tmp_path_factory)
    before = materialize(VDN, options(hub, tmp_path / "root"))
    assert before.path is not None
    assert before.location is not None
    files = files_of(before.path)
    bumped = options(bump_readme(hub), tmp_path / "root")
    for pin in document["repos"]:
        entry = load_registry(bumped.registry).entries[VDN]
        [revision] = [found.revision for found in entry.pins if found.repo == pin]
        document["repos"][pin]["revision"] = revision
        document["repos"][pin]["complete"] = False
        document["repos"][pin]["files"] = {}
    other_tensor(document)
    write_lock(VDN, bumped, document)
    error = refused(bumped)
    assert before.location.resolve() == before.path
    assert files_of(before.path) == files
    assert error.hint is not None
    assert f" {before.path};" in error.hint


def test_a_kill_after_the_quarantine(
    chosen: Options, document: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next run finds the objects that were not forgotten, and refuses them all the same."""
    other_tensor(document)
    right = json.loads(json.dumps(document))
    root = chosen.cache_root
    assert root is not None
    write_lock(VDN, chosen, document)
    with monkeypatch.context() as patch:
        patch.setattr(
            overlay.materialization.locking.enforcing, "drop_deviating", lambda *_: os.kill(os.getpid(), signal.SIGKILL)
        )
        assert in_child(lambda: materialize(VDN, chosen)) == signal.SIGKILL
    [tree] = quarantined(root)
    assert verify(tree).ok
    assert published(root) == {}
    refused(chosen)
    assert quarantined(root) == [tree]
    other_tensor(right)
    right["expected"] = None
    write_lock(VDN, chosen, right)
    done = materialize(VDN, chosen)
    assert done.path is not None
    assert verify(done.path).ok


def test_a_kill_before_the_quarantine(
    chosen: Options, document: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing half-made is kept, and the next run says the same."""
    other_tensor(document)
    root = chosen.cache_root
    assert root is not None
    write_lock(VDN, chosen, document)
    with monkeypatch.context() as patch:
        patch.setattr(overlay.cache.Cache, "quarantine_tree", lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL))
        assert in_child(lambda: materialize(VDN, chosen)) == signal.SIGKILL
    assert quarantined(root) == []
    assert published(root) == {}
    refused(chosen)
    assert len(quarantined(root)) == 1


@pytest.mark.parametrize("locks", ["flock", "none"])
def test_two_processes_keep_one_tree(
    chosen: Options, document: dict[str, Any], monkeypatch: pytest.MonkeyPatch, locks: str
) -> None:
    """Both are refused; also where locks do nothing, the tree is there once and whole."""
    if locks == "none":
        monkeypatch.setattr("fcntl.flock", lambda _descriptor, _how: None)
    other_tensor(document)
    write_lock(VDN, chosen, document)

    def work() -> str:
        try:
            return materialize(VDN, chosen).result
        except CheckFailed as error:
            return error.code
        except Exception as error:  # noqa: BLE001 - told below
            return str(getattr(error, "code", error))

    children = [start_child(work) for _ in range(2)]
    outcomes = {end_child(*child) for child in children}
    # Without locks one may forget an object while the other links it, which is then told to run again.
    assert outcomes <= ({"output-differs"} if locks == "flock" else {"output-differs", "object-gone"})
    assert chosen.cache_root is not None
    [tree] = quarantined(chosen.cache_root)
    assert verify(tree).ok
    assert published(chosen.cache_root) == {}


def test_a_root_that_cannot_be_written(shared_build: Built, tmp_path: Path, document: dict[str, Any]) -> None:
    """The objects there are compared all the same; nothing can be rebuilt or kept, and the answer is no."""
    root = copy_root(shared_build.root, tmp_path / "root")
    chosen = options(shared_build.hub, root, only=("transformer",))
    other_tensor(document)

    def work() -> Any:
        if not own_mounts():
            return "no mounts"
        mount_read_only(root)
        try:
            return materialize(VDN, chosen)
        except CheckFailed as error:
            return error.code, error.data["quarantine"], [item["path"] for item in error.data["files"]], error.hint

    write_lock(VDN, chosen, document)
    found = in_child(work)
    if found == "no mounts":
        pytest.skip("this user may not mount")
    hint = "the cache may not be written here, so nothing was kept to look at"
    assert found == ("output-differs", None, [SHARD], hint)


def test_verify_by_the_locks_sha256(built: Built, document: dict[str, Any]) -> None:
    """A file that passes by its own digest is found where the lock knows its sha256, and only at that level."""
    write_lock(VDN, built.options(), document)
    registry = load_registry(built.options().registry)
    assert verify(built.tree, "sha256", registry=registry).ok
    document["expected"]["files"][SHARD]["sha256"] = "0" * 64  # as if the shard had been made to pass by xxh3
    lock = write_lock(VDN, built.options(), document)
    [found] = verify(built.tree, "sha256", registry=registry).problems
    assert (found.path, found.kind) == (SHARD, "lock")
    assert found.what.startswith(f"{lock} expects sha256:{'0' * 64}, it has sha256:")
    assert "is as its record says" in found.what
    assert verify(built.tree, "full", registry=registry).ok
    assert verify(built.tree, "sha256").ok


def test_verify_tells_a_damaged_file_from_a_wrong_lock(built: Built, document: dict[str, Any]) -> None:
    """What is not as its own record says is damaged, whatever the lock expects of it."""
    write_lock(VDN, built.options(), document)
    shard = built.tree / SHARD
    data = bytearray(shard.read_bytes())
    data[-1] ^= 1
    shard.unlink()
    shard.write_bytes(data)
    found = verify(built.tree, "sha256", registry=load_registry(built.options().registry))
    assert [(item.path, item.kind) for item in found.problems] == [(SHARD, "content")]
    assert found.problems[0].tensors


@pytest.mark.parametrize("level", ["quick", "full", "sha256"])
def test_verify_holds_the_record_against_the_lock(built: Built, document: dict[str, Any], level: str) -> None:
    """Also what was built before anybody expected an output is held against it, at every level, and nothing is read."""
    registry = load_registry(built.options().registry)
    lock = write_lock(VDN, built.options(), document)
    at_rest = verify(built.tree, level, registry=registry)
    assert at_rest.ok
    name = other_tensor(document)
    other_file(CARRIED)(document)
    files = document["expected"]["files"]
    files["more.json"] = files.pop("model_index.json")
    write_lock(VDN, built.options(), document)
    found = verify(built.tree, level, registry=registry)
    assert {item.path for item in found.problems} == {SHARD, CARRIED, "more.json", "model_index.json"}
    assert {item.kind for item in found.problems} == {"lock"}
    assert all(str(lock) in item.what for item in found.problems)
    assert next(item for item in found.problems if item.path == SHARD).tensors == (name,)
    assert found.bytes_read == at_rest.bytes_read


@pytest.mark.parametrize("field", [{"rule": "another"}, {"writer_version": 99}])
def test_verify_does_not_compare_what_another_rule_or_writer_made(
    built: Built, document: dict[str, Any], field: dict[str, Any]
) -> None:
    """As a run does not."""
    other_file(SHARD)(document)
    document["expected"] |= field
    write_lock(VDN, built.options(), document)
    assert verify(built.tree, "quick", registry=load_registry(built.options().registry)).ok


def of_other_pins(document: dict[str, Any]) -> None:
    document["repos"][VDN]["revision"] = "0" * 40


def of_nothing(document: dict[str, Any]) -> None:
    document["expected"] = None


@pytest.mark.parametrize("edit", [of_other_pins, of_nothing])
def test_verify_does_not_use_a_lock_of_something_else(
    built: Built, document: dict[str, Any], edit: Callable[[dict[str, Any]], None]
) -> None:
    """Of other pins, or without an expected output: the record alone counts."""
    document["expected"]["files"][SHARD]["sha256"] = "0" * 64
    write_lock(VDN, built.options(), document, edit)
    assert verify(built.tree, "sha256", registry=load_registry(built.options().registry)).ok
