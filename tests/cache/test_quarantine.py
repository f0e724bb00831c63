"""Trees in quarantine: beside the published ones, listed, never led to, removed when told to and counted right."""

from __future__ import annotations

import json
import os
import time
from typing import TYPE_CHECKING

import pytest
from support.caches import FILES, LOCATION, MODEL, OTHER, TREE, build, digest_of, is_whole

from overlay.cache import Cache, CacheRoot
from overlay.cache.collecting import gc, rm, unreferenced
from overlay.cache.listing import Files, files_under, find, ls
from overlay.cache.pins import pin, pins
from overlay.errors import CannotWrite, NotHere

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.no_torch

WRONG = "org__name-fedcba9876543210"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "root"


def keep(root: Path, name: str = WRONG, files: dict[str, bytes] = OTHER, *, drop: bool = True) -> Path:
    """Put a tree into quarantine as a refused run does: of objects, of which those that differ are dropped."""
    cache = Cache.open(root, create=True)
    with cache.staging() as folder:
        outputs = []
        for path, data in files.items():
            (folder / "made").write_bytes(data)
            made = cache.adopt_file(folder / "made", digest_of(data))
            cache.place_file(made, folder / "tree" / path, not path.endswith(".safetensors"))
            outputs.append({"path": path, "digest": digest_of(data), "size": len(data)})
        (folder / "tree/overlay_record.json").write_text(json.dumps({"model": MODEL, "tree": name, "outputs": outputs}))
        kept = cache.quarantine_tree(folder / "tree", name, verify=lambda path: is_whole(path, files))
    if drop:
        for path, data in files.items():
            if FILES.get(path) != data:
                cache.drop_object(digest_of(data))
    return kept.path


def test_it_lies_beside_the_published_and_no_location_leads_there(root: Path) -> None:
    """It is listed, and marked."""
    build(root)
    kept = keep(root)
    assert kept == root / ".overlay/quarantine" / WRONG
    trees = {tree.name: tree for tree in ls(CacheRoot(root))}
    assert (trees[TREE].in_quarantine, trees[WRONG].in_quarantine) == (False, True)
    assert trees[WRONG].locations == ()
    assert trees[WRONG].model == MODEL


def test_the_same_tree_is_kept_once(root: Path) -> None:
    """A sound one stays as it is, a damaged one is replaced."""
    kept = keep(root)
    inode = kept.stat().st_ino
    assert keep(root) == kept
    assert kept.stat().st_ino == inode
    (kept / "transformer/b.safetensors").unlink()
    assert keep(root) == kept
    assert kept.stat().st_ino != inode
    assert is_whole(kept, OTHER)


def test_it_is_meant_by_its_own_name_and_path_alone(root: Path) -> None:
    """The model's name means what is published."""
    build(root)
    kept = keep(root)
    place = CacheRoot(root)
    assert [tree.name for tree in find(place, MODEL)[0]] == [TREE]
    assert [tree.path for tree in find(place, WRONG)[0]] == [kept]
    assert [tree.path for tree in find(place, str(kept))[0]] == [kept]
    rm(place, [TREE])
    with pytest.raises(NotHere):
        find(place, MODEL)


def test_objects_that_only_it_links_are_needed(root: Path, old: None) -> None:
    """A collector without a limit leaves it alone, and what it shares."""
    del old
    keep(root, drop=False)
    place = CacheRoot(root)
    assert unreferenced(place, ls(place)) == []
    removal = gc(place)
    assert removal.trees == removal.objects == ()
    assert len(list(place.objects.glob("*/*/*"))) == len(OTHER)


@pytest.mark.parametrize("drop", [True, False], ids=["dropped", "shared"])
def test_removing_it_frees_what_nobody_else_has(root: Path, drop: bool) -> None:  # noqa: FBT001 - a parameter
    """Its own files and objects; what the published tree shares stays, and that tree is whole."""
    build(root)
    kept = keep(root, drop=drop)
    place = CacheRoot(root)
    own = len(OTHER["transformer/b.safetensors"]) + len(OTHER["config.json"])
    own += (kept / "overlay_record.json").stat().st_size
    planned = rm(place, [WRONG], dry_run=True)
    assert planned.trees == (kept,)
    assert planned.frees == own
    assert kept.is_dir()
    assert rm(place, [WRONG]) == planned
    assert not kept.exists()
    assert is_whole(root / ".overlay/trees" / TREE)
    assert {path.name for path in place.objects.glob("*/*/*")} == {
        digest_of(data).partition(":")[2] for data in FILES.values()
    }


def test_under_a_limit_it_goes_first_and_is_named(root: Path, old: None) -> None:
    """Before a superseded tree that was used longer ago."""
    del old
    build(root, tree="org__name-0000000000000000", location=LOCATION)
    build(root)
    kept = keep(root)
    place = CacheRoot(root)
    long_ago = time.time() - 9 * 86400
    for path in (root / ".overlay/trees/org__name-0000000000000000").rglob("*"):
        os.utime(path, (long_ago, long_ago))
    limit = Files(files_under(place.own)).frees() - 1
    removal = gc(place, max_size=limit, dry_run=True)
    assert removal.trees == (kept,)
    everything = gc(place, max_age=0, wanted=lambda: {TREE, WRONG}, dry_run=True)
    assert kept in everything.trees
    assert place.tree(TREE) not in everything.trees


def test_a_young_one_stays(root: Path) -> None:
    """Whoever was refused just now has an hour to look."""
    kept = keep(root)
    removal = gc(CacheRoot(root), max_age=0)
    assert removal.trees == ()
    assert [(item.why, item.names) for item in removal.kept if item.what == "tree"] == [("young", (WRONG,))]
    assert kept.is_dir()


def test_it_can_be_pinned(root: Path, old: None) -> None:
    """Evidence that somebody wants to keep."""
    del old
    keep(root)
    place = CacheRoot(root)
    pin(place, WRONG, "for the report")
    assert gc(place, max_age=0, dry_run=True).trees == ()
    with pytest.raises(CannotWrite):
        rm(place, [WRONG])
    assert WRONG in pins(place)


def test_a_published_tree_of_the_same_name_is_another(root: Path) -> None:
    """Removing the one by its path leaves the other, its location and their objects."""
    build(root)
    kept = keep(root, TREE, FILES, drop=False)
    place = CacheRoot(root)
    assert [tree.path for tree in find(place, str(kept))[0]] == [kept]
    assert [tree.path for tree in find(place, str(place.tree(TREE)))[0]] == [place.tree(TREE)]
    removal = rm(place, [str(kept)])
    assert removal.trees == (kept,)
    assert removal.objects == removal.locations == ()
    assert is_whole(root / "materialized_models" / LOCATION)
