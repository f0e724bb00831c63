"""The project's own product: k ascending, one correctly rounded fused multiply-add a step, in plain torch operations.

It needs nothing of the device but IEEE addition and multiplication, so it is right everywhere, and it is what libraries
are tested against. Torch offers no elementwise fused multiply-add; it is had from exact products:

- Two BF16 or F16 values multiply exactly in fp32 (at most 22 significant bits) unless the product leaves fp32's range;
  two fp32 values always multiply exactly in fp64. Then a multiplication and an addition round once, and so do the same
  two contracted by a compiler.
- Products that leave fp32's range are exact in fp64. Their sum with D is taken in fp64 rounded to odd (the rounding
  error of the addition, found by Knuth's two-sum, says whether the last bit must be set), which makes the second
  rounding, to fp32, the only one that counts: S. Boldo and G. Melquiond, "Emulation of FMA and correctly rounded sums:
  proved algorithms using rounding to odd", IEEE Transactions on Computers 57(4), 2008.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from overlay.fusion.quiet_torch import torch

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["ordered_product"]

_BLOCK_ELEMENTS = 2**18
"""D is made in blocks of rows of about this many elements, which stay in a core's cache for all of k."""

_FRACTION_BITS = 10
"""Fraction bits of the wider of BF16 and F16."""

_SMALLEST_BIT = -149
_LARGEST_EXPONENT = 127
_EXPONENT_BIAS = 127
_INFINITY_BITS = 0x7F800000


def ordered_product(b: torch.Tensor, a: torch.Tensor) -> torch.Tensor:
    """D = B A by the rule.

    Args:
        b: [rows, rank], finite; fp32 holding BF16 or F16 values, or fp64 holding fp32 values.
        a: [rank, cols], likewise.

    Returns:
        D [rows, cols] in the same dtype and on the same device.
    """
    product = torch.zeros(b.shape[0], a.shape[1], dtype=b.dtype, device=b.device)
    exact = b.dtype == torch.float64 or _exact_in_fp32(b, a)
    for block in _row_blocks(product):
        total, rows = product[block], b[block]
        for k in range(a.shape[0]):
            if exact:
                total.addcmul_(rows[:, k : k + 1], a[k : k + 1])
            else:
                _add_through_fp64(total, rows[:, k : k + 1], a[k : k + 1])
    return product


def _row_blocks(matrix: torch.Tensor) -> Iterator[slice]:
    """Cuts rows so that a block stays in a core's cache; a GPU takes all at once."""
    rows, cols = matrix.shape
    step = max(1, _BLOCK_ELEMENTS // cols) if matrix.device.type == "cpu" else rows
    for start in range(0, rows, step):
        yield slice(start, start + step)


def _exact_in_fp32(b: torch.Tensor, a: torch.Tensor) -> bool:
    """Whether every product of a value of ``b`` and a value of ``a`` is an fp32 number."""
    low_b, high_b = _exponent_range(b)
    low_a, high_a = _exponent_range(a)
    lowest_bit = low_b + low_a - 2 * _FRACTION_BITS
    return lowest_bit >= _SMALLEST_BIT and high_b + high_a + 1 <= _LARGEST_EXPONENT


def _exponent_range(values: torch.Tensor) -> tuple[int, int]:
    """Exponents of the smallest and largest magnitude that is not zero."""
    low, high = _INFINITY_BITS, 0
    for block in _row_blocks(values):
        magnitude = values[block].contiguous().view(torch.int32) & 0x7FFFFFFF
        high = max(high, int(magnitude.max()))
        low = min(low, int(magnitude.masked_fill_(magnitude == 0, _INFINITY_BITS).min()))
    return max(1, low >> 23) - _EXPONENT_BIAS, max(1, high >> 23) - _EXPONENT_BIAS


def _add_through_fp64(total: torch.Tensor, b: torch.Tensor, a: torch.Tensor) -> None:
    """One step of k: ``b`` [rows, 1], ``a`` [1, cols]."""
    product, before = b.double() * a.double(), total.double()
    rounded = product + before
    virtual = rounded - product
    error = (product - (rounded - virtual)) + (before - virtual)
    bits = rounded.view(torch.int64)
    towards = torch.where((error > 0) == (rounded > 0), 1, -1)
    to_odd = torch.where((error != 0) & (bits & 1 == 0), towards, 0)
    total.copy_((bits + to_odd).view(torch.float64))
