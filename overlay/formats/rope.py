"""The rotary frequencies that a materialization stores beside the transformer."""

from __future__ import annotations

import struct
from decimal import Decimal, localcontext

__all__ = ["rope_inv_freq"]

_DIGITS = 60


def rope_inv_freq(rope_freq_dim: int, theta: float = 10000.0) -> bytes:
    """Return ``1 / theta**(2i / (2 * rope_freq_dim))`` for i = 0 … rope_freq_dim - 1 as little-endian float32.

    The power is rounded once to float32, then its reciprocal once more: the order in which torch evaluates
    ``1.0 / (theta ** x)``. The power comes from decimal arithmetic, because the last bit of a math library's ``pow``
    differs between hosts and these bytes must not.

    Args:
        rope_freq_dim: Number of frequencies on each axis.
        theta: Base of the frequencies.
    """
    with localcontext() as context:
        context.prec = _DIGITS
        powers = [Decimal(theta) ** (Decimal(i) / Decimal(rope_freq_dim)) for i in range(rope_freq_dim)]
    return struct.pack(f"<{rope_freq_dim}f", *(1.0 / _float32(float(power)) for power in powers))


def _float32(value: float) -> float:
    (rounded,) = struct.unpack("<f", struct.pack("<f", value))
    return float(rounded)
