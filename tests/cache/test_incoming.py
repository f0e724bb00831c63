"""Files on their way in: taken over from an earlier transfer, from nobody else, and never through another name."""

from __future__ import annotations

import fcntl
import os
from typing import TYPE_CHECKING

import pytest

from overlay.cache.incoming import abandoned, arrived, incoming
from overlay.cache.layout import CacheRoot

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.no_torch

DIGEST = "sha256:" + "ab" * 32
NAME = "sha256-" + "ab" * 32


@pytest.fixture
def root(tmp_path: Path) -> CacheRoot:
    """With nothing in it but the folder."""
    (tmp_path / "root/.overlay/incoming").mkdir(parents=True)
    return CacheRoot(tmp_path / "root")


def test_what_was_left_is_taken_over(root: CacheRoot) -> None:
    """Once, and what is being written by another one is left to it."""
    with incoming(root, DIGEST) as path:
        path.write_bytes(b"front")
        with incoming(root, DIGEST) as other:
            assert other != path
            assert other.read_bytes() == b""
            other.unlink()
        assert arrived(root, {DIGEST: 100}) == 0  # it is being written
    assert arrived(root, {DIGEST: 100}) == 100  # of a whole block, no more than it can be
    assert arrived(root, {DIGEST.replace("ab", "cd"): 100}) == 0
    with incoming(root, DIGEST) as again:
        assert again.read_bytes() == b"front"
        again.unlink()
    assert list(root.incoming.iterdir()) == []


@pytest.mark.parametrize("planted", ["pipe", "folder", "link", "second name"])
def test_what_was_planted_is_left_alone(root: CacheRoot, tmp_path: Path, planted: str) -> None:
    """Nobody's file is written into through what lies here."""
    victim, left = tmp_path / "victim", root.incoming / f"{NAME}.0"
    victim.write_bytes(b"precious")
    match planted:
        case "pipe":
            os.mkfifo(left)
        case "folder":
            left.mkdir()
        case "link":
            left.symlink_to(victim)
        case _:
            left.hardlink_to(victim)
    with incoming(root, DIGEST) as path:
        path.write_bytes(b"model")
    assert victim.read_bytes() == b"precious"
    assert os.path.lexists(left)


def test_only_what_nobody_came_back_for_is_abandoned(root: CacheRoot) -> None:
    """Within an hour; not what is written, however old it looks."""
    old, new, held = (root.incoming / f"{NAME}.{number}" for number in range(3))
    for path in (old, new, held):
        path.touch()
    for path in (old, held):
        os.utime(path, (0, 0))
    with held.open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert abandoned(root) == [old]
