"""Inputs that are not as the lock in force has them: refused before anything is downloaded, all of them named."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from hub_server import HubServer
from support.checkpoints import copy_hub
from support.hubs import client_of
from support.locks import lock_of, write_lock
from support.models import VDN, options

from overlay.consumers.server import parse_server
from overlay.demo.checkpoint import NEEDS_REPO, OVERLAY_REPO
from overlay.errors import BrokenInput, InvalidRegistry, OverlayError
from overlay.materialization.locking.in_force import lock_in_force, lock_state
from overlay.materialization.locking.lock import lock
from overlay.materialization.materialize import materialize, plan
from overlay.materialization.resolve import resolve
from overlay.materialization.verify import verify
from overlay.registry import load_registry
from overlay.registry.load import locked_model

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from conftest import Built

    from overlay.demo.checkpoint import HubFolder
    from overlay.materialization.request import Options

WEIGHTS = "stage-dmd-step-250/linear_branch/model.safetensors"
SMALL = "tokenizer/vocab.json"
SPEC = "stage-dmd-step-250/adapters/default/adapter_spec.json"


@pytest.fixture
def document(shared_build: Built) -> dict[str, Any]:
    """A lock entry of the shared build."""
    return lock_of(VDN, shared_build.options(), shared_build.hub.root, shared_build.tree)


def refusal(options: Options, code: str) -> OverlayError:
    """What a run and its dry run are both refused with; neither leaves a tree or an object behind."""
    found = []
    for call in (plan, materialize):
        with pytest.raises(OverlayError) as caught:
            call(VDN, options)
        assert caught.value.code == code
        found.append(caught.value)
    assert found[0].message == found[1].message
    assert options.cache_root is not None
    assert [path for path in options.cache_root.glob(".overlay/*/*") if path.parent.name in ("trees", "objects")] == []
    return found[1]


def flip(document: dict[str, Any], repo: str, path: str) -> None:
    digest = document["repos"][repo]["files"][path]["sha256"]
    document["repos"][repo]["files"][path]["sha256"] = ("0" if digest[0] != "0" else "1") + digest[1:]


def test_inputs_as_locked_are_built(shared_build: Built, tmp_path: Path, document: dict[str, Any]) -> None:
    """The tree is the one that is built without a lock."""
    chosen = options(shared_build.hub, tmp_path / "root")
    write_lock(VDN, chosen, document)
    done = materialize(VDN, chosen)
    assert done.path is not None
    assert done.path.name == shared_build.tree.name
    assert done.notes == shared_build.result.notes


@pytest.mark.parametrize(
    ("repo", "path"), [(VDN, WEIGHTS), (VDN, SPEC), (NEEDS_REPO, SMALL), (OVERLAY_REPO, "model_index.json")]
)
@pytest.mark.parametrize("change", ["sha256", "size", "absent"])
def test_an_input_that_differs_is_refused(
    shared_build: Built, tmp_path: Path, document: dict[str, Any], repo: str, path: str, change: str
) -> None:
    """Weights, specs, carried files and the overlay's own: other bytes, another size, or a file that is not locked."""
    chosen = options(shared_build.hub, tmp_path / "root")

    def edit(document: dict[str, Any]) -> None:
        files = document["repos"][repo]["files"]
        if change == "sha256":
            flip(document, repo, path)
        elif change == "size":
            files[path]["size"] += 1
        else:
            del files[path]

    path_of_lock = write_lock(VDN, chosen, document, edit)
    error = refusal(chosen, "lock-differs")
    assert isinstance(error, BrokenInput)
    assert error.message.startswith(f"{path_of_lock}: 1 input of {VDN} not as locked: {repo}/{path} (")
    assert [(item["repo"], item["path"]) for item in error.data["files"]] == [(repo, path)]
    assert error.hint is not None
    assert f"overlay lock {VDN}" in error.hint


def test_every_file_that_differs_is_in_the_data(shared_build: Built, tmp_path: Path, document: dict[str, Any]) -> None:
    """The message names the first few."""
    chosen = options(shared_build.hub, tmp_path / "root")
    names = sorted(document["repos"][NEEDS_REPO]["files"])

    def edit(document: dict[str, Any]) -> None:
        for name in names:
            flip(document, NEEDS_REPO, name)

    write_lock(VDN, chosen, document, edit)
    error = refusal(chosen, "lock-differs")
    assert [item["path"] for item in error.data["files"]] == [name for name in names if name.partition("/")[1]]
    assert f"and {len(error.data['files']) - 3} more" in error.message


def test_of_an_incomplete_lock_only_the_listed_files_count(
    shared_build: Built, tmp_path: Path, document: dict[str, Any]
) -> None:
    """What it lacks passes, what it has is compared."""
    chosen = options(shared_build.hub, tmp_path / "root")

    def forget(document: dict[str, Any]) -> None:
        for repo in document["repos"].values():
            repo["complete"] = False
        document["repos"][NEEDS_REPO]["files"] = {}
        document["repos"][VDN]["files"] = {WEIGHTS: document["repos"][VDN]["files"][WEIGHTS]}

    write_lock(VDN, chosen, document, forget)
    assert not plan(VDN, chosen).is_done

    def forget_and_flip(document: dict[str, Any]) -> None:
        forget(document)
        flip(document, VDN, WEIGHTS)

    write_lock(VDN, chosen, document, forget_and_flip)
    assert [item["path"] for item in refusal(chosen, "lock-differs").data["files"]] == [WEIGHTS]


def other_commit(document: dict[str, Any]) -> None:
    document["repos"][VDN]["revision"] = "0" * 40


def other_recipe(document: dict[str, Any]) -> None:
    document["recipe"]["stage"] = "stage-b-step-2000"


def no_overlay(document: dict[str, Any]) -> None:
    del document["repos"][OVERLAY_REPO]


@pytest.mark.parametrize("edit", [other_commit, other_recipe, no_overlay])
def test_a_stale_lock_is_refused(
    shared_build: Built, tmp_path: Path, document: dict[str, Any], edit: Callable[[dict[str, Any]], None]
) -> None:
    """A lock of other pins or of another recipe says nothing of these inputs: lock again."""
    chosen = options(shared_build.hub, tmp_path / "root")
    path_of_lock = write_lock(VDN, chosen, document, edit)
    error = refusal(chosen, "lock-stale")
    assert isinstance(error, InvalidRegistry)
    assert error.message.startswith(f"{path_of_lock}: ")
    assert error.hint == f"overlay lock {VDN}"
    assert len(error.data["differences"]) == 1


def test_a_model_that_is_here_stays_a_hit(built: Built, document: dict[str, Any]) -> None:
    """Whatever the lock says of inputs that nobody will read."""
    write_lock(VDN, built.options(), document, other_commit)
    assert materialize(VDN, built.options()).result == "present"
    assert plan(VDN, built.options()).is_present


def test_a_lock_that_does_not_name_the_model_says_nothing(
    shared_build: Built, tmp_path: Path, document: dict[str, Any]
) -> None:
    """The lock of another model."""
    chosen = options(shared_build.hub, tmp_path / "root")
    write_lock("org/other", chosen, document)
    assert chosen.registry is not None
    assert locked_model(chosen.registry, VDN) is None
    assert locked_model(chosen.registry, "org/other") is not None
    assert not plan(VDN, chosen).is_done


def test_a_lock_that_cannot_be_read_is_refused(shared_build: Built, tmp_path: Path, document: dict[str, Any]) -> None:
    """It is not as good as none."""
    chosen = options(shared_build.hub, tmp_path / "root")
    write_lock(VDN, chosen, document).write_text("{}")
    refusal(chosen, "lock-invalid")


def test_resolve_reads_no_lock(built: Built, document: dict[str, Any]) -> None:
    """Whether a model is here does not hang on a lock, not even on one that cannot be read."""
    write_lock(VDN, built.options(), document).write_text("{}")
    assert resolve(VDN, built.options()).state.name == "present"


@pytest.mark.parametrize("content", ["same", "edited"])
def test_a_source_given_by_folder_is_held_against_the_lock(
    shared_build: Built, tmp_path: Path, document: dict[str, Any], content: str
) -> None:
    """The same content passes, an edited shard does not."""
    chosen = options(shared_build.hub, tmp_path / "root")
    write_lock(VDN, chosen, document)
    folder = tmp_path / VDN.rpartition("/")[2]
    shutil.copytree(shared_build.hub.source_folder, folder)
    if content == "edited":
        with (folder / WEIGHTS).open("r+b") as file:
            file.seek(-1, os.SEEK_END)
            file.write(b"\x55")
    else:
        assert materialize(str(folder), chosen).result == "built"
        return
    with pytest.raises(BrokenInput) as caught:
        materialize(str(folder), chosen)
    assert caught.value.code == "lock-differs"
    assert [item["path"] for item in caught.value.data["files"]] == [WEIGHTS]


def test_an_overlay_folder_of_ones_own_is_in_no_lock(
    shared_build: Built, tmp_path: Path, document: dict[str, Any]
) -> None:
    """Who develops an overlay builds from a folder that nobody has locked."""
    chosen = options(shared_build.hub, tmp_path / "root")
    write_lock(VDN, chosen, document, other_commit)
    folder = tmp_path / "my-overlay"
    shutil.copytree(shared_build.hub.overlay_folder, folder)
    assert not plan(str(folder), chosen).is_done


@pytest.mark.parametrize("revision", ["0" * 40, "same"])
def test_what_a_servers_variable_says_is_in_no_lock(
    shared_build: Built, tmp_path: Path, document: dict[str, Any], monkeypatch: pytest.MonkeyPatch, revision: str
) -> None:
    """Another overlay is not held against a lock that cannot be of it; of the locked one, the lock holds."""
    chosen = options(shared_build.hub, tmp_path / "root")
    write_lock(VDN, chosen, document)
    commit = shared_build.hub.overlay if revision == "same" else revision
    told = {VDN: {"overlay_repo_id": OVERLAY_REPO, "overlay_revision": commit}}
    monkeypatch.setenv("SGLANG_DIFFUSION_MODEL_OVERLAY_REGISTRY", json.dumps(told))
    resolution = resolve(VDN, chosen).resolution
    state, in_force = lock_state(resolution), lock_in_force(resolution)
    assert state is not None
    assert (state.name, in_force is None) == (("current", False) if revision == "same" else ("none", True))


@pytest.mark.parametrize("server", ["sglang", "sglang==0.5.10", "sglang==0.5.23"])
def test_the_output_of_every_server_is_as_the_lock_expects(
    shared_build: Built, built: Built, document: dict[str, Any], server: str
) -> None:
    """What a server is told enters its marker alone, which none reads: the weights are those of the lock."""
    chosen = replace(built.options(), server=replace(parse_server(server), with_override=True))
    write_lock(VDN, chosen, document)
    done = materialize(VDN, chosen)
    assert done.path is not None
    assert done.path.name != shared_build.tree.name
    assert verify(done.path, registry=load_registry(chosen.registry)).ok


@pytest.fixture
def served(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[HubFolder, HubServer]]:
    """A copy of the tiny checkpoint behind a server."""
    hub = copy_hub(tmp_path_factory)
    with HubServer(hub.root) as server, client_of(server, monkeypatch, tmp_path / "hf/hub"):
        yield hub, server


@pytest.mark.parametrize("path", [WEIGHTS, SPEC])
def test_online_nothing_is_downloaded_for_a_refusal(
    served: tuple[HubFolder, HubServer], tmp_path: Path, document: dict[str, Any], path: str
) -> None:
    """Of weights the Hub says the sha256; a spec, which it knows by its git blob, was read by the plan."""
    hub, _ = served
    chosen = replace(options(hub, tmp_path / "root"), hub=None)
    write_lock(VDN, chosen, document, lambda lock: flip(lock, VDN, path))
    error = refusal(chosen, "lock-differs")
    assert [item["path"] for item in error.data["files"]] == [path]
    assert list((tmp_path / "hf/hub").glob("**/*.safetensors")) == []


@pytest.mark.parametrize("stage", ["stage-dmd-step-250", "stage-b-step-2000"])
def test_what_was_just_locked_is_built(served: tuple[HubFolder, HubServer], tmp_path: Path, stage: str) -> None:
    """The lock that is written online has every file that a build wants, from the Hub and from folders."""
    hub, _ = served
    chosen = options(hub, tmp_path / "root", stage=stage)
    online = replace(chosen, hub=None)
    lock((VDN,), online)
    assert lock_in_force(resolve(VDN, online).resolution) is not None
    assert materialize(VDN, online).result == "built"
    assert materialize(VDN, replace(chosen, cache_root=tmp_path / "other")).result == "built"


def test_online_a_small_file_is_compared_once_it_is_read(
    served: tuple[HubFolder, HubServer], tmp_path: Path, document: dict[str, Any]
) -> None:
    """The Hub knows it by its git blob alone, and no plan reads it: refused before anything is published."""
    hub, _ = served
    path, words = "tokenizer/words.txt", "word\n" * 400  # no JSON, and too large for a pointer
    (hub.needs_folder / path).write_text(words)
    locked = {"size": len(words), "sha256": hashlib.sha256(words.encode()).hexdigest()}
    document["repos"][NEEDS_REPO]["files"][path] = locked
    document["expected"] = None
    chosen = replace(options(hub, tmp_path / "root"), hub=None)
    write_lock(VDN, chosen, document, lambda lock: flip(lock, NEEDS_REPO, path))
    assert not plan(VDN, chosen).is_done
    for _ in range(2):  # found in the cache the second time
        with pytest.raises(BrokenInput) as caught:
            materialize(VDN, chosen)
        assert caught.value.code == "lock-differs"
        assert [item["path"] for item in caught.value.data["files"]] == [path]
        assert list((tmp_path / "root").glob(".overlay/trees/*")) == []
        assert list((tmp_path / "root").glob("materialized_models/*")) == []
    write_lock(VDN, chosen, document)
    assert materialize(VDN, chosen).result == "reused"


def test_the_lock_of_the_registry_in_force_alone_counts(
    shared_build: Built, tmp_path: Path, document: dict[str, Any]
) -> None:
    """A project's registry has its own lock or none, whatever lies beside another one."""
    chosen = options(shared_build.hub, tmp_path / "root")
    write_lock(VDN, chosen, document, other_commit)
    assert chosen.registry is not None
    (tmp_path / "project").mkdir()
    own = shutil.copy(chosen.registry, tmp_path / "project/registry.yaml")
    assert load_registry(own).path == str(own)
    assert not plan(VDN, replace(chosen, registry=own)).is_done
