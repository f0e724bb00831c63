"""The native layout as a plan: what it refuses, which shard a tensor is in, and what enters its keys."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from support.h3 import CONFIG, NATIVE_MODEL, diffusers_transformer, model_index, native_options, write_h3_hub
from support.tensors import f32

from overlay.errors import BrokenInput, InvalidRegistry
from overlay.formats.rope import rope_inv_freq
from overlay.planning.actions import action_of
from overlay.planning.outputs import GeneratedFile, Literal, SafetensorsFile
from overlay.registry import load_registry

if TYPE_CHECKING:
    from pathlib import Path

    from conftest import Planner

pytestmark = pytest.mark.no_torch

Q = "transformer_blocks.0.attn.to_q.weight"


def shards(plan: Any) -> dict[str, SafetensorsFile]:
    return {output.path: output for output in plan.outputs if isinstance(output, SafetensorsFile)}


def test_a_tensor_is_in_the_shard_of_its_first_part(hub: Path, plan_of: Planner) -> None:
    """q, of q, k and v; the frequencies are in the first."""
    release, _ = write_h3_hub(hub)
    plan = plan_of(NATIVE_MODEL, native_options(hub))
    index = json.loads((release / "transformer/model.safetensors.index.json").read_text())["weight_map"]
    placed = {tensor.name: path for path, shard in shards(plan).items() for tensor in shard.tensors}
    assert placed["blocks.0.attn.qkv_proj.weight"] == f"FL2VA/transformer/{index[Q]}"
    assert index[Q] != index[Q.replace("to_q", "to_k")]  # else this shows nothing
    assert placed["rope.inv_freq"] == min(placed.values())
    assert {path.rpartition("/")[2] for path in placed.values()} == set(index.values())


def test_the_key_of_a_shard_is_that_of_its_rows(hub: Path, plan_of: Planner) -> None:
    """Another number of heads is another order of rows."""
    release, _ = write_h3_hub(hub)
    before = shards(plan_of(NATIVE_MODEL, native_options(hub)))
    other = CONFIG | {"num_attention_heads": 3, "attention_head_dim": 2}
    (release / "transformer/config.json").write_text(json.dumps(other))
    after = shards(plan_of(NATIVE_MODEL, native_options(hub)))
    for path, shard in before.items():
        same = action_of(shard, "fp32-once") == action_of(after[path], "fp32-once")
        assert same is not any("qkv_proj" in tensor.name for tensor in shard.tensors)


def test_another_base_of_the_frequencies(hub: Path, plan_of: Planner) -> None:
    """As the config says it."""
    release, _ = write_h3_hub(hub)
    (release / "transformer/config.json").write_text(json.dumps(CONFIG | {"rope_theta": 500}))
    plan = plan_of(NATIVE_MODEL, native_options(hub))
    [rope] = [t for shard in shards(plan).values() for t in shard.tensors if t.name == "rope.inv_freq"]
    assert rope.pieces == (Literal(rope_inv_freq(CONFIG["rope_freq_dim"], 500.0)),)


@pytest.mark.parametrize("theta", [1, 1e12])
def test_the_least_and_the_largest_base_of_the_frequencies(hub: Path, plan_of: Planner, theta: float) -> None:
    """Their powers are finite, and so are the reciprocals."""
    release, _ = write_h3_hub(hub)
    (release / "transformer/config.json").write_text(json.dumps(CONFIG | {"rope_theta": theta}))
    assert plan_of(NATIVE_MODEL, native_options(hub)).outputs


def test_a_field_of_two_names_and_one_value_is_said_once(hub: Path, plan_of: Planner) -> None:
    """By its native name."""
    release, _ = write_h3_hub(hub)
    (release / "transformer/config.json").write_text(json.dumps(CONFIG | {"ffn_hidden_size": CONFIG["ffn_dim"]}))
    outputs = plan_of(NATIVE_MODEL, native_options(hub)).outputs
    [config] = [file for file in outputs if file.path == "FL2VA/transformer/config.json"]
    assert isinstance(config, GeneratedFile)
    said = json.loads(config.data)
    assert said["ffn_hidden_size"] == CONFIG["ffn_dim"]
    assert "ffn_dim" not in said


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({Q: None}, f"lacks {Q}"),
        ({"transformer_blocks.2.norm1.weight": f32([1], [1.0])}, "has transformer_blocks.2.norm1.weight"),
        ({"transformer_blocks.0.attn.to_gate_compress.weight": f32([1], [1.0])}, "to_gate_compress"),
        ({"blocks.0.attn.qkv_proj.weight": f32([1], [1.0])}, "has blocks.0.attn.qkv_proj.weight"),
        ({"rope.inv_freq": f32([1], [1.0])}, "has rope.inv_freq"),
    ],
)
def test_a_base_that_is_another_model(hub: Path, plan_of: Planner, change: dict[str, Any], said: str) -> None:
    """Tensors that are missing, and those that have no native name: nothing is dropped."""
    tensors = {name: tensor for name, tensor in (diffusers_transformer() | change).items() if tensor is not None}
    release, adapter = write_h3_hub(hub, tensors)
    if Q not in tensors:  # else the adapter finds it missing first
        from support.h3 import turbo
        from support.small_models import write_peft

        write_peft(adapter, {name: t for name, t in turbo().items() if not name.startswith(Q.removesuffix("weight"))})
    with pytest.raises(BrokenInput) as caught:
        plan_of(NATIVE_MODEL, native_options(hub))
    assert caught.value.code == "not-diffusers-h3"
    assert said in caught.value.message
    assert str(release) in caught.value.message


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"num_attention_heads": 4}, "tensor-shape"),
        ({"num_layers": 0}, "config-value"),
        ({"num_layers": True}, "config-value"),
        ({"num_layers": 10**9}, "config-value"),
        ({"rope_theta": "x"}, "config-value"),
        ({"rope_theta": 0}, "config-value"),
        ({"rope_theta": -1.0}, "config-value"),
        ({"rope_theta": 5e-324}, "config-value"),
        ({"rope_theta": 0.5}, "config-value"),
        ({"rope_theta": 1e308}, "config-value"),
        ({"rope_theta": 10**400}, "bad-json"),
        ({"rope_freq_dim": 10**9}, "config-value"),
        ({"ffn_hidden_size": 999}, "config-value"),
        ({"latents_dim": None}, "config-value"),
        ({"rope_inv_freq_len": 999}, "config-value"),
        ({"adaln_out_features": 1}, "config-value"),
        ({"final_adaln_out_features": "x"}, "config-value"),
        ({"num_layers": 3}, "not-diffusers-h3"),
    ],
)
def test_a_config_that_is_not_of_these_weights(hub: Path, plan_of: Planner, change: dict[str, Any], code: str) -> None:
    """Heads that do not make up the rows, layers that are not there, numbers that are none, one field of two values."""
    release, _ = write_h3_hub(hub)
    (release / "transformer/config.json").write_text(json.dumps(CONFIG | change))
    with pytest.raises(BrokenInput) as caught:
        plan_of(NATIVE_MODEL, native_options(hub))
    assert caught.value.code == code


def test_siblings_of_the_other_partition(hub: Path, plan_of: Planner) -> None:
    """A server refuses an index of another partition than its folder's name says."""
    release, _ = write_h3_hub(hub)
    (release / "FL2VA/model_index.json").write_text(model_index("ref2va"))
    with pytest.raises(BrokenInput, match="partition is 'ref2va'") as caught:
        plan_of(NATIVE_MODEL, native_options(hub))
    assert caught.value.code == "bad-model-index"


@pytest.mark.parametrize("index", ["{}", '{"_minimax_h3": 3}', '{"_minimax_h3": {"partition": ["fl2va"]}}'])
def test_siblings_of_no_release(hub: Path, plan_of: Planner, index: str) -> None:
    """Whatever stands where the partition should."""
    release, _ = write_h3_hub(hub)
    (release / "FL2VA/model_index.json").write_text(index)
    with pytest.raises(BrokenInput) as caught:
        plan_of(NATIVE_MODEL, native_options(hub))
    assert caught.value.code == "bad-model-index"


def test_siblings_that_lack_a_component(hub: Path, plan_of: Planner) -> None:
    """What the index names has to be beside it."""
    release, _ = write_h3_hub(hub)
    (release / "FL2VA/tokenizer").rename(release / "gone")
    with pytest.raises(BrokenInput, match="tokenizer") as caught:
        plan_of(NATIVE_MODEL, native_options(hub))
    assert (caught.value.code, caught.value.data["missing"]) == ("component-missing", ["tokenizer"])


@pytest.mark.parametrize(
    ("output", "code"),
    [
        ("{layout: comfy, folder: FL2VA, siblings: {path: FL2VA}}", "unknown-value"),
        ("{layout: native, folder: ../x, siblings: {path: FL2VA}}", "unknown-value"),
        ("{layout: native, folder: FL2VA}", "missing-key"),
        ("{layout: native, folder: FL2VA, siblings: {path: ../FL2VA}}", "unsafe-path"),
        ("{layout: native, folder: FL2VA, siblings: {repo: acme/unknown}}", "repo-without-revision"),
        ("{layout: native, folder: FL2VA, siblings: {path: FL2VA}, shards: 3}", "unknown-key"),
    ],
)
def test_what_the_registry_refuses(hub: Path, output: str, code: str) -> None:
    """Layouts and folders that there are not, siblings that nobody pins."""
    registry = native_options(hub).registry
    assert registry is not None
    text = registry.read_text()
    registry.write_text(text[: text.index("      output:")] + f"      output: {output}\n")
    with pytest.raises(InvalidRegistry) as caught:
        load_registry(registry)
    assert code in str(caught.value.data) + caught.value.code
