"""Killed builds: nothing half-made is ever seen, what was finished is kept, and the next run finishes the job."""

from __future__ import annotations

import os
import random
import signal
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest
from support.children import end_child, in_child, start_child
from support.models import VDN, options
from support.published_rule import files_of, published_tree

import overlay.cache.store
import overlay.materialization.sinks
from overlay.cache import CacheRoot
from overlay.cache.collecting import gc
from overlay.demo.checkpoint import write_hub
from overlay.fusion.output import PartialFile
from overlay.materialization.materialize import materialize, plan
from overlay.materialization.record import RECORD_NAME
from overlay.materialization.resolve import resolve
from overlay.materialization.verify import verify

if TYPE_CHECKING:
    from pathlib import Path

    from conftest import Built

    from overlay.demo.checkpoint import HubFolder

KILLS = 20


def objects(root: Path) -> dict[Path, int]:
    """Inode of every object."""
    return {path: path.stat().st_ino for path in (root / ".overlay/objects").glob("*/*/*")}


def check_nothing_half_made(root: Path) -> None:
    """What a reader can see is whole or absent."""
    for location in root.glob("materialized_models/*"):
        assert location.is_symlink()
        assert verify(location).ok
    for tree in root.glob(".overlay/trees/*"):
        assert verify(tree).ok


def check_nothing_left(root: Path) -> None:
    """After a collection, of what is old enough to be nobody's."""
    long_ago = time.time() - 2 * 86400
    for path in (root / ".overlay").rglob("*"):
        if not path.is_symlink():
            os.utime(path, (long_ago, long_ago))
    before = objects(root)
    gc(CacheRoot(root))
    assert list((root / ".overlay/staging").glob("*")) == []
    assert [path for path in root.rglob(".*") if path.suffix == ".tmp"] == []
    assert objects(root) == before  # the tree needs all of them
    assert len(list(root.glob(".overlay/trees/*"))) == len(list(root.glob("materialized_models/*"))) == 1
    assert len(list(root.glob(".overlay/actions/*/*.json"))) > 0


def die(*_: Any, **__: Any) -> Any:
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize("moment", ["first-object", "third-object", "first-action", "tree", "publish", "swing"])
def test_h20_a_kill_at_a_chosen_moment(
    shared_build: Built, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """Just before the first or third object moves in, before its action is known, before the tree is linked, before it
    moves in, before the location is swung."""
    root = tmp_path / "root"
    chosen = options(shared_build.hub, root)
    cache, count = overlay.cache.store.Cache, {"adopted": 0}
    adopt = cache.adopt_file

    def adopt_until(self: Any, *args: Any, **named: Any) -> Any:
        count["adopted"] += 1
        return (
            die() if count["adopted"] == {"first-object": 1, "third-object": 3}[moment] else adopt(self, *args, **named)
        )

    with monkeypatch.context() as patch:
        match moment:
            case "first-object" | "third-object":
                patch.setattr(cache, "adopt_file", adopt_until)
            case "first-action":
                patch.setattr(cache, "put_action", die)
            case "tree":
                patch.setattr(overlay.materialization.sinks, "place_tree", die)
            case "publish":
                patch.setattr(cache, "publish_tree", die)
            case "swing":
                patch.setattr(cache, "swing_location", die)
        assert in_child(lambda: materialize(VDN, chosen)) == signal.SIGKILL
    check_nothing_half_made(root)
    assert resolve(VDN, chosen).state.name == "absent"
    finished, planned = objects(root), plan(VDN, chosen).counters
    assert bool(finished) == (moment != "first-object")

    done = materialize(VDN, chosen)
    assert done.result == ("reused" if moment in ("tree", "publish", "swing") else "built")
    assert done.counters == planned
    assert {path: objects(root)[path] for path in finished} == finished
    assert done.path is not None
    assert done.path.name == shared_build.tree.name
    assert verify(done.path).ok
    check_nothing_left(root)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_h20_twenty_kills_at_random_moments_then_one_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A larger checkpoint, most kills after the first staged byte; finished files are never built twice."""
    hub = write_hub(tmp_path / "hub", blocks=24)
    root = tmp_path / "root"
    chosen = options(hub, root)
    dice = random.Random(20)
    write = PartialFile.write_at

    def slowly(self: PartialFile, offset: int, data: memoryview | bytes) -> None:
        time.sleep(0.03)
        write(self, offset, data)

    kept: dict[Path, int] = {}
    after_first_byte = 0
    with monkeypatch.context() as patch:
        patch.setattr(PartialFile, "write_at", slowly)
        patch.setattr(PartialFile, "copy_from", lambda *_: False)  # so that all is written, and slowly
        for number in range(KILLS):
            pid, readable = start_child(lambda: materialize(VDN, chosen))
            if number % 5 == 4:
                seen = watch(root, pid, dice.uniform(0, 1.5))
            else:
                seen = watch(root, pid, 60.0, until_staged=True)
                time.sleep(dice.uniform(0, 0.25))
            os.kill(pid, signal.SIGKILL)
            assert end_child(pid, readable) == signal.SIGKILL, "the build was done before the kill: make it larger"
            after_first_byte += seen
            now = objects(root)
            assert {path: now.get(path) for path in kept} == kept
            kept = now
            check_nothing_half_made(root)
    assert after_first_byte >= KILLS // 2
    assert kept

    planned = plan(VDN, chosen).counters
    done = materialize(VDN, chosen)
    assert done.result == "built"
    assert done.counters == planned
    now = objects(root)
    assert {path: now[path] for path in kept} == kept
    check_whole(done.path, hub, tmp_path)
    check_nothing_left(root)
    assert resolve(VDN, chosen).state.name == "present"


def watch(root: Path, pid: int, seconds: float, *, until_staged: bool = False) -> bool:
    """Whether the process has staged a byte of its own within that time."""
    end = time.monotonic() + seconds
    seen = False
    while time.monotonic() < end and not (seen and until_staged):
        for folder in (root / ".overlay/staging").glob("*"):
            seen = seen or (str(pid) in folder.name and staged_bytes(folder) > 0)
        time.sleep(0.002)
    return seen


def staged_bytes(folder: Path) -> int:
    """Of a folder that its owner may remove meanwhile, file by file: what is gone has become an object."""
    total = 0
    with suppress(FileNotFoundError):
        for path in folder.rglob("*.safetensors"):
            total += path.stat().st_blocks
    return total


def check_whole(tree: Path | None, hub: HubFolder, folder: Path) -> None:
    """Equal to the plain rebuild, byte for byte, and to its own record."""
    assert tree is not None
    assert verify(tree).ok
    published_tree(hub, folder / "expected")
    made, expected = files_of(tree), files_of(folder / "expected")
    del made[RECORD_NAME]
    licence = made.pop("licenses/OpenVDN__vdn-minimax-h3/LICENSE")  # which the published script leaves behind
    assert licence == (hub.source_folder / "LICENSE").read_bytes()
    assert sorted(made) == sorted(expected)
    assert [path for path in expected if made[path] != expected[path]] == []
