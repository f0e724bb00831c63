"""What is there, what removing it frees, and that nothing goes that somebody needs."""

from __future__ import annotations

import json
import os
import time
from typing import TYPE_CHECKING

import pytest
from support.caches import (
    FILES,
    LOCATION,
    MODEL,
    OTHER,
    TREE,
    add_object,
    assert_sound,
    build,
    digest_of,
    is_whole,
    killed_build,
)

from overlay.cache import Cache, CacheRoot
from overlay.cache.collecting import gc, rm
from overlay.cache.kept import kept_folders, kept_note
from overlay.cache.listing import find, ls
from overlay.cache.staging import is_abandoned
from overlay.errors import CannotWrite, NotHere
from overlay.formats.folders import remove_folder

if TYPE_CHECKING:
    from pathlib import Path

    from overlay.cache.collecting import Removal

pytestmark = pytest.mark.no_torch

DAY = 86400.0
BYTES = sum(map(len, FILES.values()))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "root"


def used_at(cache: Cache, tree: str, when: float) -> None:
    """Make a tree look as if it was published and last read then."""
    path = cache.tree_path(tree)
    for file in path.rglob("*"):
        os.utime(file, (when, when))
    os.utime(path, (when, when))
    for location in cache.root.locations.iterdir():
        os.utime(location, (when, when), follow_symlinks=False)


def record_size(cache: Cache, tree: str) -> int:
    return (cache.tree_path(tree) / "overlay_record.json").stat().st_size


def snapshot(root: Path) -> set[Path]:
    return set(root.rglob("*"))


def test_listing(root: Path) -> None:
    """A tree shows model, locations, size with each inode once, and the object digests that are its own."""
    build(root)
    cache = Cache.open(root, create=False)
    cache.swing_location("again", TREE)

    (tree,) = ls(cache.root)

    assert (tree.name, tree.model, tree.locations) == (TREE, MODEL, ("again", LOCATION))
    assert BYTES + record_size(cache, TREE) == tree.size
    assert {digest_of(data) for data in FILES.values()} == tree.digests
    assert time.time() - 60 < tree.created <= tree.last_used <= time.time() + 1
    assert len(FILES) + 1 == len(tree.files)


def test_the_last_used_comes_first(root: Path) -> None:
    """A read of a weight file is a use."""
    for name in ("one", "two"):
        build(root, tree=name, location=name, files={"m.safetensors": name.encode()})
    cache = Cache.open(root, create=False)
    used_at(cache, "one", 1e9)
    used_at(cache, "two", 1e9)
    os.utime(cache.tree_path("one") / "m.safetensors", (1.5e9, 1e9))

    assert [(tree.name, tree.last_used) for tree in ls(cache.root)] == [("one", 1.5e9), ("two", 1e9)]


@pytest.mark.parametrize(
    "data", [None, b"", b"[]", b'{"outputs": 5, "model": 5}', b'{"outputs": [1, {"digest": 2}]}', b"{"]
)
def test_a_damaged_record_is_listed(root: Path, data: bytes | None, old: None) -> None:
    """A tree whose record says nothing is listed without a model, keeps the objects it links, and can be removed."""
    build(root)
    cache = Cache.open(root, create=False)
    record = cache.tree_path(TREE) / "overlay_record.json"
    record.unlink()
    if data is not None:
        record.write_bytes(data)

    assert [tree.model for tree in ls(cache.root)] == [None]
    gc(cache.root)
    assert cache.has_object(digest_of(FILES["transformer/a.safetensors"]), 5000)
    rm(cache.root, [TREE])
    assert ls(cache.root) == ()


def test_an_absent_root_is_empty(root: Path) -> None:
    """Listing and collecting where nothing is find nothing and make nothing."""
    cache = Cache.open(root, create=False)

    assert ls(cache.root) == ()
    assert gc(cache.root).frees == 0
    assert not root.exists()


@pytest.mark.parametrize("by", ["tree", "location", "model", "tree path", "location path"])
def test_removing(root: Path, by: str) -> None:
    """A tree goes by any of its names, with its locations and the objects that only it uses; a dry run says so."""
    build(root)
    cache = Cache.open(root, create=False)
    target = {
        "tree": TREE,
        "location": LOCATION,
        "model": MODEL,
        "tree path": str(cache.tree_path(TREE)),
        "location path": str(cache.location_path(LOCATION)),
    }[by]
    entries = sum(path.stat().st_size for path in cache.root.actions.glob("*/*"))
    before = snapshot(root)

    planned = rm(cache.root, [target], dry_run=True)

    assert before == snapshot(root)
    assert planned == rm(cache.root, [target])
    assert (cache.location_path(LOCATION),) == planned.locations
    assert (cache.tree_path(TREE),) == planned.trees
    assert len(FILES) == len(planned.objects) == len(planned.actions)
    config = len(FILES["config.json"])  # a copy of its own in the tree
    assert BYTES + config + record_size_of(before) + entries == planned.frees
    assert planned.held_outside == 0
    assert not [path for path in snapshot(root) if path.is_file() and path.parent != cache.root.own]


def record_size_of(paths: set[Path]) -> int:
    """All records are alike here."""
    outputs = [{"path": path, "digest": digest_of(data), "size": len(data)} for path, data in FILES.items()]
    assert paths
    return len(json.dumps({"model": MODEL, "tree": TREE, "outputs": outputs}))


def test_removing_one_of_two_generations(root: Path) -> None:
    """What another tree uses stays, and does not count as freed."""
    build(root)
    build(root, tree="new", location="new", files=OTHER)
    cache = Cache.open(root, create=False)

    removal = rm(cache.root, [TREE])

    assert [cache.object_path(digest_of(FILES["transformer/b.safetensors"]))] == list(removal.objects)
    assert is_whole(cache.location_path("new"), OTHER)
    assert cache.has_object(digest_of(FILES["transformer/a.safetensors"]), 5000)
    assert 6000 < removal.frees < 6000 + 2000
    assert cache.location_target(LOCATION) is None


def test_removing_one_of_two_locations(root: Path) -> None:
    """A tree that something else points to stays."""
    build(root)
    cache = Cache.open(root, create=False)
    cache.swing_location("again", TREE)

    removal = rm(cache.root, ["again"])

    assert (removal.trees, removal.frees) == ((), 0)
    assert is_whole(cache.location_path(LOCATION))
    assert (cache.tree_path(TREE),) == rm(cache.root, [LOCATION]).trees


def test_removing_a_model_takes_all_its_trees(root: Path) -> None:
    """A model's generations go together, those of other models stay."""
    build(root)
    build(root, tree="second", location=LOCATION)
    build(root, tree="foreign", location="foreign", model="org/other")
    cache = Cache.open(root, create=False)

    rm(cache.root, [MODEL])

    assert [tree.name for tree in ls(cache.root)] == ["foreign"]
    assert is_whole(cache.location_path("foreign"))


@pytest.mark.parametrize("target", ["nothing", "", "/", "..", "org/nothing"])
def test_removing_what_is_not_there(root: Path, target: str) -> None:
    """A name that means nothing removes nothing, the good names beside it included."""
    build(root)
    cache = Cache.open(root, create=False)

    with pytest.raises(NotHere, match="holds no location, tree or model") as caught:
        rm(cache.root, [TREE, target])

    assert caught.value.hint == "overlay cache ls"
    assert is_whole(cache.location_path(LOCATION))


def test_what_a_server_built_is_not_ours(root: Path) -> None:
    """Real folders among the locations are neither listed nor removed."""
    build(root)
    cache = Cache.open(root, create=False)
    (cache.root.locations / "theirs").mkdir()

    with pytest.raises(NotHere):
        rm(cache.root, ["theirs"])
    gc(cache.root, max_size=0, max_age=0)

    assert (cache.root.locations / "theirs").is_dir()


def test_links_into_the_hub_free_nothing(root: Path, tmp_path: Path) -> None:
    """Files that the Hub's cache has too stay on the disk; this is said, and not counted as freed."""
    blob = tmp_path / "blob"
    blob.write_bytes(b"h" * 9000)
    cache = Cache.open(root, create=True)
    cache.link_object(blob, digest_of(blob.read_bytes()), "hardlink", shared_store=True)
    build(root, files={"hub.safetensors": blob.read_bytes()})
    assert blob.stat().st_nlink == 3

    removal = rm(cache.root, [TREE])

    assert removal.held_outside == 9000
    assert removal.frees < 2000
    assert "stay on the disk" in removal.notes[0]
    assert blob.stat().st_nlink == 1
    assert blob.read_bytes() == b"h" * 9000


def collected(removal: Removal) -> tuple[int, ...]:
    return tuple(len(getattr(removal, name)) for name in ("locations", "trees", "actions", "objects", "unfinished"))


def test_collecting_nothing_needed(root: Path, old: None) -> None:
    """A cache in use has nothing to collect, superseded generations included."""
    build(root)
    build(root, tree="new", location=LOCATION, files=OTHER)
    cache = Cache.open(root, create=False)
    before = snapshot(root)

    assert collected(gc(cache.root)) == (0, 0, 0, 0, 0)
    assert before == snapshot(root)


def test_collecting_what_nobody_needs(root: Path, old: None) -> None:
    """Abandoned staging, unused objects, entries that lead nowhere and dangling locations go; a dry run says so."""
    build(root)
    cache = Cache.open(root, create=False)
    add_object(cache, b"unused")
    cache.put_action("0" * 64, {"digest": digest_of(b"unused"), "size": 6})
    cache.put_action("1" * 64, {"digest": digest_of(b"never there"), "size": 6})
    cache.root.action("2" * 64).parent.mkdir(exist_ok=True)
    cache.root.action("2" * 64).write_text("poison")
    cache.location_path("dangling").symlink_to("../.overlay/trees/gone")
    killed_build(cache)
    (cache.root.own / ".version.1-2.tmp").write_text("stray")
    before = snapshot(root)

    planned = gc(cache.root, dry_run=True)

    assert before == snapshot(root)
    assert collected(planned) == (1, 0, 3, 1, 2)
    assert planned == gc(cache.root)
    assert collected(gc(cache.root)) == (0, 0, 0, 0, 0)
    assert_sound(root)


def test_what_is_young_stays(root: Path) -> None:
    """An object adopted within the hour may belong to a build on another host."""
    build(root)
    cache = Cache.open(root, create=False)
    add_object(cache, b"unused")

    assert collected(gc(cache.root, max_size=0, max_age=0)) == (0, 0, 0, 0, 0)


def test_a_running_build_keeps_the_objects(root: Path, old: None) -> None:
    """While anybody builds, objects stay, and the report says why; afterwards they go."""
    build(root)
    cache = Cache.open(root, create=False)
    add_object(cache, b"unused")
    with cache.staging():
        removal = gc(cache.root)
        removed = rm(cache.root, [TREE])

    assert removal.objects == removed.objects == ()
    assert [(kept.what, kept.why, kept.count, kept.size) for kept in removal.kept] == [("object", "build", 1, 6)]
    assert removed.frees < 2000
    assert len(gc(cache.root).objects) == len(FILES) + 1


def three(root: Path) -> Cache:
    """A superseded tree of today, one with a location of three days ago, one of yesterday; 10 kB each."""
    now = time.time()
    for name, location, age in (("a", "x", 0), ("b", "b", 3), ("c", "c", 1), ("d", "x", 0)):
        build(root, tree=name, location=location, files={"m.safetensors": name.encode() * 10_000})
        used_at(Cache.open(root, create=False), name, now - age * DAY)
    cache = Cache.open(root, create=False)
    for location, age in (("x", 0), ("b", 3), ("c", 1)):
        os.utime(cache.location_path(location), (now - age * DAY, now - age * DAY), follow_symlinks=False)
    return cache


@pytest.mark.parametrize(
    ("limits", "gone"),
    [
        ({}, ""),
        ({"max_size": 10**6}, ""),
        ({"max_size": 35_000}, "a"),
        ({"max_size": 25_000}, "ab"),
        ({"max_size": 15_000}, "abc"),
        ({"max_size": 0}, "abcd"),
        ({"max_age": 4 * DAY}, ""),
        ({"max_age": 2 * DAY}, "b"),
        ({"max_age": 0.5 * DAY}, "bc"),
        ({"max_age": 2 * DAY, "max_size": 35_000}, "a b"),
        ({"max_age": 0.0}, "abcd"),
    ],
    ids=str,
)
def test_limits(root: Path, old: None, limits: dict[str, float], gone: str) -> None:
    """Superseded trees go first, then the least recently used, until the limit holds; what stays is whole."""
    cache = three(root)
    expected = set(gone.replace(" ", ""))

    planned = gc(cache.root, dry_run=True, **limits)
    removal = gc(cache.root, **limits)

    assert planned == removal
    assert expected == {path.name for path in removal.trees}
    assert set("abcd") - expected == {tree.name for tree in ls(cache.root)}
    for name, target in (("b", "b"), ("c", "c"), ("x", "d")):
        assert (target in expected) == (cache.location_target(name) is None)
    if "max_size" in limits:
        left = {(s.st_ino, s.st_size) for p in cache.root.own.rglob("*") if p.is_file() for s in [p.stat()]}
        assert sum(size for _, size in left) <= max(limits["max_size"], 1000)


def test_a_newer_layout_is_left_alone(root: Path) -> None:
    """What a newer version laid out is neither listed nor collected: it would be misread."""
    build(root)
    (root / ".overlay/version").write_text("2\n")
    cache = CacheRoot(root)
    before = snapshot(root)

    for attempt in (ls, gc, lambda root: rm(root, [TREE])):
        with pytest.raises(CannotWrite) as caught:
            attempt(cache)
        assert caught.value.code == "layout-unknown"
    assert before == snapshot(root)


def test_a_target_may_be_found_without_removing(root: Path) -> None:
    """`info` uses the same names as `rm`."""
    build(root)
    cache = Cache.open(root, create=False)

    trees, locations = find(cache.root, MODEL)

    assert [tree.name for tree in trees] == [TREE]
    assert {LOCATION} == locations


def test_removing_on_a_root_that_refuses(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A refused write is an error of the root."""
    build(root)
    cache = Cache.open(root, create=False)

    def mkdir(*_: object, **__: object) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(os, "mkdir", mkdir)

    with pytest.raises(CannotWrite, match="mkdir"):
        rm(cache.root, [TREE])
    assert is_whole(cache.location_path(LOCATION))


# Folders nested without end


def deep(folder: Path, levels: int) -> None:
    """Folders in one another, more than Python calls itself, with a file in the last one."""
    here = os.getcwd()  # noqa: PTH109 - a path of that length no call takes
    os.chdir(folder)
    for _ in range(levels):
        os.mkdir("d")  # noqa: PTH102 - as above
        os.chdir("d")
    with open("file", "w") as file:  # noqa: PTH123 - as above
        file.write("12345")
    os.chdir(here)


@pytest.mark.parametrize("levels", [1100, 2100])
def test_folders_nested_without_end_are_listed_and_removed(root: Path, levels: int) -> None:
    """In a tree and in what a killed run left; Python's own walk and rmtree end at its recursion limit."""
    build(root)
    cache = Cache.open(root, create=False)
    deep(cache.tree_path(TREE), levels)
    left = cache.root.staging / "1-1-0-abc"
    left.mkdir(parents=True, exist_ok=True)
    deep(left, levels)

    [tree] = ls(cache.root)
    assert sum(file.path.name == "file" for file in tree.files) == (levels * 2 + 300 < os.pathconf(root, "PC_PATH_MAX"))
    is_abandoned(left)
    rm(cache.root, [TREE])
    remove_folder(left)

    assert ls(cache.root) == ()
    assert not left.exists()
    assert list(cache.root.collecting.iterdir()) == []


def test_a_tree_with_folders_nested_without_end_is_published(root: Path) -> None:
    """What makes it durable goes through all of it, what it holds before the folder itself."""
    cache = Cache.open(root, create=True)
    with cache.staging() as staged:
        (staged / "tree").mkdir()
        deep(staged / "tree", 1100)
        published = cache.publish_tree(staged / "tree", TREE, verify=lambda _found: False)
    assert published.result == "built"
    remove_folder(published.path)


# Folders that an adoption kept


@pytest.mark.parametrize("case", ["adopted", "stopped", "other"])
def test_folders_that_an_adoption_kept_are_told(root: Path, case: str) -> None:
    """With their size, what of it is the cache's too, and why they are there; neither gc nor rm touches them."""
    build(root)
    cache = Cache.open(root, create=False)
    location = cache.location_path(LOCATION)
    kept = location.with_name(f"{LOCATION}.kept-2")
    kept.mkdir()
    (kept / "shared.safetensors").hardlink_to(cache.tree_path(TREE) / "transformer/a.safetensors")
    (kept / "own.txt").write_bytes(b"1234567")
    for name in ("a.kept-0", "a.kept-x", "a.kept"):
        (location.parent / name).mkdir()
    (location.parent / "a.kept-1").symlink_to(kept)
    if case != "adopted":
        location.unlink()
    if case == "other":
        location.mkdir()

    [told] = kept_folders(cache.root)
    assert (told.path, told.size, told.frees) == (str(kept), 5007, 7)
    assert {"adopted": "came into it", "stopped": f"mv {kept} {location}", "other": "something else"}[case] in told.why
    assert told.remove == f"rm -r {kept}"
    assert "1 folder" in kept_note([told])
    assert "neither counted nor removed" in kept_note([told])
    gc(cache.root, max_size=0, max_age=0)
    assert (kept / "own.txt").is_file()
