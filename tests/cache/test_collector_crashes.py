"""A removal that is killed before each of its steps on the disk, one after the other."""

from __future__ import annotations

import functools
import os
import shutil
import signal
from typing import TYPE_CHECKING, Any

import pytest
from support.caches import FILES, LOCATION, TREE, add_object, build, digest_of, is_whole, killed_build
from support.children import in_child, mount_tmpfs, own_mounts

from overlay.cache import Cache, CacheRoot, free_room
from overlay.cache.collecting import gc, rm
from overlay.cache.leases import hold
from overlay.cache.pins import pin

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = pytest.mark.no_torch

STEPS = ("mkdir", "open", "rename", "symlink", "unlink", "rmdir", "utime", "fsync")
OLD = {**FILES, "transformer/b.safetensors": b"old" * 3000}
PINNED = {"config.json": b"{}", "m.safetensors": b"pinned" * 100}


@pytest.fixture(autouse=True)
def _old(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything counts as older than the grace period."""
    monkeypatch.setattr("overlay.cache.collecting.GRACE", -1.0)


def furnish(root: Path) -> CacheRoot:
    """A superseded tree, one with two locations, a pinned one, and all that killed runs leave."""
    build(root, tree="old", files=OLD)
    build(root)
    build(root, tree="pinned", location="pinned", files=PINNED)
    cache = Cache.open(root, create=False)
    cache.swing_location("again", TREE)
    pin(cache.root, "pinned")
    add_object(cache, b"unused")
    cache.put_action("1" * 64, {"digest": digest_of(b"never there"), "size": 6})
    cache.location_path("dangling").symlink_to("../.overlay/trees/gone")
    killed_build(cache)
    with_a_killed_reader(cache.root)
    return cache.root


def with_a_killed_reader(root: CacheRoot) -> None:
    def work() -> None:
        with hold(root, TREE):
            os.kill(os.getpid(), signal.SIGKILL)

    assert in_child(work) == signal.SIGKILL


def killed_at(number: int, work: Callable[[], Any]) -> bool:
    """Work in a child that dies before this step. False if it came to its end."""

    def count_and_work() -> None:
        left = [number]

        def wrap(real: Any) -> Any:
            def step(*args: Any, **kwargs: Any) -> Any:
                if left[0] == 0:
                    os.kill(os.getpid(), signal.SIGKILL)
                left[0] -= 1
                return real(*args, **kwargs)

            return step

        for name in STEPS:
            setattr(os, name, wrap(getattr(os, name)))
        work()

    return in_child(count_and_work) == signal.SIGKILL


def assert_nothing_broken(root: CacheRoot) -> None:
    """Every location leads to a whole tree, but for the one that never did; every tree in its place is whole."""
    of = {"old": OLD, TREE: FILES, "pinned": PINNED}
    for tree in root.trees.iterdir():
        assert is_whole(tree, of[tree.name])
    for location in root.locations.iterdir():
        assert location.name == "dangling" or location.resolve().is_dir()
    for path in root.objects.glob("*/*/*"):
        assert f"{path.parent.parent.name}:{path.name}" == digest_of(path.read_bytes())
    assert is_whole(root.location("pinned"), PINNED)


def left(root: CacheRoot) -> set[str]:
    """All that is there, without the folders that stay empty."""
    return {str(path.relative_to(root.path)) for path in root.path.rglob("*") if path.is_symlink() or path.is_file()}


@pytest.mark.parametrize("stride", [9, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "remove",
    [
        gc,
        lambda root: gc(root, max_size=0),
        lambda root: rm(root, [TREE]),
    ],
    ids=["gc", "gc with a limit", "rm"],
)
def test_killed_before_every_step(tmp_path: Path, remove: Callable[[CacheRoot], Any], stride: int) -> None:
    """Nothing broken is seen at any moment; the next gc finishes, and a build beside it makes the model whole again."""
    remove(whole := furnish(tmp_path / "whole"))
    gc(whole, max_size=0)
    for number in range(0, 1000, stride):
        root = furnish(tmp_path / f"{number}")
        if not killed_at(number, functools.partial(remove, root)):
            break
        assert_nothing_broken(root)
        again = tmp_path / "again"
        shutil.copytree(root.path, again, symlinks=True)

        gc(root, max_size=0)

        assert left(root) == left(whole)
        assert list(root.collecting.iterdir()) == list(root.staging.iterdir()) == []
        build(again)
        assert is_whole(again / "materialized_models" / LOCATION)
        shutil.rmtree(again)
        shutil.rmtree(root.path)

    assert number > 20
    assert_nothing_broken(root)


def test_a_full_disk_can_be_collected(tmp_path: Path) -> None:
    """What killed runs left goes first, so a disk without a free byte is no obstacle."""

    def work() -> tuple[int, int]:
        if not own_mounts():
            pytest.skip("no mounts here")
        (tmp_path / "disk").mkdir()
        mount_tmpfs(tmp_path / "disk", "1m")
        root = furnish(tmp_path / "disk/root")
        with (tmp_path / "disk/fill").open("wb", buffering=0) as file:
            while free_room(root.path):
                file.write(bytes(free_room(root.path)))
        gc(root, max_size=0)
        return len(list(root.trees.iterdir())), free_room(root.path)

    trees, free = in_child(work)

    assert trees == 1
    assert free > 20_000
