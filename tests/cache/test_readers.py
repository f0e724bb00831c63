"""A tree that a process has open stays although nobody took a lease."""

from __future__ import annotations

import mmap
import os
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
from support.caches import LOCATION, OTHER, TREE, build, is_whole

from overlay.cache import CacheRoot, readers
from overlay.cache.collecting import gc, rm
from overlay.cache.listing import ls
from overlay.cache.readers import Readers, find_readers
from overlay.errors import TryAgain

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.no_torch

SHARED, OWN = "transformer/a.safetensors", "transformer/b.safetensors"


@pytest.fixture
def root(tmp_path: Path, old: None) -> CacheRoot:
    """Two generations that share the inode of one file."""
    build(tmp_path / "root")
    build(tmp_path / "root", tree="second", location="second", files=OTHER)
    return CacheRoot(tmp_path / "root")


@contextmanager
def opened(path: Path) -> Iterator[None]:
    with path.open("rb"):
        yield


@contextmanager
def mapped(path: Path) -> Iterator[None]:
    with path.open("rb") as file:
        view = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    with view:
        yield


@pytest.mark.parametrize("how", [opened, mapped])
@pytest.mark.parametrize("by", ["tree", "location"])
def test_what_is_open_stays(root: CacheRoot, how: Any, by: str) -> None:
    """Open or only mapped: gc keeps that tree, and not the one that shares the inode, and says who; then both go."""
    folder = root.tree(TREE) if by == "tree" else root.location(LOCATION)
    with how(folder / SHARED):
        planned = gc(root, max_age=0, dry_run=True)
        removal = gc(root, max_age=0)
        assert removal == planned
        assert [(kept.why, kept.names) for kept in removal.kept if kept.what == "tree"] == [("open", (TREE,))]
        assert [tree.name for tree in ls(root)] == [TREE]
        assert is_whole(root.tree(TREE))
        assert any(note.startswith(f"{TREE} is open in pid {os.getpid()} (") for note in removal.notes)

    assert [path.name for path in gc(root, max_age=0).trees] == [TREE]


@pytest.mark.parametrize("how", [opened, mapped])
def test_rm_of_what_is_open_is_refused(root: CacheRoot, how: Any) -> None:
    """The refusal names process and program; ``leased`` overrides it; the other tree may go meanwhile."""
    with how(root.tree(TREE) / OWN):
        for dry_run in (True, False):
            with pytest.raises(TryAgain, match=rf"open in pid {os.getpid()} \(.+\), without a lease") as caught:
                rm(root, [TREE], dry_run=dry_run)
            assert (caught.value.code, caught.value.data["pids"]) == ("tree-open", [os.getpid()])
        rm(root, ["second"])
        rm(root, [TREE], leased=True)

    assert ls(root) == ()


def test_an_object_that_is_open_keeps_no_tree(root: CacheRoot) -> None:
    """What was opened by another name than a tree's does not need the tree."""
    [tree] = [tree for tree in ls(root) if tree.name == TREE]
    [file] = [file for file in tree.files if file.path.match(SHARED)]
    [same] = [path for path in root.objects.glob("*/*/*") if path.stat().st_ino == file.inode[1]]
    elsewhere = root.path / "a.safetensors"
    elsewhere.hardlink_to(same)
    with opened(same), opened(elsewhere):
        assert find_readers(ls(root)).of == {}


def stand_in(proc: Path, pid: int, fds: dict[str, Path], maps: str = "", *, flags: int = 0, state: str = "S") -> Path:
    """A process as ``/proc`` shows it."""
    folder = proc / str(pid)
    (folder / "fd").mkdir(parents=True)
    for name, target in fds.items():
        (folder / "fd" / name).symlink_to(target)
    (folder / "maps").write_text(maps)
    (folder / "comm").write_text("sglang\n")
    (folder / "stat").write_text(f"{pid} (a) b) {state} 1 1 1 0 -1 {flags} 0 0")
    return folder


def test_a_path_that_leads_nowhere_here_may_be_of_any_tree(
    root: CacheRoot, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In another mount namespace a file is at another path: name and inode alone tell of every tree that has it."""
    shared = (root.tree(TREE) / SHARED).stat().st_ino
    line = f"7f00-7f01 r--p 00000000 08:01 {shared}      /models/{{}}a.safetensors{{}}\n"
    proc = tmp_path / "proc"
    stand_in(proc, 1, {}, "7f00-7f01 rw-p 00000000 00:00 0 \n" + line.format("", ""))
    stand_in(proc, 2, {}, line.format("x/.overlay/trees/second/", " (deleted)"))
    stand_in(proc, 3, {}, line.format("x/", "").replace(str(shared), "1"))
    monkeypatch.setattr(readers, "_PROC", proc)

    found = find_readers(ls(root))

    assert {path.name: [reader.pid for reader in of] for path, of in found.of.items()} == {TREE: [1], "second": [1, 2]}
    assert (str(found.of[root.tree(TREE)][0]), found.note) == ("pid 1 (sglang)", "")


@pytest.mark.parametrize(
    ("flags", "state", "is_told"),
    [(0, "S", True), (0x00200000, "S", False), (0, "Z", False)],
    ids=["process", "kernel thread", "zombie"],
)
def test_who_cannot_be_seen_is_told(
    root: CacheRoot, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flags: int, state: str, is_told: object
) -> None:
    """A process of another user may have files open: the result says so, once; a kernel's thread has none."""
    proc = tmp_path / "proc"
    for pid in (1, 2):
        stand_in(proc, pid, {}, flags=flags, state=state)
    stand_in(proc, 3, {"4": root.tree(TREE) / SHARED})
    see = readers._open_files

    def refused(pid: int, names: set[str]) -> Any:
        if pid < 3:
            raise PermissionError
        return see(pid, names)

    monkeypatch.setattr(readers, "_PROC", proc)
    monkeypatch.setattr(readers, "_open_files", refused)

    removal = gc(root, max_age=0)

    assert [path.name for path in removal.trees] == ["second"]
    assert any("cannot be looked into" in note for note in removal.notes) == is_told


def test_hidden_processes_are_told(root: CacheRoot, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where even the first process cannot be seen, others may be hidden too."""
    stand_in(tmp_path / "proc", 7, {})
    monkeypatch.setattr(readers, "_PROC", tmp_path / "proc")

    assert "cannot be looked into" in find_readers(ls(root)).note


def test_processes_are_looked_at_once_and_only_where_something_goes(
    root: CacheRoot, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A gc without a limit looks at none, one with a limit once for all trees."""
    looks = []

    def look(trees: Any) -> Readers:
        looks.append(len(trees))
        return find_readers(trees)

    monkeypatch.setattr("overlay.cache.collecting.find_readers", look)

    gc(root)
    assert looks == []
    assert len(gc(root, max_age=0).trees) == 2
    assert looks == [2]
