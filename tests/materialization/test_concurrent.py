"""Several processes at once: one tree, everybody succeeds, nobody builds what another has finished."""

from __future__ import annotations

import fcntl
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
from support.children import end_child, start_child
from support.models import VDN, options

from overlay.errors import TryAgain
from overlay.materialization.materialize import materialize
from overlay.materialization.resolve import resolve
from overlay.materialization.survey import Counters
from overlay.materialization.verify import verify

if TYPE_CHECKING:
    from pathlib import Path

    from conftest import Built


def together(count: int, work: Any) -> list[Any]:
    """What so many processes return that run at once."""
    children = [start_child(work) for _ in range(count)]
    return [end_child(*child) for child in children]


@pytest.mark.parametrize("count", [2, 4])
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


@pytest.mark.parametrize("count", [2, 4])
def test_h21_without_locks_everybody_succeeds_all_the_same(
    shared_build: Built, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    """flock that does nothing, as on some network filesystems: work is done twice, nothing is spoilt."""
    monkeypatch.setattr(fcntl, "flock", lambda _descriptor, _how: None)
    root = tmp_path / "root"
    chosen = options(shared_build.hub, root)
    outcomes = together(count, lambda: materialize(VDN, chosen).result)
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


def test_a_lock_that_is_held_too_long_is_a_transient_error(
    shared_build: Built, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who holds it, and that the same command may succeed later; nothing was built."""
    from overlay.cache import Cache

    root = tmp_path / "root"
    chosen = options(shared_build.hub, root, lock_timeout=0.2)
    cache = Cache.open(root, create=True)
    with cache.lock(shared_build.location.name, timeout=1), pytest.raises(TryAgain) as caught:
        materialize(VDN, chosen)
    assert (caught.value.code, caught.value.exit_status) == ("lock-busy", 5)
    assert "held by pid" in caught.value.message
    assert not list(root.glob(".overlay/objects/*/*/*"))
    assert materialize(VDN, chosen).result == "built"
