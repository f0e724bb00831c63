"""Pins: a tree that a user wants kept stays whatever the limit, until it is unpinned."""

from __future__ import annotations

import json
import os
import time
from typing import TYPE_CHECKING

import pytest
from support.caches import LOCATION, TREE, build, is_whole
from support.children import in_child, mount_read_only, own_mounts
from support.intruders import INTRUDERS, put_in_place

from overlay.cache import CacheRoot
from overlay.cache.collecting import gc, plan_rm, rm
from overlay.cache.leases import hold
from overlay.cache.listing import ls
from overlay.cache.pins import pin, pins, unpin
from overlay.errors import CannotWrite, InvalidUsage, NotHere

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.no_torch


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CacheRoot:
    """A cache with one tree, everything in it older than the grace period."""
    monkeypatch.setattr("overlay.cache.collecting.GRACE", -1.0)
    build(tmp_path / "root")
    return CacheRoot(tmp_path / "root")


def test_a_pin_keeps_its_tree(root: CacheRoot) -> None:
    """A pinned tree stays whatever the limit, which is said; who, when and why can be read; unpinned it goes."""
    pin(root, TREE, "the demo")

    removal = gc(root, max_size=0, max_age=0)

    [kept] = removal.kept
    assert (kept.what, kept.why, kept.names) == ("tree", "pinned", (TREE,))
    assert removal.trees == removal.locations == ()
    found = ls(root)[0].pin
    assert found is not None
    assert (found.by.partition("@")[2], found.reason) == (os.uname().nodename, "the demo")
    assert 0 <= time.time() - found.since < 60
    assert unpin(root, TREE)
    assert not unpin(root, TREE)
    assert [path.name for path in gc(root, max_size=0).trees] == [TREE]


@pytest.mark.parametrize("target", [TREE, LOCATION, "org/name"])
@pytest.mark.parametrize("leased", [True, False])
def test_rm_of_a_pinned_tree_is_refused(root: CacheRoot, target: str, leased: object) -> None:
    """The refusal names who, why and the command that helps; nothing overrides it, but what it would free is known."""
    pin(root, TREE, "the demo")

    with pytest.raises(CannotWrite, match=r"pinned by .* \(the demo\)") as caught:
        rm(root, [target], leased=bool(leased))

    assert (caught.value.code, caught.value.hint) == ("tree-pinned", f"overlay cache unpin {TREE}")
    assert is_whole(root.location(LOCATION))
    assert len(plan_rm(root, [target]).trees) == 1


def test_a_superseded_generation_can_be_pinned(root: CacheRoot) -> None:
    """A pin is on a tree, not on a location: it stays when the location moves on."""
    pin(root, TREE)
    build(root.path, tree="new", files={"m.safetensors": b"new"})

    assert [path.name for path in gc(root, max_size=0).trees] == ["new"]
    assert is_whole(root.tree(TREE))


@pytest.mark.parametrize(
    "data", [b"", b"{", b"[]", b'{"by": 5}', b'{"by": "", "since": "x", "reason": ""}', b"[" * 100_000]
)
def test_a_damaged_pin_is_a_pin(root: CacheRoot, data: bytes) -> None:
    """That the file is there is what counts."""
    pin(root, TREE)
    (root.pins / TREE).write_bytes(data)

    assert pins(root)[TREE].by in ("", "5")
    assert gc(root, max_size=0).trees == ()
    with pytest.raises(CannotWrite, match="pinned"):
        rm(root, [TREE])


@pytest.mark.parametrize("intruder", INTRUDERS)
def test_anything_in_the_place_of_a_pin_is_a_pin(root: CacheRoot, intruder: str) -> None:
    """A folder, a pipe, a link: nothing hangs, the tree stays, and the pin can be made anew."""
    pin(root, TREE)
    put_in_place(root.pins / TREE, intruder)

    assert gc(root, max_size=0).trees == ()
    assert pins(root).keys() == {TREE}
    pin(root, TREE, "again")
    assert pins(root)[TREE].reason == "again"
    put_in_place(root.pins / TREE, intruder)
    assert unpin(root, TREE)
    assert pins(root) == {}


def test_a_pin_is_replaced_by_a_later_one(root: CacheRoot) -> None:
    """The last reason counts, and no temporary file is left."""
    pin(root, TREE, "one")
    pin(root, TREE, "two")

    assert pins(root)[TREE].reason == "two"
    assert [path.name for path in root.pins.iterdir()] == [TREE]
    assert json.loads((root.pins / TREE).read_bytes())["reason"] == "two"


def test_a_tree_that_went_is_not_pinned(root: CacheRoot) -> None:
    """A pin that came too late says so and leaves nothing."""
    with pytest.raises(NotHere, match="removed meanwhile"):
        pin(root, "gone")

    assert pins(root) == {}


@pytest.mark.parametrize("name", ["", "..", "a/b", ".hidden"])
def test_a_pin_stays_in_its_folder(root: CacheRoot, name: str) -> None:
    """Only plain names are pinned."""
    for change in (pin, unpin):
        with pytest.raises(InvalidUsage):
            change(root, name)


def test_a_lease_and_a_pin(root: CacheRoot) -> None:
    """A tree that is both counts once."""
    pin(root, TREE)
    with hold(root, TREE):
        assert [(kept.why, kept.count) for kept in gc(root, max_size=0).kept] == [("leased", 1)]


def test_a_read_only_root_cannot_be_pinned(root: CacheRoot) -> None:
    """A pin that cannot be written is an error."""

    def work() -> str:
        if not own_mounts():
            pytest.skip("no mounts here")
        mount_read_only(root.path)
        with pytest.raises(CannotWrite) as caught:
            pin(root, TREE)
        return caught.value.code

    assert in_child(work) == "read-only"
