"""Adapters that are read: every layout, and what comes out."""

from __future__ import annotations

import json
import math
import struct
from typing import TYPE_CHECKING, Any

import pytest
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
from support.tensors import bf16, f16, f32

from overlay.errors import BrokenInput

if TYPE_CHECKING:
    from pathlib import Path

    from support.tensors import Tensor

    from overlay.formats.adapters import Adapter

pytestmark = pytest.mark.no_torch

Q0, Q1 = "blocks.0.attn.to_q", "blocks.1.attn.to_q"
TARGETS = [f"{Q0}.weight", f"{Q1}.weight"]

SPELLINGS = {
    "plain": "{module}.lora_{half}.weight",
    "named": "{module}.lora_{half}.default.weight",
    "numbered": "{module}.lora_{half}.default_0.weight",
    "called-lora": "{module}.lora_{half}.lora.weight",
    "called-lora_A": "{module}.lora_{half}.lora_A.weight",
    "called-weight": "{module}.lora_{half}.weight.weight",
    "peft": "base_model.model.{module}.lora_{half}.weight",
    "peft-named": "base_model.model.{module}.lora_{half}.default.weight",
    "peft-diffusers": "base_model.model.transformer.{module}.lora_{half}.weight",
    "diffusers": "transformer.{module}.lora_{half}.weight",
    "comfyui": "diffusion_model.{module}.lora_{half}.weight",
}


def facts(adapter: Adapter) -> list[tuple[Any, ...]]:
    return [(p.target, p.a.shape, p.b.shape, p.rank, p.scale) for p in adapter.pairs]


@pytest.mark.parametrize("spelling", SPELLINGS.values(), ids=SPELLINGS)
def test_h10_all_spellings_give_the_same_pairs(tmp_path: Path, spelling: str) -> None:
    """The adapter's name in a key, PEFT's prefix and a component's prefix change nothing."""
    adapter = read(write_adapter(tmp_path, pairs([Q1, Q0], key=spelling)), path="adapter_model.safetensors")

    assert facts(adapter) == [(target, (RANK, IN), (OUT, RANK), RANK, 1.0) for target in TARGETS]
    assert adapter.kind == "bare"


@pytest.mark.parametrize(
    "second", [key for name, key in SPELLINGS.items() if name != "plain"], ids=[k for k in SPELLINGS if k != "plain"]
)
def test_h10_two_spellings_of_one_pair_are_refused(tmp_path: Path, second: str) -> None:
    """A pair that is there twice would be added twice, or once by chance."""
    write_adapter(tmp_path, {**pair(Q0), **pair(Q0, second)})

    with pytest.raises(BrokenInput, match=f"{Q0}.*expected one") as error:
        read(tmp_path, path="adapter_model.safetensors")
    assert error.value.code == "adapter-duplicate-pair"


@pytest.mark.parametrize("document", ["spec", "config"])
@pytest.mark.parametrize("key", ["attn.orig.to_q", "attn.to_q"], ids=["wrapped", "plain"])
def test_h01_spec_or_config_and_either_spelling_of_the_wrapper(tmp_path: Path, document: Any, key: str) -> None:
    """OpenVDN's spec is read under both of its names, and ``.attn.orig.`` in keys means the base's ``.attn.``."""
    modules = [f"blocks.{i}.{key}" for i in range(2)]
    refiner = "refiner.0.attn.to_q"
    targets = ["attn.orig.to_q", "refiner.*.attn.to_q"]
    write_adapter(
        tmp_path / "turbo",
        pairs([*modules, refiner], key=SPELLINGS["named"]),
        **{document: openvdn_spec(targets)},
    )

    adapter = read(tmp_path, path="turbo")

    assert [p.target for p in adapter.pairs] == [*TARGETS, f"{refiner}.weight"]
    assert [p.module for p in adapter.pairs] == [*modules, refiner]
    assert (adapter.kind, adapter.name, adapter.weights) == ("openvdn", "turbo", "turbo/adapter_model.safetensors")
    assert adapter.spec == f"turbo/adapter_{document}.json"


def test_wrapped_target_does_not_ask_for_modules_that_are_not_wrapped(tmp_path: Path) -> None:
    """``attn.orig.to_q`` means the blocks whose other names have the wrapper, not the refiner."""
    modules = [f"blocks.{i}.attn.orig.to_q" for i in range(2)]

    adapter = read(write_adapter(tmp_path, pairs(modules), spec=openvdn_spec(["attn.orig.to_q"])))

    assert [p.target for p in adapter.pairs] == TARGETS


def test_plain_target_means_wrapped_modules_too(tmp_path: Path) -> None:
    """``attn.to_q`` is the end of a wrapped module's name once the wrapper is left out, as it is of the refiner's."""
    modules = [*(f"blocks.{i}.attn.orig.to_q" for i in range(2)), "refiner.0.attn.to_q"]

    adapter = read(write_adapter(tmp_path, pairs(modules), spec=openvdn_spec(["attn.to_q"])))

    assert [p.target for p in adapter.pairs] == [*TARGETS, "refiner.0.attn.to_q.weight"]


def test_wrapped_target_asks_for_every_block(tmp_path: Path) -> None:
    """A block without its pair is missed although no key of its own says that it is wrapped."""
    write_adapter(tmp_path, pairs(["blocks.0.attn.orig.to_q"]), spec=openvdn_spec(["attn.orig.to_q"]))

    with pytest.raises(BrokenInput, match=r"1 of 2 targets .* blocks\.1\.attn\.to_q"):
        read(tmp_path)


def test_base_that_has_the_wrapper_keeps_it(tmp_path: Path) -> None:
    """The wrapper level is only taken out where the base lacks the module."""
    base = infos({"x.attn.orig.to_q.weight": (OUT, IN), "x.attn.to_q.weight": (OUT, IN)})

    adapter = read(write_adapter(tmp_path, pairs(["x.attn.orig.to_q"])), base, "adapter_model.safetensors")

    assert [p.target for p in adapter.pairs] == ["x.attn.orig.to_q.weight"]


def test_both_documents_that_say_the_same_are_accepted(tmp_path: Path) -> None:
    """A folder may hold the old and the new name; spelling of numbers and keys does not matter."""
    spec = openvdn_spec([Q0], exact_targets=True)
    other = json.dumps(spec | {"config": spec["config"] | {"alpha": float(RANK), "rank_pattern": {}}}, indent=3)

    adapter = read(write_adapter(tmp_path, pair(Q0), spec=spec, config=other))

    assert adapter.spec == "adapter_spec.json"


def test_content_tells_the_format_not_the_name(tmp_path: Path) -> None:
    """A PEFT config is one under OpenVDN's file name too."""
    adapter = read(
        write_adapter(tmp_path, pairs([Q0, Q1]), spec=peft_config(["to_q"], exclude_modules=["refiner.0.attn.to_q"]))
    )

    assert adapter.kind == "peft"


SCALES = {
    "openvdn": (
        8,
        {"spec": openvdn_spec([Q0], exact_targets=True, rank=8, alpha=1)},
        0.125,
        "alpha 1 / rank 8 (config)",
    ),
    "openvdn-fraction": (
        3,
        {"spec": openvdn_spec([Q0], exact_targets=True, rank=3, alpha=1)},
        0.3333333432674408,
        "alpha 1 / rank 3 (config)",
    ),
    "openvdn-patterns": (
        8,
        {"spec": openvdn_spec([Q0], exact_targets=True, alpha=5, rank_pattern={Q0: 8}, alpha_pattern={Q0: 1.5})},
        0.1875,
        "alpha 1.5 / rank 8 (alpha_pattern, rank_pattern)",
    ),
    "peft": (8, {"config": peft_config([Q0], r=8, lora_alpha=1)}, 0.125, "alpha 1 / rank 8 (config)"),
    "peft-rslora": (
        8,
        {"config": peft_config([Q0], r=8, lora_alpha=2, use_rslora=True)},
        0.7071067690849304,
        "alpha 2 / sqrt(rank 8) (config)",
    ),
    "metadata": (8, {"metadata": {"alpha": "1", "rank": "8"}}, 0.125, "alpha 1 / rank 8 (file metadata alpha)"),
    "kohya-metadata": (
        8,
        {"metadata": {"ss_network_alpha": "1.0"}},
        0.125,
        "alpha 1 / rank 8 (file metadata ss_network_alpha)",
    ),
    "nothing": (8, {"metadata": {"format": "pt"}}, 1.0, "1 (no alpha given)"),
    "diffusers-metadata": (
        8,
        {"metadata": {"lora_adapter_metadata": json.dumps({"r": 8, "lora_alpha": 1, "target_modules": [Q0]})}},
        0.125,
        "alpha 1 / rank 8 (config)",
    ),
    "diffusers-pipeline-metadata": (
        8,
        {
            "metadata": {
                "lora_adapter_metadata": json.dumps(
                    {"transformer.r": 8, "transformer.lora_alpha": 1, "transformer.target_modules": [Q0]}
                )
            }
        },
        0.125,
        "alpha 1 / rank 8 (config)",
    ),
}


@pytest.mark.parametrize(("rank", "options", "scale", "origin"), SCALES.values(), ids=SCALES)
def test_h02_scale_is_alpha_over_rank_and_says_where_it_comes_from(
    tmp_path: Path, rank: int, options: dict[str, Any], scale: float, origin: str
) -> None:
    """Alpha is applied wherever it is written; float64 division, one rounding to float32."""
    write_adapter(tmp_path, pair(Q0, rank=rank), **options)

    (found,) = read(tmp_path, path="adapter_model.safetensors").pairs

    assert found.scale == scale
    assert found.scale_origin == origin
    assert found.scale == struct.unpack("<f", struct.pack("<f", found.scale))[0]
    assert found.rslora == ("sqrt" in origin)


def test_no_alpha_counts_as_the_rank(tmp_path: Path) -> None:
    """Without any alpha the scale is 1 for every rank, mixed ranks included."""
    write_adapter(tmp_path, {**pair(Q0, rank=2), **pair(Q1, rank=3)})

    found = read(tmp_path, path="adapter_model.safetensors").pairs

    assert [(p.rank, p.alpha, p.scale) for p in found] == [(2, 2.0, 1.0), (3, 3.0, 1.0)]


ALPHAS = {
    "f32": f32((), [1]),
    "f16-one-element": f16((1,), [1]),
    "bf16": bf16((), [1]),
    "f64": ("F64", [], struct.pack("<d", 1)),
    "i64": ("I64", [], struct.pack("<q", 1)),
}


@pytest.mark.parametrize("alpha", ALPHAS.values(), ids=ALPHAS)
@pytest.mark.parametrize("path", ["in", "in/light.safetensors"], ids=["folder", "file"])
def test_h07_kohya_file_with_an_alpha_a_module(tmp_path: Path, alpha: Tensor, path: str) -> None:
    """Per-module alphas are read, whatever their dtype, and no JSON is needed."""
    write_adapter(
        tmp_path / "in", {**kohya(Q0, alpha, rank=8), **kohya(Q1, f32((), [4]), rank=8)}, file="light.safetensors"
    )

    adapter = read(tmp_path, path=path)

    assert (adapter.kind, adapter.name, adapter.spec) == ("kohya", "light", None)
    assert [(p.target, p.scale, p.scale_origin) for p in adapter.pairs] == [
        (TARGETS[0], 0.125, "alpha 1 / rank 8 (alpha tensor)"),
        (TARGETS[1], 0.5, "alpha 4 / rank 8 (alpha tensor)"),
    ]


def test_h07_per_module_alpha_wins_over_the_trainers_metadata(tmp_path: Path) -> None:
    """``ss_network_alpha`` is what training began with; the tensors say what each module has."""
    write_adapter(tmp_path, kohya(Q0, f32((), [1])), metadata={"ss_network_alpha": "16", "ss_network_dim": "Dynamic"})

    (found,) = read(tmp_path).pairs

    assert found.scale == 0.5


def test_h07_underscored_kohya_names(tmp_path: Path) -> None:
    """A name whose dots became underscores is found if only one module of the base reads so."""
    write_adapter(tmp_path, kohya("lora_unet_blocks_0_attn_to_q", f32((), [2])))

    (found,) = read(tmp_path).pairs

    assert (found.target, found.module) == (TARGETS[0], "lora_unet_blocks_0_attn_to_q")


def test_h07_ambiguous_kohya_name_is_refused(tmp_path: Path) -> None:
    """Two modules that read the same with underscores: neither is guessed."""
    base = infos({"a.b_c.weight": (OUT, IN), "a_b.c.weight": (OUT, IN)})
    write_adapter(tmp_path, kohya("lora_unet_a_b_c", f32((), [2])))

    with pytest.raises(BrokenInput, match=r"lora_unet_a_b_c could be a\.b_c or a_b\.c"):
        read(tmp_path, base)


def test_h04_openvdn_patterns_are_full_names_under_either_spelling(tmp_path: Path) -> None:
    """An entry for a wrapped module applies; one for the end of a name does not exist in this format."""
    modules = [f"blocks.{i}.attn.orig.to_q" for i in range(2)]
    patterns = {"blocks.0.attn.orig.to_q": 4, "blocks.1.attn.to_q": 3}
    spec = openvdn_spec(["attn.orig.to_q"], rank_pattern=patterns, alpha_pattern=patterns)
    tensors = {**pair(modules[0], rank=4), **pair(modules[1], rank=3)}

    adapter = read(write_adapter(tmp_path, tensors, spec=spec))

    assert [(p.rank, p.scale) for p in adapter.pairs] == [(4, 1.0), (3, 1.0)]
    assert adapter.pattern_rule.startswith("openvdn: ")

    spec["config"]["rank_pattern"] = {"to_q": 4}
    with pytest.raises(BrokenInput, match="rank_pattern names 'to_q', which matches no LoRA pair"):
        read(write_adapter(tmp_path, tensors, spec=spec))


def test_h04_peft_patterns_are_regular_expressions_first_match_wins(tmp_path: Path) -> None:
    """PEFT's patterns match the end of the name, in file order."""
    config = peft_config(
        ["to_q", "to_k"],
        exclude_modules=["refiner.0.attn.to_q", "refiner.0.attn.to_k"],
        rank_pattern={"to_q": 8, r"blocks\.1\.attn\.to_k": 1},
        alpha_pattern={"blocks.1.attn.to_.": 3, "to_k": 4},
    )
    ranks = {"blocks.0.attn.to_q": 8, "blocks.0.attn.to_k": 2, "blocks.1.attn.to_q": 8, "blocks.1.attn.to_k": 1}
    tensors = {name: tensor for module, rank in ranks.items() for name, tensor in pair(module, rank=rank).items()}

    adapter = read(write_adapter(tmp_path, tensors, config=config))

    assert {p.module: (p.rank, p.alpha) for p in adapter.pairs} == {
        "blocks.0.attn.to_k": (2, 4),
        "blocks.0.attn.to_q": (8, 2),
        "blocks.1.attn.to_k": (1, 3),
        "blocks.1.attn.to_q": (8, 3),
    }
    assert adapter.pattern_rule.startswith("peft: ")


def test_all_linear_means_every_matrix(tmp_path: Path) -> None:
    """PEFT's shorthand stands for all linear layers: not for norms, nor for convolutions."""
    linear = [f"{block}.attn.to_{part}" for block in ("blocks.0", "blocks.1", "refiner.0") for part in "kq"]
    config = peft_config("all-linear")

    adapter = read(write_adapter(tmp_path, pairs(linear) | pair("proj_out", out=3), config=config))

    assert [p.module for p in adapter.pairs] == sorted([*linear, "proj_out"])

    with pytest.raises(BrokenInput, match="1 of 7 targets of its config have no LoRA pair: proj_out"):
        read(write_adapter(tmp_path, pairs(linear), config=config))


@pytest.mark.parametrize("dtype", ["BF16", "F16", "F32"])
def test_dtype_is_the_adapters_own(tmp_path: Path, dtype: str) -> None:
    """Adapter and base may be stored in different dtypes."""
    adapter = read(write_adapter(tmp_path, pair(Q0, dtype=dtype)), path="adapter_model.safetensors")

    assert adapter.dtype == dtype


def test_offsets_lead_to_the_bytes_of_the_pair(tmp_path: Path) -> None:
    """The header that is handed on finds A and B in the file."""
    tensors = pair(Q0)
    names = list(tensors)
    tensors[names[1]] = bf16([OUT, RANK], range(OUT * RANK))
    write_adapter(
        tmp_path, {"x.alpha_free.lora_A.weight": zeros(1, 1), "x.alpha_free.lora_B.weight": zeros(1, 1), **tensors}
    )
    base = block_base() | infos({"x.alpha_free.weight": (1, 1)})

    adapter = read(tmp_path, base, "adapter_model.safetensors")

    found = next(p for p in adapter.pairs if p.module == Q0)
    data = (tmp_path / adapter.weights).read_bytes()
    start = adapter.header.offset(found.b.name)
    assert data[start : start + found.b.nbytes] == tensors[names[1]][2]
    assert math.prod(found.b.shape) * 2 == found.b.nbytes


@pytest.mark.parametrize(
    ("name", "spec_name", "expected"),
    [(None, None, "folder"), (None, "turbo", "turbo"), ("mine", "turbo", "mine")],
)
def test_name_comes_from_the_caller_then_the_spec_then_the_folder(
    tmp_path: Path, name: str | None, spec_name: str | None, expected: str
) -> None:
    """The adapter's name is what the caller says, or the nearest thing to it."""
    spec = openvdn_spec([Q0], exact_targets=True, **({"name": spec_name} if spec_name else {}))
    write_adapter(tmp_path / "folder", pair(Q0), spec=spec)

    assert read(tmp_path, path="folder", name=name).name == expected
    assert read(tmp_path / "folder", name=name).name == expected
