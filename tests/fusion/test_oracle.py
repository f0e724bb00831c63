from __future__ import annotations

import math
import struct
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.fuse_oracle import FORMATS, add, decode, encode, fma, fuse, multiply, round_to
from support.fuse_oracle import Pair as OraclePair


@given(st.floats(allow_nan=False, allow_infinity=False), st.sampled_from([("F32", "<f"), ("F16", "<e")]))
def test_the_oracle_rounds_as_the_struct_module_does(value: float, target: tuple[str, str]) -> None:
    """Rounding fp64 to fp32 and fp16 agrees with CPython's own, overflow included."""
    dtype, code = target
    try:
        expected = struct.unpack(code, struct.pack(code, value))[0]
    except OverflowError:
        expected = math.copysign(math.inf, value)
    found = round_to(Fraction(value), dtype, math.copysign(1.0, value))
    assert (found, math.copysign(1.0, found)) == (expected, math.copysign(1.0, expected))


@pytest.mark.parametrize(
    ("exact", "expected"),
    [
        (Fraction(257, 256), 1.0),  # half-way between 1 and 1 + 2^-7: to the even 1
        (Fraction(259, 256), 1.015625),  # half-way between 1 + 2^-7 and 1 + 2^-6: to the even 1 + 2^-6
        (Fraction(257, 256) + Fraction(1, 2**40), 1.0078125),
        (Fraction(1, 2**134), 0.0),  # half of the smallest subnormal
        (Fraction(3, 2**134), 2.0**-132),
        (Fraction(2) ** 127 * Fraction(511, 256), math.inf),
        (Fraction(2) ** 127 * Fraction(511, 256) - 1, 2.0**127 * 255 / 128),
    ],
)
def test_the_oracle_rounds_to_bf16_by_hand(exact: Fraction, expected: float) -> None:
    """Ties, subnormals and the edge of overflow, worked out by hand."""
    assert round_to(exact, "BF16", 1.0) == expected
    assert round_to(-exact, "BF16", 1.0) == -expected


@pytest.mark.parametrize("dtype", ["BF16", "F16"])
def test_every_stored_word_survives_decoding_and_encoding(dtype: str) -> None:
    """All 65536 words of the 16-bit dtypes come back, but for the payload of NaNs."""
    words = b"".join(word.to_bytes(2, "little") for word in range(2**16))
    finite = [value for value in decode(words, dtype) if math.isfinite(value)]
    kept = b"".join(words[2 * i : 2 * i + 2] for i, value in enumerate(decode(words, dtype)) if math.isfinite(value))
    assert encode(finite, dtype) == kept
    assert all(
        math.copysign(1.0, value) == math.copysign(1.0, round_to(Fraction(value), dtype, value)) for value in finite
    )


def test_a_fused_multiply_add_rounds_once() -> None:
    """(1 + e)(1 - e) - 1 is -e^2, which two roundings would lose."""
    e = 2.0**-20
    assert fma(1 + e, 1 - e, -1.0, "F32") == -(e * e)
    assert add(multiply(1 + e, 1 - e, "F32"), -1.0, "F32") == 0.0


@pytest.mark.parametrize(
    ("x", "y", "z", "sign"),
    [(0.0, -1.0, 0.0, 1.0), (0.0, -1.0, -0.0, -1.0), (1.0, -1.0, 1.0, 1.0), (2.0**-100, -(2.0**-100), 0.0, -1.0)],
)
def test_zeros_of_the_oracle_have_the_sign_that_ieee_gives_them(x: float, y: float, z: float, sign: float) -> None:
    """+0 + -0 is +0, -0 + -0 is -0, an exact cancellation is +0, an underflow keeps its sign."""
    result = fma(x, y, z, "F32")
    assert result == 0.0
    assert math.copysign(1.0, result) == sign


def test_the_two_rules_differ_where_they_must() -> None:
    """A worked example: the sum of two deltas is seen by one rounding and lost by two."""
    one = encode([1.0], "BF16")
    small = encode([2.0**-9], "BF16")  # a quarter of the step from 1 to its neighbour
    pairs = [OraclePair(one, small, "BF16", 1, 1.0)] * 3
    assert decode(fuse(one, "BF16", 1, pairs, "fp32-once"), "BF16") == [1.0078125]
    assert decode(fuse(one, "BF16", 1, pairs, "openvdn"), "BF16") == [1.0]
    assert FORMATS["BF16"].precision == 8
