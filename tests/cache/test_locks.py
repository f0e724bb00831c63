"""Locks wait for the living only, say for whom, and are never needed."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import threading
import time
from typing import TYPE_CHECKING

import pytest
from support.caches import hold_lock
from support.children import as_plain_user, end_child, in_child, start_child
from support.intruders import INTRUDERS, put_in_place

from overlay.cache import Cache
from overlay.cache.owner import Owner
from overlay.errors import TryAgain

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.no_torch


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    return Cache.open(tmp_path / "root", create=True)


def test_h21_a_waiter_learns_for_whom(cache: Cache) -> None:
    """Who waits is told pid, host and since when, and gives up in time with a status that means: later."""
    pid, release = hold_lock(cache, "build")
    told: list[str] = []
    begun = time.monotonic()

    with pytest.raises(TryAgain) as caught, cache.lock("build", timeout=0.3, on_wait=told.append):
        pass

    release()
    assert 0.3 <= time.monotonic() - begun < 5
    (text,) = told
    assert text.startswith(f"waiting for pid {pid} on {os.uname().nodename}, since 2")
    assert caught.value.code == "lock-busy"
    assert caught.value.exit_status == 5
    assert caught.value.data["holder"]["pid"] == pid
    assert "run the same command again" in caught.value.hint


def test_a_released_lock_is_had_at_once(cache: Cache) -> None:
    """A waiter gets the lock when the holder lets go, and other names were free all the time."""
    _, release = hold_lock(cache, "build")
    with cache.lock("other", timeout=0) as held:
        assert held
    timer = threading.Timer(0.2, release)
    timer.start()

    with cache.lock("build", timeout=30) as held:
        assert held
    timer.join()


def test_h21_nobody_waits_for_the_dead(cache: Cache) -> None:
    """The lock of a killed process is free at once, though its files are still there."""

    def work() -> None:
        with cache.lock("build", timeout=0):
            os.kill(os.getpid(), signal.SIGKILL)

    assert in_child(work) == signal.SIGKILL
    assert list(cache.root.locks.glob("build.json"))

    with cache.lock("build", timeout=0) as held:
        assert held
    assert not list(cache.root.locks.glob("build.json"))


def test_h21_locks_that_do_nothing(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where flock lets everybody in, everybody goes on."""
    monkeypatch.setattr(fcntl, "flock", lambda *_: None)
    _, release = hold_lock(cache, "build")

    with cache.lock("build", timeout=0):
        pass
    release()


@pytest.mark.parametrize("code", [errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK, errno.EIO])
def test_h21_no_locks_here(cache: Cache, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    """Where flock fails, the work is done all the same."""

    def missing(*_: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(fcntl, "flock", missing)

    with cache.lock("build", timeout=0) as held:
        assert held is False


@pytest.mark.parametrize(("mode", "held"), [(0o444, True), (0o000, False)])
def test_h21_a_lock_of_another_user(plain_folder: Path, mode: int, *, held: bool) -> None:
    """A lock file that this user may only read still locks; one that is closed costs the lock, not the work."""
    cache = Cache.open(plain_folder / "root", create=True)
    cache.root.locks.mkdir()
    (cache.root.locks / "build.lock").touch()
    (cache.root.locks / "build.lock").chmod(mode)
    cache.root.locks.chmod(0o555)

    def work() -> bool:
        with cache.lock("build", timeout=0) as got:
            return got

    assert as_plain_user(work) is held


def test_a_lock_survives_its_forks(cache: Cache) -> None:
    """A worker process that outlives the work does not keep the lock."""
    told, tell = os.pipe()

    def linger() -> None:
        os.close(tell)
        os.read(told, 1)

    with cache.lock("build", timeout=0):
        child = start_child(linger)
    free = in_child(lambda: acquired(cache))
    os.close(tell)
    end_child(*child)

    assert free is True


def acquired(cache: Cache) -> bool:
    with cache.lock("build", timeout=0) as held:
        return held


@pytest.mark.parametrize("intruder", INTRUDERS)
@pytest.mark.parametrize("name", ["build.lock", "build.json"])
def test_anything_in_the_place_of_a_lock(cache: Cache, name: str, intruder: str) -> None:
    """A folder, a pipe, a link: nothing hangs, and the work goes on."""
    (cache.root.locks).mkdir(exist_ok=True)
    put_in_place(cache.root.locks / name, intruder)

    assert Owner.read(cache.root.locks / name) is None
    with cache.lock("build", timeout=0):
        pass
