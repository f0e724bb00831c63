"""No waiting for the disk, and a folder for work as another user."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from support.children import open_to_all

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(autouse=True)
def _without_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    """Power cuts are not tested here; what is synced, and when, is seen by a test with an fsync of its own."""
    monkeypatch.setattr(os, "fsync", lambda _: None)


@pytest.fixture
def old(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything counts as older than the grace period."""
    monkeypatch.setattr("overlay.cache.collecting.GRACE", -1.0)


@pytest.fixture
def plain_folder() -> Iterator[Path]:
    """A folder that a plain user can reach and owns, whoever runs the tests (pytest's own are closed to others)."""
    folder = Path(tempfile.mkdtemp(prefix="overlay-test-", dir="/tmp"))
    open_to_all(folder)
    yield folder
    for path in (folder, *folder.rglob("*")):
        if path.is_dir() and not path.is_symlink():
            path.chmod(0o700)
    shutil.rmtree(folder)


@pytest.fixture(autouse=True)
def _nothing_kept_for_a_rollback(monkeypatch: pytest.MonkeyPatch) -> None:
    """With one tree or two, a collector would have nothing to do; tests/cache/test_generations.py is about the rule."""
    monkeypatch.setattr("overlay.cache.collecting.LAST_GENERATIONS", 0)
