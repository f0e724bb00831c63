"""Adapters that are refused: each error names the file, what was found and what was expected, and what to do."""

from __future__ import annotations

import contextlib
import json
import re
import time
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.lora import (
    IN,
    OUT,
    RANK,
    block_base,
    infos,
    kohya,
    openvdn_spec,
    pair,
    pairs,
    peft_config,
    read,
    write_adapter,
    zeros,
)
from support.tensors import f32, lfs_pointer

from overlay.errors import BrokenInput, NotHere

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from support.tensors import Tensor

    from overlay.formats.header import TensorInfo

pytestmark = pytest.mark.no_torch

Q0, Q1, K0 = "blocks.0.attn.to_q", "blocks.1.attn.to_q", "blocks.0.attn.to_k"
FILE = "adapter_model.safetensors"
A, B = f"{Q0}.lora_A.weight", f"{Q0}.lora_B.weight"


def refusal(folder: Path, base: dict[str, TensorInfo] | None = None, path: str = "", **options: Any) -> BrokenInput:
    with pytest.raises(BrokenInput) as error:
        read(folder, base, path, **options)
    assert error.value.hint
    assert str(folder) in error.value.message
    return error.value


TENSORS = {
    # name: (tensors, code, what the message must say)
    "h05-no-b": ({A: zeros(RANK, IN)}, "adapter-half-pair", f"{Q0}: lora_B"),
    "h05-no-a": ({B: zeros(OUT, RANK)}, "adapter-half-pair", f"{Q0}: lora_A"),
    "h05-kohya": ({f"{Q0}.lora_down.weight": zeros(RANK, IN)}, "adapter-half-pair", "lora_up"),
    "h05-alpha-alone": ({**pair(Q1), f"{Q0}.alpha": f32((), [1])}, "adapter-half-pair", Q0),
    "h05-spelled-apart": (
        {A: zeros(RANK, IN), f"{Q0}.lora_up.weight": zeros(OUT, RANK)},
        "adapter-half-pair",
        "spelled in different ways",
    ),
    "h06-nothing-fits": (
        pairs([f"model.{Q0}", f"model.{Q1}"]),
        "adapter-unmatched",
        f"2 of 2 .*model.{Q0} .near: {Q0}.*the base has blocks.0.attn.to_k",
    ),
    "h06-one-does-not-fit": (pairs([Q0, "blocks.7.attn.to_q"]), "adapter-unmatched", "1 of 2 .*blocks.7.attn.to_q"),
    "h06-no-tensors": ({}, "adapter-empty", "no tensors"),
    "h08-dora": (
        {**pair(Q0), f"{Q0}.lora_magnitude_vector": zeros(OUT)},
        "adapter-feature",
        "lora_magnitude_vector is a DoRA",
    ),
    "h08-dora-weight": (
        {**pair(Q0), f"{Q0}.lora_magnitude_vector.default.weight": zeros(OUT)},
        "adapter-feature",
        "DoRA",
    ),
    "h08-dora-kohya": ({**kohya(Q0), f"{Q0}.dora_scale": zeros(OUT)}, "adapter-feature", "dora_scale is a DoRA"),
    "h09-whole-weight": (
        {**pair(Q0), "proj_out.weight": zeros(3, IN)},
        "adapter-feature",
        "proj_out.weight .*modules_to_save",
    ),
    "h09-whole-weight-peft": (
        {**pair(Q0), "base_model.model.proj_out.weight": zeros(3, IN)},
        "adapter-feature",
        "proj_out.weight .*modules_to_save",
    ),
    "h09-whole-bias": ({**pair(Q0), "elsewhere.bias": zeros(3)}, "adapter-feature", "elsewhere.bias .*whole weight"),
    "embedding": (
        {"emb.lora_embedding_A": zeros(RANK, 8), "emb.lora_embedding_B": zeros(IN, RANK)},
        "adapter-feature",
        "lora_embedding_A is a LoRA pair of an embedding",
    ),
    "lokr": ({f"{Q0}.lokr_w1": zeros(2, 2), f"{Q0}.alpha": f32((), [1])}, "adapter-feature", "LoKr"),
    "loha": ({f"{Q0}.hada_w1_a": zeros(2, 2)}, "adapter-feature", "LoHa"),
    "oft": ({f"{Q0}.oft_blocks": zeros(2, 2)}, "adapter-feature", "OFT"),
    "lora-bias": ({**pair(Q0), f"{Q0}.lora_B.bias": zeros(OUT)}, "adapter-feature", "LoRA bias"),
    "lora-bias-named": ({**pair(Q0), f"{Q0}.lora_B.default.bias": zeros(OUT)}, "adapter-feature", "LoRA bias"),
    "full-difference": ({**pair(Q0), "proj_out.diff_b": zeros(3)}, "adapter-feature", "full weight difference"),
    "unknown-key": ({**pair(Q0), "global_step": zeros(1)}, "adapter-key-unknown", "global_step"),
    "conv-pair": (
        {"conv.lora_A.weight": zeros(RANK, IN, 1, 1), "conv.lora_B.weight": zeros(OUT, RANK, 1, 1)},
        "adapter-target-shape",
        r"conv.weight of the base has shape \[6, 4, 1, 1\]",
    ),
    "conv-pair-on-linear": (
        {A: zeros(RANK, IN, 1, 1), B: zeros(OUT, RANK, 1, 1)},
        "adapter-shape",
        "convolution",
    ),
    "norm": (
        {"blocks.0.norm.lora_A.weight": zeros(RANK, IN), "blocks.0.norm.lora_B.weight": zeros(IN, RANK)},
        "adapter-target-shape",
        "blocks.0.norm.weight",
    ),
    "a-wrong-width": (pair(Q0, cols=IN + 1), "adapter-shape", r"\[2, 5\].*\[6, 4\].*expected \[rank, 4\]"),
    "b-wrong-height": (pair(Q0, out=OUT + 1), "adapter-shape", r"\[7, 2\].*expected .*\[6, rank\]"),
    "transposed": ({A: zeros(IN, RANK), B: zeros(RANK, OUT)}, "adapter-shape", r"\[4, 2\]"),
    "ranks-differ": ({A: zeros(2, IN), B: zeros(OUT, 3)}, "adapter-shape", "one rank"),
    "rank-0": (pair(Q0, rank=0), "adapter-shape", "above 0"),
    "flat": ({A: zeros(RANK * IN), B: zeros(OUT, RANK)}, "adapter-shape", r"\[8\]"),
    "mixed-dtypes": ({**pair(Q0), **pair(Q1, dtype="F32")}, "adapter-dtype", "mixed dtypes: .*BF16.*F32"),
    "mixed-in-a-pair": ({A: zeros(RANK, IN, dtype="F32"), B: zeros(OUT, RANK)}, "adapter-dtype", "mixed"),
    "fp64": (pair(Q0, dtype="F64"), "adapter-dtype", f"{Q0}.lora_B.weight is F64"),
    "fp8": (pair(Q0, dtype="F8_E4M3"), "adapter-dtype", "is F8_E4M3"),
    "two-adapters": (
        {**pair(Q0, "{module}.lora_{half}.a.weight"), **pair(Q1, "{module}.lora_{half}.b.weight")},
        "adapter-several",
        "'a', 'b'",
    ),
    "twice-by-prefix": ({**pair(Q0), **pair(f"transformer.{Q0}")}, "adapter-duplicate-pair", f"both for {Q0}"),
    "twice-by-wrapper": ({**pair(Q0), **pair("blocks.0.attn.orig.to_q")}, "adapter-duplicate-pair", f"both for {Q0}"),
    "twice-by-layout": ({**pair(Q0), **kohya(Q0)}, "adapter-duplicate-pair", Q0),
    "kohya-unknown": (kohya("lora_unet_down_blocks_0", f32((), [1])), "adapter-unmatched", "lora_unet_down_blocks_0"),
    "alpha-for-some": (
        {**kohya(Q0, f32((), [1])), **kohya(Q1)},
        "adapter-alpha",
        f"1 modules have .* 1 have none .{Q1}",
    ),
    "alpha-no-scalar": (kohya(Q0, f32((2,), [1, 1])), "adapter-alpha", r"F32 \[2\]; expected one number"),
    "alpha-no-number": (kohya(Q0, zeros(1, dtype="U8")), "adapter-alpha", "is U8"),
    "alpha-zero": (kohya(Q0, f32((), [0])), "adapter-alpha", "is 0.0"),
    "alpha-negative": (kohya(Q0, f32((), [-1])), "adapter-alpha", "is -1.0"),
    "alpha-nan": (kohya(Q0, f32((), [float("nan")])), "adapter-alpha", "is nan"),
    "alpha-inf": (kohya(Q0, f32((), [float("inf")])), "adapter-alpha", "is inf"),
}


@pytest.mark.parametrize(("tensors", "code", "says"), TENSORS.values(), ids=TENSORS)
def test_tensors_that_cannot_land_are_refused(tmp_path: Path, tensors: dict[str, Tensor], code: str, says: str) -> None:
    """Every tensor of the file must find its place, with the right shape and dtype."""
    write_adapter(tmp_path, tensors)

    error = refusal(tmp_path, path=FILE)

    assert error.code == code
    assert re.search(says, error.message)


METADATA = {
    "alpha-text": ({"alpha": "full"}, "adapter-alpha", "alpha is full"),
    "alpha-zero": ({"alpha": "0"}, "adapter-alpha", "alpha is 0"),
    "alpha-nan": ({"alpha": "nan"}, "adapter-alpha", "alpha is nan"),
    "alpha-twice": ({"alpha": "1", "ss_network_alpha": "2"}, "adapter-alpha", "alpha and ss_network_alpha is 1, 2"),
    "rank-differs": ({"rank": "4"}, "adapter-rank", "rank is 4, the pairs have rank 2"),
    "not-json": ({"lora_adapter_metadata": "{"}, "bad-json", "lora_adapter_metadata"),
    "two-components": (
        {"lora_adapter_metadata": '{"transformer.r": 2, "text_encoder.r": 2}'},
        "adapter-spec-unknown",
        "text_encoder, transformer; expected the config of one",
    ),
    "no-config": ({"lora_adapter_metadata": "{}"}, "adapter-spec-unknown", "nothing"),
    "dora": (
        {"lora_adapter_metadata": json.dumps(peft_config([Q0], use_dora=True))},
        "adapter-feature",
        "use_dora",
    ),
}


@pytest.mark.parametrize(("metadata", "code", "says"), METADATA.values(), ids=METADATA)
def test_metadata_that_cannot_be_used_is_refused(
    tmp_path: Path, metadata: dict[str, str], code: str, says: str
) -> None:
    """What the file says about its scale is applied or refused, never skipped."""
    write_adapter(tmp_path, pair(Q0), metadata=metadata)

    error = refusal(tmp_path, path=FILE)

    assert error.code == code
    assert re.search(says, error.message)


def test_one_alpha_for_several_ranks_is_refused(tmp_path: Path) -> None:
    """alpha/rank and one common scale would be two readings of it."""
    write_adapter(tmp_path, {**pair(Q0, rank=2), **pair(Q1, rank=3)}, metadata={"alpha": "2"})

    assert "for pairs of rank 2, 3" in refusal(tmp_path, path=FILE).message


EXACT = openvdn_spec([Q0], exact_targets=True)
SPECS = {
    "bad-json": ("{", "bad-json", "line 1"),
    "not-an-object": ("[]", "bad-json", "array"),
    "duplicate-key": ('{"type": "lora", "type": "lora"}', "duplicate-key", "given twice"),
    "nan": ('{"type": "lora", "version": 1, "config": {"rank": 2, "alpha": NaN, "targets": ["x"]}}', "bad-json", "NaN"),
    "version-2": (EXACT | {"version": 2}, "adapter-spec-invalid", "version"),
    "version-true": (EXACT | {"version": True}, "adapter-spec-invalid", "version"),
    "other-type": (EXACT | {"type": "lokr"}, "adapter-spec-invalid", "type"),
    "unknown-key": (EXACT | {"dora": True}, "adapter-spec-invalid", "dora"),
    "unknown-config-key": (openvdn_spec([Q0], use_dora=True), "adapter-spec-invalid", "config.use_dora"),
    "rank-0": (openvdn_spec([Q0], rank=0), "adapter-spec-invalid", "config.rank"),
    "rank-negative": (openvdn_spec([Q0], rank=-2), "adapter-spec-invalid", "config.rank"),
    "rank-bool": (openvdn_spec([Q0], rank=True), "adapter-spec-invalid", "config.rank"),
    "rank-text": (openvdn_spec([Q0], rank="2"), "adapter-spec-invalid", "config.rank"),
    "rank-float": (openvdn_spec([Q0], rank=2.0), "adapter-spec-invalid", "config.rank"),
    "alpha-0": (openvdn_spec([Q0], alpha=0), "adapter-spec-invalid", "config.alpha"),
    "alpha-negative": (openvdn_spec([Q0], alpha=-1), "adapter-spec-invalid", "config.alpha"),
    "alpha-bool": (openvdn_spec([Q0], alpha=True), "adapter-spec-invalid", "config.alpha"),
    "alpha-missing": (
        {"type": "lora", "version": 1, "config": {"rank": 2, "targets": ["x"]}},
        "adapter-spec-invalid",
        "alpha",
    ),
    "alpha-too-large": (EXACT | {"config": EXACT["config"] | {"alpha": 10**90}}, "adapter-alpha", "is inf in float32"),
    "alpha-too-small": (EXACT | {"config": EXACT["config"] | {"alpha": 1e-50}}, "adapter-alpha", "is 0.0 in float32"),
    "pattern-bool": (openvdn_spec([Q0], rank_pattern={Q0: True}), "adapter-spec-invalid", "config.rank_pattern"),
    "targets-empty": (openvdn_spec([]), "adapter-spec-invalid", "config.targets"),
    "targets-text": (EXACT | {"config": EXACT["config"] | {"targets": Q0}}, "adapter-spec-invalid", "config.targets"),
    "nothing-known": ({"hello": 1}, "adapter-spec-unknown", "hello"),
    "other-project": (
        {"format_version": 1, "adapter_kind": "lora", "config": {"rank": 2}, "tensors": {}, "metadata": {}},
        "adapter-spec-unknown",
        "another project",
    ),
    "h03-rank": (
        openvdn_spec([Q0], exact_targets=True, rank=8),
        "adapter-rank",
        f"{Q0}: the tensors have rank 2, the config says 8",
    ),
    "h03-peft-rank": (peft_config([Q0], r=8), "adapter-rank", f"{Q0}: the tensors have rank 2, the config says 8"),
    "h03-rank-pattern": (
        openvdn_spec([Q0], exact_targets=True, rank_pattern={Q0: 4}),
        "adapter-rank",
        r"the config says 4 \(rank_pattern\)",
    ),
    "pair-missing": (openvdn_spec([Q0, Q1], exact_targets=True), "adapter-pairs-missing", f"1 of 2 targets .*{Q1}"),
    "pair-missing-by-suffix": (openvdn_spec(["to_q"]), "adapter-pairs-missing", "2 of 3 targets"),
    "pair-missing-peft": (peft_config(["to_q"]), "adapter-pairs-missing", "2 of 3 targets"),
    "target-unmatched": (openvdn_spec([Q0, "to_v"]), "adapter-target-unmatched", "1 of 2 targets .*to_v"),
    "target-unmatched-exact": (
        openvdn_spec([Q0, "attn.to_q"], exact_targets=True),
        "adapter-target-unmatched",
        "attn.to_q",
    ),
    "target-unmatched-peft": (peft_config(["to_v"]), "adapter-target-unmatched", "to_v"),
    "pattern-unmatched": (openvdn_spec([Q0], alpha_pattern={Q1: 2}), "adapter-pattern-unmatched", Q1),
    "pattern-unmatched-peft": (peft_config([Q0], alpha_pattern={"to_v": 2}), "adapter-pattern-unmatched", "'to_v'"),
    "pattern-twice": (
        openvdn_spec([Q0], exact_targets=True, rank_pattern={Q0: 2, "blocks.0.attn.orig.to_q": 4}),
        "adapter-pattern-conflict",
        "twice, with 2 and 4",
    ),
    "pattern-invalid": (peft_config([Q0], rank_pattern={"(": 2}), "adapter-pattern-invalid", "regular expression"),
    "pattern-endless": (peft_config("(a+)+b"), "adapter-pattern-invalid", "repeats a group"),
    "wildcards-in-one-level": (
        openvdn_spec(["a*b*.to_q"]),
        "adapter-spec-invalid",
        "more than one \\* between two dots",
    ),
    "wildcards-without-end": (
        openvdn_spec([f"*.to_{i}" for i in range(201)]),
        "adapter-spec-invalid",
        "201 targets have a \\*; expected at most 200",
    ),
    "layers-without-end": (
        peft_config([Q0], layers_to_transform=list(range(2001))),
        "adapter-spec-invalid",
        "layers_to_transform.* at most 2000 items",
    ),
    "pattern-huge": (peft_config("a{99999999999}"), "adapter-pattern-invalid", "regular expression"),
}


@pytest.mark.parametrize("name", ["spec", "config"])
@pytest.mark.parametrize(("document", "code", "says"), SPECS.values(), ids=SPECS)
def test_document_that_cannot_be_applied_is_refused(
    tmp_path: Path, document: Any, code: str, says: str, name: str
) -> None:
    """An unusable document is an error, whatever its file is called, and never a reason to go on without it."""
    write_adapter(tmp_path, pair(Q0), **{name: document})

    error = refusal(tmp_path)

    assert error.code == code
    assert re.search(says, error.message)


@pytest.mark.parametrize("document", [EXACT, peft_config([Q0])], ids=["openvdn", "peft"])
def test_pair_that_is_no_target_is_refused(tmp_path: Path, document: Any) -> None:
    """Nothing is fused that the description does not name."""
    write_adapter(tmp_path, pairs([Q0, Q1, K0]), config=document)

    error = refusal(tmp_path)

    assert error.code == "adapter-pairs-unexpected"
    assert f"2 LoRA pairs are no targets of its config: {K0}, {Q1}; it has 1" in error.message


def test_unreadable_spec_does_not_fall_back_to_the_config(tmp_path: Path) -> None:
    """A good config beside a broken spec changes nothing."""
    write_adapter(tmp_path, pair(Q0), spec="{", config=EXACT)

    assert "adapter_spec.json" in refusal(tmp_path).message


@pytest.mark.parametrize(
    "other",
    [openvdn_spec([Q0], exact_targets=True, alpha=1), peft_config([Q0])],
    ids=["other-alpha", "peft"],
)
def test_documents_that_differ_are_refused(tmp_path: Path, other: dict[str, Any]) -> None:
    """Neither of two different descriptions is preferred."""
    write_adapter(tmp_path, pair(Q0), spec=EXACT, config=other)

    assert refusal(tmp_path).code == "adapter-specs-differ"


FIELDS = {
    "use_dora": True,
    "modules_to_save": ["proj_out"],
    "lora_bias": True,
    "fan_in_fan_out": True,
    "layer_replication": [[0, 2]],
    "target_parameters": ["w"],
    "trainable_token_indices": [1],
    "megatron_config": {"a": 1},
    "alora_invocation_tokens": [1],
    "use_qalora": True,
    "use_bdlora": {"n": 1},
    "velora_config": {"a": 1},
    "monteclora_config": {"a": 1},
    "arrow_config": {"a": 1},
    "kasa_config": {"a": 1},
    "ensure_weight_tying": True,
    "bias": "all",
    "peft_type": "LOKR",
}
INITS = ["pissa", "pissa_niter_16", "olora", "loftq", "corda", "eva", "lora_ga", "something_new"]


@pytest.mark.parametrize(
    ("field", "value"), [*FIELDS.items(), *(("init_lora_weights", init) for init in INITS)], ids=[*FIELDS, *INITS]
)
def test_h08_h09_peft_fields_that_change_the_result_are_refused(tmp_path: Path, field: str, value: Any) -> None:
    """What this reader does not implement is refused by the field's name, never left out."""
    write_adapter(tmp_path, pair(Q0), config=peft_config([Q0], **{field: value}))

    error = refusal(tmp_path)

    assert error.code == "adapter-feature"
    assert f"{field} is {value!r}" in error.message
    assert "adapter_config.json" in error.message


def test_unknown_peft_field_is_refused(tmp_path: Path) -> None:
    """A field of a later PEFT may change the result."""
    write_adapter(tmp_path, pair(Q0), config=peft_config([Q0], use_next_thing=False))

    assert "use_next_thing" in refusal(tmp_path).message


@pytest.mark.parametrize(
    "fields",
    [
        {"layers_pattern": "blocks"},
        {"target_modules": ".*to_q", "layers_to_transform": [0]},
        {"target_modules": None},
        {"lora_alpha": None},
        {"r": True},
        {"lora_alpha": True},
        {"rank_pattern": {"to_q": 0}},
        {"use_rslora": "yes"},
    ],
    ids=str,
)
def test_peft_config_that_makes_no_sense_is_refused(tmp_path: Path, fields: dict[str, Any]) -> None:
    """PEFT's own contradictions and wrong types are errors that name the field."""
    write_adapter(tmp_path, pair(Q0), config=peft_config([Q0]) | fields)

    assert list(fields)[-1] in refusal(tmp_path).message


@pytest.mark.parametrize(
    ("metadata", "extra"),
    [({"alpha": "7"}, {}), ({"lora_adapter_metadata": "{}"}, {}), (None, {f"{Q0}.alpha": f32((), [2])})],
    ids=["alpha", "config", "alpha-tensor"],
)
def test_two_descriptions_of_the_scale_are_refused(
    tmp_path: Path, metadata: dict[str, str] | None, extra: dict[str, Tensor]
) -> None:
    """A config beside a file that gives a scale of its own may not belong to it."""
    write_adapter(tmp_path, pair(Q0) | extra, metadata=metadata, config=EXACT)

    assert refusal(tmp_path).code in {"adapter-alpha", "adapter-specs-differ"}


QUANTISED = {
    "fp8": infos({f"{Q0}.weight": (OUT, IN)}, dtype="F8_E4M3"),
    "int8": infos({f"{Q0}.weight": (OUT, IN)}, dtype="I8"),
    "weight_scale": infos({f"{Q0}.weight": (OUT, IN), f"{Q0}.weight_scale": (1,)}),
    "weight_scale_inv": infos({f"{Q0}.weight": (OUT, IN), f"{Q0}.weight_scale_inv": (1,)}),
    "scale_weight": infos({f"{Q0}.weight": (OUT, IN), f"{Q0}.scale_weight": (1,)}),
    "absmax": infos({f"{Q0}.weight": (OUT, IN), f"{Q0}.weight.absmax": (1,)}),
    "gptq": infos({f"{Q0}.qweight": (OUT, IN), f"{Q0}.scales": (1,)}),
    "packed": infos({f"{Q0}.weight_packed": (OUT, IN), f"{Q0}.weight_scale": (1,)}),
}


@pytest.mark.parametrize("base", QUANTISED.values(), ids=QUANTISED)
def test_quantised_target_is_refused(tmp_path: Path, base: dict[str, TensorInfo]) -> None:
    """The numbers stored are then not the weight; adding to them would be nonsense."""
    write_adapter(tmp_path, pair(Q0))

    error = refusal(tmp_path, base, FILE)

    assert error.code == "adapter-target-quantised"
    assert "quantised or scaled target refused" in error.message


def test_untouched_quantised_weights_are_no_obstacle(tmp_path: Path) -> None:
    """Only targets must be plain."""
    base = block_base() | infos({"other.weight": (OUT, IN)}, dtype="F8_E4M3") | infos({"other.weight_scale": (1,)})

    assert len(read(write_adapter(tmp_path, pair(Q0)), base, FILE).pairs) == 1


def test_h01_neither_document(tmp_path: Path) -> None:
    """The error names the folder, both names and what is there."""
    write_adapter(tmp_path / "adapters/default", pair(Q0))

    error = refusal(tmp_path, path="adapters/default")

    assert error.code == "adapter-spec-missing"
    assert f"{tmp_path}/adapters/default" in error.message
    assert "neither adapter_spec.json nor adapter_config.json" in error.message
    assert FILE in error.message
    assert f"name its file: {tmp_path}/adapters/default/{FILE}" in error.hint


def test_h01_one_folder_level_too_many(tmp_path: Path) -> None:
    """The hint names the folder where the files are."""
    write_adapter(tmp_path / "default/default", pair(Q0), spec=EXACT)

    error = refusal(tmp_path, path="default")

    assert error.code == "adapter-spec-missing"
    assert f"{tmp_path}/default/default" in error.hint


def test_h01_half_copied_folder(tmp_path: Path) -> None:
    """The document without the weights: the error says what is there."""
    write_adapter(tmp_path, pair(Q0), spec=EXACT)
    (tmp_path / FILE).unlink()

    error = refusal(tmp_path)

    assert "0 safetensors files" in error.message
    assert "adapter_spec.json" in error.message


def test_several_weights_in_a_folder_are_refused(tmp_path: Path) -> None:
    """A shard or a second adapter that nobody accounts for is not left out in silence."""
    write_adapter(tmp_path, pair(Q0), spec=EXACT)
    write_adapter(tmp_path, pair(Q1), file="second.safetensors")

    error = refusal(tmp_path)

    assert f"2 safetensors files, expected one: {FILE}, second.safetensors" in error.message


def test_document_in_the_folder_governs_a_file_named_by_itself(tmp_path: Path) -> None:
    """Naming the file does not leave out its config, and with it its scale."""
    write_adapter(tmp_path, pair(Q0), spec=openvdn_spec([Q0], exact_targets=True, alpha=1))

    assert read(tmp_path, path=FILE).pairs[0].scale == 0.5


@pytest.mark.parametrize("suffix", ["bin", "pt", "pth", "ckpt", "pkl"])
@pytest.mark.parametrize("where", ["beside", "instead"])
def test_pickles_are_refused(tmp_path: Path, suffix: str, where: str) -> None:
    """A pickle beside the weights, in their place, or named itself is refused by name."""
    write_adapter(tmp_path, pair(Q0), spec=EXACT)
    if where == "instead":
        (tmp_path / FILE).unlink()
    name = f"adapter_model.{suffix}"
    (tmp_path / name).write_bytes(b"\x80\x04.")

    for path in ("", name):
        error = refusal(tmp_path, path=path)
        assert error.code == "pickle"
        assert name in error.message


def test_other_files_are_no_adapters(tmp_path: Path) -> None:
    """Only safetensors files can be named."""
    (tmp_path / "notes.txt").write_text("hello")

    assert refusal(tmp_path, path="notes.txt").code == "adapter-file"


def test_nothing_there(tmp_path: Path) -> None:
    """A path that does not exist is reported with what does."""
    write_adapter(tmp_path / "adapters/default", pair(Q0))

    with pytest.raises(NotHere, match="adapters/turbo: no such adapter") as error:
        read(tmp_path, path="adapters/turbo")
    assert "adapters/default" in error.value.hint


def test_h14_git_lfs_pointer(tmp_path: Path) -> None:
    """A clone without git-lfs is told apart from a broken file."""
    write_adapter(tmp_path, pair(Q0), spec=EXACT)
    (tmp_path / FILE).write_bytes(lfs_pointer())

    assert "LFS" in refusal(tmp_path).message


@pytest.mark.parametrize("name", ["../x", "a/b", "..", ".", "a\\b", "a\nb", "a\0b", "x" * 200])
@pytest.mark.parametrize("place", ["argument", "spec"])
def test_h16_names_that_leave_their_folder_are_refused(tmp_path: Path, name: str, place: str) -> None:
    """An adapter's name may become part of a path."""
    spec = openvdn_spec([Q0], exact_targets=True, **({"name": name} if place == "spec" else {}))
    write_adapter(tmp_path, pair(Q0), spec=spec)

    assert refusal(tmp_path, name=name if place == "argument" else None).code == "adapter-name"


@pytest.mark.parametrize("path", ["../outside", "/etc", "a/../../b"])
def test_h16_paths_that_leave_the_repo_are_refused(tmp_path: Path, path: str) -> None:
    """The adapter lies inside the repo or folder that is read."""
    assert refusal(tmp_path, path=path).code == "unsafe-path"


JSON = st.recursive(
    st.one_of(
        st.none(), st.booleans(), st.integers(-3, 3), st.floats(allow_nan=False), st.sampled_from(["", Q0, "(", "to_q"])
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=2), st.dictionaries(st.sampled_from(["to_q", Q0, ""]), inner, max_size=2)
    ),
    max_leaves=4,
)


@pytest.mark.parametrize("document", [EXACT["config"], peft_config([Q0])], ids=["openvdn", "peft"])
@given(data=st.data())
def test_any_value_in_any_field_is_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, document: dict[str, Any], data: st.DataObject
) -> None:
    """No document, however odd, ends in anything but an adapter or an error of ours."""
    field = data.draw(st.sampled_from(sorted(document)))
    changed = document | {field: data.draw(JSON)}
    folder = write_adapter(
        tmp_path_factory.mktemp("fuzz"),
        pair(Q0),
        spec=changed if "r" in changed else EXACT | {"config": changed},
    )

    with contextlib.suppress(BrokenInput):
        assert [p.target for p in read(folder).pairs] == [f"{Q0}.weight"]


def _two_wrong_shapes(folder: Path) -> None:
    write_adapter(folder, pairs([Q0, Q1], cols=IN + 1) | pair(K0), spec=openvdn_spec([Q0, Q1, K0], exact_targets=True))


def _two_wrong_ranks(folder: Path) -> None:
    write_adapter(folder, pairs([Q0, Q1], rank=3) | pair(K0), spec=openvdn_spec([Q0, Q1, K0], exact_targets=True))


@pytest.mark.parametrize("write", [_two_wrong_shapes, _two_wrong_ranks])
def test_all_modules_with_one_problem_are_named(tmp_path: Path, write: Callable[[Path], None]) -> None:
    """One run says which modules are wrong, not the first alone; those that are right are not among them."""
    write(tmp_path)

    error = refusal(tmp_path)

    assert error.data["modules"] == [Q0, Q1]
    assert error.data["count"] == 2
    assert f"so it is for 2 modules, also for {Q1}" in error.message


def test_missing_and_unexpected_pairs_are_said_together(tmp_path: Path) -> None:
    """A config and a file that do not belong together differ in both directions."""
    write_adapter(tmp_path, pairs([Q0, K0]), spec=openvdn_spec([Q0, Q1], exact_targets=True))

    error = refusal(tmp_path)

    assert error.code == "adapter-pairs-missing"
    assert f"1 of 2 targets of its config have no LoRA pair: {Q1}; there are 2 pairs, and 1 LoRA pair" in error.message
    assert (error.data["missing"], error.data["unexpected"]) == ([Q1], [K0])
    assert (error.data["targets"], error.data["pairs"]) == (2, 2)


@pytest.mark.parametrize("kind", ["spec", "config"])
def test_all_pattern_entries_without_a_module_are_named(tmp_path: Path, kind: str) -> None:
    """Each is a mistake of its own."""
    patterns = {"blocks.8.attn.to_q": 2, "blocks.9.attn.to_q": 2}
    make = openvdn_spec if kind == "spec" else peft_config
    write_adapter(tmp_path, pair(Q0), **{kind: make([Q0], rank_pattern=patterns)})

    error = refusal(tmp_path)

    assert error.data["keys"] == list(patterns)
    assert "(2 entries match nothing, also blocks.9.attn.to_q)" in error.message


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["spec", "config", "patterns", "unmatched"])
def test_hostile_numbers_of_names_take_a_bounded_time(tmp_path: Path, kind: str) -> None:
    """As many targets as modules are looked up, not compared with each other; what has to be, is refused."""
    modules = [f"blocks.{i}.attn.to_q" for i in range(20_000)]
    tiny = {"rank": 1, "out": 1, "cols": 1}
    base = infos({f"{module}.weight": (1, 1) for module in modules})
    documents: dict[str, dict[str, Any]] = {
        "spec": {"spec": openvdn_spec(modules, rank=1, alpha=1)},
        "config": {"config": peft_config(modules, r=1, exclude_modules=[f"{module}.x" for module in modules])},
        "patterns": {"config": peft_config(["to_q"], r=1, rank_pattern=dict.fromkeys(modules, 1))},
        "unmatched": {"spec": openvdn_spec(modules, rank=1, alpha=1)},
    }
    names = [f"layers.{module}" for module in modules] if kind == "unmatched" else modules
    write_adapter(tmp_path, pairs(names, **tiny), **documents[kind])

    began = time.process_time()
    with contextlib.suppress(BrokenInput):
        read(tmp_path, base)

    assert time.process_time() - began < 30  # compared each with each, 400 million times, it is minutes
