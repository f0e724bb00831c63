"""Rows of fused weights: cut, put in another order, beside copied bytes; every element as in the whole weight."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from support.fuse_files import Store, Weight, data_of, random_values, seeded
from support.fuse_oracle import SIZES, Pair

from overlay.errors import BrokenInput
from overlay.fingerprint import bytes_digest
from overlay.fusion import build
from overlay.planning.outputs import Fused, Literal, OutputTensor, Piece

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from overlay.fusion.engine import Engine

ROWS, COLS = 12, 5


def weight(name: str, dtype: str = "BF16", pair_dtype: str = "BF16", ranks: tuple[int, ...] = (2, 3)) -> Weight:
    dice = seeded(hash_of(name))
    pairs = [
        Pair(
            random_values(dice, rank * COLS, pair_dtype),
            random_values(dice, ROWS * rank, pair_dtype),
            pair_dtype,
            rank,
            0.5 + rank,
        )
        for rank in ranks
    ]
    return Weight(name, dtype, ROWS, COLS, random_values(dice, ROWS * COLS, dtype), pairs)


def hash_of(name: str) -> int:
    return int.from_bytes(name.encode(), "little")


def cut(whole: OutputTensor, *spans: tuple[int, int]) -> list[Piece]:
    """Rows of a fused weight, as (first row, number)."""
    [piece] = whole.pieces
    assert isinstance(piece, Fused)
    return [replace(piece, first_row=first, num_rows=count) for first, count in spans]


def rows_of(data: bytes, dtype: str, first: int, count: int) -> bytes:
    size = COLS * SIZES[dtype]
    return data[first * size : (first + count) * size]


@pytest.fixture(params=["library", "ordered"])
def either(request: pytest.FixtureRequest, engine: Engine, ordered_engine: Engine) -> Engine:
    return engine if request.param == "library" else ordered_engine


@pytest.mark.parametrize("rule", ["fp32-once", "openvdn"])
@pytest.mark.parametrize(("dtype", "pair_dtype"), [("BF16", "BF16"), ("F16", "BF16"), ("F32", "F32")])
def test_rows_in_another_order_are_those_of_the_whole_weight(
    tmp_path: Path, either: Engine, rule: str, dtype: str, pair_dtype: str
) -> None:
    """Whole weights fused by the plain loop, then cut, are what cutting first gives."""
    store, one, two = Store(tmp_path), weight("q", dtype, pair_dtype), weight("k", dtype, pair_dtype, (4,))
    plain = weight("v", dtype, pair_dtype, ())
    spans = [(0, 3), (3, 1), (4, 8)]
    [copied] = store.put("v", plain.data)
    row = COLS * SIZES[dtype]
    pieces: list[Piece] = []
    expected = b""
    for first, count in spans[::-1]:
        pieces += [*cut(store.fused(one), (first, count)), *cut(store.fused(two), (first, count))]
        pieces.append(replace(copied, offset=copied.offset + first * row, nbytes=count * row))
        for source in (one.expected(rule), two.expected(rule), plain.data):
            expected += rows_of(source, dtype, first, count)
    joined = OutputTensor("qkv", dtype, (3 * ROWS, COLS), tuple(pieces))
    built = store.build([joined], tmp_path / "out", either, rule)
    assert data_of(tmp_path / "out") == expected
    [tensor] = built.tensors
    assert tensor.digest == bytes_digest(expected, "xxh3_128")
    assert tensor.source_digest is None  # it comes from several places


def test_a_block_may_end_in_the_middle_of_a_piece(
    tmp_path: Path, either: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Blocks of any even size, also within a row, made by several threads."""
    store, one = Store(tmp_path), weight("q")
    expected = b"".join(rows_of(one.expected("fp32-once"), "BF16", first, 4) for first in (8, 0, 4))
    pieces = (*cut(store.fused(one), (8, 4), (0, 4), (4, 4)), Literal(b"1234567890"))
    joined = OutputTensor("w", "BF16", (ROWS + 1, COLS), pieces)
    for nbytes in (2, 6, 38, 42):

        def blocks(part: tuple[int, int], nbytes: int = nbytes) -> Iterator[tuple[int, int]]:
            start, total = part
            for at in range(0, total, nbytes):
                yield start + at, min(nbytes, total - at)

        monkeypatch.setattr(build, "blocks_of", blocks)
        store.build([joined], tmp_path / f"out-{nbytes}", either, jobs=4)
        assert data_of(tmp_path / f"out-{nbytes}") == expected + b"1234567890"


def test_every_a_is_read_once(tmp_path: Path, engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever number of pieces it goes into; the counter says so too."""
    store, one = Store(tmp_path), weight("q", ranks=(2,))
    [piece] = store.fused(one).pieces
    assert isinstance(piece, Fused)
    cuts = tuple(replace(piece, first_row=row, num_rows=1) for row in range(ROWS))
    joined = OutputTensor("w", "BF16", (ROWS, COLS), cuts)
    from overlay.fusion.inputs import OpenInputs

    read = OpenInputs.read_into
    offsets: list[tuple[str, int]] = []

    def noted(self: OpenInputs, source: object, offset: int, buffer: memoryview) -> None:
        offsets.append((source.path, offset))  # type: ignore[attr-defined]
        read(self, source, offset, buffer)  # type: ignore[arg-type]

    monkeypatch.setattr(OpenInputs, "read_into", noted)
    built = store.build([joined], tmp_path / "out", engine)
    assert offsets.count((piece.terms[0].a.input.path, piece.terms[0].a.offset)) == 1
    assert built.bytes_read == joined.bytes_read == len(one.data) + len(one.pairs[0].a) + len(one.pairs[0].b)


@pytest.mark.parametrize("factor", ["a", "b"])
def test_a_factor_that_is_not_finite_is_named_from_any_piece(tmp_path: Path, engine: Engine, factor: str) -> None:
    """The count is that of the whole factor."""
    one = weight("q", ranks=(2,))
    data = getattr(one.pairs[0], factor)
    bad = b"\x80\x7f" * (len(data) // 2)
    one.pairs[0] = replace(one.pairs[0], **{factor: bad})
    store = Store(tmp_path)
    joined = OutputTensor("w", "BF16", (4, COLS), tuple(cut(store.fused(one), (4, 2), (10, 2))))
    with pytest.raises(BrokenInput, match=f"{len(bad) // 2} of {len(bad) // 2} values not finite") as caught:
        store.build([joined], tmp_path / "out", engine)
    assert caught.value.code == "adapter-not-finite"
    assert not (tmp_path / "out").exists()


def test_pieces_must_add_up(tmp_path: Path, engine: Engine) -> None:
    """Rows that do not fill the tensor are a mistake of the caller, and leave no file."""
    store = Store(tmp_path)
    joined = OutputTensor("w", "BF16", (ROWS, COLS), tuple(cut(store.fused(weight("q")), (0, 4), (0, 4))))
    with pytest.raises(ValueError, match="w: pieces of 80 bytes, 120 wanted"):
        store.build([joined], tmp_path / "out", engine)
    assert not (tmp_path / "out").exists()
