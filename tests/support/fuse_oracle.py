"""The numeric rule as a plain loop over exact rationals: slow, and small enough to be read against the rule's text.

Numbers are Python floats (fp64 holds every BF16, F16 and F32 value); arithmetic is done on fractions and rounded once,
by a rounding of its own. Nothing here uses torch, numpy or the processor's own floating-point arithmetic.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from fractions import Fraction

SIZES = {"BF16": 2, "F16": 2, "F32": 4}


@dataclass(frozen=True)
class Format:
    """A binary floating-point format: significand bits, smallest and largest exponent of a normal number."""

    precision: int
    lowest: int
    highest: int


FORMATS = {
    "BF16": Format(8, -126, 127),
    "F16": Format(11, -14, 15),
    "F32": Format(24, -126, 127),
    "F64": Format(53, -1022, 1023),
}


@dataclass(frozen=True)
class Pair:
    """One LoRA pair: bytes of A [rank, cols] and B [rows, rank] as stored, their dtype, and s."""

    a: bytes
    b: bytes
    dtype: str
    rank: int
    scale: float


def decode(data: bytes, dtype: str) -> list[float]:
    """Values of little-endian stored bytes."""
    if dtype == "BF16":
        return [struct.unpack("<f", b"\0\0" + data[i : i + 2])[0] for i in range(0, len(data), 2)]
    code, size = ("e", 2) if dtype == "F16" else ("f", 4)
    return [value for (value,) in struct.iter_unpack(f"<{code}", data[: len(data) // size * size])]


def encode(values: list[float], dtype: str) -> bytes:
    """Stored bytes of values that the dtype holds exactly."""
    if dtype == "BF16":
        return b"".join(struct.pack("<f", value)[2:] for value in values)
    return struct.pack(f"<{len(values)}{'e' if dtype == 'F16' else 'f'}", *values)


def round_to(exact: Fraction, dtype: str, sign_of_zero: float) -> float:
    """The nearest value of a format, ties to the even one; an exact zero takes the given sign."""
    if exact == 0:
        return math.copysign(0.0, sign_of_zero)
    form = FORMATS[dtype]
    magnitude = abs(exact)
    exponent = magnitude.numerator.bit_length() - magnitude.denominator.bit_length()
    if magnitude < Fraction(2) ** exponent:
        exponent -= 1
    quantum = Fraction(2) ** (max(exponent, form.lowest) - form.precision + 1)
    rounded = round(magnitude / quantum) * quantum  # Python rounds a Fraction's ties to even
    if rounded >= Fraction(2) ** (form.highest + 1):
        return math.copysign(math.inf, exact)
    return math.copysign(float(rounded), exact)


def fma(x: float, y: float, z: float, dtype: str) -> float:
    """x * y + z with one rounding."""
    exact = Fraction(x) * Fraction(y) + Fraction(z)
    product_sign = math.copysign(1.0, x) * math.copysign(1.0, y)
    both_negative = product_sign < 0 and math.copysign(1.0, z) < 0
    # A sum that is exactly zero is +0, but for -0 + -0.
    sign_of_zero = -1.0 if both_negative and Fraction(z) == 0 else 1.0
    return round_to(exact, dtype, sign_of_zero)


def add(x: float, y: float, dtype: str) -> float:
    """x + y with one rounding."""
    return fma(x, 1.0, y, dtype)


def multiply(x: float, y: float, dtype: str) -> float:
    """x * y with one rounding."""
    return round_to(Fraction(x) * Fraction(y), dtype, math.copysign(1.0, x) * math.copysign(1.0, y))


def fuse(weight: bytes, dtype: str, cols: int, pairs: list[Pair], rule: str) -> bytes:
    """W [rows, cols] with pairs folded in, as stored bytes.

    Raises:
        ValueError: A value of a pair is not finite.
        OverflowError: A finite value of W would not stay finite.
    """
    size = SIZES[dtype]
    decoded = [(decode(pair.a, pair.dtype), decode(pair.b, pair.dtype)) for pair in pairs]
    if not all(math.isfinite(value) for factors in decoded for factor in factors for value in factor):
        raise ValueError("a pair is not finite")
    out = []
    for index, start_value in enumerate(decode(weight, dtype)):
        stored = weight[index * size : (index + 1) * size]
        if not math.isfinite(start_value):
            out.append(stored)
            continue
        row, col = divmod(index, cols)
        value = start_value
        for pair, (a, b) in zip(pairs, decoded, strict=True):
            delta = _delta(a, b, row, col, cols, pair)
            value = add(value, _rounded(delta, dtype), dtype) if rule == "openvdn" else add(value, delta, "F32")
        out.append(encode([_rounded(value, dtype)], dtype))
    return b"".join(out)


def _delta(a: list[float], b: list[float], row: int, col: int, cols: int, pair: Pair) -> float:
    working = "F64" if pair.dtype == "F32" else "F32"
    total = 0.0
    for k in range(pair.rank):
        total = _finite(fma(b[row * pair.rank + k], a[k * cols + col], total, working))
    return _finite(multiply(_rounded(total, "F32"), pair.scale, "F32"))


def _rounded(value: float, dtype: str) -> float:
    return _finite(round_to(Fraction(_finite(value)), dtype, math.copysign(1.0, value)))


def _finite(value: float) -> float:
    if not math.isfinite(value):
        raise OverflowError("a finite value would not stay finite")
    return value
