"""Adopting what a server built: equal to a build of our own, with no weight byte written."""

from __future__ import annotations

import json
import os
import shutil
import stat
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hub_server import HubServer
from support.children import as_plain_user, end_child, in_child, mount_tmpfs, open_to_all, own_mounts, start_child
from support.hubs import client_of
from support.locks import lock_of, write_lock
from support.models import VDN, options, readable_by_all, vdn_registry
from support.published_rule import files_of
from support.server_trees import (
    CARRIED,
    FUSED,
    MARKER,
    ServerFolder,
    flip,
    identity,
    payload,
    place_server_tree,
)

import overlay.cache.links
import overlay.cache.replacing
import overlay.cache.store
import overlay.materialization.adoption.adopt
import overlay.materialization.sinks
from overlay.errors import CannotWrite, CheckFailed, InvalidUsage, NotHere
from overlay.fusion.output import PartialFile
from overlay.materialization.adoption.adopt import adopt, plan_adoption
from overlay.materialization.materialize import materialize
from overlay.materialization.record import RECORD_NAME
from overlay.materialization.request import Options
from overlay.materialization.survey import Counters
from overlay.materialization.verify import verify

if TYPE_CHECKING:
    from conftest import Built


# What it makes


def test_an_adopted_tree_is_the_tree_of_a_build(served: ServerFolder) -> None:
    """Name, record and bytes; the weights are the server's inodes, none was written, and the next run does nothing."""
    before = served.seen()
    weights = {path: inode for path, (inode, _, _) in before.items() if path.endswith(".safetensors")}
    planned = plan_adoption(VDN, served.options())
    assert planned is not None
    done = adopt(VDN, served.options())
    assert (done.model, done.result, done.location) == (VDN, "adopted", served.folder)
    assert served.folder.is_symlink()
    assert served.folder.resolve() == done.path
    assert done.path.name == served.built.tree.name
    assert identity(done.path) == identity(served.built.tree)
    made, expected = files_of(done.path), files_of(served.built.tree)
    del made[RECORD_NAME], expected[RECORD_NAME]
    assert made == expected
    assert {path: (done.path / path).stat().st_ino for path in weights} == weights
    assert done.counters == planned.work.counters
    assert (done.counters.written, done.counters.downloaded) == (0, 0)
    assert done.counters.linked == payload(done.path)
    assert list(served.root.glob(".overlay/staging/*")) == []
    assert [path.name for path in (served.root / "materialized_models").iterdir()] == [served.folder.name]
    assert verify(served.folder, "sha256").ok
    assert materialize(VDN, served.options()).result == "present"
    assert adopt(VDN, served.options()).result == "present"
    assert plan_adoption(VDN, served.options()) is None


def test_nothing_is_written_through_the_builders_file(served: ServerFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files are computed again block by block, and no file is opened for it."""

    def never(*_: Any) -> None:
        raise AssertionError("a weight file was written")

    monkeypatch.setattr(PartialFile, "__init__", never)
    assert adopt(VDN, served.options()).counters.written == 0


def test_what_a_server_may_rewrite_shares_no_inode(served: ServerFolder) -> None:
    """Configs and tokenizers are copied: to the objects, and from there to the tree."""
    small = {path: inode for path, (inode, _, _) in served.seen().items() if not path.endswith(".safetensors")}
    done = adopt(VDN, served.options())
    objects = {path.stat().st_ino for path in served.objects}
    for path, inode in small.items():
        assert (done.path / path).stat().st_ino not in objects | {inode}
    assert {how for path, how in done.links.items() if not path.endswith(".safetensors")} <= {"copy", "present"}


def test_the_record_says_that_it_was_adopted(served: ServerFolder) -> None:
    """What was linked, and how many bytes were not written; nothing of the server's host."""
    done = adopt(VDN, served.options())
    run = json.loads((done.path / RECORD_NAME).read_bytes())["run"]
    assert FUSED in run["adopted"]
    assert run["links"][FUSED] == "hardlink"
    assert run["counters"] == {"downloaded": 0, "read": done.counters.read, "written": 0, "linked": payload(done.path)}
    assert sum(run["kernels"].values()) > 0
    assert "/srv/hf" not in json.dumps(run)
    assert json.loads((done.path / MARKER).read_bytes())["source_dir"].startswith(VDN)


def test_a_bump_after_an_adoption_finds_its_objects(served: ServerFolder) -> None:
    """They are known by their inputs, as after a build."""
    adopt(VDN, served.options())
    (served.folder).unlink()
    shutil.rmtree(next(served.root.glob(".overlay/trees/*")))
    done = materialize(VDN, served.options())
    assert (done.result, done.counters) == ("reused", Counters())


def test_modes_of_the_servers_files_stay(served: ServerFolder) -> None:
    """Nothing that is linked is chmodded, also where the group may write the root."""
    served.root.chmod(0o2775)
    path = served.folder / FUSED
    path.chmod(0o400)
    done = adopt(VDN, served.options())
    assert stat.S_IMODE((done.path / FUSED).stat().st_mode) == 0o400


def test_a_server_that_has_a_file_open_reads_on(served: ServerFolder) -> None:
    """Its inode lives on in the tree, and the folder's other files until they are closed."""
    with (served.folder / FUSED).open("rb") as weights, (served.folder / "model_index.json").open("rb") as index:
        done = adopt(VDN, served.options())
        assert weights.read() == (done.path / FUSED).read_bytes()
        assert index.read() == (done.path / "model_index.json").read_bytes()


def test_at_every_moment_a_model_is_there(served: ServerFolder) -> None:
    """Whoever looks again and again always finds the folder or our link."""
    told, tell = os.pipe()

    def watch() -> tuple[int, int]:
        os.close(tell)
        os.set_blocking(told, False)
        looks = misses = 0
        while True:
            with suppress(BlockingIOError):
                os.read(told, 1)
                return looks, misses
            looks += 1
            misses += not (served.folder / "model_index.json").is_file()

    pid, outcome = start_child(watch)
    os.close(told)
    adopt(VDN, served.options())
    os.close(tell)
    looks, misses = end_child(pid, outcome)
    assert looks > 100
    assert misses == 0


# Where it is


def test_a_folder_elsewhere_stays_and_its_model_is_published(served: ServerFolder, tmp_path: Path) -> None:
    """On the root's filesystem; the location leads to our tree, which shares the folder's weights."""
    folder = served.folder.rename(tmp_path / "copied from another host")
    served.folder = folder
    before = served.seen()
    done = adopt(str(folder), served.options())
    assert served.seen() == before
    assert done.location.is_symlink()
    assert (done.path / FUSED).samefile(folder / FUSED)
    assert any(str(folder) in note for note in done.notes)


def test_the_location_itself_may_be_named(served: ServerFolder) -> None:
    """As the hint of a refused run does."""
    with pytest.raises(CannotWrite) as caught:
        materialize(VDN, served.options())
    assert caught.value.hint == f"overlay adopt {served.folder}"
    assert adopt(str(served.folder), served.options()).location.is_symlink()


def test_a_folder_beside_the_servers_own_does_not_take_its_place(served: ServerFolder, tmp_path: Path) -> None:
    """What is at the location is not what was verified."""
    other = shutil.copytree(served.folder, tmp_path / "other")
    before = served.seen()
    with pytest.raises(CannotWrite) as caught:
        adopt(str(other), served.options())
    assert caught.value.code == "location-taken"
    served.require_untouched(before)


def test_another_filesystem_is_refused(served: ServerFolder, tmp_path: Path) -> None:
    """Nothing could be linked from there: it says so before anything is compared."""
    disk = tmp_path / "disk"
    disk.mkdir()

    def work() -> Any:
        if not own_mounts():
            return None
        mount_tmpfs(disk, "64m")
        shutil.copytree(served.folder, disk / "tree")
        shutil.rmtree(served.folder)
        try:
            adopt(str(disk / "tree"), served.options())
        except CannotWrite as error:
            return error.code, error.message, error.hint
        return "adopted"

    if os.geteuid() == 0:
        outcome = in_child(work)
        if outcome is not None:
            code, message, hint = outcome
            assert code == "link-impossible"
            assert "EXDEV" in message
            assert "--cache-root" in hint


def test_files_of_another_owner_that_the_kernel_protects_are_refused(served: ServerFolder) -> None:
    """The kernel lets nobody link what he may not write; it is named, and nothing is copied in its place."""
    protected = Path("/proc/sys/fs/protected_hardlinks")
    if os.geteuid() != 0 or protected.read_text().strip() != "1":
        pytest.skip("needs root, to be somebody else, and fs.protected_hardlinks")
    readable_by_all(served.built.hub.root)
    readable_by_all(served.root.parent)
    for folder in (served.root, served.root / "materialized_models", served.folder):
        open_to_all(folder)
    chosen = served.options()
    with pytest.raises(CannotWrite) as caught:
        as_plain_user(lambda: adopt(VDN, chosen))
    assert caught.value.code == "link-impossible"
    assert "uid 0" in caught.value.message
    assert not served.folder.is_symlink()


def test_nothing_at_the_location_is_nothing_to_adopt(shared_build: Built, tmp_path: Path) -> None:
    """It says what builds the model."""
    with pytest.raises(NotHere) as caught:
        adopt(VDN, options(shared_build.hub, tmp_path / "root"))
    assert caught.value.code == "nothing-to-adopt"
    assert "overlay prewarm" in str(caught.value.hint)


def test_a_folder_without_a_marker_is_no_servers(served: ServerFolder) -> None:
    """A server writes it last, so an unfinished tree has none."""
    (served.folder / MARKER).unlink()
    before = served.seen()
    for target in (VDN, str(served.folder)):
        with pytest.raises(NotHere) as caught:
            adopt(target, served.options())
        assert caught.value.code == "no-marker"
    assert served.seen() == before


def test_what_no_server_builds_is_refused(served: ServerFolder, tmp_path: Path) -> None:
    """A model without an overlay."""
    registry = tmp_path / "plain.yaml"
    registry.write_text(
        "schema_version: 1\nmodels:\n  org/plain:\n"
        f"    source: {{revision: {'a' * 40}}}\n"
        "    recipe: {name: lora, base: {path: base}, adapters: [{path: a}]}\n"
    )
    with pytest.raises(InvalidUsage) as caught:
        adopt("org/plain", served.options(registry=registry))
    assert caught.value.code == "nothing-to-adopt"


# Links of the server


def test_links_into_a_users_folder_are_taken_as_a_build_takes_them(served: ServerFolder) -> None:
    """The server's fallback where it could not hardlink: what they lead to is copied, since people edit it."""
    source = served.built.hub.source_folder / "stage-dmd-step-250/linear_branch/model.safetensors"
    (served.folder / CARRIED).unlink()
    (served.folder / CARRIED).symlink_to(source)
    planned = plan_adoption(VDN, served.options())
    assert planned is not None
    done = adopt(VDN, served.options())
    assert done.counters == planned.work.counters
    assert done.links[CARRIED] in ("copy", "reflink")
    assert not (done.path / CARRIED).is_symlink()
    assert not (done.path / CARRIED).samefile(source)
    assert source.is_file()
    assert identity(done.path) == identity(served.built.tree)


@pytest.mark.parametrize("link", ["symlink", "hardlink"])
def test_links_into_the_hubs_cache(
    served: ServerFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, link: str
) -> None:
    """Their blobs are linked as a build links them, and are not read again where their digest is known."""
    monkeypatch.setattr(overlay.cache.links, "SMALL_FILE", 500_000)
    hub = served.built.hub
    with HubServer(hub.root) as server, client_of(server, monkeypatch, tmp_path / "hf/hub"):
        chosen = Options(registry=vdn_registry(tmp_path, hub), cache_root=served.root)
        materialize(VDN, replace(chosen, cache_root=tmp_path / "elsewhere"))
        name = "stage-dmd-step-250/linear_branch/model.safetensors"
        [snapshot] = (tmp_path / "hf/hub").glob(f"models--OpenVDN--vdn-minimax-h3/snapshots/*/{name}")
        blob, path = snapshot.resolve(), served.folder / CARRIED
        mode = blob.stat().st_mode
        path.unlink()
        path.symlink_to(blob) if link == "symlink" else path.hardlink_to(blob)
        done = adopt(VDN, chosen)
    assert done.counters.written == 0
    assert done.links[CARRIED] in ("hardlink", "reflink")
    assert (done.path / CARRIED).samefile(blob) == (done.links[CARRIED] == "hardlink")
    assert blob.stat().st_mode == mode
    assert identity(done.path) == identity(served.built.tree)


# What is known already


def test_objects_that_are_there_are_kept(built: Built, plain_tree: Path) -> None:
    """The tree is compared by their digests, nothing is computed and nothing linked."""
    objects, location = built.objects(), built.location
    shutil.rmtree(built.tree)
    location.unlink()
    folder = place_server_tree(plain_tree, built.root, location.name)
    planned = plan_adoption(VDN, built.options())
    done = adopt(VDN, built.options())
    assert planned is not None
    # Both the folder's and the cache's: what takes the folder's place is not taken for good by its size.
    assert done.counters == planned.work.counters == Counters(read=2 * payload(done.path))
    assert set(done.links.values()) == {"present"}
    assert built.objects() == objects
    assert any("in the cache already" in note for note in done.notes)
    assert folder.is_symlink()
    run = json.loads((done.path / RECORD_NAME).read_bytes())["run"]
    assert (run["adopted"], run["engine"]) == ([], None)


def test_a_flipped_bit_is_found_where_the_objects_are_known(built: Built, plain_tree: Path) -> None:
    """By the tensors' digests, with the tensor named."""
    location = built.location
    shutil.rmtree(built.tree)
    location.unlink()
    folder = place_server_tree(plain_tree, built.root, location.name)
    flip(folder / FUSED, -1)
    with pytest.raises(CheckFailed) as caught:
        adopt(VDN, built.options())
    assert len(caught.value.data["tensors"]) == 1
    assert not folder.is_symlink()


@pytest.fixture
def locked(served: ServerFolder) -> dict[str, Any]:
    """A lock entry that expects the output of a build."""
    return lock_of(VDN, served.built.options(), served.built.hub.root, served.built.tree)


def test_what_the_lock_expects_is_not_computed(served: ServerFolder, locked: dict[str, Any]) -> None:
    """No arithmetic, no base weights: the sha256 of every file is known."""
    write_lock(VDN, served.options(), locked)
    done = adopt(VDN, served.options())
    assert done.counters.read == done.counters.linked == payload(done.path)
    assert json.loads((done.path / RECORD_NAME).read_bytes())["run"]["engine"] is None
    assert identity(done.path) == identity(served.built.tree)
    assert verify(done.path).ok


def test_a_flipped_bit_is_found_by_the_lock(served: ServerFolder, locked: dict[str, Any]) -> None:
    """With the tensor that it is in."""
    write_lock(VDN, served.options(), locked)
    flip(served.folder / FUSED, -1)
    before = served.seen()
    with pytest.raises(CheckFailed) as caught:
        adopt(VDN, served.options())
    assert str(served.folder / FUSED) in caught.value.message
    assert len(caught.value.data["tensors"]) == 1
    served.require_untouched(before)


def test_a_lock_that_expects_something_else_is_not_passed_by(served: ServerFolder, locked: dict[str, Any]) -> None:
    """Also where the tree is what the inputs give: which of them is right is for people to find out."""

    def edit(document: dict[str, Any]) -> None:
        document["expected"]["files"]["transformer/config.json"]["sha256"] = "0" * 64
        document["expected"]["files"]["transformer/config.json"]["digest"] = f"sha256:{'0' * 64}"

    write_lock(VDN, served.options(), locked, edit)
    before = served.seen()
    with pytest.raises(CheckFailed) as caught:
        adopt(VDN, served.options())
    assert caught.value.code == "output-differs"
    served.require_untouched(before)
