"""How far two tensors are apart, against numpy on whole arrays."""

from __future__ import annotations

import math
import time
import tracemalloc
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch  # noqa: F401 - not while memory is traced

from overlay.errors import BrokenInput
from overlay.materialization import differences
from overlay.materialization.differences import ValueDifferences, value_differences

if TYPE_CHECKING:
    from pathlib import Path

FLOATS = {"F64": np.float64, "F32": np.float32, "F16": np.float16, "BF16": np.uint16}
INTEGERS = {"I64": np.int64, "I32": np.int32, "I16": np.int16, "I8": np.int8, "U8": np.uint8, "BOOL": np.uint8}
OTHERS = {"F8_E4M3": 1, "F8_E5M2": 1, "F8_E8M0": 1, "U16": 2, "U32": 4, "U64": 8, "C64": 8}


def compared(folder: Path, a: bytes, b: bytes, dtype: str, at: tuple[int, int] = (3, 11)) -> ValueDifferences | None:
    """The two, at different offsets of two files."""
    (folder / "a").write_bytes(b"\xee" * at[0] + a + b"\x01\x02")
    (folder / "b").write_bytes(b"\x77" * at[1] + b)
    return value_differences(folder / "a", at[0], folder / "b", at[1], len(a), dtype)


def values(data: bytes, dtype: str) -> np.ndarray:
    """As float64."""
    array = np.frombuffer(data, FLOATS.get(dtype) or INTEGERS[dtype])
    if dtype == "BF16":
        array = (array.astype(np.uint32) << 16).view(np.float32)
    return array.astype(np.float64)


def steps(data: bytes, dtype: str) -> list[int]:
    """Each float's place among all floats of its format, by its sign and magnitude; both zeros are 0."""
    width = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2}[dtype]
    places = []
    for word in np.frombuffer(data, f"<u{width}").tolist():
        magnitude = word & (1 << (8 * width - 1)) - 1
        places.append(-magnitude if word >> (8 * width - 1) else magnitude)
    return places


def expected(a: bytes, b: bytes, dtype: str) -> ValueDifferences | None:
    width = {**{name: np.dtype(kind).itemsize for name, kind in {**FLOATS, **INTEGERS}.items()}, **OTHERS}[dtype]
    differing = [i for i in range(len(a) // width) if a[i * width : (i + 1) * width] != b[i * width : (i + 1) * width]]
    if not differing:
        return None
    if dtype in OTHERS:
        return ValueDifferences(len(differing), len(a) // width, None, None)
    x, y = values(a, dtype), values(b, dtype)
    finite = [i for i in differing if math.isfinite(x[i]) and math.isfinite(y[i])]
    max_abs = max((abs(float(x[i]) - float(y[i])) for i in finite), default=None)
    if dtype in INTEGERS:
        return ValueDifferences(len(differing), len(a) // width, max_abs, None)
    p, q = steps(a, dtype), steps(b, dtype)
    same_sign = [i for i in finite if math.copysign(1, x[i]) == math.copysign(1, y[i])]
    return ValueDifferences(len(differing), len(x), max_abs, max((abs(p[i] - q[i]) for i in same_sign), default=None))


@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS, *OTHERS])
@pytest.mark.parametrize("share", [0.0, 0.1, 1.0])
def test_differences_of_random_bits_equal_numpys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dtype: str, share: float
) -> None:
    """Bits of every kind, NaN and infinity among them, in several chunks."""
    monkeypatch.setattr(differences, "_CHUNK", 64)
    dice = np.random.default_rng(7)
    a = dice.bytes(8 * 99)
    b = bytes(x if dice.random() >= share else y for x, y in zip(a, dice.bytes(len(a)), strict=True))
    if dtype == "BOOL":
        a, b = (bytes(byte & 1 for byte in data) for data in (a, b))
    with np.errstate(invalid="ignore"):
        assert compared(tmp_path, a, b, dtype) == expected(a, b, dtype)


@pytest.mark.parametrize(
    ("a", "b", "max_abs", "max_ulp"),
    [
        (1.0, 1.0 + 2**-23, 2**-23, 1),
        (1.0, 1.0 - 2**-24, 2**-24, 1),
        (-1.0, -1.0 - 2**-23, 2**-23, 1),
        (-0.0, -(2**-149), 2**-149, 1),
        (3.4028234663852886e38, 0.0, 3.4028234663852886e38, 0x7F7FFFFF),
        (0.0, -0.0, 0.0, None),
        (-(2**-149), 2**-149, 2**-148, None),
        (2.0, -2.0, 4.0, None),
    ],
)
def test_units_of_the_last_place_of_known_pairs(
    tmp_path: Path, a: float, b: float, max_abs: float, max_ulp: int | None
) -> None:
    """Neighbours are one step apart; across zero there are too many steps to say anything."""
    both = (np.array([x, 7.0], np.float32).tobytes() for x in (a, b))
    assert compared(tmp_path, *both, "F32") == ValueDifferences(1, 2, max_abs, max_ulp)


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_the_largest_distance_of_float64(tmp_path: Path, sign: float) -> None:
    """It fits the integers that it is computed in."""
    top, zero = sign * np.finfo(np.float64).max, sign * 0.0
    found = compared(tmp_path, np.array([top]).tobytes(), np.array([zero]).tobytes(), "F64")
    assert found is not None
    assert found.max_ulp == 0x7FEFFFFFFFFFFFFF


@pytest.mark.parametrize(("a", "b"), [(math.nan, 1.0), (math.inf, 1.0), (math.inf, -math.inf)])
def test_what_is_not_finite_is_counted_and_not_measured(tmp_path: Path, a: float, b: float) -> None:
    """A NaN against a number differs; there is no distance to tell."""
    both = (np.array([x, 5.0, 5.0], np.float32).tobytes() for x in (a, b))
    found = compared(tmp_path, *both, "F32")
    assert found == ValueDifferences(1, 3, None, None)


def test_equal_nans_do_not_differ(tmp_path: Path) -> None:
    """Bits are compared, not values; two NaNs of other bits differ."""
    one, other = np.array([0x7FC00000], np.uint32).tobytes(), np.array([0x7FC00001], np.uint32).tobytes()
    assert compared(tmp_path, one, one, "F32") is None
    found = compared(tmp_path, one, other, "F32")
    assert found is not None
    assert found.num_differing == 1


@pytest.mark.parametrize("dtype", ["F4", "F6_E2M3"])
def test_packed_elements_are_counted_in_bytes(tmp_path: Path, dtype: str) -> None:
    """No byte boundary between elements, so bytes are what differs."""
    assert compared(tmp_path, b"\x01\x02\x03", b"\x01\xf2\x03", dtype) == ValueDifferences(1, 3, None, None)


def test_an_empty_tensor_has_no_differences(tmp_path: Path) -> None:
    """Zero bytes are equal to zero bytes."""
    assert compared(tmp_path, b"", b"", "F32") is None


def test_a_file_that_shrinks_is_an_error(tmp_path: Path) -> None:
    """Never taken for a difference, nor for equality."""
    (tmp_path / "a").write_bytes(b"12345678")
    (tmp_path / "b").write_bytes(b"1234")
    with pytest.raises(BrokenInput, match="shrank"):
        value_differences(tmp_path / "a", 0, tmp_path / "b", 0, 8, "F32")


def test_many_differences_take_no_time_to_speak_of(tmp_path: Path) -> None:
    """Two million differing values in a few seconds at most, without a Python object for each."""
    a = np.zeros(2**21, np.uint16).tobytes()
    b = np.full(2**21, 0x3F80, np.uint16).tobytes()
    tracemalloc.start()
    started = time.process_time()
    found = compared(tmp_path, a, b, "BF16")
    seconds, (_, peak) = time.process_time() - started, tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert found == ValueDifferences(2**21, 2**21, 1.0, 0x3F80)
    assert peak < 2**26
    assert seconds < 20
