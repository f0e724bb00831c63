"""What the plan says of each carried file is what the run does, and the room is for all that is copied."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import shutil
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from support.checkpoints import copy_hub
from support.children import NOBODY, in_child, mount_again, mount_layers, open_to_all, own_mounts
from support.models import VDN, options, readable_by_all
from support.small_models import small_adapter, write_base, write_peft

import overlay.cache.links
from overlay.errors import CannotWrite
from overlay.hub.folder import FolderRepo
from overlay.materialization import links as links_module
from overlay.materialization.fuse import fuse
from overlay.materialization.materialize import materialize, plan
from overlay.materialization.record import RECORD_NAME
from overlay.materialization.verify import verify
from overlay.planning.outputs import CarriedFile

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from conftest import Built

    from overlay.materialization.materialize import Materialization
    from overlay.materialization.request import Options
    from overlay.materialization.survey import Work

BRANCH = "transformer/sglang_vdn_linear_branch.safetensors"
BRANCH_SOURCE = "stage-dmd-step-250/linear_branch/model.safetensors"
AUDIO = "audio_vae/diffusion_pytorch_model.safetensors"
LARGE = 500_000


@pytest.fixture(autouse=True)
def _large_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """The larger weights of the tiny checkpoint count as large."""
    monkeypatch.setattr(overlay.cache.links, "SMALL_FILE", LARGE)


@pytest.fixture
def in_store(monkeypatch: pytest.MonkeyPatch) -> None:
    """The hub folder counts as the Hub's own store, which nobody edits in place."""
    monkeypatch.setattr(FolderRepo, "shared_store", True)


@pytest.fixture
def plain_folder() -> Iterator[Path]:
    """A folder that every user reaches, whatever other runs of pytest do to their own."""
    with tempfile.TemporaryDirectory() as folder:
        open_to_all(Path(folder))
        yield Path(folder)


def fail(code: int) -> Callable[..., Any]:
    def function(*_: Any, **__: Any) -> Any:
        raise OSError(code, os.strerror(code))

    return function


def reflink_by_copying(dest: Any, _request: int, source: int) -> int:
    return os.pwrite(dest, os.pread(source, os.fstat(source).st_size, 0), 0)


def carried(work: Work) -> dict[str, tuple[str, str]]:
    return {step.output.path: (step.how, step.why) for step in work.steps if isinstance(step.output, CarriedFile)}


def record_of(done: Materialization) -> dict[str, Any]:
    assert done.path is not None
    return json.loads((done.path / RECORD_NAME).read_bytes())


def require_as_planned(record: dict[str, Any], planned: dict[str, str]) -> None:
    """Each file came as planned; ``present`` stands for the second one of two that are equal."""
    links, digests = record["run"]["links"], [item["digest"] for item in record["outputs"]]
    twice = {item["path"] for item in record["outputs"] if digests.count(item["digest"]) > 1}
    assert links.keys() == planned.keys()
    assert {path: how for path, how in links.items() if how != planned[path] and path not in twice} == {}
    assert {links[path] for path in twice & links.keys()} <= {"present", *planned.values()}


def new_bytes(root: Path, hub: Path) -> int:
    """Bytes of the files of a root that are not inodes of the hub, each inode once; the books excepted."""
    of_hub = {path.stat().st_ino for path in hub.rglob("*") if path.is_file()}
    places = [*(root / ".overlay/objects").rglob("*"), *(root / ".overlay/trees").rglob("*")]
    files = [path.stat() for path in places if path.is_file() and path.name != RECORD_NAME]
    return sum({found.st_ino: found.st_size for found in files if found.st_ino not in of_hub}.values())


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize(
    ("mode", "works"),
    [
        ("auto", {"reflink", "link"}),
        ("auto", {"link"}),
        ("auto", {"reflink"}),
        ("auto", set()),
        ("copy", {"reflink", "link"}),
        ("hardlink", {"link"}),
        ("reflink", {"reflink", "link"}),
    ],
)
def test_the_run_does_what_the_plan_says_of_each_file(
    shared_build: Built, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: Any, works: set[str], *, shared: bool
) -> None:
    """Whatever works between the two places: each file comes as planned, is recorded so, and the room suffices."""
    monkeypatch.setattr(FolderRepo, "shared_store", shared)
    monkeypatch.setattr(fcntl, "ioctl", reflink_by_copying if "reflink" in works else fail(errno.EOPNOTSUPP))
    if "link" not in works:
        monkeypatch.setattr(os, "link", fail(errno.EPERM))
    chosen = options(shared_build.hub, tmp_path / "root", link=mode)

    work = plan(VDN, chosen)
    done = materialize(VDN, chosen)

    planned = {path: how for path, (how, _) in carried(work).items()}
    require_as_planned(record_of(done), planned)
    assert done.counters == work.counters
    if "reflink" not in works:  # here a copy stands for it
        assert new_bytes(tmp_path / "root", shared_build.hub.root) <= work.room
    sizes = {step.output.path: step.size for step in work.steps}
    for path, how in planned.items():
        may_share = shared and sizes[path] >= LARGE
        if mode != "auto":
            assert how == mode
        elif "reflink" in works:
            assert how == "reflink"
        else:
            assert how == ("hardlink" if "link" in works and may_share else "copy")
    if mode == "auto":
        assert all(why for how, why in carried(work).values() if how == "copy")


def test_the_plan_says_why_each_file_is_copied(shared_build: Built, tmp_path: Path, in_store: None) -> None:
    """A small one and a large one of the store, and those of a user's folder."""
    chosen = options(shared_build.hub, tmp_path / "root")
    os_words = carried(plan(VDN, chosen))
    if os_words[BRANCH][0] == "reflink":
        pytest.skip("this filesystem has reflinks, and nothing is copied")
    assert os_words[BRANCH] == ("hardlink", f"reflink: Operation not supported ({errno.errorcode[errno.EOPNOTSUPP]})")
    how, why = os_words["text_encoder/config.json"]
    assert how == "copy"
    assert why.endswith("no hardlink: under 64 MiB, where programs rewrite files in place")


def test_files_of_a_users_folder_are_not_hardlinked_and_it_says_so(shared_build: Built, tmp_path: Path) -> None:
    """However large they are."""
    how, why = carried(plan(VDN, options(shared_build.hub, tmp_path / "root")))[BRANCH]
    assert how in ("copy", "reflink")
    assert how == "reflink" or why.endswith("no hardlink: people edit such a folder in place")


def test_two_mounts_of_one_disk(shared_build: Built, tmp_path: Path, in_store: None) -> None:
    """As a container gets them: the plan counts the copies and says why, and the run makes them."""
    for name in ("root", "hub"):
        (tmp_path / name).mkdir()
    chosen = replace(options(shared_build.hub, tmp_path / "root"), hub=tmp_path / "hub")

    def work() -> Any:
        if not own_mounts():
            return None
        (tmp_path / "disk").mkdir()
        mount_again(shared_build.hub.root, tmp_path / "hub")
        mount_again(tmp_path / "disk", tmp_path / "root")
        planned = plan(VDN, chosen)
        done = materialize(VDN, chosen)
        return carried(planned), planned.counters, done.counters, record_of(done)

    outcome = in_child(work)
    if outcome is None:
        pytest.skip("the kernel lets this user have no mounts of its own")
    planned, expected, counted, done = outcome
    if planned[BRANCH][0] != "reflink":
        assert planned[BRANCH][0] == "copy"
        assert "another mount or project quota of one disk (EXDEV)" in planned[BRANCH][1]
    require_as_planned(done, {path: how for path, (how, _) in planned.items()})
    assert counted == expected


def test_an_image_with_the_hubs_cache_in_it(shared_build: Built, tmp_path: Path, in_store: None) -> None:
    """To hardlink a file of a lower layer, a container copies it first: that is room, and the plan has counted it."""
    for name in ("upper", "scratch", "both"):
        (tmp_path / name).mkdir()
    chosen = replace(options(shared_build.hub, tmp_path / "root"), hub=tmp_path / "both/hub")
    chosen = replace(chosen, cache_root=tmp_path / "both/root")
    shutil.copytree(shared_build.hub.root, tmp_path / "image/hub")

    def work() -> Any:
        if not own_mounts():
            return None
        if not mount_layers(tmp_path / "image", tmp_path / "upper", tmp_path / "scratch", tmp_path / "both"):
            return None
        planned = plan(VDN, chosen)
        materialize(VDN, chosen)
        return carried(planned)[BRANCH][0], planned.room, planned.notes

    outcome = in_child(work)
    if outcome is None:
        pytest.skip("the kernel lets this user mount no layers")
    how, room, notes = outcome
    new = {path.stat().st_ino: path.stat().st_size for path in (tmp_path / "upper").rglob("*") if path.is_file()}
    if how == "hardlink":
        assert any("hardlinks are counted as copies" in note for note in notes)
        branch = (shared_build.hub.source_folder / BRANCH_SOURCE).stat().st_size
        assert branch in new.values()
        assert sum(size for size in new.values() if size > LARGE) <= room


def test_blobs_of_two_owners_each_come_as_they_can(
    plain_folder: Path, tmp_path_factory: pytest.TempPathFactory, in_store: None
) -> None:
    """A store that two users filled: this one's blobs are linked, the other's are copied, and the plan tells which."""
    if os.geteuid() != 0 or Path("/proc/sys/fs/protected_hardlinks").read_text().strip() != "1":
        pytest.skip("needs root, and a kernel that protects hardlinks")
    hub = copy_hub(tmp_path_factory)
    moved = replace(hub, root=Path(shutil.move(hub.root, plain_folder / "hub")))
    readable_by_all(moved.root)
    os.chown(moved.source_folder / BRANCH_SOURCE, NOBODY, NOBODY)
    (plain_folder / "place").mkdir()
    os.chown(plain_folder / "place", NOBODY, NOBODY)
    chosen = options(moved, plain_folder / "place/root")
    readable_by_all(plain_folder)

    def work() -> Any:
        planned = plan(VDN, chosen)
        done = materialize(VDN, chosen)
        return carried(planned), record_of(done)

    planned, done = in_child(work, uid=NOBODY)
    require_as_planned(done, {path: how for path, (how, _) in planned.items()})
    if planned[BRANCH][0] != "reflink":
        assert planned[BRANCH][0] == "hardlink"
        assert planned[AUDIO][0] == "copy"
        assert "belongs to uid 0" in planned[AUDIO][1]


def failing_for(name: str, code: int) -> Callable[..., Any]:
    real = os.link

    def link(source: Any, dest: Any, **named: Any) -> Any:
        return fail(code)() if str(source).endswith(name) else real(source, dest, **named)

    return link


def test_what_is_shared_with_the_store_is_declared_by_every_record(
    shared_build: Built, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, in_store: None
) -> None:
    """Also by that of a tree that found all its objects in the cache; a verify that reads finds what became of them."""
    monkeypatch.setattr(fcntl, "ioctl", fail(errno.EOPNOTSUPP))
    hub = tmp_path / "hub"
    shutil.copytree(shared_build.hub.root, hub)
    chosen = options(replace(shared_build.hub, root=hub), tmp_path / "root")
    done = materialize(VDN, chosen)
    assert record_of(done)["run"]["links"][BRANCH] == "hardlink"
    for place in (*(tmp_path / "root").glob("materialized_models/*"), *(tmp_path / "root").glob(".overlay/trees/*")):
        shutil.rmtree(place) if not place.is_symlink() else place.unlink()

    again = materialize(VDN, chosen)

    assert again.result == "reused"
    shared = {path for path, how in record_of(again)["run"]["links"].items() if how == "hardlink"}
    assert shared == {BRANCH, AUDIO}
    source = replace(shared_build.hub, root=hub).source_folder / BRANCH_SOURCE
    with source.open("r+b") as file:
        file.seek(-1, os.SEEK_END)
        file.write(b"?")
    assert again.path is not None
    assert [problem.path for problem in verify(again.path).problems] == [BRANCH]


def test_a_link_that_fails_after_all_is_a_copy_and_a_note(
    shared_build: Built, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, in_store: None
) -> None:
    """One inode that may have no more names: the rest comes as planned, counters and record tell what was done."""
    monkeypatch.setattr(fcntl, "ioctl", fail(errno.EOPNOTSUPP))
    chosen = options(shared_build.hub, tmp_path / "root")
    work = plan(VDN, chosen)
    monkeypatch.setattr(os, "link", failing_for(BRANCH_SOURCE, errno.EMLINK))

    done = materialize(VDN, chosen)

    planned = {path: how for path, (how, _) in carried(work).items()}
    assert planned[BRANCH] == "hardlink"
    require_as_planned(record_of(done), planned | {BRANCH: "copy"})
    payload = next(step.payload for step in work.steps if step.output.path == BRANCH)
    expected = replace(
        work.counters,
        linked=work.counters.linked - payload,
        written=work.counters.written + payload,
        read=work.counters.read + payload,
    )
    assert done.counters == expected
    assert [note for note in done.notes if "copied, because the hardlink that the plan had tried failed" in note]
    assert done.path is not None
    assert verify(done.path).ok
    assert done.path.name == shared_build.tree.name


def test_a_copy_that_the_plan_has_not_counted_needs_room_beside_it(
    shared_build: Built, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, in_store: None
) -> None:
    """Without it the run ends and says so, and publishes nothing."""
    monkeypatch.setattr(fcntl, "ioctl", fail(errno.EOPNOTSUPP))
    chosen = options(shared_build.hub, tmp_path / "root")
    room = plan(VDN, chosen).room
    monkeypatch.setattr(os, "link", failing_for(BRANCH_SOURCE, errno.EMLINK))
    monkeypatch.setattr(links_module, "free_room", lambda _path: room + 1000)

    with pytest.raises(CannotWrite, match="more than the plan has counted") as caught:
        materialize(VDN, chosen)

    assert caught.value.code == "no-room"
    assert not list((tmp_path / "root").glob("materialized_models/*"))


@pytest.mark.parametrize("mode", ["hardlink", "reflink"])
@pytest.mark.parametrize("run", [plan, materialize])
def test_what_was_asked_for_and_is_not_possible_is_refused_first(
    shared_build: Built, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: Any, run: Callable[[str, Options], Any]
) -> None:
    """With the reason and a way out; nothing is built, and staging is empty."""
    monkeypatch.setattr(fcntl, "ioctl", fail(errno.EOPNOTSUPP))
    monkeypatch.setattr(os, "link", fail(errno.EXDEV))

    with pytest.raises(CannotWrite) as caught:
        run(VDN, options(shared_build.hub, tmp_path / "root", link=mode))

    assert caught.value.code == "link-impossible"
    assert f"as --link {mode} asks: {mode}: " in caught.value.message
    assert "leave --link away" in str(caught.value.hint)
    assert not list((tmp_path / "root").glob(".overlay/objects/*"))
    assert not list((tmp_path / "root").glob(".overlay/staging/*"))


def test_a_hit_is_never_refused_for_its_links(built: Built, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is linked where everything is there."""
    monkeypatch.setattr(fcntl, "ioctl", fail(errno.EOPNOTSUPP))
    chosen = built.options(link="reflink")
    assert plan(VDN, chosen).is_present
    assert materialize(VDN, chosen).result == "present"


def test_a_root_without_links_takes_the_room_of_its_weights_twice(
    shared_build: Built, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Objects and tree: the plan counts both and says so."""
    chosen = options(shared_build.hub, tmp_path / "root")
    usual = plan(VDN, chosen)
    monkeypatch.setattr(fcntl, "ioctl", fail(errno.EOPNOTSUPP))
    monkeypatch.setattr(os, "link", fail(errno.EPERM))

    work = plan(VDN, chosen)

    weights = sum(step.size for step in work.steps if step.output.path.endswith(".safetensors"))
    assert work.room >= usual.room + weights
    assert any("takes the room of its weights once more" in note for note in work.notes)
    only = plan(VDN, replace(chosen, only=("audio_vae",)))
    assert only.room < weights  # nothing is published, so there is no tree


def test_a_fuse_is_refused_before_it_writes_where_the_base_cannot_be_linked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And where it may copy, it says why it does."""
    base, adapter = write_base(tmp_path / "base"), write_peft(tmp_path / "adapter", small_adapter())
    monkeypatch.setattr(fcntl, "ioctl", fail(errno.EOPNOTSUPP))
    monkeypatch.setattr(os, "link", fail(errno.EXDEV))
    with pytest.raises(CannotWrite, match="as --link hardlink asks"):
        fuse(base, [adapter], tmp_path / "out", link="hardlink")
    assert not (tmp_path / "out").exists()
    done = fuse(base, [adapter], tmp_path / "out")
    assert [note for note in done.notes if "people edit such a folder in place" in note]
    assert fuse(base, [adapter], tmp_path / "other", link="copy").notes == ()
