"""Made-up weights: the same everywhere, and like weights."""

from __future__ import annotations

import hashlib
import math
import struct

import pytest

from overlay.demo.weights import Weights

pytestmark = pytest.mark.no_torch


def made(name: str, dtype: str = "BF16", *, count: int = 4096, scope: str = "scope", seed: int = 0) -> bytes:
    nbytes = count * {"BF16": 2, "F32": 4}[dtype]
    return b"".join(Weights("tiny", seed).chunks(scope, name, dtype, nbytes))


def numbers(data: bytes, dtype: str = "BF16") -> list[float]:
    if dtype == "BF16":
        data = b"".join(b"\0\0" + data[start : start + 2] for start in range(0, len(data), 2))
    return [value for (value,) in struct.iter_unpack("<f", data)]


@pytest.mark.parametrize(
    ("name", "dtype", "digest"),
    [
        ("blocks.0.attn.to_q.weight", "BF16", "1c01111cc7fa77fbe6ea26e4665dd6749d66ed5ebda3fcdebf736abfc41cb5c1"),
        ("blocks.0.attn.to_q.weight", "F32", "18015c6f3b8bf3298b6f5cc5b02ca7dcc46635b0c085444249afd70b5a09ca4e"),
        ("blocks.0.norm1.weight", "BF16", "94858939b6f551bab1576aef123fb87af59581b12e4e6547497d043e251ffdcb"),
        ("blocks.0.alpha.A_log", "BF16", "7cdb6d044d8aef4c20d888b3b829c10ccc415550c77f740d8bf6792dbfe416b9"),
    ],
)
def test_bytes_are_the_same_on_every_machine(name: str, dtype: str, digest: str) -> None:
    """Preset, seed, scope and name decide the bytes, to a known digest, over more than one chunk."""
    assert hashlib.sha256(made(name, dtype, count=1_000_003)).hexdigest() == digest


def test_seed_scope_and_name_each_change_the_bytes() -> None:
    """No two of these tensors are equal."""
    variants = [
        made("a.weight"),
        made("b.weight"),
        made("a.weight", scope="other"),
        made("a.weight", seed=1),
        made("a.weight", "F32")[: 2 * 4096],
    ]
    assert len(set(variants)) == len(variants)


def test_bytes_do_not_depend_on_what_was_asked_before() -> None:
    """A generator that made other tensors first gives the same bytes."""
    used = Weights("tiny", 0)
    for name, dtype in (("b.weight", "BF16"), ("norm.weight", "F32"), ("a.weight", "F32")):
        list(used.chunks("scope", name, dtype, 4096))
    assert b"".join(used.chunks("scope", "a.weight", "BF16", 8192)) == made("a.weight")


def test_chunks_are_small_and_differ() -> None:
    """A large tensor comes in chunks of at most 1 MiB, no two of them equal."""
    chunks = [bytes(chunk) for chunk in Weights("tiny", 0).chunks("scope", "a.weight", "BF16", 5 * 2**20 + 10)]
    assert [len(chunk) for chunk in chunks] == [2**20] * 5 + [10]
    assert len(set(chunks)) == len(chunks)


@pytest.mark.parametrize("dtype", ["BF16", "F32"])
@pytest.mark.parametrize(
    ("name", "mean", "deviation", "low", "high"),
    [
        ("blocks.0.attn.to_q.weight", 0.0, 0.02, -0.125, 0.125),
        ("blocks.0.lora_A.default.weight", 0.0, 0.02, -0.125, 0.125),
        ("norm_out.linear.weight", 0.0, 0.02, -0.125, 0.125),
        ("blocks.0.norm1.bias", 0.0, 0.02, -0.125, 0.125),
        ("blocks.0.norm1.weight", 1.0, 0.5 / math.sqrt(12), 0.75, 1.25),
        ("blocks.0.attn.norm_q.weight", 1.0, 0.5 / math.sqrt(12), 0.75, 1.25),
        ("encoder.block.0.weight_g", 1.0, 0.5 / math.sqrt(12), 0.75, 1.25),
        ("blocks.0.alpha.A_log", -1.625, 4.75 / math.sqrt(12), -4.0, 0.75),
    ],
)
def test_values_are_plausible(name: str, dtype: str, mean: float, deviation: float, low: float, high: float) -> None:
    """Finite, with the mean, the deviation and the range that such a tensor has."""
    values = numbers(made(name, dtype, count=50_000), dtype)
    found = sum(values) / len(values)
    assert all(low <= value <= high for value in values)
    assert found == pytest.approx(mean, abs=0.05 * deviation)
    assert math.sqrt(sum((value - found) ** 2 for value in values) / len(values)) == pytest.approx(deviation, rel=0.05)


@pytest.mark.parametrize(("dtype", "smallest_normal"), [("BF16", 2**-126), ("F32", 2**-126)])
def test_weights_hold_both_zeros_and_subnormals(dtype: str, smallest_normal: float) -> None:
    """The values at which arithmetic goes wrong first are in every weight of some size."""
    values = numbers(made("a.weight", dtype, count=64), dtype)
    signs = {math.copysign(1, value) for value in values if value == 0}
    subnormal = {math.copysign(1, value) for value in values if 0 < abs(value) < smallest_normal}
    assert signs == subnormal == {1.0, -1.0}


def test_frozen_zeros_are_zero() -> None:
    """The audio VAE's key bias is a buffer of zeros."""
    assert made("pre_block.attn.zero_k_bias", "F32") == bytes(4 * 4096)
