"""Several processes at once: one tree, everybody succeeds, nobody builds what another has finished."""

from __future__ import annotations

import fcntl
import os
import signal
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from support.children import end_child, start_child
from support.faults import check_sound, input_digests
from support.hosts import may_be_a_host, start_on_host
from support.models import VDN, options

from overlay.cache import Cache
from overlay.cache.collecting import gc
from overlay.errors import TryAgain
from overlay.materialization.materialize import materialize
from overlay.materialization.resolve import resolve
from overlay.materialization.survey import Counters
from overlay.materialization.verify import verify

if TYPE_CHECKING:
    from conftest import Built


COUNTS = [2, 4, pytest.param(20, marks=pytest.mark.slow)]


def no_flock(_descriptor: int, _how: int) -> None:
    """Lets everybody in, as on some network filesystems."""


def together(count: int, work: Any) -> list[Any]:
    """What so many processes return that run at once."""
    children = [start_child(work) for _ in range(count)]
    return [end_child(*child) for child in children]


@pytest.mark.parametrize("count", COUNTS)
def test_h20_processes_at_once_build_one_tree(shared_build: Built, tmp_path: Path, count: int) -> None:
    """One builds, the others wait for it and find everything; the waiting is told."""
    root = tmp_path / "root"
    chosen = options(shared_build.hub, root)
    waits = tmp_path / "waits"
    waits.mkdir()

    def work() -> tuple[str, Counters, str]:
        def note(text: str) -> None:
            (waits / text.replace("/", "_")).touch()

        done = materialize(VDN, chosen, on_wait=note)
        return done.result, done.counters, str(done.path)

    outcomes = together(count, work)
    results = Counter(result for result, _, _ in outcomes)
    assert results["built"] == 1
    assert set(results) <= {"built", "adopted", "present", "reused"}
    assert [counters for _, counters, _ in outcomes].count(Counters()) == count - 1
    assert {path for _, _, path in outcomes} == {str(root / ".overlay/trees" / shared_build.tree.name)}
    check_one_tree(root, shared_build)
    assert all(path.name.startswith("waiting for ") for path in waits.iterdir())


@pytest.mark.parametrize("count", COUNTS)
def test_h21_without_locks_everybody_succeeds_all_the_same(
    shared_build: Built, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    """flock that does nothing, as on some network filesystems: work is done twice, nothing is spoilt."""
    monkeypatch.setattr(fcntl, "flock", no_flock)
    root = tmp_path / "root"
    chosen = options(shared_build.hub, root)
    outcomes = together(count, lambda: materialize(VDN, chosen, on_wait=pytest.fail).result)
    assert set(outcomes) <= {"built", "adopted", "present", "reused"}
    check_one_tree(root, shared_build)


def check_one_tree(root: Path, built: Built) -> None:
    [tree] = (root / ".overlay/trees").iterdir()
    [location] = (root / "materialized_models").iterdir()
    assert tree.name == built.tree.name
    assert location.resolve() == tree
    assert verify(tree).ok
    assert list((root / ".overlay/staging").iterdir()) == []
    assert resolve(VDN, options(built.hub, root)).state.name == "present"


def test_two_stages_at_once_share_what_they_have_in_common(shared_build: Built, tmp_path: Path) -> None:
    """The same location and two trees: both succeed, one of them is what the location leads to."""
    root = tmp_path / "root"
    both = [options(shared_build.hub, root, rule=rule) for rule in ("fp32-once", "openvdn")]
    children = [start_child(lambda chosen=chosen: materialize(VDN, chosen).path) for chosen in both]
    trees = {end_child(*child) for child in children}
    assert len(trees) == 2
    assert all(verify(tree).ok for tree in trees)
    [location] = (root / "materialized_models").iterdir()
    assert location.resolve() in trees
    assert sorted(resolve(VDN, chosen).state.name for chosen in both) == ["present", "stale"]


def test_a_lock_that_is_held_too_long_is_a_transient_error(shared_build: Built, tmp_path: Path) -> None:
    """Who holds it, and that the same command may succeed later; nothing was built."""
    root = tmp_path / "root"
    chosen = options(shared_build.hub, root, lock_timeout=0.2)
    cache = Cache.open(root, create=True)
    with cache.lock(shared_build.location.name, timeout=1), pytest.raises(TryAgain) as caught:
        materialize(VDN, chosen)
    assert (caught.value.code, caught.value.exit_status) == ("lock-busy", 5)
    assert "held by pid" in caught.value.message
    assert not list(root.glob(".overlay/objects/*/*/*"))
    assert materialize(VDN, chosen).result == "built"


@pytest.mark.parametrize("flock", [fcntl.flock, no_flock], ids=["locks", "no locks"])
@pytest.mark.parametrize("each", [1, pytest.param(5, marks=pytest.mark.slow)])
def test_h20_two_hosts_on_one_cache(
    shared_build: Built, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, each: int, flock: Any
) -> None:
    """Hosts that cannot see each other's processes, each with a collector: one tree, and nobody's staging is taken."""
    if not may_be_a_host():
        pytest.skip("may not make namespaces")
    monkeypatch.setattr(fcntl, "flock", flock)
    root = tmp_path / "root"
    chosen = options(shared_build.hub, root)
    Cache.open(root, create=True)
    before = input_digests(shared_build.hub.root)

    def work() -> tuple[str, str, int, str]:
        gc(Cache.open(root, create=False).root)
        done = materialize(VDN, chosen)
        gc(Cache.open(root, create=False).root)
        return done.result, str(done.path), os.getpid(), os.uname().nodename

    children = [start_on_host(name, work) for name in ("left", "right") for _ in range(each)]
    outcomes = [end_child(*child) for child in children]

    assert {(pid, host) for _, _, pid, host in outcomes} == {(1, "left"), (1, "right")}
    assert {path for _, path, _, _ in outcomes} == {str(root / ".overlay/trees" / shared_build.tree.name)}
    assert {result for result, *_ in outcomes} <= {"built", "adopted", "present", "reused"}
    check_one_tree(root, shared_build)
    check_sound(root)
    assert input_digests(shared_build.hub.root) == before


def test_h21_a_holder_that_dies_on_another_host_is_waited_for_no_longer(shared_build: Built, tmp_path: Path) -> None:
    """While it lives its name, host and time are told; killed, its lock is free at once and the work is taken up."""
    if not may_be_a_host():
        pytest.skip("may not make namespaces")
    root = tmp_path / "root"
    chosen = options(shared_build.hub, root, lock_timeout=60)
    cache = Cache.open(root, create=True)
    held, hold = os.pipe()

    def die_later() -> None:
        with cache.lock(shared_build.location.name, timeout=0):
            os.write(hold, b"x")
            signal.pause()

    child = start_on_host("elsewhere", die_later)
    os.read(held, 1)
    told: list[str] = []

    def kill(text: str) -> None:
        told.append(text)
        [holder] = Path(f"/proc/{child[0]}/task/{child[0]}/children").read_text().split()
        os.kill(int(holder), signal.SIGKILL)

    assert materialize(VDN, chosen, on_wait=kill).result == "built"
    assert end_child(*child) == signal.SIGKILL
    assert len(told) == 1
    assert told[0].startswith("waiting for pid 1 on elsewhere, since 20")
    check_sound(root)
    for descriptor in (held, hold):
        os.close(descriptor)
