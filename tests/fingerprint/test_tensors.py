"""Digests of a file's tensors, against hashlib over slices."""

from __future__ import annotations

import hashlib
import random
from typing import TYPE_CHECKING

import pytest

from overlay.fingerprint import DigestMemo, TensorHasher, file_digest
from overlay.formats.header import parse_header
from overlay.formats.layout import canonical_layout

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.no_torch

TENSORS = [("a", "BF16", (3, 5)), ("none", "F32", (0, 4)), ("b", "F32", (1,)), ("c", "U8", (70_001,))]


def made() -> bytes:
    layout = canonical_layout(TENSORS, {"format": "pt"})
    return layout.header + random.Random(5).randbytes(layout.file_size - len(layout.header))


def expected(data: bytes) -> dict[tuple[int, int], str]:
    header = parse_header(data, len(data), "x")
    places = {(header.offset(name), info.nbytes) for name, info in header.tensors.items() if info.nbytes}
    return {(at, size): f"sha256:{hashlib.sha256(data[at : at + size]).hexdigest()}" for at, size in places}


@pytest.mark.parametrize("piece", [1, 7, 4096, 10**6])
def test_each_tensor_has_the_digest_of_its_own_bytes(piece: int) -> None:
    """Fed in pieces of any size; a tensor without a byte has none."""
    data = made()
    hasher = TensorHasher(parse_header(data, len(data), "x"))
    for start in range(0, len(data), piece):
        hasher.update(data[start : start + piece])
    assert hasher.digests() == expected(data)
    assert len(hasher.digests()) == 3
    hasher.update(b"what follows is of no tensor")
    assert hasher.digests() == expected(data)


def test_a_tensor_that_was_not_fed_whole_has_none() -> None:
    """A file that ends early."""
    data = made()
    hasher = TensorHasher(parse_header(data, len(data), "x"))
    hasher.update(data[:-1])
    whole = expected(data)
    assert hasher.digests().items() < whole.items()
    assert len(hasher.digests()) == 2


def test_a_memo_shows_the_bytes_that_it_hashes(tmp_path: Path) -> None:
    """One pass gives the file's digest and its tensors', also where the file's was known."""
    data, path = made(), tmp_path / "adapter.safetensors"
    path.write_bytes(data)
    memo = DigestMemo(tmp_path / "memo")
    for _ in range(2):
        hasher = TensorHasher(parse_header(data, len(data), "x"))
        assert memo.sha256(path, see=hasher.update) == file_digest(path, "sha256")
        assert hasher.digests() == expected(data)
