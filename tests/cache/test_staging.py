"""Staging belongs to one process, goes when it is done, and is collectable once its owner is surely gone."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import time
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest
from support.caches import killed_build
from support.children import end_child, in_child, start_child

from overlay.cache import Cache
from overlay.cache.owner import is_alive, process_name
from overlay.cache.staging import is_abandoned

pytestmark = pytest.mark.no_torch

DAY = 24 * 3600


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    return Cache.open(tmp_path / "root", create=True)


def move_owner(folder: Path, pid: int | None = None, start: int | None = None, place: str | None = None) -> Path:
    """The same folder as if another process had made it."""
    own_pid, own_start, own_place, unique = folder.name.split("-")
    return folder.rename(folder.with_name(f"{pid or own_pid}-{start or own_start}-{place or own_place}-{unique}"))


def set_age(folder: Path, seconds: float) -> None:
    then = time.time() - seconds
    for path in (*folder.rglob("*"), folder):
        os.utime(path, (then, then))


@pytest.mark.parametrize("error", [None, ValueError, KeyboardInterrupt, SystemExit])
def test_removed_at_the_end(cache: Cache, error: type[BaseException] | None) -> None:
    """However the work ends, short of a kill, its folder goes with it."""
    with nullcontext() if error is None else pytest.raises(error), cache.staging() as folder:
        (folder / "deep").mkdir()
        (folder / "deep" / "file").write_bytes(b"x")
        if error is not None:
            raise error

    assert list(cache.root.staging.iterdir()) == []


def test_every_build_has_its_own(cache: Cache) -> None:
    """Two builds of one process do not share a folder, and both start empty."""
    with cache.staging() as one, cache.staging() as two:
        assert one != two
        assert list(one.iterdir()) == list(two.iterdir()) == []


def test_live_while_its_owner_works(cache: Cache) -> None:
    """Neither its own process nor another one takes a folder in use for abandoned, however old it is."""
    with cache.staging() as folder:
        set_age(folder, 10 * DAY)

        assert not is_abandoned(folder)
        assert in_child(lambda: is_abandoned(folder)) is False


def test_h20_abandoned_after_a_kill(cache: Cache) -> None:
    """The folder of a killed process stays, and is known to be nobody's at once."""
    unique = killed_build(cache)

    assert (unique / "half").exists()
    assert is_abandoned(unique)


def test_h21_flock_that_does_nothing(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where flock never excludes anybody, the living owner is still seen."""
    monkeypatch.setattr(fcntl, "flock", lambda *_: None)
    with cache.staging() as folder:
        assert not is_abandoned(folder)
        assert in_child(lambda: is_abandoned(folder)) is False


def test_h21_no_flock_at_all(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where flock is not implemented, staging works, and a dead owner is still seen."""

    def missing(*_: object) -> None:
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr(fcntl, "flock", missing)
    with cache.staging() as folder:
        assert not is_abandoned(folder)

    assert is_abandoned(killed_build(cache))


def test_a_stopped_owner_is_alive(cache: Cache) -> None:
    """A process that is stopped for a day comes back to its folder."""

    def work() -> None:
        with cache.staging():
            os.kill(os.getpid(), signal.SIGSTOP)

    pid, outcome = start_child(work)
    os.waitpid(pid, os.WUNTRACED)
    (unique,) = cache.root.staging.iterdir()
    set_age(unique, 10 * DAY)
    alive = not is_abandoned(unique)
    os.kill(pid, signal.SIGCONT)
    end_child(pid, outcome)

    assert alive


@pytest.mark.parametrize("name", [None, "rubbish", "1-2-3", f"{10**30}-1-{'0' * 12}-1"])
@pytest.mark.parametrize(("age", "abandoned"), [(0, False), (DAY - 60, False), (DAY + 60, True)])
def test_elsewhere_only_age_tells(cache: Cache, name: str | None, age: float, *, abandoned: bool) -> None:
    """A process of another host, boot or container cannot be seen: a day without a write decides."""
    folder = killed_build(cache)
    folder = folder.rename(folder.with_name(name)) if name else move_owner(folder, place="0" * 12)
    set_age(folder, age)

    assert abandoned == is_abandoned(folder)


def test_elsewhere_a_write_is_a_sign_of_life(cache: Cache) -> None:
    """One fresh file deep in an old folder keeps it."""
    folder = move_owner(killed_build(cache), place="0" * 12)
    set_age(folder, 10 * DAY)
    (folder / "half").write_bytes(b"more")

    assert not is_abandoned(folder)


def test_elsewhere_a_lock_is_a_sign_of_life(cache: Cache) -> None:
    """A container on the same host, whose processes cannot be seen, is seen by its lock."""
    with cache.staging() as folder:
        moved = move_owner(folder, place="0" * 12)
        set_age(moved, 10 * DAY)

        assert in_child(lambda: is_abandoned(moved)) is False
    assert is_abandoned(moved)


@pytest.mark.parametrize("fact", ["boot_id", "ns/pid", "hostname"])
def test_a_place_is_host_boot_and_namespace(monkeypatch: pytest.MonkeyPatch, fact: str) -> None:
    """Where any of the three differs, a pid says nothing about our processes."""
    name = process_name()
    assert is_alive(name) is True
    if fact == "hostname":
        other = SimpleNamespace(nodename="other")
        monkeypatch.setattr(os, "uname", lambda: other)
    elif fact == "ns/pid":
        monkeypatch.setattr(Path, "readlink", lambda _: Path("pid:[1]"))
    else:
        monkeypatch.setattr(Path, "read_text", lambda *_, **__: "other")

    assert is_alive(name) is None


def test_a_reused_pid_is_not_the_owner(cache: Cache) -> None:
    """A process that has the pid but started at another time is somebody else."""
    folder = move_owner(killed_build(cache), pid=os.getpid())

    assert is_abandoned(folder) == (f"-{process_name().split('-')[1]}-" not in folder.name)
    assert is_abandoned(move_owner(folder, start=1))


def test_what_is_no_folder_is_collectable(cache: Cache) -> None:
    """A stray file in staging is judged like a folder."""
    cache.root.staging.mkdir(exist_ok=True)
    stray = cache.root.staging / f"1-1-{process_name().split('-')[2]}-1"
    stray.write_text("x")

    assert is_abandoned(stray)


def test_a_zombie_is_dead() -> None:
    """A process that ended but was not yet waited for owns nothing."""
    pid, outcome = start_child(process_name)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    start = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    alive = is_alive(f"{pid}-{start}-{process_name().split('-')[2]}")
    name = end_child(pid, outcome)

    assert name.startswith(f"{pid}-{start}-")
    assert alive is False
