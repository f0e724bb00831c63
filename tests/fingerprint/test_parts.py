"""Digests of files by their parts, against the definition written out."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import xxhash
from support.tensors import tensors_file

from overlay.errors import BrokenInput
from overlay.fingerprint import (
    BLOCK,
    blocks_of,
    bytes_digest,
    digest_of_parts,
    file_digest,
    part_digest,
    parts_of,
    safetensors_digest,
)

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.no_torch

SAFETENSORS = "safetensors_xxh3_128"
PAYLOADS = [b"\1\2\3\4" * 3, b"", b"abcdef"]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Three tensors, the second without a byte."""
    tensors = {f"t{number}": ("U8", (len(data),), data) for number, data in enumerate(PAYLOADS)}
    found = tmp_path / "model.safetensors"
    found.write_bytes(tensors_file(tensors, {"format": "pt"}))
    return found


def raw(data: bytes) -> bytes:
    """XXH3 of the XXH3s of blocks, for content of one block at most."""
    return xxhash.xxh3_128_digest(xxhash.xxh3_128_digest(data) if data else b"")


def test_a_safetensors_file_is_its_header_and_its_tensors(path: Path) -> None:
    """The XXH3 of their digests, one after the other, in the order of the file."""
    data = path.read_bytes()
    header = data[: len(data) - sum(map(len, PAYLOADS))]
    expected = xxhash.xxh3_128_hexdigest(b"".join(map(raw, [header, *PAYLOADS])))

    assert file_digest(path, SAFETENSORS) == f"{SAFETENSORS}:{expected}"
    assert file_digest(path, SAFETENSORS) == safetensors_digest(
        bytes_digest(header, "xxh3_128"), [bytes_digest(part, "xxh3_128") for part in PAYLOADS]
    )
    assert parts_of(path, SAFETENSORS) == [
        (0, len(header)),
        (len(header), 12),
        (len(header) + 12, 0),
        (len(header) + 12, 6),
    ]


@pytest.mark.parametrize("algorithm", ["xxh3_128", SAFETENSORS])
def test_parts_put_together_are_the_file(path: Path, algorithm: str) -> None:
    """Whoever reads the parts apart has the digest of the whole."""
    parts = [part_digest(path, part) for part in parts_of(path, algorithm)]

    assert digest_of_parts(algorithm, parts) == file_digest(path, algorithm)


def test_every_byte_counts(path: Path) -> None:
    """Header and tensors alike, and each tensor."""
    data = path.read_bytes()
    whole = file_digest(path, SAFETENSORS)
    for place in (len(data) - 1, len(data) - 7, data.index(b"pt")):
        path.write_bytes(data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :])
        assert file_digest(path, SAFETENSORS) != whole


@pytest.mark.parametrize(
    ("part", "blocks"),
    [
        ((7, 0), []),
        ((7, 1), [(7, 1)]),
        ((7, BLOCK), [(7, BLOCK)]),
        ((7, 2 * BLOCK + 5), [(7, BLOCK), (7 + BLOCK, BLOCK), (7 + 2 * BLOCK, 5)]),
    ],
)
def test_blocks_begin_with_their_part(part: tuple[int, int], blocks: list[tuple[int, int]]) -> None:
    """Whatever the part's place in the file; the last may be short."""
    assert blocks_of(part) == blocks


@pytest.mark.parametrize("damage", [b"", b"\xff" * 8, b"no header at all"])
def test_what_is_no_safetensors_file_has_no_such_digest(path: Path, damage: bytes) -> None:
    """Its parts cannot be told."""
    path.write_bytes(damage)

    with pytest.raises(BrokenInput, match=r"model\.safetensors"):
        file_digest(path, SAFETENSORS)
