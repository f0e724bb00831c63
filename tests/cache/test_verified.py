"""Remembered verifications: believed of the very tree that was read, and of no other."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from support.intruders import INTRUDERS, put_in_place
from support.users import other_user

import overlay
from overlay.cache import Cache
from overlay.cache.collecting import gc
from overlay.cache.verified import (
    forget_verified,
    last_verified,
    remember_verified,
    root_of,
    without_tree,
)
from overlay.fingerprint.entries import entry_bytes, entry_in

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.no_torch


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A tree in a cache root."""
    cache = Cache.open(tmp_path / "root", create=True)
    path = cache.tree_path("org__model-0123456789abcdef")
    path.mkdir(parents=True)
    (path / "weights.safetensors").write_bytes(b"w")
    return path


def note(tree: Path) -> Path:
    return tree.parent.parent / "verified" / f"{tree.name}.json"


def test_the_root_of_a_tree_is_found_from_its_path(tree: Path, tmp_path: Path) -> None:
    """Of a tree only: not of a folder below it, beside it, in a root without a layout or with a newer one."""
    root = root_of(tree)
    assert root is not None
    assert root.path == tmp_path / "root"
    assert [root_of(place) for place in (tree / "transformer", tree.parent, tmp_path, Path("/"))] == [None] * 4
    root.version.write_text("99\n")
    assert root_of(tree) is None
    root.version.unlink()
    assert root_of(tree) is None


def test_what_was_verified_is_known_until_it_is_taken_back(tree: Path) -> None:
    """When, at which level, by which version; nothing is written into the tree."""
    root = root_of(tree)
    assert root is not None
    assert last_verified(root, tree) is None
    remember_verified(root, tree, tree.stat(), "full")
    found = last_verified(root, tree)
    assert found is not None
    assert (found.level, found.version) == ("full", overlay.__version__)
    assert found.when.endswith("Z")
    assert [path.name for path in tree.iterdir()] == ["weights.safetensors"]
    forget_verified(root, tree)
    forget_verified(root, tree)
    assert last_verified(root, tree) is None


def test_a_tree_that_was_built_again_was_not_verified(tree: Path) -> None:
    """Its name is the same, its folder is another; also when it is swapped while the old one is read."""
    root = root_of(tree)
    assert root is not None
    seen = tree.stat()
    remember_verified(root, tree, seen, "full")
    tree.rename(tree.with_name("aside"))
    tree.mkdir()
    assert last_verified(root, tree) is None
    remember_verified(root, tree, seen, "full")
    assert last_verified(root, tree) is None


DAMAGE: dict[str, Callable[[bytes, str], bytes]] = {
    "empty": lambda *_: b"",
    "not JSON": lambda *_: b"\xff",
    "list": lambda *_: b"[]",
    "edited": lambda data, _: data.replace(b'"full"', b'"fuul"'),
    "of another version": lambda data, name: entry_bytes(2, name, entry_in(data, 1, name)),
    "of another tree": lambda data, name: entry_bytes(1, "another", entry_in(data, 1, name)),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_note_is_none(tree: Path, damage: str) -> None:
    """After a power cut, or by another version."""
    root = root_of(tree)
    assert root is not None
    remember_verified(root, tree, tree.stat(), "full")
    note(tree).write_bytes(DAMAGE[damage](note(tree).read_bytes(), tree.name))
    assert last_verified(root, tree) is None


@pytest.mark.parametrize("intruder", INTRUDERS)
def test_what_is_no_note_at_all_is_none(tree: Path, intruder: str) -> None:
    """A folder, a pipe, a link: nothing hangs, and the next note takes its place."""
    root = root_of(tree)
    assert root is not None
    remember_verified(root, tree, tree.stat(), "full")
    put_in_place(note(tree), intruder)
    assert last_verified(root, tree) is None
    remember_verified(root, tree, tree.stat(), "full")
    assert last_verified(root, tree) is not None


def test_a_root_that_cannot_be_written_is_read(tmp_path: Path) -> None:
    """What is noted stands, nothing new is, and no error comes of it."""
    with tempfile.TemporaryDirectory(dir="/tmp") as name:  # pytest's own folders are closed to other users
        Path(name).chmod(0o755)
        cache = Cache.open(Path(name) / "root", create=True)
        old, new = cache.tree_path("old"), cache.tree_path("new")
        for tree in (old, new):
            tree.mkdir(parents=True)
        remember_verified(cache.root, old, old.stat(), "full")
        with other_user():
            remember_verified(cache.root, new, new.stat(), "full")
            forget_verified(cache.root, old)
            assert last_verified(cache.root, old) is not None
            assert last_verified(cache.root, new) is None


def test_notes_on_trees_that_are_gone_are_found(tree: Path) -> None:
    """For the collector; also what a killed writer left."""
    root = root_of(tree)
    assert root is not None
    assert without_tree(root) == []
    remember_verified(root, tree, tree.stat(), "full")
    left = note(tree).with_name(f".{tree.name}.json.12-ab.tmp")
    left.touch()
    assert without_tree(root) == [left]
    shutil.rmtree(tree)
    assert without_tree(root) == [left, note(tree)]


def test_collecting_takes_notes_on_trees_that_are_gone(tree: Path) -> None:
    """And leaves those on trees that are there."""
    root = root_of(tree)
    assert root is not None
    other = tree.with_name("org__model-fedcba9876543210")
    other.mkdir()
    for place in (tree, other):
        remember_verified(root, place, place.stat(), "full")
    other.rmdir()
    assert note(other) in gc(root, dry_run=True).unfinished
    assert note(other).exists()
    gc(root)
    assert not note(other).exists()
    assert last_verified(root, tree) is not None
