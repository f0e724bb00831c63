"""Many builders of one thing at once: one result, used by all, with and without locks."""

from __future__ import annotations

import errno
import fcntl
import os
from typing import TYPE_CHECKING, Any

import pytest
from support.caches import FILES, LOCATION, TREE, add_object, assert_sound, build, digest_of
from support.children import end_child, start_child

from overlay.cache import Cache
from overlay.cache.collecting import gc

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = pytest.mark.no_torch

BUILDERS = 8


def at_once(work: Callable[[], Any], count: int = BUILDERS) -> list[Any]:
    """Run the work in so many processes that start at the same moment."""
    gate, open_gate = os.pipe()

    def wait_and_work() -> Any:
        os.close(open_gate)
        os.read(gate, 1)
        return work()

    children = [start_child(wait_and_work) for _ in range(count)]
    os.close(gate)
    os.close(open_gate)
    return [end_child(*child) for child in children]


def no_flock(*_: object) -> None:
    """Succeeds for everybody."""


def missing_flock(*_: object) -> None:
    raise OSError(errno.ENOSYS, "Function not implemented")


@pytest.mark.parametrize("flock", [fcntl.flock, no_flock, missing_flock])
def test_h20_h21_builders_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flock: Any) -> None:
    """Eight builders, one tree: one built it, the others adopted it, every file is there once and whole."""
    monkeypatch.setattr(fcntl, "flock", flock)

    results = at_once(lambda: build(tmp_path).result)

    assert sorted(results) == ["adopted"] * (BUILDERS - 1) + ["built"]
    assert_sound(tmp_path)
    cache = Cache.open(tmp_path, create=False)
    assert cache.location_target(LOCATION) == cache.tree_path(TREE)
    assert list(cache.root.staging.iterdir()) == []
    for path, data in FILES.items():
        shared = cache.object_path(digest_of(data)).samefile(cache.tree_path(TREE) / path)
        assert shared == path.endswith(".safetensors")


def test_one_object_at_once(tmp_path: Path) -> None:
    """Equal files adopted at the same moment end as one inode, whoever wins."""
    cache = Cache.open(tmp_path, create=True)
    data = os.urandom(100_000)

    inodes = at_once(lambda: add_object(cache, data).stat().st_ino)

    assert len(set(inodes)) == 1
    assert cache.object_path(digest_of(data)).read_bytes() == data
    assert cache.object_path(digest_of(data)).stat().st_nlink == 1


def test_damage_found_by_all_at_once(tmp_path: Path) -> None:
    """A damaged tree that all builders meet is replaced; at the end one whole tree stands."""
    build(tmp_path)
    tree = Cache.open(tmp_path, create=False).tree_path(TREE)
    (tree / "config.json").write_bytes(b"")

    results = at_once(lambda: build(tmp_path).result)

    assert results.count("built") == 1
    assert_sound(tmp_path)


def test_damage_found_by_all_without_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without locks a damaged tree may be replaced more than once; one whole tree stands all the same."""
    monkeypatch.setattr(fcntl, "flock", no_flock)
    build(tmp_path)
    (Cache.open(tmp_path, create=False).tree_path(TREE) / "config.json").write_bytes(b"")

    results = at_once(lambda: build(tmp_path).result)

    assert "built" in results
    assert_sound(tmp_path)


def test_collectors_beside_builders(tmp_path: Path) -> None:
    """Collectors that run while others build take nothing that is needed, and do not trip over each other."""
    Cache.open(tmp_path, create=True)

    def work() -> str:
        if os.getpid() % 2:
            for _ in range(5):
                gc(Cache.open(tmp_path, create=False).root)
            return "collected"
        return build(tmp_path).result

    results = at_once(work, 12)

    assert set(results) <= {"collected", "built", "adopted"}
    build(tmp_path)
    assert_sound(tmp_path)


def test_two_hosts_without_common_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Builders that see neither each other's locks nor processes do not take each other's staging."""
    monkeypatch.setattr(fcntl, "flock", no_flock)

    def work() -> Any:
        with Cache.open(tmp_path, create=True).staging() as folder:
            (folder / "mine").write_bytes(b"x")
            gc(Cache.open(tmp_path, create=True).root)
            return (folder / "mine").exists(), build(tmp_path).result

    def on_a_host() -> Any:
        place = str(os.getpid() % 2) * 12
        monkeypatch.setattr("overlay.cache.owner._place", lambda: place)
        return work()

    results = at_once(on_a_host)

    assert all(kept for kept, _ in results)
    assert [result for _, result in results].count("built") == 1
    assert_sound(tmp_path)
