"""Where things come from and go to: local sources, overlay folders, other hosts, read-only roots, modes, room."""

from __future__ import annotations

import json
import os
import re
import shutil
import stat
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from support.checkpoints import copy_hub
from support.children import as_plain_user, in_child, mount_read_only, mount_tmpfs, own_mounts
from support.models import VDN, options, readable_by_all
from support.published_rule import files_of

import overlay.cache.disk
import overlay.cache.store
from overlay.errors import CannotWrite, InvalidUsage, NotHere
from overlay.materialization.materialize import materialize, plan
from overlay.materialization.record import RECORD_NAME
from overlay.materialization.resolve import resolve
from overlay.materialization.survey import Counters
from overlay.materialization.verify import verify

if TYPE_CHECKING:
    from pathlib import Path

    from conftest import Built


def digested(tree: Path) -> dict[str, Any]:
    """The part of a record that does not tell of the run."""
    record = json.loads((tree / RECORD_NAME).read_bytes())
    del record["run"]
    return record


# The same wherever it is built


def test_the_record_names_no_host_no_folder_and_no_time(
    shared_build: Built, tmp_path_factory: pytest.TempPathFactory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another root, another copy of the hub, another working directory: the same tree name and record."""
    hub = copy_hub(tmp_path_factory)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    done = materialize(VDN, options(hub, tmp_path / "root"))
    assert done.path is not None
    assert done.path.name == shared_build.tree.name
    assert digested(done.path) == digested(shared_build.tree)
    # An absolute path, the words of this host, a time of day.
    text = json.dumps(digested(done.path))
    assert not re.search(r'"/|\d\d:\d\d:\d\d', text)
    assert os.uname().nodename not in text


def test_a_tree_can_be_moved_and_still_verifies(built: Built, tmp_path: Path) -> None:
    """Location and record hold nothing absolute."""
    moved = built.root.rename(tmp_path / "moved")
    state = resolve(VDN, options(built.hub, moved)).state
    assert state.name == "present"
    assert state.location is not None
    assert verify(state.location).ok


@pytest.mark.parametrize("jobs", [1, 3])
def test_any_number_of_workers_gives_the_same_tree(shared_build: Built, tmp_path: Path, jobs: int) -> None:
    """Bytes do not depend on threads or on the memory that they may take."""
    done = materialize(VDN, options(shared_build.hub, tmp_path / "root", jobs=jobs, memory=2**26))
    assert done.path is not None
    assert done.path.name == shared_build.tree.name
    assert digested(done.path) == digested(shared_build.tree)


# What MODEL may be


def test_a_local_folder_of_the_models_name_is_the_source(shared_build: Built, tmp_path: Path) -> None:
    """The location is the model's own, as for a server; the record says ``local``; a change of the folder is seen."""
    folder = tmp_path / "vdn-minimax-h3"
    shutil.copytree(shared_build.hub.source_folder, folder)
    root = tmp_path / "root"
    chosen = options(shared_build.hub, root)
    done = materialize(str(folder), chosen)
    assert (done.model, done.result) == (VDN, "built")
    assert done.path is not None
    assert done.location is not None
    assert done.location.name == shared_build.location.name
    record = digested(done.path)
    assert record["pins"]["source"] == {"repo": VDN, "revision": "local"}
    assert str(folder) not in json.dumps(record)
    made, expected = files_of(done.path), files_of(shared_build.tree)
    differing = {path for path in expected if made[path] != expected[path]}
    assert differing == {RECORD_NAME, ".sglang_overlay_materialized.json"}

    assert materialize(str(folder), chosen).result == "present"
    metadata = folder / "stage-dmd-step-250/metadata.json"
    metadata.write_text(metadata.read_text().replace('"step": 250', '"step": 251'))
    assert materialize(str(folder), chosen).result == "reused"


def test_the_pinned_model_is_stale_where_a_local_source_was_built(shared_build: Built, tmp_path: Path) -> None:
    """What came from a folder is not what the commit holds, even at the same location."""
    folder = tmp_path / "vdn-minimax-h3"
    shutil.copytree(shared_build.hub.source_folder, folder)
    chosen = options(shared_build.hub, tmp_path / "root")
    materialize(str(folder), chosen)
    assert resolve(VDN, chosen).state.name == "stale"
    done = materialize(VDN, chosen)
    assert (done.result, done.counters) == ("reused", Counters())
    assert resolve(VDN, chosen).state.name == "present"


def test_an_overlay_folder_brings_its_own_location(shared_build: Built, tmp_path: Path) -> None:
    """The same weights at the directory of a server that was started with that folder."""
    folder = tmp_path / "my-overlay"
    shutil.copytree(shared_build.hub.overlay_folder, folder)
    chosen = options(shared_build.hub, tmp_path / "root")
    done = materialize(str(folder), chosen)
    assert done.model == VDN
    assert done.path is not None
    assert done.location is not None
    assert done.location.name != shared_build.location.name
    marker = json.loads((done.path / ".sglang_overlay_materialized.json").read_bytes())
    assert (marker["overlay_repo_id"], marker["overlay_revision"]) == (str(folder), "local")
    shards = {path: data for path, data in files_of(done.path).items() if path.endswith(".safetensors")}
    assert shards == {path: data for path, data in files_of(shared_build.tree).items() if path.endswith(".safetensors")}
    assert materialize(str(folder), chosen).result == "present"


def test_one_component_alone_is_built_and_not_published(shared_build: Built, tmp_path: Path) -> None:
    """``only``: its objects wait in the cache, and the whole job then finds them there."""
    root = tmp_path / "root"
    whole = plan(VDN, options(shared_build.hub, root)).counters
    chosen = options(shared_build.hub, root, only=("video_vae",))
    planned = plan(VDN, chosen).counters
    done = materialize(VDN, chosen)
    assert (done.result, done.path, done.location) == ("built", None, None)
    assert done.counters == planned
    assert 0 < planned.written < whole.written
    assert not list(root.glob("materialized_models/*"))
    assert materialize(VDN, chosen).result == "reused"
    rest = plan(VDN, options(shared_build.hub, root)).counters
    assert rest.written == whole.written - planned.written
    done = materialize(VDN, options(shared_build.hub, root))
    assert (done.result, done.counters) == ("built", rest)


def test_an_unknown_component_is_refused_with_those_that_exist(shared_build: Built, tmp_path: Path) -> None:
    """A typo builds nothing."""
    with pytest.raises(InvalidUsage, match="no component video-vae") as caught:
        materialize(VDN, options(shared_build.hub, tmp_path / "root", only=("video-vae",)))
    assert "video_vae" in str(caught.value.hint)


def test_a_floating_pin_is_refused_unless_allowed(shared_build: Built, tmp_path: Path) -> None:
    """The message gives the reason that the registry gives; allowed, the record names what was taken."""
    chosen = options(shared_build.hub, tmp_path / "root")
    assert chosen.registry is not None
    pinned = f"{{revision: {shared_build.hub.source}}}"
    floating = tmp_path / "floating.yaml"
    floating.write_text(chosen.registry.read_text().replace(pinned, '{floating: "no release yet"}'))
    chosen = replace(chosen, registry=floating)
    with pytest.raises(InvalidUsage, match="no release yet") as caught:
        materialize(VDN, chosen)
    assert caught.value.code == "floating-pin"
    assert not list((tmp_path / "root/.overlay").glob("objects/*"))
    done = materialize(VDN, replace(chosen, allow_floating=True))
    assert done.path is not None
    assert digested(done.path)["pins"]["source"]["revision"] == shared_build.hub.source
    assert any("no release yet" in note for note in done.notes)


def test_a_revision_that_is_not_in_the_hub_folder_is_named(shared_build: Built, tmp_path: Path) -> None:
    """Nothing else is taken in its place."""
    wrong = replace(shared_build.hub, source="d" * 40)
    with pytest.raises(NotHere, match=f"no folder {'d' * 40}"):
        materialize(VDN, options(wrong, tmp_path / "root"))


# Roots that cannot be written


def test_a_hit_works_on_a_read_only_root(built: Built) -> None:
    """As another user who may write nothing there, and where root itself may not."""
    readable_by_all(built.root)
    readable_by_all(built.hub.root)
    chosen = built.options()

    def hit() -> tuple[str, str]:
        return materialize(VDN, chosen).result, resolve(VDN, chosen).state.name

    assert as_plain_user(hit) == ("present", "present")

    def hit_on_read_only_mount() -> Any:
        if not own_mounts():
            return None
        mount_read_only(built.root)
        return hit()

    if os.geteuid() == 0:
        assert in_child(hit_on_read_only_mount) in (None, ("present", "present"))


def test_a_hit_of_a_local_source_works_on_a_read_only_root(shared_build: Built, tmp_path: Path) -> None:
    """Without a commit the whole plan is made and held against the cache, and still nothing is written."""
    folder = tmp_path / "vdn-minimax-h3"
    shutil.copytree(shared_build.hub.source_folder, folder)
    chosen = options(shared_build.hub, tmp_path / "root")
    materialize(str(folder), chosen)
    readable_by_all(tmp_path)
    readable_by_all(shared_build.hub.root)
    assert as_plain_user(lambda: materialize(str(folder), chosen).result) == "present"
    assert as_plain_user(lambda: plan(str(folder), chosen).is_done)


def test_a_build_in_a_read_only_root_says_so_and_what_to_do(shared_build: Built, tmp_path: Path) -> None:
    """No traceback: the root, the operation and the variable that moves it."""
    root = tmp_path / "root"
    root.mkdir(mode=0o755)
    readable_by_all(tmp_path)
    readable_by_all(shared_build.hub.root)
    chosen = options(shared_build.hub, root)
    for run in (plan, materialize):
        with pytest.raises(CannotWrite) as caught:
            as_plain_user(partial(run, VDN, chosen))
        assert caught.value.code == "not-permitted"
        assert str(root) in caught.value.message
        assert "--cache-root" in str(caught.value.hint)


# Modes


@pytest.mark.parametrize(("umask", "file_mode", "folder_mode"), [(0o022, 0o644, 0o755), (0o077, 0o600, 0o700)])
def test_modes_come_from_the_umask(
    shared_build: Built, tmp_path: Path, umask: int, file_mode: int, folder_mode: int
) -> None:
    """Of every file and folder of the tree, the shards written by this program above all; folders stay writable."""
    before = os.umask(umask)
    try:
        done = materialize(VDN, options(shared_build.hub, tmp_path / "root"))
    finally:
        os.umask(before)
    assert done.path is not None
    modes = {(path.is_dir(), stat.S_IMODE(path.stat().st_mode)) for path in (done.path, *done.path.rglob("*"))}
    assert modes == {(True, folder_mode), (False, file_mode)}


def test_a_root_that_its_group_writes_is_shared_with_the_group(shared_build: Built, tmp_path: Path) -> None:
    """The group's bits of the root, setgid included, whatever the umask."""
    root = tmp_path / "root"
    root.mkdir()
    root.chmod(0o2775)
    done = materialize(VDN, options(shared_build.hub, root))
    assert done.path is not None
    files = [path for path in done.path.rglob("*") if path.is_file()]
    assert {stat.S_IMODE(path.stat().st_mode) & 0o060 for path in files} == {0o060}
    assert all(path.stat().st_mode & stat.S_ISGID for path in (done.path, *done.path.rglob("*")) if path.is_dir())


# Links


def test_files_of_a_users_folder_are_copied_and_of_our_own_linked(built: Built) -> None:
    """People edit their folders in place; our objects and trees share inodes, configs excepted."""
    sources = {path.stat().st_ino for path in built.hub.root.rglob("*") if path.is_file()}
    objects = {path.stat().st_ino for path in built.objects()}
    for path in built.tree.rglob("*"):
        if path.is_file():
            assert path.stat().st_ino not in sources
            assert (path.stat().st_ino in objects) == (path.suffix == ".safetensors")


def test_asked_for_hardlinks_share_the_users_inodes_and_are_declared(shared_build: Built, tmp_path: Path) -> None:
    """``--link hardlink``: weights are linked, configs of the tree still have an inode of their own."""
    chosen = options(shared_build.hub, tmp_path / "root", link="hardlink")
    planned = plan(VDN, chosen).counters
    done = materialize(VDN, chosen)
    assert done.counters == planned
    assert done.counters.linked > 0
    assert done.path is not None
    branch = shared_build.hub.source_folder / "stage-dmd-step-250/linear_branch/model.safetensors"
    assert (done.path / "transformer/sglang_vdn_linear_branch.safetensors").samefile(branch)
    encoder = shared_build.hub.needs_folder / "text_encoder/config.json"
    assert not (done.path / "text_encoder/config.json").samefile(encoder)
    links = json.loads((done.path / RECORD_NAME).read_bytes())["run"]["links"]
    assert links["transformer/sglang_vdn_linear_branch.safetensors"] == "hardlink"
    assert done.path.name == shared_build.tree.name


def test_asked_for_reflinks_fail_where_there_are_none(shared_build: Built, tmp_path: Path) -> None:
    """What was asked for is done or refused, never replaced by something else."""
    try:
        done = materialize(VDN, options(shared_build.hub, tmp_path / "root", link="reflink"))
    except CannotWrite as error:
        assert "reflink" in error.message  # noqa: PT017 - either outcome is right, by filesystem
        assert not list((tmp_path / "root").glob("materialized_models/*"))
    else:
        assert done.counters.linked > 0


# Room


def test_h22_no_room_is_refused_before_the_first_write(
    shared_build: Built, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Needed, free, where, and which variable moves it."""
    monkeypatch.setenv("OVERLAY_CACHE_ROOT", str(tmp_path / "root"))
    chosen = replace(options(shared_build.hub, tmp_path / "root"), cache_root=None)
    needed = plan(VDN, chosen).room
    monkeypatch.setattr(overlay.cache.store, "free_room", lambda _path: needed - 1)
    with pytest.raises(CannotWrite) as caught:
        materialize(VDN, chosen)
    error = caught.value
    assert error.code == "no-room"
    assert (error.data["needed"], error.data["free"]) == (needed, needed - 1)
    assert error.data["where"] == str(tmp_path / "root")
    assert str(tmp_path / "root") in error.message
    assert "this root comes from OVERLAY_CACHE_ROOT" in str(error.hint)
    assert not list((tmp_path / "root/.overlay").glob("objects/*"))
    assert not list((tmp_path / "root/.overlay").glob("staging/*"))

    monkeypatch.setattr(overlay.cache.store, "free_room", lambda _path: needed)
    assert materialize(VDN, chosen).result == "built"


def test_h22_a_small_disk_is_refused_before_the_first_write(shared_build: Built, tmp_path: Path) -> None:
    """A real filesystem of 1 MiB, with none of the machinery replaced."""
    disk = tmp_path / "disk"
    disk.mkdir()
    chosen = replace(options(shared_build.hub, tmp_path / "root"), cache_root=disk / "root")

    def build_there() -> Any:
        if not own_mounts():
            return None
        mount_tmpfs(disk, "1m")
        try:
            materialize(VDN, chosen)
        except CannotWrite as error:
            left = [path.name for path in (disk / "root/.overlay").rglob("*") if path.is_file()]
            return error.code, error.data["free"] <= 2**20, [name for name in left if not name.endswith(".json")]
        return "built"

    if os.geteuid() == 0:
        outcome = in_child(build_there)
        assert outcome is None or (outcome[0], outcome[1]) == ("no-room", True)
        assert outcome is None or set(outcome[2]) <= {"CACHEDIR.TAG", "version", f"{shared_build.location.name}.lock"}


def test_h22_a_disk_that_fills_up_meanwhile_leaves_nothing_half_made(
    shared_build: Built, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the preflight was passed and the room went elsewhere: an error that says so, and what is done is kept."""
    disk = tmp_path / "disk"
    disk.mkdir()
    chosen = replace(options(shared_build.hub, tmp_path / "root"), cache_root=disk / "root")
    monkeypatch.setattr(overlay.cache.store, "free_room", lambda _path: 2**40)

    def build_there() -> Any:
        if not own_mounts():
            return None
        mount_tmpfs(disk, "6m")
        try:
            materialize(VDN, chosen)
        except CannotWrite as error:
            staged = list((disk / "root/.overlay/staging").glob("*"))
            kept = list((disk / "root/.overlay/objects").glob("*/*/*"))
            return (
                error.code,
                error.exit_status,
                staged,
                bool(kept),
                list((disk / "root").glob("materialized_models/*")),
            )
        return "built"

    if os.geteuid() == 0:
        assert in_child(build_there) in (None, ("no-room", 4, [], True, []))
