"""Trees and locations appear in one step each, and nothing of others is ever replaced."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from support.caches import LOCATION, TREE, build, is_whole

from overlay.cache import Cache, trees
from overlay.errors import CannotWrite, TryAgain

pytestmark = pytest.mark.no_torch


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    return Cache.open(tmp_path / "root", create=True)


def publish(cache: Cache, text: str, *, sound: bool = True, name: str = TREE) -> str:
    with cache.staging() as folder:
        (folder / "tree" / "sub").mkdir(parents=True)
        (folder / "tree" / "sub" / "file").write_text(text)
        return cache.publish_tree(folder / "tree", name, verify=lambda _: sound).result


def content(cache: Cache, name: str = TREE) -> str:
    return (cache.tree_path(name) / "sub" / "file").read_text()


def test_a_tree_is_built_then_adopted(cache: Cache) -> None:
    """The first one stays; an equal one that comes later is thrown away and the first is used."""
    assert publish(cache, "first") == "built"
    assert publish(cache, "second") == "adopted"
    assert content(cache) == "first"
    assert list(cache.root.staging.iterdir()) == []


def test_a_damaged_tree_is_replaced_not_edited(cache: Cache) -> None:
    """A tree that does not verify gives way whole; who has its files open keeps reading the old ones."""
    publish(cache, "first")
    with (cache.tree_path(TREE) / "sub" / "file").open() as reader:
        assert publish(cache, "second", sound=False) == "built"

        assert reader.read() == "first"
    assert content(cache) == "second"
    assert list(cache.root.staging.iterdir()) == []


@pytest.mark.parametrize("what", ["file", "empty folder", "link"])
def test_rubbish_in_a_trees_place_gives_way(cache: Cache, what: str) -> None:
    """Whatever lies where a tree belongs and is none is moved aside."""
    target = cache.tree_path(TREE)
    target.parent.mkdir()
    if what == "file":
        target.write_text("rubbish")
    elif what == "link":
        target.symlink_to("nowhere")
    else:
        target.mkdir()

    assert publish(cache, "good", sound=False) == "built"
    assert content(cache) == "good"


def test_endless_damage_ends(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody who keeps putting damaged trees there does not keep us for ever."""
    publish(cache, "first")
    monkeypatch.setattr("overlay.cache.trees.move_aside", lambda *_: None)

    with pytest.raises(TryAgain, match=TREE):
        publish(cache, "second", sound=False)


def test_everything_is_synced_before_the_rename(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    """Folders and own files of a tree reach the disk before its name does, and the name before the call ends."""
    events: list[str] = []
    real_fsync, real_rename = os.fsync, os.rename

    def fsync(descriptor: int) -> None:
        events.append(str(Path(f"/proc/self/fd/{descriptor}").readlink()))
        real_fsync(descriptor)

    def rename(source: str, target: str) -> None:
        events.append(f"rename to {target}")
        real_rename(source, target)

    with cache.staging() as folder:
        tree = folder / "tree"
        (tree / "sub").mkdir(parents=True)
        (tree / "sub" / "file").write_text("x")
        cache.tree_path(TREE).parent.mkdir()
        monkeypatch.setattr(os, "fsync", fsync)
        monkeypatch.setattr(os, "rename", rename)
        cache.publish_tree(tree, TREE, verify=lambda _: True)

    expected = [tree / "sub" / "file", tree / "sub", tree, f"rename to {cache.tree_path(TREE)}", cache.root.trees]
    assert list(map(str, expected)) == events


def test_a_location_is_a_relative_link(cache: Cache, tmp_path: Path) -> None:
    """The link works wherever the root is mounted, and names the tree alone."""
    build(cache.root.path)

    assert cache.location_path(LOCATION).readlink() == Path(f"../.overlay/trees/{TREE}")
    assert cache.location_target(LOCATION) == cache.tree_path(TREE)
    cache.root.path.rename(tmp_path / "moved")
    assert is_whole(tmp_path / "moved" / "materialized_models" / LOCATION)


def test_swinging_back_and_forth(cache: Cache) -> None:
    """Two generations stand side by side; the location is swung to either, and a useless swing writes nothing."""
    for name in ("one", "two"):
        publish(cache, name, name=name)
        cache.swing_location(LOCATION, name)
    cache.swing_location(LOCATION, "one")
    before = cache.location_path(LOCATION).lstat().st_ino

    cache.swing_location(LOCATION, "one")

    assert (cache.location_path(LOCATION) / "sub" / "file").read_text() == "one"
    assert before == cache.location_path(LOCATION).lstat().st_ino
    assert content(cache, "two") == "two"


def test_there_is_always_a_location_while_it_swings(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader in the middle of a swing sees the old tree."""
    for name in ("one", "two"):
        publish(cache, name, name=name)
    cache.swing_location(LOCATION, "one")
    seen = []
    real = os.replace

    def replace(source: str, target: str) -> None:
        seen.append(cache.location_target(LOCATION))
        real(source, target)

    monkeypatch.setattr(os, "replace", replace)
    cache.swing_location(LOCATION, "two")

    assert [cache.tree_path("one")] == seen


@pytest.mark.parametrize(
    ("what", "named"),
    [
        ("folder", "a real folder"),
        ("file", "a file"),
        ("/elsewhere", "a link to /elsewhere"),
        ("../.overlay/trees/a/b", "a link to ../.overlay/trees/a/b"),
        ("../.overlay/trees/..", "a link to ../.overlay/trees/.."),
        ("../.overlay/trees/", "a link to ../.overlay/trees/"),
    ],
)
def test_what_is_not_ours_stays(cache: Cache, what: str, named: str) -> None:
    """A folder that a server built, a file, or a foreign link is named with the fix, and not touched."""
    location = cache.location_path(LOCATION)
    if what == "folder":
        location.mkdir()
        (location / "model_index.json").write_text("theirs")
    elif what == "file":
        location.write_text("theirs")
    else:
        location.symlink_to(what)
    publish(cache, "x")
    before = location.lstat().st_ino

    with pytest.raises(CannotWrite, match=named) as caught:
        cache.swing_location(LOCATION, TREE)

    assert caught.value.hint.endswith(f"mv {location} {location}.old")
    assert before == location.lstat().st_ino
    assert cache.location_target(LOCATION) is None


def test_a_link_that_appears_while_one_looks_is_a_link(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not a folder in the way: another process published between two looks."""
    location = cache.location_path(LOCATION)
    read_link, looks = trees._read_link, []

    def appearing(path: Path) -> str | None:
        looks.append(path)
        if len(looks) == 1:
            location.symlink_to(f"../.overlay/trees/{TREE}")
            return None
        return read_link(path)

    monkeypatch.setattr(trees, "_read_link", appearing)

    assert trees._current(location) == f"../.overlay/trees/{TREE}"


def test_a_folder_that_appears_while_we_swing_stays(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that publishes a real folder at the last moment keeps it."""
    publish(cache, "x")
    location = cache.location_path(LOCATION)
    monkeypatch.setattr("overlay.cache.trees._current", lambda _: None)
    location.mkdir()
    (location / "theirs").write_text("theirs")

    with pytest.raises(CannotWrite):
        cache.swing_location(LOCATION, TREE)

    assert (location / "theirs").read_text() == "theirs"


def test_a_dangling_location_leads_nowhere(cache: Cache) -> None:
    """A link of ours whose tree is gone is no target, and may be swung again."""
    build(cache.root.path)
    cache.tree_path(TREE).rename(cache.tree_path("other"))

    assert cache.location_target(LOCATION) is None
    cache.swing_location(LOCATION, "other")
    assert cache.location_target(LOCATION) == cache.tree_path("other")


def test_locations_that_lie_elsewhere_are_refused(cache: Cache, tmp_path: Path) -> None:
    """Relative links in a `materialized_models` that is itself a link would lead astray; the fix is named."""
    (tmp_path / "disk" / "materialized_models").mkdir(parents=True)
    cache.root.locations.rmdir()
    cache.root.locations.symlink_to(tmp_path / "disk" / "materialized_models")

    with pytest.raises(CannotWrite, match="a link to") as caught:
        cache.swing_location(LOCATION, TREE)

    assert f"--cache-root {tmp_path}/disk" in caught.value.hint
    assert list((tmp_path / "disk" / "materialized_models").iterdir()) == []


@pytest.mark.parametrize("code", [errno.EACCES, errno.ENOSPC, errno.EXDEV, errno.EIO])
def test_a_rename_that_fails_publishes_nothing(cache: Cache, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    """A tree that cannot be moved in is an error of the root, and no tree."""

    def rename(*_: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "rename", rename)

    with pytest.raises(CannotWrite, match=f"rename into trees/{TREE}"):
        publish(cache, "x")

    assert list(cache.root.trees.iterdir()) == []
    assert list(cache.root.staging.iterdir()) == []
