from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support.fuse_files import Store, Weight, data_of, random_values, random_weight, seeded
from support.fuse_oracle import Pair, encode

from overlay.errors import BrokenInput, InvalidUsage
from overlay.fusion.engine import Engine
from overlay.planning.rules import RULES

if TYPE_CHECKING:
    import random

DTYPES = ["BF16", "F16", "F32"]
NEUTRAL_SCALES = [1.0, 0.125, 0.30000001192092896, -1.5]

weights = st.builds(
    lambda seed, shape, dtype, pairs, rank, scale, tiny: random_weight(
        seeded(seed), shape, dtype, pairs, rank, scale, tiny=tiny
    ),
    st.integers(0, 2**32),
    st.tuples(st.integers(1, 5), st.integers(1, 9)),
    st.sampled_from(DTYPES),
    st.lists(st.sampled_from(DTYPES), min_size=1, max_size=3),
    st.integers(1, 12),
    st.sampled_from(NEUTRAL_SCALES),
    st.booleans(),
)


def built(weight: Weight, engine: Engine, rule: str, **options: int) -> bytes:
    """A weight as a build makes it."""
    with tempfile.TemporaryDirectory() as folder:
        store = Store(Path(folder))
        out = Path(folder, "out")
        store.build([store.fused(weight)], out, engine, rule, **options)
        return data_of(out)


@pytest.mark.parametrize("rule", RULES)
@settings(max_examples=60, deadline=None)
@given(weight=weights)
def test_any_small_weight_equals_the_oracle(engine: Engine, ordered_engine: Engine, rule: str, weight: Weight) -> None:
    """Library and ordered kernel give the oracle's bytes for every dtype, scale, zero and subnormal."""
    expected = weight.expected(rule)
    assert built(weight, engine, rule) == expected
    assert built(weight, ordered_engine, rule) == expected


@pytest.mark.parametrize("pair_dtype", DTYPES)
@pytest.mark.parametrize("rank", [1, 2, 15, 16, 17, 64, 128, 255, 256, 257, 384, 385, 512])
def test_any_rank_equals_the_oracle(
    engine: Engine, ordered_engine: Engine, dice: random.Random, rank: int, pair_dtype: str
) -> None:
    """Ranks below, at and above every bound of the library table."""
    weight = random_weight(dice, (2, 3), "F32", [pair_dtype], rank)
    expected = weight.expected("fp32-once")
    assert built(weight, engine, "fp32-once") == expected
    assert built(weight, ordered_engine, "fp32-once") == expected


@pytest.mark.parametrize("shape", [(1, 1), (1, 40), (40, 1), (1, 2), (2, 1)])
def test_one_row_and_one_column_equal_the_oracle(engine: Engine, dice: random.Random, shape: tuple[int, int]) -> None:
    """Shapes for which libraries have code paths of their own."""
    weight = random_weight(dice, shape, "BF16", ["BF16", "F16"], 64)
    assert built(weight, engine, "fp32-once") == weight.expected("fp32-once")


@settings(max_examples=40, deadline=None)
@given(weight=weights, chunk=st.integers(1, 50), unit=st.sampled_from([4, 12, 64]), jobs=st.integers(1, 3))
@example(weight=random_weight(seeded(1), (5, 9), "BF16", ["BF16"], 12), chunk=4, unit=4, jobs=2)
def test_any_cutting_gives_the_same_bytes(weight: Weight, chunk: int, unit: int, jobs: int) -> None:
    """Chunks, units that start in the middle of a row, and the number of threads do not matter."""
    engine = Engine(torch.device("cpu"), None, chunk_elements=chunk)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("overlay.fingerprint.parts.BLOCK", unit)
        assert built(weight, engine, "fp32-once", jobs=jobs) == weight.expected("fp32-once")


def test_h11_every_tensor_keeps_its_dtype(engine: Engine, tmp_path: Path, dice: random.Random) -> None:
    """A BF16 base with an FP32 tensor stays mixed, and sums that BF16 arithmetic would lose are kept."""
    store = Store(tmp_path)
    one, step = encode([1.0], "BF16"), encode([2.0**-9], "BF16")
    halves = Weight("bf16", "BF16", 1, 1, one, [Pair(one, step, "BF16", 1, 1.0)] * 2)
    tensors = [random_weight(dice, (3, 4), dtype, ["BF16"], 4, name=dtype) for dtype in DTYPES]
    built_file = store.build([store.fused(weight) for weight in [halves, *tensors]], tmp_path / "out", engine)
    assert {tensor.name: tensor.dtype for tensor in built_file.tensors} == {
        "bf16": "BF16",
        "BF16": "BF16",
        "F16": "F16",
        "F32": "F32",
    }
    in_order = sorted([halves, *tensors], key=lambda w: (["F32", "BF16", "F16"].index(w.dtype), w.name))
    assert data_of(tmp_path / "out") == b"".join(weight.expected("fp32-once") for weight in in_order)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_values_that_were_not_finite_stay_to_the_bit(
    engine: Engine, ordered_engine: Engine, dice: random.Random, rule: str, dtype: str
) -> None:
    """NaNs keep their payload and sign, infinities their sign, whatever is folded in."""
    odd = {
        "BF16": ["7fc0", "ffc1", "7f81", "ff80", "7f80"],
        "F16": ["7e00", "fe01", "7c01", "fc00", "7c00"],
        "F32": ["7fc00001", "ffc00000", "7f800001", "ff800000", "7f800000"],
    }[dtype]
    data = b"".join(bytes.fromhex(word)[::-1] for word in odd)
    weight = random_weight(dice, (4, 10), dtype, ["BF16"], 4)
    weight.data = data + weight.data[len(data) :]
    for each in (engine, ordered_engine):
        made = built(weight, each, rule)
        assert made == weight.expected(rule)
        assert made.startswith(data)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize(("dtype", "big"), [("F16", 60000.0), ("BF16", 2.0**127), ("F32", 2.0**127)])
def test_a_result_that_is_not_finite_is_an_error(
    engine: Engine, tmp_path: Path, rule: str, dtype: str, big: float
) -> None:
    """The error names the tensor and the adapter, and no file is left."""
    weight = Weight("w", dtype, 1, 2, encode([big, 0.0], dtype), [])
    one = encode([1.0, 1.0], "F32")
    weight.pairs = [Pair(one, encode([big], "F32"), "F32", 1, 1.0)] * 2
    store = Store(tmp_path)
    with pytest.raises(BrokenInput, match=r"^w: finite values of org/in@000000000000/w\.w would become NaN") as caught:
        store.build([store.fused(weight)], tmp_path / "out", engine, rule)
    assert caught.value.code == "result-not-finite"
    assert caught.value.data["adapters"] == ["adapter0", "adapter1"]
    assert not (tmp_path / "out").exists()


def test_a_sum_beyond_the_dtype_that_still_rounds_into_it_is_kept(engine: Engine) -> None:
    """65519 is above the largest fp16 number and rounds to it; 65520 does not."""
    one = encode([1.0], "BF16")
    weight = Weight("w", "F16", 1, 1, encode([65504.0], "F16"), [Pair(one, encode([15.0], "BF16"), "BF16", 1, 1.0)])
    assert built(weight, engine, "fp32-once") == encode([65504.0], "F16")
    weight.pairs = [Pair(one, encode([16.0], "BF16"), "BF16", 1, 1.0)]
    with pytest.raises(BrokenInput, match="would become"):
        built(weight, engine, "fp32-once")


@pytest.mark.parametrize("half", ["a", "b"])
@pytest.mark.parametrize(("dtype", "word"), [("BF16", "c07f"), ("F16", "007c"), ("F32", "000080ff")])
def test_h12_nan_or_infinity_in_an_adapter_is_an_error(
    engine: Engine, tmp_path: Path, dice: random.Random, half: str, dtype: str, word: str
) -> None:
    """The error names file, adapter, tensor and count; nothing is written."""
    weight = random_weight(dice, (6, 5), "BF16", ["BF16", dtype], 3)
    good = weight.pairs[1]
    broken = bytes.fromhex(word) * 2 + getattr(good, half)[len(word) :]
    weight.pairs[1] = Pair(**{**good.__dict__, half: broken})
    store = Store(tmp_path)
    with pytest.raises(BrokenInput) as caught:
        store.build([store.fused(weight)], tmp_path / "out", engine)
    error = caught.value
    assert error.code == "adapter-not-finite"
    assert f"org/in@000000000000/w.1: w.lora_{half.upper()}.weight of adapter adapter1: 2 of" in str(error)
    assert error.data["count"] == 2
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("rows", [1024, 1601])
def test_at_real_width_the_rule_is_the_published_script(engine: Engine, tmp_path: Path, rows: int) -> None:
    """At scale 1 the bytes equal W.float() += B.float() @ A.float(), one cast, where the library keeps the rule."""
    if engine.library is None:
        pytest.skip("without MKL in strict mode the script's own bytes are not defined")
    generator = torch.Generator().manual_seed(3)

    def stored(*shape: int, std: float) -> torch.Tensor:
        return (torch.randn(shape, generator=generator) * std).to(torch.bfloat16)

    def data(tensor: torch.Tensor) -> bytes:
        return tensor.view(torch.uint8).numpy().tobytes()

    base = stored(rows, 5376, std=0.02)
    pairs = [(stored(64, 5376, std=0.02), stored(rows, 64, std=0.01)) for _ in range(2)]
    weight = Weight("w", "BF16", rows, 5376, data(base), [Pair(data(a), data(b), "BF16", 64, 1.0) for a, b in pairs])
    plain = base.float()
    for a, b in pairs:
        plain += b.float() @ a.float()
    assert built(weight, engine, "fp32-once", jobs=2) == data(plain.to(torch.bfloat16))


def test_an_unknown_rule_is_refused(engine: Engine, dice: random.Random) -> None:
    """The message lists the rules; an unknown name never means the default."""
    with pytest.raises(InvalidUsage, match="fp32-once, openvdn"):
        built(random_weight(dice, (1, 1), "BF16", ["BF16"], 1), engine, "peft")


def test_random_test_values_have_what_the_rule_is_about(dice: random.Random) -> None:
    """Zeros of both signs and subnormals really occur in the data of these tests."""
    words = random_values(dice, 4000, "BF16", tiny=True)
    found = {words[i : i + 2] for i in range(0, len(words), 2)}
    assert {b"\0\0", b"\0\x80"} <= found
    assert any(word[1] & 0x7F == 0 and word[0] & 0x80 == 0 and word[0] & 0x7F for word in found)
