"""Rounds of ``tools/faults.py``, fewer and smaller than by hand: random kills, disks of many sizes, shared blocks."""

from __future__ import annotations

import fcntl
import os
import random
import signal
from typing import TYPE_CHECKING, Any

import pytest
from fault_places import full_disk_round, own_mounts, reflink_rounds
from fault_rounds import KillRound, World, kill_round, make_world
from support.children import in_child

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

FICLONE = 0x40049409  # ioctl request of linux/fs.h
MET = 5
"""Kills that are to meet a build; a quick one may end before its kill comes."""


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    """A hub folder and what an unhindered run makes of it."""
    return make_world(tmp_path_factory.mktemp("world").resolve(), 6)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_h20_kills_at_random_moments(world: World, tmp_path: Path, seed: int) -> None:
    """SIGTERM, SIGINT and SIGKILL after the first staged byte: nothing half-made, nothing lost, nothing made twice."""
    dice = random.Random(seed)
    rounds: list[KillRound] = []
    while sum(how != "finished" for item in rounds for how in item.killed) < MET:
        assert len(rounds) < 5 * MET, "builds end before anything kills them"
        rounds.append(kill_round(world, tmp_path / f"root-{len(rounds)}", len(rounds), dice))
    ended = {how for item in rounds for how in item.killed}
    assert ended <= {"finished", *(number.name for number in (signal.SIGTERM, signal.SIGINT, signal.SIGKILL))}
    assert sum(item.staged for item in rounds) >= MET


def test_h22_disks_of_all_sizes(world: World, tmp_path: Path) -> None:
    """Bytes or inodes run out at objects, at the tree, at the record: that is said, the next run goes on from there."""
    limits = [f"size={size}k" for size in (256, 3_000, 8_000, 13_000, 14_500, 64_000)]
    limits += [f"nr_inodes={count}" for count in (8, 20, 60, 120, 180, 195, 210, 500)]

    def work() -> list[str] | None:
        if not own_mounts():
            return None
        return [full_disk_round(world, tmp_path / f"disk-{n}", limit).outcome for n, limit in enumerate(limits)]

    outcomes = in_child(work)

    if outcomes is None:
        pytest.skip("may not mount")
    assert outcomes[0].startswith("no-room")
    assert outcomes[5] == outcomes[-1] == "same tree"
    assert len({outcome for outcome in outcomes if outcome.startswith("no-room")}) > 3


def test_files_that_share_blocks(world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where reflinks work (here a copy stands for them), carried files share blocks, no inode, and count as linked."""
    ioctl = fcntl.ioctl

    def clone(descriptor: int, request: int, *args: Any) -> Any:
        if request != FICLONE:
            return ioctl(descriptor, request, *args)
        source = args[0]
        os.sendfile(descriptor, source, 0, os.fstat(source).st_size)
        return 0

    monkeypatch.setattr(fcntl, "ioctl", clone)

    rounds = {item.place: item for item in reflink_rounds(world, tmp_path)}

    assert rounds["--link reflink"].linked == rounds["--link auto"].linked > 0
    assert rounds["--link copy"].linked == 0
