"""Leases: who is believed for how long, and that no reader and no build is robbed whenever a collector comes."""

from __future__ import annotations

import fcntl
import os
import random
import re
import signal
import time
from typing import TYPE_CHECKING, Any

import pytest
from support.caches import FILES, LOCATION, TREE, build, digest_of, is_whole
from support.children import as_plain_user, end_child, in_child, start_child

from overlay.cache import Cache, CacheRoot, presence
from overlay.cache.collecting import gc, rm
from overlay.cache.leases import ended_leases, hold, lease_for, leases, sweep
from overlay.cache.listing import ls
from overlay.cache.owner import process_name
from overlay.cache.presence import building, collecting, wait_for_collectors
from overlay.cache.trees import location_target
from overlay.errors import CannotWrite, TryAgain

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = pytest.mark.no_torch

DAY = 86400.0
WORKERS = 6
STEPS = ("mkdir", "open", "rename", "replace", "symlink", "readlink", "unlink", "rmdir", "utime", "scandir", "listdir")


def no_flock(*_: object) -> None:
    """Succeeds for everybody."""


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CacheRoot:
    """A cache with one tree and its location, everything in it older than the grace period but temporary files."""
    monkeypatch.setattr("overlay.cache.collecting.GRACE", -1.0)
    monkeypatch.setattr("overlay.cache.collecting._strays", lambda *_: [])
    build(tmp_path / "root")
    return CacheRoot(tmp_path / "root")


def at_step(number: int, action: Callable[[], None]) -> None:
    """Run an action before the step of this number on the disk, in this process."""
    countdown = [number]

    def wrap(real: Any) -> Any:
        def step(*args: Any, **kwargs: Any) -> Any:
            countdown[0] -= 1
            if countdown[0] == -1:
                action()
            return real(*args, **kwargs)

        return step

    for name in STEPS:
        setattr(os, name, wrap(getattr(os, name)))


def lease_file(root: CacheRoot, owner: str, seconds: float) -> Path:
    """A lease as somebody else would have left it."""
    folder = root.leases / TREE
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"{owner}-until-{int(time.time() + seconds)}-0123456789ab"
    file.write_bytes(b"")
    return file


def another(field: int, value: str) -> str:
    """The name of this process with one part of it changed."""
    return "-".join(value if i == field else part for i, part in enumerate(process_name().split("-")))


def test_a_lease_keeps_its_tree(root: CacheRoot) -> None:
    """Under a lease gc takes nothing of the tree, whatever the limit, and says so; afterwards it goes."""
    with hold(root, TREE):
        removal = gc(root, max_size=0, max_age=0)
        [lease] = leases(root)[TREE]
        assert is_whole(root.location(LOCATION))

    assert lease.describe().startswith(f"pid {os.getpid()} on ")
    [kept] = removal.kept
    assert (kept.what, kept.why, kept.count, kept.names) == ("tree", "leased", 1, (TREE,))
    assert kept.size == ls(root)[0].size
    assert removal.trees == removal.objects == removal.locations == ()
    assert leases(root) == {}
    assert [path.name for path in gc(root, max_size=0).trees] == [TREE]


def test_rm_of_a_leased_tree_is_refused(root: CacheRoot) -> None:
    """The refusal says who holds it since when; ``leased`` removes all the same."""
    with hold(root, TREE):
        for dry_run in (True, False):
            with pytest.raises(TryAgain, match=rf"in use by pid {os.getpid()} on .*, since 2") as caught:
                rm(root, [TREE], dry_run=dry_run)
            assert caught.value.code == "tree-leased"
        assert is_whole(root.tree(TREE))

        rm(root, [TREE], leased=True)

    assert ls(root) == ()


def test_a_location_beside_another_may_go(root: CacheRoot) -> None:
    """A reader has the tree's own path: a location that is not the last may be removed under it."""
    Cache(root).swing_location("again", TREE)
    with hold(root, TREE):
        assert rm(root, ["again"]).trees == ()

    assert is_whole(root.location(LOCATION))


@pytest.mark.parametrize(
    ("owner", "seconds", "holds"),
    [
        ("timed", 60, 1),
        ("timed", -60, 0),
        (process_name(), -60, 1),
        (another(0, "4194305"), DAY, 0),
        (another(1, "1"), DAY, 0),
        (another(2, "0123456789ab"), 60, 1),
        (another(2, "0123456789ab"), -60, 0),
    ],
    ids=["timed", "over", "alive", "dead", "another with its number", "unseen", "unseen for long"],
)
@pytest.mark.parametrize("flock", [fcntl.flock, no_flock])
def test_who_is_believed(
    root: CacheRoot, monkeypatch: pytest.MonkeyPatch, owner: str, seconds: float, holds: int, flock: Any
) -> None:
    """A process by whether it runs, with and without flock; who cannot be seen by the time in the name."""
    monkeypatch.setattr(fcntl, "flock", flock)
    file = lease_file(root, owner, seconds)

    assert ([lease.file for lease in leases(root).get(TREE, ())] == [file]) == holds
    assert (ended_leases(root) == [file]) != holds
    assert len(gc(root, max_size=0).trees) == (not holds)


def test_a_lock_is_a_sign_of_life(root: CacheRoot) -> None:
    """A process that cannot be seen is believed while it holds the lock, longer than its name says."""
    file = lease_file(root, another(2, "0123456789ab"), -60)
    with file.open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert len(leases(root)[TREE]) == 1

    assert leases(root) == {}


def test_a_killed_reader_holds_nothing(root: CacheRoot) -> None:
    """The lease of a killed process is over at once; its file goes with gc, or with the next lease."""

    def work() -> None:
        with hold(root, TREE):
            os.kill(os.getpid(), signal.SIGKILL)

    for sweep_up in (lambda: gc(root), lambda: read(root)):
        assert in_child(work) == signal.SIGKILL
        assert leases(root) == {}
        assert len(ended_leases(root)) == 1
        sweep_up()
        assert ended_leases(root) == []


@pytest.mark.parametrize("name", [".0-hidden", "nonsense", "timed-until--0123456789ab", ".nfs0001"])
def test_other_files_are_no_leases(root: CacheRoot, name: str) -> None:
    """What has not the name of a lease keeps nothing, and is left alone."""
    file = lease_file(root, "timed", -60).rename(root.leases / TREE / name)

    gc(root)

    assert leases(root) == {}
    assert file.exists()


def test_a_timed_lease_outlives_its_process(root: CacheRoot) -> None:
    """It holds until its time, whatever became of the process that took it, and says both."""
    lease = in_child(lambda: lease_for(root, TREE, 60))

    assert [held.file for held in leases(root)[TREE]] == [lease.file]
    assert re.fullmatch(
        r"a reader whose lease, taken by pid \d+ on \S+, lasts until 2[-0-9]+ [:0-9]+", lease.describe()
    )
    assert lease.until is not None
    assert 58 < lease.until - time.time() < 62
    lease.file.unlink()
    assert leases(root) == {}


def test_a_lease_is_a_use(root: CacheRoot, monkeypatch: pytest.MonkeyPatch) -> None:
    """Under a lease a tree is in use now; afterwards since the lease ended; a sweep changes nothing."""
    old = time.time() - 9 * DAY
    for path in (root.tree(TREE), *root.tree(TREE).rglob("*"), root.location(LOCATION)):
        os.utime(path, (old, old), follow_symlinks=False)
    assert time.time() - ls(root)[0].last_used > 8 * DAY

    with hold(root, TREE):
        os.utime(root.leases / TREE, (old, old))
        assert time.time() - ls(root)[0].last_used < 60
    assert time.time() - ls(root)[0].last_used < 60

    lease_file(root, "timed", -60)
    os.utime(root.leases / TREE, (old + DAY, old + DAY))
    sweep(root, TREE)
    assert ls(root)[0].last_used == pytest.approx(old + DAY)


def test_folders_of_gone_trees_go(root: CacheRoot) -> None:
    """Leases leave nothing behind once their tree is gone."""
    with hold(root, TREE):
        pass
    assert list(root.leases.iterdir())

    rm(root, [TREE])

    assert list(root.leases.iterdir()) == []


def test_who_may_not_write_takes_no_lease(plain_folder: Path) -> None:
    """A root that is closed to this user is an error of the root, with the errno by which a reader may go on."""
    build(plain_folder / "root")
    (plain_folder / "root/.overlay").chmod(0o555)

    def work() -> str:
        with pytest.raises(CannotWrite, match="/leases") as caught, hold(CacheRoot(plain_folder / "root"), TREE):
            pass
        return str(caught.value.data["errno"])

    assert as_plain_user(work) == "EACCES"


# A reader, a build and a collector, each step of one with the whole of the other in between.


def read(root: CacheRoot) -> bool:
    """Take a lease as a reader does; whether it got the tree, which then must be whole for as long as it is held."""
    with hold(root, TREE):
        got = location_target(root, LOCATION) == root.tree(TREE)
        assert not got or is_whole(root.tree(TREE))
    return got


def link_what_is_there(root: CacheRoot) -> bool:
    """Look for an object as a build does, and link it if it is there."""
    cache, data = Cache(root), FILES["transformer/a.safetensors"]
    with building(root):
        got = cache.has_object(digest_of(data), len(data))
        with cache.staging() as folder:
            if got:
                cache.place_file(cache.object_path(digest_of(data)), folder / "a.safetensors", small=False)
    return got


def announced(root: CacheRoot) -> set[Path]:
    return {*root.staging.glob("*"), *root.leases.glob("*/*")}


@pytest.mark.parametrize("flock", [fcntl.flock, no_flock])
@pytest.mark.parametrize("stride", [11, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("work", [read, link_what_is_there])
def test_whoever_comes_while_a_collector_is_at_any_step(
    tmp_path: Path,
    root: CacheRoot,
    monkeypatch: pytest.MonkeyPatch,
    work: Callable[[CacheRoot], bool],
    stride: int,
    flock: Any,
) -> None:
    """Started before each step of gc, a reader keeps the tree that it gets, a build finds the object that it saw."""
    monkeypatch.setattr(fcntl, "flock", flock)
    outcomes = set()
    for number in range(0, 1000, stride):
        here = tmp_path / f"{number}"
        build(here)
        got = in_child(lambda here=here, number=number: collect_with_a_guest(CacheRoot(here), number, work))
        if got is None:
            break
        outcomes.add(got)

    assert number > 30
    assert outcomes == {True, False}


def collect_with_a_guest(root: CacheRoot, number: int, work: Callable[[CacheRoot], bool]) -> bool | None:
    """Collect; before this step another process begins, and goes on beside us once it has announced itself."""
    guests: list[tuple[int, int]] = []
    before = announced(root)

    def invite() -> None:
        guests.append(start_child(lambda: work(root)))
        begun = time.monotonic()
        while not announced(root) - before and not os.waitid(
            os.P_PID, guests[0][0], os.WEXITED | os.WNOHANG | os.WNOWAIT
        ):
            assert time.monotonic() - begun < 10
            time.sleep(0.001)

    at_step(number, invite)
    gc(root, max_size=0)
    return bool(end_child(*guests[0])) if guests else None


@pytest.mark.parametrize("work", [read, link_what_is_there])
def test_a_collector_that_comes_at_any_step(tmp_path: Path, root: CacheRoot, work: Callable[[CacheRoot], bool]) -> None:
    """A whole gc before each step of a reader or a build: it takes all before it is announced, and nothing after."""
    outcomes = []
    for number in range(1000):
        build(tmp_path / f"{number}")
        got = in_child(lambda number=number: work_with_a_visit(CacheRoot(tmp_path / f"{number}"), number, work))
        if got is None:
            break
        outcomes.append(got)

    assert outcomes == sorted(outcomes)
    assert set(outcomes) == {True, False}


def work_with_a_visit(root: CacheRoot, number: int, work: Callable[[CacheRoot], bool]) -> bool | None:
    """Do the work; before this step another process collects all that it can."""
    visits = []
    at_step(number, lambda: visits.append(in_child(lambda: gc(root, max_size=0))))
    got = work(root)
    return got if visits else None


def test_nobody_waits_for_a_dead_collector(root: CacheRoot) -> None:
    """One that was killed in the middle is seen to be gone."""

    def work() -> None:
        with collecting(root):
            os.kill(os.getpid(), signal.SIGKILL)

    assert in_child(work) == signal.SIGKILL
    assert list(root.collecting.iterdir())

    begun = time.monotonic()
    wait_for_collectors(root)

    assert time.monotonic() - begun < 5
    assert len(gc(root).unfinished) == 1
    assert list(root.collecting.iterdir()) == []


def test_nobody_waits_for_a_stopped_collector(root: CacheRoot, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that does not move is passed by after a time; one that goes on is not; and it does not go on unaware."""
    monkeypatch.setattr(presence, "_PATIENCE", 0.4)
    with collecting(root) as step:
        begun = time.monotonic()
        pid, outcome = start_child(lambda: (wait_for_collectors(root), time.monotonic() - begun)[1])
        for _ in range(8):
            time.sleep(0.1)
            step()
        assert end_child(pid, outcome) > 1.1

        with pytest.raises(TryAgain) as caught:
            step()
    assert caught.value.code == "collector-stopped"


def test_gc_begins_again_where_it_was_overtaken(root: CacheRoot, monkeypatch: pytest.MonkeyPatch) -> None:
    """A lease that appears between plan and removal changes the plan."""
    real, taken = collecting, []

    def overtaken(where: CacheRoot) -> Any:
        taken.append(lease_file(root, "timed", 60))
        return real(where)

    monkeypatch.setattr("overlay.cache.removal.collecting", overtaken)

    removal = gc(root, max_size=0)

    assert (len(taken), removal.trees, [kept.why for kept in removal.kept]) == (1, (), ["leased"])
    assert is_whole(root.location(LOCATION))


def test_a_swung_location_is_not_taken(root: CacheRoot, monkeypatch: pytest.MonkeyPatch) -> None:
    """A build that swings a location at the very moment in which its old tree goes keeps what it swung."""
    build(root.path, tree="old", location="other", files={"m.safetensors": b"old"})
    cache = Cache(root)
    real = os.rename

    def rename(source: Any, target: Any, **options: Any) -> None:
        if str(source) == str(root.location("other")):
            monkeypatch.setattr(os, "rename", real)
            cache.swing_location("other", TREE)
        real(source, target, **options)

    monkeypatch.setattr(os, "rename", rename)

    rm(root, ["old"])

    assert cache.location_target("other") == root.tree(TREE)
    assert [tree.name for tree in ls(root)] == [TREE]


def prewarm(root: CacheRoot) -> bool:
    """Build as a whole run does."""
    with building(root), hold(root, TREE):
        return bool(build(root.path))


def read_all(root: CacheRoot) -> bool:
    """Read every byte under a lease, twice; whether there was something to read."""
    with hold(root, TREE):
        if location_target(root, LOCATION) != root.tree(TREE):
            return False
        for _ in range(2):
            for path, data in FILES.items():
                assert (root.tree(TREE) / path).read_bytes() == data
            time.sleep(0.001)
        return True


def collect_all(root: CacheRoot) -> bool:
    """Collect all that may go; whether a tree went. That others keep coming is no fault."""
    try:
        return bool(gc(root, max_size=0).trees)
    except TryAgain as error:
        if error.code != "cache-busy":
            raise
        return False


def again_and_again(work: Callable[[CacheRoot], bool], root: CacheRoot, done: Path, goal: int) -> int:
    """Work until this and everybody else's goal is reached; how often the work gave something."""
    count, begun, pauses = 0, time.monotonic(), random.Random(os.getpid())
    while len(list(done.iterdir())) < WORKERS and time.monotonic() - begun < 60:
        count += work(root)
        if count >= goal:
            (done / f"{os.getpid()}").touch()
        time.sleep(pauses.uniform(0, 0.03))
    return count


@pytest.mark.parametrize("flock", [fcntl.flock, no_flock])
def test_everybody_at_once(tmp_path: Path, root: CacheRoot, monkeypatch: pytest.MonkeyPatch, flock: Any) -> None:
    """Collectors that take all they can, builds and readers: no build fails, no reader loses a byte, all get on."""
    monkeypatch.setattr(fcntl, "flock", flock)
    done = tmp_path / "done"
    done.mkdir()
    works = [collect_all, collect_all, prewarm, prewarm, read_all, read_all]
    assert len(works) == WORKERS
    children = [start_child(lambda work=work: again_and_again(work, root, done, 1)) for work in works]

    assert min(end_child(*child) for child in children) >= 1

    assert list(root.collecting.iterdir()) == list(root.staging.iterdir()) == []
    prewarm(root)
    assert is_whole(root.location(LOCATION))
