"""Fingerprints of bytes that come one after the other: those of the same bytes on disk."""

from __future__ import annotations

import struct
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from overlay.errors import BrokenInput
from overlay.fingerprint import file_digest, stream_hasher

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.no_torch

HEADER = b'{"a":{"dtype":"U8","shape":[5],"data_offsets":[0,5]},"e":{"dtype":"U8","shape":[0],"data_offsets":[5,5]},'
HEADER += b'"z":{"dtype":"U8","shape":[3],"data_offsets":[5,8]}}'
WEIGHTS = struct.pack("<Q", len(HEADER)) + HEADER + b"12345678"
NOTHING = struct.pack("<Q", 8) + b"{}      "


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=50)
@given(
    data=st.sampled_from([WEIGHTS, NOTHING]),
    cuts=st.lists(st.integers(0, len(WEIGHTS))),
    algorithm=st.sampled_from(["xxh3_128", "safetensors_xxh3_128", "sha256"]),
)
def test_pieces_of_any_size(tmp_path: Path, data: bytes, cuts: list[int], algorithm: str) -> None:
    """Give the digest of the file."""
    (tmp_path / "file").write_bytes(data)
    hasher = stream_hasher(algorithm, len(data), "here")
    edges = [0, *sorted(cuts), len(data)]
    for start, end in pairwise(edges):
        hasher.update(data[start:end])
    assert hasher.digest() == file_digest(tmp_path / "file", algorithm)


@pytest.mark.parametrize("data", [b"", b"short", b"not safetensors at all", WEIGHTS[:-1], WEIGHTS + b"x"])
def test_what_is_no_safetensors_file(data: bytes) -> None:
    """Is refused, not given a digest."""
    hasher = stream_hasher("safetensors_xxh3_128", len(data), "here")

    def whole() -> str:
        hasher.update(data)
        return hasher.digest()

    with pytest.raises(BrokenInput, match="here"):
        whole()
