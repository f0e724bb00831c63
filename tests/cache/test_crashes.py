"""A build that is killed before each of its steps on the disk, one after the other."""

from __future__ import annotations

import os
import shutil
import signal
from typing import TYPE_CHECKING, Any

import pytest
from support.caches import FILES, LOCATION, TREE, add_object, assert_sound, build, digest_of, is_whole, killed_build
from support.children import in_child

from overlay.cache import Cache
from overlay.cache.collecting import gc

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.no_torch

STEPS = (
    "mkdir",
    "open",
    "write",
    "link",
    "rename",
    "replace",
    "symlink",
    "unlink",
    "rmdir",
    "copy_file_range",
    "fsync",
)


def patch_steps(countdown: list[int], action: Any) -> None:
    """Run ``action`` once this many steps on the disk were made."""

    def wrap(real: Any) -> Any:
        def step(*args: Any, **kwargs: Any) -> Any:
            if countdown[0] == 0:
                action()
            countdown[0] -= 1
            return real(*args, **kwargs)

        return step

    for name in STEPS:
        setattr(os, name, wrap(getattr(os, name)))


def killed_at(root: Path, step: int) -> bool:
    """Build in a child that dies before this step. False if it came to its end."""

    def work() -> None:
        patch_steps([step], lambda: os.kill(os.getpid(), signal.SIGKILL))
        build(root)

    return in_child(work) == signal.SIGKILL


def objects(root: Path) -> dict[str, int]:
    return {path.name: path.stat().st_ino for path in (root / ".overlay/objects").glob("*/*/*")}


@pytest.mark.parametrize("stride", [7, pytest.param(1, marks=pytest.mark.slow)])
def test_h20_killed_before_every_step(tmp_path: Path, stride: int) -> None:
    """Whatever the moment: nothing half-made is seen, finished files are not made again, the next build is whole."""
    step, rounds, after_first_object = 0, 0, 0
    while killed_at(root := tmp_path / f"root-{step}", step):
        assert_sound(root)
        finished = objects(root)
        after_first_object += bool(finished)

        assert is_whole(build(root).path)

        assert finished.items() <= objects(root).items()
        assert Cache.open(root, create=False).location_target(LOCATION) == root / ".overlay/trees" / TREE
        assert_sound(root)
        gc(Cache.open(root, create=False).root)
        assert list((root / ".overlay/staging").iterdir()) == []
        assert is_whole(root / "materialized_models" / LOCATION)
        shutil.rmtree(root)
        step, rounds = step + stride, rounds + 1

    assert_sound(root)
    assert step > 50
    assert after_first_object > rounds / 2


def test_h20_killed_again_and_again(tmp_path: Path) -> None:
    """Twenty killed builds on one root, each a little later, leave work behind that the last one uses."""
    root = tmp_path / "root"
    for step in range(5, 105, 5):
        killed_at(root, step)
        assert_sound(root)
    finished = objects(root)

    build(root)

    assert len(finished) == len(FILES)
    assert finished == objects(root)
    assert_sound(root)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_h20_interrupted_at_every_fifth_step(tmp_path: Path, number: signal.Signals) -> None:
    """Ctrl-C, or a SIGTERM that is turned into an exit: staging is gone, finished objects are not."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    def work(root: Path, step: int) -> bool:
        signal.signal(number, interrupt)
        patch_steps([step], lambda: os.kill(os.getpid(), number))
        try:
            build(root)
        except KeyboardInterrupt:
            return True
        return False

    step = 0
    while in_child(lambda step=step: work(tmp_path / f"root-{step}", step)):
        root = tmp_path / f"root-{step}"
        assert_sound(root)
        # The signal may come while the folder itself is being removed: then it is collectable.
        if (root / ".overlay/staging").exists():
            gc(Cache.open(root, create=False).root)
            assert list((root / ".overlay/staging").iterdir()) == []
        assert is_whole(build(root).path)
        step += 5
    assert step > 50


@pytest.mark.parametrize("limit", [{}, {"max_size": 0}])
def test_interrupted_collecting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: dict[str, int]) -> None:
    """A collector killed before each of its steps leaves whole trees only, and the next one finishes its work."""
    monkeypatch.setattr("overlay.cache.collecting.GRACE", -1.0)
    root = tmp_path / "root"
    killed, step = True, 0
    while killed:
        build(root)
        build(root, tree="org__name-old", location="old")
        cache = Cache.open(root, create=False)
        cache.put_action("0" * 64, {"digest": digest_of(b"unused"), "size": 6})
        add_object(cache, b"unused")
        killed_build(cache)

        def work(cache: Cache = cache, step: int = step) -> None:
            patch_steps([step], lambda: os.kill(os.getpid(), signal.SIGKILL))
            gc(cache.root, **limit)

        killed = in_child(work) == signal.SIGKILL
        assert_sound(root, dangling=True)
        gc(cache.root, **limit)
        assert_sound(root)
        assert not cache.has_object(digest_of(b"unused"), 6)
        assert list(cache.root.staging.iterdir()) == []
        assert bool(limit) != (root / "materialized_models" / LOCATION).is_symlink()
        step += 1
    assert step > 5
