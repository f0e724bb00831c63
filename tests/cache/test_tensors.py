"""Remembered digests of an adapter's tensors: right under the file's digest, or not there at all."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from support.caches import digest_of
from support.intruders import INTRUDERS, put_in_place

from overlay.cache.layout import CacheRoot
from overlay.cache.tensors import TensorDigests
from overlay.fingerprint.entries import entry_bytes

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.no_torch

FILE, OTHER = ("sha256:" + letter * 64 for letter in "ab")
FOUND = {(80, 16): "sha256:" + "1" * 64, (96, 24): "sha256:" + "2" * 64}
ROWS = [[80, 16, "sha256:" + "1" * 64], [96, 24, "sha256:" + "2" * 64]]


@pytest.fixture
def root(tmp_path: Path) -> CacheRoot:
    return CacheRoot(tmp_path / "root")


def entry_of(root: CacheRoot) -> Path:
    [path] = root.digests.iterdir()
    return path


def test_what_was_kept_is_found_by_the_next_run(root: CacheRoot) -> None:
    """By the digest of the file, and by nothing else."""
    kept = TensorDigests(root)
    assert kept.is_empty()
    kept.keep(FILE, FOUND)
    for tensors in (kept, TensorDigests(root)):
        assert tensors.of(FILE) == FOUND
        assert tensors.of(OTHER) == {}
        assert not tensors.is_empty()


def test_an_entry_is_replaced_and_never_written_into(root: CacheRoot) -> None:
    """A reader has the former one or the new one."""
    TensorDigests(root).keep(FILE, FOUND)
    path = entry_of(root)
    with path.open("rb") as before:
        TensorDigests(root).keep(FILE, {})
        assert path.read_bytes() != before.read()
    assert entry_of(root) == path


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"[" * 100_000,
        entry_bytes(1, OTHER, ROWS),
        entry_bytes(2, FILE, ROWS),
        entry_bytes(1, FILE, ROWS).replace(b"1111", b"1112"),
        entry_bytes(1, FILE, None),
        entry_bytes(1, FILE, 5),
        entry_bytes(1, FILE, [[80, 16]]),
        entry_bytes(1, FILE, [[[80], 16, FILE]]),
        entry_bytes(1, FILE, [[80, 16, 5]]),
        entry_bytes(1, FILE, [[80, 16, "sha256:12"]]),
        entry_bytes(1, FILE, [[80, 16, "xxh3_128:" + "0" * 32]]),
    ],
    ids=lambda data: repr(data[:50]),
)
def test_a_damaged_entry_is_as_good_as_none(root: CacheRoot, data: bytes) -> None:
    """It is not used, not even in part, and the next that is kept is."""
    TensorDigests(root).keep(FILE, FOUND)
    entry_of(root).write_bytes(data)
    assert TensorDigests(root).of(FILE) == {}
    TensorDigests(root).keep(FILE, FOUND)
    assert TensorDigests(root).of(FILE) == FOUND
    assert entry_of(root).read_bytes() == entry_bytes(1, FILE, ROWS)


@pytest.mark.parametrize("intruder", INTRUDERS)
def test_what_is_no_entry_at_all_is_as_good_as_none(root: CacheRoot, intruder: str) -> None:
    """A folder, a pipe, a link: nothing hangs, and the next entry takes its place."""
    TensorDigests(root).keep(FILE, FOUND)
    path = entry_of(root)
    put_in_place(path, intruder)
    assert TensorDigests(root).of(FILE) == {}
    TensorDigests(root).keep(FILE, FOUND)
    assert TensorDigests(root).of(FILE) == FOUND


def test_the_name_of_an_entry_stays_in_its_folder(root: CacheRoot) -> None:
    """Whatever is asked for is a digest first."""
    for name in ("sha256:../../x", "", digest_of(b"")[:20]):
        assert TensorDigests(root).of(name) == {}
    assert not root.path.exists()
