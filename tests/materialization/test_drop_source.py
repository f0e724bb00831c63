"""The source taken out of the Hub's cache after a build: what goes, what stays, and what is said of it."""

from __future__ import annotations

import errno
import os
import shutil
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from huggingface_hub import scan_cache_dir, snapshot_download
from support.children import in_child
from support.models import VDN
from support.served import Served, built_from_hub, contents

from overlay.cache import presence
from overlay.cache.presence import building
from overlay.cache.store import Cache
from overlay.demo.checkpoint import NEEDS_REPO, NEEDS_REVISION, OVERLAY_REPO
from overlay.errors import BrokenInput, CannotWrite, CheckFailed, InvalidUsage, NotHere, TryAgain
from overlay.hub import dropping as hub_dropping
from overlay.materialization.materialize import materialize
from overlay.materialization.resolve import resolve
from overlay.materialization.serving.by_name import materialize_by_name
from overlay.materialization.serving.dropping import Dropped, drop_source, plan_drop
from overlay.materialization.verify import verify

if TYPE_CHECKING:
    from collections.abc import Iterator

OTHER = "c" * 40


@pytest.fixture
def world(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """The model, built through the Hub's client."""
    with built_from_hub(tmp_path_factory, tmp_path) as found:
        yield found


def commits(world: Served) -> tuple[str, ...]:
    """What is dropped, as it is named."""
    return (f"{NEEDS_REPO}@{NEEDS_REVISION}", f"{VDN}@{world.hub.source}")


def untouched(world: Served) -> dict[str, tuple[int, int, str]]:
    """All of the Hub's cache but its locks."""
    return {path: what for path, what in contents(world.cache).items() if not path.startswith(".locks")}


def inodes(*folders: Path) -> dict[tuple[int, int], tuple[int, int]]:
    """Size and number of names of every regular file below folders, by inode: slow, and obviously right."""
    found = {}
    for folder in folders:
        for path in folder.rglob("*"):
            if path.is_file() and not path.is_symlink():
                status = path.stat()
                found[status.st_dev, status.st_ino] = (status.st_size, status.st_nlink)
    return found


def test_source_and_needs_go_and_everything_else_stays(world: Served) -> None:
    """The tree is whole to the last byte, ``path`` and a second run need nothing, offline too; the overlay stays."""
    others = contents(world.storage(OVERLAY_REPO)), contents(world.folder / "root/.overlay/trees")
    blobs = inodes(world.storage(VDN) / "blobs", world.storage(NEEDS_REPO) / "blobs")
    world.server.forget()
    dropped = drop_source(VDN, world.options(server=None))
    assert dropped.commits == commits(world)
    assert dropped.removed == sum(size for size, _ in blobs.values())
    assert dropped.freed == sum(size for size, links in blobs.values() if links == 1)
    assert not world.storage(VDN).exists()
    assert not world.storage(NEEDS_REPO).exists()
    assert (contents(world.storage(OVERLAY_REPO)), contents(world.folder / "root/.overlay/trees")) == others
    found = resolve(VDN, world.options(server=None, offline=True)).state
    assert (found.name, found.tree) == ("present", materialize(VDN, world.options(server=None, offline=True)).path)
    assert found.location is not None
    assert verify(found.location, level="full").ok
    assert drop_source(VDN, world.options(server=None)) == Dropped((), 0, 0)
    assert world.server.requests == []


def test_what_is_hardlinked_from_the_cache_frees_nothing_and_is_not_said_to(world: Served) -> None:
    """A plain build links its weights, so that these only lose a name; one by copies frees all."""
    linked = plan_drop(VDN, world.options())
    assert 0 < linked.freed < linked.removed
    shutil.rmtree(world.folder / "root")
    alone = plan_drop(VDN, world.options())
    assert alone.freed == alone.removed == linked.removed
    materialize(VDN, world.options(link="copy"))
    assert drop_source(VDN, world.options()).freed == alone.removed


def test_the_plan_takes_nothing_and_says_what_the_run_says(world: Served) -> None:
    """Also of a model that is not built yet: what is there now."""
    before = contents(world.cache)
    planned = plan_drop(VDN, world.options())
    assert contents(world.cache) == before
    assert plan_drop(VDN, world.options(cache_root=world.folder / "other")) == planned
    materialize(VDN, world.options())
    assert drop_source(VDN, world.options()) == planned


def second_commit(world: Served, *, without: str) -> Path:
    """Another commit of the source in the Hub's cache, with all blobs of the first but one, and one of its own."""
    storage = world.storage(VDN)
    shutil.copytree(storage / "snapshots" / world.hub.source, storage / "snapshots" / OTHER, symlinks=True)
    folder = storage / "snapshots" / OTHER
    (folder / without).unlink()
    (storage / "blobs/own").write_text("of another commit")
    (folder / "own.txt").symlink_to("../../blobs/own")
    (storage / "refs").mkdir(exist_ok=True)
    (storage / "refs/main").write_text(OTHER)
    return folder


def test_another_commit_of_the_repo_keeps_its_blobs_and_its_branch(world: Served) -> None:
    """Only the blobs that no other commit has go."""
    gone = "h3-base/audio_vae/config.json"
    blob = (world.storage(VDN) / "snapshots" / world.hub.source / gone).resolve()
    other = second_commit(world, without=gone)
    before = contents(other)
    needs = inodes(world.storage(NEEDS_REPO) / "blobs")
    dropped = drop_source(VDN, world.options(server=None))
    assert not blob.exists()
    assert dropped.removed == sum(size for size, _ in needs.values()) + (world.hub.source_folder / gone).stat().st_size
    assert contents(other) == before
    assert all(path.resolve().is_file() for path in other.rglob("*") if path.is_symlink())
    assert world.main(VDN).read_text() == OTHER
    assert [path.name for path in (world.storage(VDN) / "snapshots").iterdir()] == [OTHER]
    assert scan_cache_dir(world.cache).warnings == []


def test_a_renamed_repo_with_the_same_commit_is_not_touched(world: Served) -> None:
    """The client would take whichever of the two it finds first."""
    for name in ("AAA/old-name", "zzz/new-name"):
        shutil.copytree(world.storage(VDN), world.storage(name), symlinks=True)
    before = {name: contents(world.storage(name)) for name in ("AAA/old-name", "zzz/new-name")}
    assert drop_source(VDN, world.options(server=None)).commits == commits(world)
    assert {name: contents(world.storage(name)) for name in before} == before
    assert not world.storage(VDN).exists()


def test_a_data_set_of_the_same_name_is_not_touched(world: Served) -> None:
    """Its folder differs by its kind alone."""
    data = world.cache / f"datasets--{VDN.replace('/', '--')}"
    shutil.copytree(world.storage(VDN), data, symlinks=True)
    before = contents(data)
    drop_source(VDN, world.options(server=None))
    assert contents(data) == before


def shared_world(world: Served, *, also_elsewhere: bool) -> Path:
    """One shard of the source in the shared store; also referenced by another repo, if asked for."""
    from huggingface_hub.utils import _shared_blobs

    name = "h3-base/transformer/diffusion_pytorch_model-00001-of-00003.safetensors"
    store_dir = _shared_blobs.shared_blobs_dir(world.cache)
    store = _shared_blobs.shared_blob_path(world.cache, "ab" * 32)
    prefix = _shared_blobs._ensure_prefix_dir(world.cache, "ab" * 32)
    assert prefix == store.parent
    assert _shared_blobs.is_shared_blobs_dir(store_dir)
    repos = [VDN]
    if also_elsewhere:
        shutil.copytree(world.storage(VDN), world.storage("org/other"), symlinks=True)
        repos.append("org/other")
    for repo in repos:
        path = world.storage(repo) / "snapshots" / world.hub.source / name
        blob = Path(os.path.abspath(path.parent / os.readlink(path)))  # noqa: PTH100, PTH115 - one hop
        if store.exists():
            blob.unlink()
        else:
            shutil.copy(blob, store)  # an inode of its own
            blob.unlink()
        blob.symlink_to(os.path.relpath(store, blob.parent))
        _shared_blobs._append_manifest_reference(
            _shared_blobs._manifest_path_for_store_path(store), str(blob.relative_to(world.cache))
        )
    return store


@pytest.mark.parametrize("also_elsewhere", [False, True])
def test_a_blob_in_the_shared_store_goes_with_its_last_repo(world: Served, *, also_elsewhere: bool) -> None:
    """And is said to be freed only then."""
    store = shared_world(world, also_elsewhere=also_elsewhere)
    size = store.stat().st_size
    blobs = inodes(world.storage(VDN) / "blobs", world.storage(NEEDS_REPO) / "blobs")
    dropped = drop_source(VDN, world.options(server=None))
    rest = sum(number for number, links in blobs.values() if links == 1)
    assert dropped.freed == rest + (0 if also_elsewhere else size)
    assert store.exists() is also_elsewhere
    if also_elsewhere:
        link = next(world.storage("org/other").glob("snapshots/*/h3-base/transformer/*-00001-of-*"))
        assert link.resolve() == store.resolve()
        assert link.stat().st_size == size


def test_a_build_at_work_is_not_robbed(world: Served) -> None:
    """Any build of this cache root: it may read the same source."""
    before = untouched(world)
    with building(Cache.open(world.folder / "root", create=False).root), pytest.raises(TryAgain) as caught:
        drop_source(VDN, world.options(server=None))
    assert (caught.value.code, caught.value.exit_status) == ("build-at-work", 5)
    assert untouched(world) == before
    drop_source(VDN, world.options(server=None))


def test_a_holder_of_the_models_lock_is_waited_for(world: Served) -> None:
    """As long as the options say."""
    options = world.options(server=None, lock_timeout=0.0)
    location = resolve(VDN, options).state.location
    assert location is not None
    with (
        Cache.open(world.folder / "root", create=False).lock(location.name, timeout=0),
        pytest.raises(TryAgain) as caught,
    ):
        drop_source(VDN, options)
    assert caught.value.code == "lock-busy"
    assert world.storage(VDN).exists()


def test_a_download_that_is_not_finished_is_not_taken_along(world: Served) -> None:
    """The client removes a repo whole that has no other commit: with what somebody just fetches."""
    partial = world.storage(VDN) / "blobs/abc.incomplete"
    partial.write_bytes(b"x")
    with pytest.raises(TryAgain) as caught:
        drop_source(VDN, world.options(server=None))
    assert caught.value.code == "download-unfinished"
    assert str(partial) in str(caught.value.hint)
    assert world.storage(VDN).exists()
    assert world.storage(NEEDS_REPO).exists()


def test_a_blob_outside_the_cache_is_never_removed(world: Served, tmp_path: Path) -> None:
    """The client would follow such a link; here it is refused before anything goes."""
    precious = tmp_path / "precious.bin"
    precious.write_text("mine")
    (world.storage(VDN) / "snapshots" / world.hub.source / "stray.bin").symlink_to(precious)
    second_commit(world, without="stray.bin")
    with pytest.raises(BrokenInput, match="precious") as caught:
        drop_source(VDN, world.options(server=None))
    assert caught.value.code == "hub-cache-unclear"
    assert precious.read_text() == "mine"
    assert (world.storage(VDN) / "snapshots" / world.hub.source).exists()


def test_a_repo_that_is_a_link_to_elsewhere_is_left_to_its_owner(world: Served, tmp_path: Path) -> None:
    """The client would remove the link and keep the bytes."""
    world.storage(VDN).rename(tmp_path / "elsewhere")
    world.storage(VDN).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(BrokenInput) as caught:
        drop_source(VDN, world.options(server=None))
    assert caught.value.code == "hub-cache-unclear"
    assert world.storage(VDN).is_symlink()


def test_a_repo_that_the_client_passes_over_is_named(world: Served) -> None:
    """With the client's own reason; nothing is said to be dropped."""
    world.set_main(VDN, OTHER)  # no such commit is there
    with pytest.raises(BrokenInput, match="missing commit") as caught:
        drop_source(VDN, world.options(server=None))
    assert caught.value.data["where"] == str(world.storage(VDN))
    assert world.storage(NEEDS_REPO).exists()


def test_what_cannot_be_removed_is_an_error(world: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """The client only warns of it."""
    strategy = type(scan_cache_dir(world.cache).delete_revisions())
    monkeypatch.setattr(strategy, "execute", lambda _self: None)
    with pytest.raises(CannotWrite) as caught:
        drop_source(VDN, world.options(server=None))
    assert caught.value.data["where"].startswith(str(world.cache))


def test_the_source_of_a_model_that_is_not_here_is_kept(world: Served) -> None:
    """It is what a build would be made of."""
    with pytest.raises(NotHere) as caught:
        drop_source(VDN, world.options(cache_root=world.folder / "other"))
    assert caught.value.code == "model-absent"
    assert world.storage(VDN).exists()


def test_the_source_of_a_damaged_tree_is_kept(world: Served) -> None:
    """It is what would repair it."""
    tree = resolve(VDN, world.options(server=None)).state.tree
    assert tree is not None
    (tree / "README.md").unlink()
    with pytest.raises(NotHere) as caught:
        drop_source(VDN, world.options(server=None))
    assert caught.value.code == "model-damaged"
    assert world.storage(VDN).exists()


def test_a_tree_that_is_not_whole_afterwards_is_said_to_be(world: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """There is no way back, so it is looked at."""
    drop = hub_dropping.drop

    def robbing(commits: Any, *rest: Any, **named: Any) -> Any:
        tree = resolve(VDN, world.options(server=None)).state.tree
        assert tree is not None
        (tree / "README.md").unlink()
        return drop(commits, *rest, **named)

    monkeypatch.setattr(hub_dropping, "drop", robbing)
    with pytest.raises(BrokenInput, match=r"README\.md") as caught:
        drop_source(VDN, world.options(server=None))
    assert caught.value.code == "tree-damaged"


def test_a_folder_in_the_hubs_place_has_nothing_to_drop(world: Served) -> None:
    """Neither in a run nor in its plan."""
    for function in (drop_source, plan_drop):
        with pytest.raises(InvalidUsage) as caught:
            function(VDN, world.options(hub=world.hub.root))
        assert caught.value.code == "option-conflict"


def test_a_hub_cache_that_is_not_there_is_as_good_as_an_empty_one(world: Served) -> None:
    """Nothing was there, nothing is freed."""
    shutil.rmtree(world.cache)
    assert plan_drop(VDN, world.options()) == Dropped((), 0, 0)


def test_a_source_that_is_a_folder_is_never_dropped(world: Served) -> None:
    """Not even one that is a snapshot of the Hub's cache."""
    folder = world.folder / "vdn-minimax-h3"
    folder.symlink_to(world.hub.source_folder)
    for place in (folder, world.storage(VDN) / "snapshots" / world.hub.source):
        with pytest.raises(InvalidUsage, match="taken from this folder") as caught:
            drop_source(str(place), world.options(server=None))
        assert caught.value.code == "option-conflict"
    assert world.storage(VDN).exists()


def test_what_was_built_of_a_floating_pin_is_dropped_at_the_commit_it_was_built_of(world: Served) -> None:
    """The record knows it."""
    registry = world.folder / "floating.yaml"
    text = Path(str(world.options().registry)).read_text()
    registry.write_text(text.replace(f"{{revision: {world.hub.source}}}", "{floating: nobody knows}"))
    options = world.options(server=None, registry=registry, allow_floating=True)
    materialize(VDN, options)
    assert drop_source(VDN, options).commits == commits(world)


def test_after_it_was_staged_the_source_goes_all_the_same(world: Served) -> None:
    """With its branch; a server by path needs neither, and the next staging brings both again."""
    materialize_by_name(VDN, world.options())
    assert drop_source(VDN, world.options()).commits == commits(world)
    assert not world.main(VDN).exists()
    materialize_by_name(VDN, world.options())
    assert snapshot_download(VDN, allow_patterns=["*.safetensors"], ignore_patterns=["stage-b*"], local_files_only=True)


# What is not the client's own, or needed by something that stays


def snapshot(world: Served) -> Path:
    """The folder of the source's commit."""
    return world.storage(VDN) / "snapshots" / world.hub.source


@pytest.mark.parametrize("by", ["another repo", "a data set", "a repo that the client passes over", "a server's tree"])
def test_what_something_else_links_to_is_not_dropped(world: Served, by: str) -> None:
    """The client asks no other repo, and would leave it without its file."""
    blob = max((world.storage(VDN) / "blobs").iterdir(), key=lambda path: path.stat().st_size)
    folder = {
        "another repo": world.storage("other/repo") / "snapshots" / OTHER,
        "a data set": world.cache / "datasets--other--data/snapshots" / OTHER,
        "a repo that the client passes over": world.storage("other/repo") / "snapshots" / OTHER,
        "a server's tree": world.folder / "root/materialized_models/Other__tree-0123456789abcdef",
    }[by]
    folder.mkdir(parents=True)
    link = folder / "w.safetensors"
    link.symlink_to(os.path.relpath(blob, folder))
    if by.startswith("a repo that"):
        (folder / "broken").symlink_to("nowhere")
    before = untouched(world)
    for function in (plan_drop, drop_source):
        with pytest.raises(BrokenInput) as caught:
            function(VDN, world.options(server=None))
        assert caught.value.code == "hub-cache-unclear"
        assert str(link) in caught.value.message
    assert untouched(world) == before


def test_a_link_over_two_steps_is_found(world: Served) -> None:
    """The second of them leads to the blob."""
    blob = next((world.storage(VDN) / "blobs").iterdir())
    folder = world.storage("other/repo") / "snapshots" / OTHER
    folder.mkdir(parents=True)
    (world.storage("other/repo") / "blobs").mkdir()
    (world.storage("other/repo") / "blobs/x").symlink_to(blob)
    (folder / "x.bin").symlink_to("../../blobs/x")
    with pytest.raises(BrokenInput, match="other--repo"):
        drop_source(VDN, world.options(server=None))


@pytest.mark.parametrize("place", ["sgl", "snapshots/{commit}/deep", "blobs/deep", "."])
def test_a_cache_root_inside_the_sources_folder_stays(world: Served, place: str) -> None:
    """With the tree in it, however deep it lies; only where it would go with the commit, that stays, too."""
    options = world.options(server=None, cache_root=world.storage(VDN) / place.format(commit=world.hub.source))
    done = materialize(VDN, options)
    if "{commit}" in place:
        with pytest.raises(BrokenInput) as caught:
            drop_source(VDN, options)
        assert caught.value.code == "hub-cache-unclear"
    else:
        assert drop_source(VDN, options).commits == commits(world)
    assert done.location is not None
    assert verify(done.location).ok
    assert snapshot(world).is_dir() is ("{commit}" in place)


@pytest.mark.parametrize("place", ["snapshots/{commit}/notes.txt", "snapshots/x"])
def test_a_file_of_somebodys_own_keeps_the_commit_that_it_lies_in(world: Served, place: str) -> None:
    """It is named; in the place of a commit, the client passes over the whole repo."""
    mine = world.storage(VDN) / place.format(commit=world.hub.source)
    mine.write_text("mine")
    with pytest.raises(BrokenInput) as caught:
        drop_source(VDN, world.options(server=None))
    assert caught.value.code == "hub-cache-unclear"
    assert mine.read_text() == "mine"
    assert world.storage(NEEDS_REPO).exists()


@pytest.mark.parametrize("place", ["mine/notes.txt", "notes.txt", "blobs/mine/notes.txt"])
def test_a_file_of_somebodys_own_beside_the_commit_stays(world: Served, place: str) -> None:
    """The source goes all the same."""
    mine = world.storage(VDN) / place
    mine.parent.mkdir(exist_ok=True)
    mine.write_text("mine")
    assert drop_source(VDN, world.options(server=None)).commits == commits(world)
    assert [path for path in world.storage(VDN).rglob("*") if path.is_file()] == [mine]


def test_a_commit_that_lies_elsewhere_is_left_to_its_owner(world: Served, tmp_path: Path) -> None:
    """Whoever moved it there knows why."""
    snapshot(world).rename(tmp_path / "else")
    snapshot(world).symlink_to(tmp_path / "else")
    for link in [path for path in (tmp_path / "else").rglob("*") if path.is_symlink()]:
        blob = world.storage(VDN) / "blobs" / link.readlink().name
        link.unlink()
        link.symlink_to(blob)
    with pytest.raises(BrokenInput, match="leads out") as caught:
        drop_source(VDN, world.options(server=None))
    assert caught.value.code == "hub-cache-unclear"
    assert any((tmp_path / "else").rglob("*.safetensors"))


# Killed, refused, and met by others


@pytest.mark.parametrize("another_commit", [False, True])
def test_a_killed_removal_is_finished_by_the_next(
    world: Served, monkeypatch: pytest.MonkeyPatch, *, another_commit: bool
) -> None:
    """At every rename and at every file: the commit is there whole or not at all, and in the end nothing is left."""
    kept = contents(second_commit(world, without="h3-base/audio_vae/config.json")) if another_commit else None
    everything = plan_drop(VDN, world.options(server=None)).removed
    rename, unlink = Path.rename, os.unlink

    def removal(moment: int) -> bool:
        """Killed at its step number ``moment``."""
        steps = iter(range(1 << 30))

        def counted(real: Any) -> Any:
            return lambda *args, **named: (
                os.kill(os.getpid(), signal.SIGKILL) if next(steps) == moment else real(*args, **named)
            )

        Path.rename = counted(rename)  # type: ignore[method-assign] - in a process of its own
        os.unlink = shutil.os.unlink = counted(unlink)
        drop_source(VDN, world.options(server=None))
        return True

    for moment in (1, 2, 9):
        assert in_child(lambda at=moment: removal(at)) == signal.SIGKILL
        links = [path for path in world.storage(VDN).glob("snapshots/*/**/*") if path.is_symlink()]
        assert all(path.exists() for path in links)
        assert plan_drop(VDN, world.options(server=None)).removed <= everything
    drop_source(VDN, world.options(server=None))
    assert plan_drop(VDN, world.options(server=None)) == Dropped((), 0, 0)
    assert not list(world.cache.glob("*overlay-dropping*"))
    assert world.storage(VDN).exists() is another_commit
    if kept is not None:
        assert contents(world.storage(VDN) / "snapshots" / OTHER) == kept
        linked = {path.resolve() for path in world.storage(VDN).glob("snapshots/**/*") if path.is_symlink()}
        assert linked == set((world.storage(VDN) / "blobs").iterdir())


@pytest.mark.parametrize("emptied", ["snapshots", "snapshots/*"])
def test_blobs_of_no_commit_go_and_are_counted(world: Served, emptied: str) -> None:
    """As an older version left them that was killed."""
    for path in list(world.storage(VDN).glob(emptied)):
        shutil.rmtree(path)
    dropped = drop_source(VDN, world.options(server=None))
    assert dropped.commits == commits(world)[:1]
    assert dropped.removed > 0
    assert not world.storage(VDN).exists()


def test_a_blob_that_somebody_fetches_for_another_commit_stays(world: Served) -> None:
    """While a download is not finished, its finished blobs may have no link yet."""
    second_commit(world, without="h3-base/audio_vae/config.json")
    for name in ("fresh", "fetched.incomplete"):
        (world.storage(VDN) / "blobs" / name).write_text(name)
    shutil.rmtree(snapshot(world))
    before = contents(world.storage(VDN))
    drop_source(VDN, world.options(server=None))
    assert contents(world.storage(VDN)) == before


def test_a_drop_that_was_stopped_for_long_puts_all_back(world: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """A build may not have waited for it; the collector is asked before each move."""
    before = {path: what[0::2] for path, what in untouched(world).items()}
    with monkeypatch.context() as patch:
        patch.setattr(presence, "_PATIENCE", 0.0)
        with pytest.raises(TryAgain) as caught:
            drop_source(VDN, world.options(server=None))
    assert caught.value.code == "collector-stopped"
    assert {path: what[0::2] for path, what in untouched(world).items()} == before


def test_nobody_waits_for_the_removal(world: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """A build begins while the bytes go."""
    root = Cache.open(world.folder / "root", create=False).root
    strategy = type(scan_cache_dir(world.cache).delete_revisions())
    execute = strategy.execute
    turns: list[Path] = []

    def removing(self: Any) -> None:
        turns.extend(root.collecting.iterdir())
        with building(root):
            execute(self)

    monkeypatch.setattr(strategy, "execute", removing)
    assert drop_source(VDN, world.options(server=None)).commits == commits(world)
    assert turns == []


@pytest.mark.parametrize("another_commit", [False, True])
def test_a_removal_that_the_system_refuses_changes_nothing_and_says_it_once(
    world: Served, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, *, another_commit: bool
) -> None:
    """Known before, by the modes; or found half way, and put back."""
    if another_commit:
        second_commit(world, without="h3-base/audio_vae/config.json")
    before = untouched(world)
    with monkeypatch.context() as patch:
        patch.setattr(os, "access", lambda path, _mode: Path(path).name != "snapshots")
        with pytest.raises(CannotWrite) as caught:
            drop_source(VDN, world.options(server=None))
    assert caught.value.code == "not-permitted"
    rename = Path.rename

    def refuse(path: Path, to: Path) -> Path:
        if "overlay-dropping" in str(to) and path.parent.name in ("hub", "blobs"):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return rename(path, to)

    monkeypatch.setattr(Path, "rename", refuse)
    with pytest.raises(CannotWrite):
        drop_source(VDN, world.options(server=None))
    assert {path: what[0::2] for path, what in untouched(world).items()} == {
        path: what[0::2] for path, what in before.items()
    }
    assert caplog.records == []


def test_what_a_killed_staging_left_does_not_keep_the_source(world: Served) -> None:
    """It is of this program."""
    (world.storage(VDN) / ".overlay-0123456789abcdef.tmp").write_text(world.hub.source)
    assert drop_source(VDN, world.options(server=None)).commits == commits(world)
    assert not world.storage(VDN).exists()


@pytest.mark.parametrize("kind", ["folder", "link"])
def test_a_branch_that_is_no_file_is_said_to_be_none(world: Served, kind: str) -> None:
    """And not to say ``None``."""
    world.main(VDN).parent.mkdir(parents=True, exist_ok=True)
    if kind == "folder":
        world.main(VDN).mkdir()
    else:
        world.main(VDN).symlink_to("nowhere")
    with pytest.raises(CheckFailed, match="no file that can be read") as caught:
        materialize_by_name(VDN, world.options())
    assert caught.value.code == "branch-elsewhere"
