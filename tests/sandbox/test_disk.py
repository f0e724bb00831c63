"""What the guard counts in the folders of a script."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from overlay.sandbox import disk
from overlay.sandbox.disk import on_disk

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.no_torch


def test_bytes_files_and_depth_are_counted_apart(tmp_path: Path) -> None:
    """A hole counts, the second name of a file does not, and each has its own limit to be named by."""
    (tmp_path / "a/b/c").mkdir(parents=True)
    with (tmp_path / "a/hole").open("wb") as file:
        file.truncate(2**40)
    before = on_disk([str(tmp_path)])
    os.link(tmp_path / "a/hole", tmp_path / "twice")
    after = on_disk([str(tmp_path)])

    assert 2**40 <= before.disk < 2**40 + 2**20
    assert (before.files, before.depth) == (4, 3)
    assert after.disk - before.disk < 2**20
    assert after.files == 5


@pytest.mark.parametrize(("limit", "most"), [("files", 5), ("depth", 3)])
def test_it_looks_no_further_than_to_a_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str, most: int
) -> None:
    """Who has reached one is stopped, so the rest does not matter; nesting is no matter of bytes."""
    monkeypatch.setattr(disk, f"MAX_{'ENTRIES' if limit == 'files' else 'DEPTH'}", most)
    (tmp_path / "/".join("abcdefgh")).mkdir(parents=True)
    found = on_disk([str(tmp_path)])

    assert getattr(found, limit) == most
    assert found.disk < 2**20
    assert on_disk([str(tmp_path / "absent")]).disk > 2**60
