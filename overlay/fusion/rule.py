"""The numeric rules, written down. Same inputs, same bits: on any device, with any threads and any cutting into chunks.

For a target W [out, in] and LoRA pairs A [rank, in], B [out, rank] in their listed order:

1. D[o, j] starts at +0; then for k = 0, 1, ... rank-1 one fused multiply-add (one rounding, to nearest even) of B[o, k]
   and A[k, j] into it. In fp32 where the pair is stored in BF16 or F16; a pair stored in F32 accumulates the same way
   in fp64, and D is rounded once to fp32.
2. s = float32(alpha / rank) or float32(alpha / sqrt(rank)), divided in float64; t = float32(s * D).
3. ``fp32-once``: acc starts as float32(W); acc = float32(acc + t) for each pair; at the end one rounding to nearest
   even to W's stored dtype. This is the rule of the published VDN-H3 overlay, made exact.
   ``openvdn``: t is rounded to W's dtype, then added to W and rounded in W's dtype, for each pair. This is what
   OpenVDN's own merge does.

Values of W that are NaN or infinite stay as they are, to the last bit. A finite value of W that would become NaN or
infinite is an error, as is NaN or infinity in A or B. Subnormal numbers are never flushed to zero.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from overlay.fusion.quiet_torch import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from overlay.fusion.products import Products

__all__ = ["STORED", "WORKING", "Factors", "all_finite", "combine"]

STORED = {"BF16": torch.bfloat16, "F16": torch.float16, "F32": torch.float32}
"""Dtypes that a weight or a pair may be stored in, by their safetensors names."""

WORKING = {"BF16": torch.float32, "F16": torch.float32, "F32": torch.float64}
"""Dtype that D accumulates in, by the dtype that the pair is stored in."""


@dataclass(frozen=True, slots=True)
class Factors:
    """One pair, cut to a chunk of W and widened to its working dtype.

    Attributes:
        b: [rows, rank].
        a: [rank, cols].
        scale: A float32 value.
    """

    b: torch.Tensor
    a: torch.Tensor
    scale: float


def combine(weight: torch.Tensor, factors: Sequence[Factors], rule: str, products: Products) -> bool:
    """Folds pairs into a chunk of a weight, in place.

    Args:
        weight: [rows, cols] in its stored dtype.
        factors: The pairs, in order.
        rule: One of ``overlay.planning.rules.RULES``.
        products: Computes D.

    Returns:
        False, with ``weight`` untouched, where a finite value would become NaN or infinite.
    """
    total = _openvdn(weight, factors, products) if rule == "openvdn" else _fp32_once(weight, factors, products)
    limit = torch.finfo(weight.dtype).max
    if _surely_finite(total, limit) or all_finite(total, limit):
        weight.copy_(total)
        return True
    rounded = total.to(weight.dtype)
    was_finite = torch.isfinite(weight)
    if bool((was_finite & ~torch.isfinite(rounded)).any()):
        return False
    weight.copy_(torch.where(was_finite, rounded, weight))
    return True


def all_finite(values: torch.Tensor, limit: float) -> bool:
    """Whether every magnitude is at most ``limit``; NaN is not. One pass over ``values`` (not empty)."""
    low, high = torch.aminmax(values)
    return bool(low >= -limit) and bool(high <= limit)


def _surely_finite(total: torch.Tensor, limit: float) -> bool:
    """The same by the quickest pass over memory that there is, where it can tell.

    No magnitude exceeds the root of the sum of the squares, and NaN and infinity stay in it; the margin is far more
    than its rounding.
    """
    if total.device.type != "cpu" or total.dtype != torch.float32:
        return False
    flat = total.view(-1)
    return float(torch.dot(flat, flat)) < (limit / 2) ** 2


def _fp32_once(weight: torch.Tensor, factors: Sequence[Factors], products: Products) -> torch.Tensor:
    total = weight.to(torch.float32, copy=True)
    for pair in factors:
        if pair.scale == 1.0:
            products.add_to(total, pair.b, pair.a)
        else:
            total.add_(products.of(pair.b, pair.a).mul_(pair.scale))
    return total


def _openvdn(weight: torch.Tensor, factors: Sequence[Factors], products: Products) -> torch.Tensor:
    total = weight.clone()
    for pair in factors:
        total.add_(products.of(pair.b, pair.a).mul_(pair.scale).to(weight.dtype))
    return total
