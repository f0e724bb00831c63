"""The last two generations of each model stay, so that one can go back."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
from support.caches import build

from overlay.cache import Cache, CacheRoot
from overlay.cache.collecting import gc, rm
from overlay.cache.generations import (
    RolledBack,
    became_current,
    for_rollback,
    forget_rollback,
    found_current,
    generations,
    note_rollback,
    rolled_back,
    standings,
)
from overlay.cache.listing import ls
from overlay.cache.trees import point_location, quarantine_tree

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.no_torch

EVERYTHING = {"max_size": 0, "max_age": 0.0}


@pytest.fixture
def root(tmp_path: Path, old: None, monkeypatch: pytest.MonkeyPatch) -> CacheRoot:
    """Three generations of a model under one location, and one of another model."""
    monkeypatch.setattr("overlay.cache.collecting.LAST_GENERATIONS", 2)
    for number in (1, 2, 3):
        generation(tmp_path / "root", number)
    generation(tmp_path / "root", 1, model="org/other")
    return CacheRoot(tmp_path / "root")


def generation(root: Path, number: int, *, model: str = "org/name", location: str = "") -> str:
    """Build one; which was when is made certain. Returns its tree."""
    label = model.replace("/", "__")
    tree = f"{label}-{number}"
    build(
        root, tree=tree, location=location or label, model=model, files={"m.safetensors": f"{model} {number}".encode()}
    )
    current_at(CacheRoot(root), tree, number)
    return tree


def current_at(root: CacheRoot, tree: str, when: int) -> None:
    os.utime(root.current / tree, (when, when))


def gone(root: CacheRoot) -> set[str]:
    removal = gc(root, **EVERYTHING)
    return {path.name for path in removal.trees}


def test_the_last_two_stay_whatever_the_limit(root: CacheRoot) -> None:
    """Of each model by itself; what stays for it is told, and whole; one that became current again counts as new."""
    removal = gc(root, **EVERYTHING, dry_run=True)
    assert [path.name for path in removal.trees] == ["org__name-1"]
    [kept] = [kept for kept in removal.kept if kept.what == "tree"]
    assert (kept.why, set(kept.names)) == ("rollback", {"org__name-2", "org__name-3", "org__other-1"})

    Cache.open(root.path, create=False).swing_location("org__name", "org__name-1")
    assert gone(root) == {"org__name-2"}
    assert gone(root) == set()
    assert {path.name for path in root.current.iterdir()} == {"org__name-1", "org__name-3", "org__other-1"}


def test_by_name_they_can_be_removed(root: CacheRoot) -> None:
    """What a user names goes, with the note on when it was current."""
    rm(root, ["org/name"])
    assert {path.name for path in root.current.iterdir()} == {"org__other-1"}


def test_without_notes_the_time_of_the_tree_counts(root: CacheRoot) -> None:
    """As in a cache that an earlier version filled."""
    for number, note in enumerate(sorted(root.current.iterdir())):
        os.utime(root.trees / note.name, (10 - number, 10 - number))
        note.unlink()
    assert gone(root) == {"org__name-3"}


def test_trees_for_several_consumers_are_one_generation(root: CacheRoot) -> None:
    """They differ in what only their consumer looks at, so both go back together."""
    for tree in ("org__name-2b", "org__name-3b"):
        number = tree[-2]
        files = {"m.safetensors": f"org/name {number}".encode(), ".sglang_overlay_materialized.json": b"{}"}
        build(root.path, tree=tree, location=f"{tree}-location", files=files)

    groups = generations(ls(root))["org/name"]

    assert [{tree.name[-2:] for tree in group} for group in groups] == [{"-3", "3b"}, {"-2", "2b"}, {"-1"}]
    assert gone(root) == {"org__name-1"}


def test_quarantine_does_not_count(root: CacheRoot) -> None:
    """What no lock let through was never current, nor is it kept; nor what cannot be read."""
    cache = Cache.open(root.path, create=False)
    with cache.staging() as folder:
        (folder / "tree").mkdir()
        (folder / "tree/overlay_record.json").write_text('{"model": "org/name"}')
        quarantine_tree(root, folder / "tree", "org__name-3", verify=lambda _: True)
    (root.tree("org__other-1") / "overlay_record.json").write_text("{")

    removal = gc(root, **EVERYTHING)

    assert {(path.parent.name, path.name) for path in removal.trees} == {
        ("quarantine", "org__name-3"),
        ("trees", "org__name-1"),
        ("trees", "org__other-1"),
    }


def test_a_hit_is_noted_where_another_was_current(root: CacheRoot) -> None:
    """A run that finds a tree in its place makes it the current one again, and writes nothing where it is."""
    before = (root.current / "org__name-3").stat()
    found_current(root, "org__name-3")
    assert (root.current / "org__name-3").stat().st_mtime_ns == before.st_mtime_ns

    found_current(root, "org__name-1")
    assert [group[0].name[-1] for group in generations(ls(root))["org/name"]] == ["1", "3", "2"]


def test_a_rollback_keeps_both_its_ends(root: CacheRoot) -> None:
    """Also where it went back further than two; it changes nothing in what is before what."""
    note_rollback(root, "org__name", RolledBack("org__name-3", ("org__name-1",), 4.0))
    assert for_rollback(root, ls(root), 1) == {"org__name-3", "org__other-1"}  # not made yet
    point_location(root, "org__name", "org__name-1")
    assert for_rollback(root, ls(root), 1) == {"org__name-3", "org__name-1", "org__other-1"}
    generation(root.path, 4, location="new")
    assert gone(root) == {"org__name-2"}


def test_a_note_of_a_rollback_ends_with_it(root: CacheRoot) -> None:
    """It counts while the location leads where it says, and goes with the next swing, or with the location."""
    found = RolledBack("org__name-3", ("org__name-2", "org__name-1"), 4.0)
    note_rollback(root, "org__name", found)
    assert rolled_back(root, "org__name", "org__name-3") is None
    for tree in found.trees:
        assert rolled_back(root, "org__name", tree) == found
    Cache.open(root.path, create=False).swing_location("org__name", "org__name-1")
    assert rolled_back(root, "org__name", "org__name-1") is None

    note_rollback(root, "org__name", found)
    (root.locations / "org__name").unlink()
    gc(root)
    assert list(root.rolled_back.iterdir()) == []
    forget_rollback(root, "org__name")


@pytest.mark.parametrize("text", ["", "[]", "{", '{"came_from": 1}', '{"came_from": "a", "trees": 1, "when": 1}'])
def test_a_note_that_cannot_be_read_is_none(root: CacheRoot, text: str) -> None:
    """Nothing is known then."""
    note_rollback(root, "org__name", RolledBack("org__name-3", ("org__name-2",), 4.0))
    (root.rolled_back / "org__name.json").write_text(text)
    assert rolled_back(root, "org__name", "org__name-2") is None


def test_notes_on_currents_are_no_condition(root: CacheRoot) -> None:
    """Where they cannot be written, nothing fails."""
    for note in root.current.iterdir():
        note.unlink()
    root.current.rmdir()
    root.current.write_text("in the way")
    became_current(root, "org__name-3")
    found_current(root, "org__name-3")
    for number in (1, 2, 3):
        os.utime(root.tree(f"org__name-{number}"), (number, number))
    assert gone(root) == {"org__name-1"}


def test_what_a_tree_is_to_its_model(root: CacheRoot) -> None:
    """Current, previous, older; after a rollback, what came later is rolled back; after a new one, that is current."""

    def found() -> dict[str, str]:
        return {path.name[-1]: standing for path, standing in standings(root, ls(root)).items() if "name" in path.name}

    assert found() == {"3": "current", "2": "previous", "1": "older"}
    note_rollback(root, "org__name", RolledBack("org__name-3", ("org__name-2",), 4.0))
    point_location(root, "org__name", "org__name-2")
    assert found() == {"3": "rolled-back", "2": "current", "1": "previous"}
    generation(root.path, 4, location="new")
    assert found() == {"4": "current", "3": "previous", "2": "older", "1": "older"}
