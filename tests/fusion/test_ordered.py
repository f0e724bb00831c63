from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.fuse_files import random_values, seeded
from support.fuse_oracle import decode, encode, fma

from overlay.fusion import ordered
from overlay.fusion.ordered import ordered_product


def expected(b: list[float], a: list[float], rank: int, cols: int, dtype: str) -> bytes:
    """D by the oracle's fused multiply-add, as fp32 or fp64 bytes."""
    values = []
    for index in range(len(b) // rank * cols):
        row, col = divmod(index, cols)
        total = 0.0
        for k in range(rank):
            total = fma(b[row * rank + k], a[k * cols + col], total, dtype)
        values.append(total)
    if dtype == "F32":
        return encode(values, "F32")
    return torch.tensor(values, dtype=torch.float64).view(torch.uint8).numpy().tobytes()


def product_bytes(b: list[float], a: list[float], rank: int, cols: int, dtype: torch.dtype) -> bytes:
    """D by the ordered kernel."""
    left = torch.tensor(b, dtype=dtype).view(-1, rank)
    right = torch.tensor(a, dtype=dtype).view(rank, cols)
    return ordered_product(left, right).view(torch.uint8).numpy().tobytes()


@given(
    seed=st.integers(0, 2**32),
    dtype=st.sampled_from(["BF16", "F16"]),
    rows=st.integers(1, 4),
    rank=st.integers(1, 9),
    cols=st.integers(1, 5),
    block=st.sampled_from([1, 6, 2**16]),
)
def test_products_below_fp32_equal_the_oracle(
    seed: int, dtype: str, rows: int, rank: int, cols: int, block: int
) -> None:
    """Half of the values are so small that products underflow: one rounding still, whatever the blocks."""
    dice = seeded(seed)
    b = decode(random_values(dice, rows * rank, dtype, tiny=True), dtype)
    a = decode(random_values(dice, rank * cols, dtype, tiny=True), dtype)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ordered, "_BLOCK_ELEMENTS", block)
        assert product_bytes(b, a, rank, cols, torch.float32) == expected(b, a, rank, cols, "F32")


@given(seed=st.integers(0, 2**32), rank=st.integers(1, 9), cols=st.integers(1, 4))
def test_fp32_pairs_accumulate_in_fp64(seed: int, rank: int, cols: int) -> None:
    """Every step is one rounding to fp64."""
    dice = seeded(seed)
    b = decode(random_values(dice, 2 * rank, "F32", tiny=True), "F32")
    a = decode(random_values(dice, rank * cols, "F32", tiny=True), "F32")
    assert product_bytes(b, a, rank, cols, torch.float64) == expected(b, a, rank, cols, "F64")


@pytest.mark.parametrize(
    ("b", "a"),
    [
        ([2.0**-75, 2.0**-75], [2.0**-74, 2.0**-75]),  # the smallest subnormal, then half of it
        ([2.0**-75, -(2.0**-75)], [2.0**-75, 2.0**-75]),  # underflow to zero, of either sign
        ([-(2.0**-100)], [2.0**-100]),  # -0
        ([-0.0], [1.0]),  # +0 + -0 is +0
        ([-(2.0**127), 2.0**64], [1.0, 2.0**64]),  # the second product alone is infinite, the sum is not
        ([1.0, 2.0**-60, -1.0], [1.0, 2.0**-60, 1.0]),
        ([1.0, 2.0**-70, 2.0**-12], [1.0, 2.0**-70, 2.0**-12]),  # a tie that only the lost bit breaks
        ([2.0**-63, 2.0**-66, 2.0**-80], [2.0**-63, 2.0**-66, 2.0**-80]),
    ],
)
def test_the_edges_of_fp32_equal_the_oracle(b: list[float], a: list[float]) -> None:
    """Products at and beyond the ends of fp32's range, worked out by hand."""
    assert product_bytes(b, a, len(b), 1, torch.float32) == expected(b, a, len(b), 1, "F32")


def test_products_that_leave_fp32_are_noticed() -> None:
    """The fast way is taken for values as weights have them, and only as long as it is right."""

    def exact(b: float, a: float) -> bool:
        return ordered._exact_in_fp32(torch.tensor([[b, 0.0]]), torch.tensor([[a], [-0.0]]))

    assert exact(1.0, 1.0)
    assert exact(0.0, 0.0)
    assert exact(2.0**-64, 2.0**-65)
    assert not exact(2.0**-65, 2.0**-65)
    assert exact(2.0**62, 2.0**64)
    assert not exact(2.0**63, 2.0**64)
