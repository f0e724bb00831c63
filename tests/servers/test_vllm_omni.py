"""The native layout, read by the released vLLM-Omni's own maps: no GPU, and of its modules the parts that need none."""

from __future__ import annotations

import ast
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
from support.h3 import CONFIG, NATIVE_MODEL, diffusers_transformer, native_options, write_h3_hub
from support.servers import unpacked
from support.small_models import tensors_of

from overlay.formats.h3_native import ROPE_TENSOR, native_name
from overlay.formats.rope import rope_inv_freq
from overlay.materialization.materialize import materialize

torch = pytest.importorskip("torch")

if TYPE_CHECKING:
    from pathlib import Path

    from support.tensors import Tensor

pytestmark = pytest.mark.slow

MODELS = "vllm_omni/diffusion/models/minimax_h3"
DTYPES = {"BF16": torch.bfloat16, "F32": torch.float32}
WORDS = ("_MODEL_LEVEL_TARGETS", "_PLAIN", "_QKV_Q", "_QKV_SLOTS", "_BLOCK_TARGETS", "_BLOCK_PREFIXES")


def definitions(file: str, *names: str) -> dict[str, Any]:
    """Classes, functions and constants of a released module, by name; nothing else of it runs."""
    tree = ast.parse((unpacked("vllm-omni", "0.30.0") / MODELS / file).read_text())

    def is_wanted(node: ast.stmt) -> bool:
        if isinstance(node, ast.Assign):
            said = {name.id for target in node.targets for name in ast.walk(target) if isinstance(name, ast.Name)}
            return not said.isdisjoint(names)
        return getattr(node, "name", None) in names

    body = [node for node in tree.body if is_wanted(node)]
    here: dict[str, Any] = {
        "torch": torch,
        "dataclass": dataclass,
        "Any": Any,
        "Mapping": Mapping,
        "Iterable": Iterable,
    }
    code = compile(ast.Module([ast.parse("from __future__ import annotations").body[0], *body], []), file, "exec")
    exec(code, here)  # noqa: S102  # the released functions are what is tested
    return here


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The native tree of the small model."""
    folder = tmp_path_factory.mktemp("h3")
    write_h3_hub(folder / "hub")
    made = materialize(NATIVE_MODEL, native_options(folder / "hub")).path
    assert made is not None
    return made / "FL2VA"


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Tensor]:
    """The same in the Diffusers layout."""
    folder = tmp_path_factory.mktemp("h3")
    write_h3_hub(folder / "hub")
    made = materialize(NATIVE_MODEL, native_options(folder / "hub", output=False)).path
    assert made is not None
    return tensors_of(*(made / "transformer").glob("*.safetensors"))


def as_torch(tensor: Tensor) -> Any:
    dtype, shape, data = tensor
    return torch.frombuffer(bytearray(data), dtype=DTYPES[dtype]).view(shape)


def diffusers_block(native: str) -> str:
    """A block's name, or that of a module in it, in the Diffusers layout."""
    refiner = "token_refiner.blocks."
    return native.replace(refiner, "token_refiner.refiner_blocks.") if refiner in native else f"transformer_{native}"


def test_every_name_is_the_servers() -> None:
    """Module by module, with how a tensor enters the native one."""
    words = definitions("fasth3.py", *WORDS, "_resolve_native_target")
    layouts = {"swap_halves": "gated"}
    for name in diffusers_transformer():
        module, _, kind = name.rpartition(".")
        target = words["_resolve_native_target"](module)
        assert target is not None, name
        native = native_name(name)
        assert (native.name, native.layout) == (f"{target[0]}.{kind}", layouts.get(target[1], target[1]))


def test_the_server_takes_q_k_and_v_apart_as_they_were(tree: Path, plain: dict[str, Tensor]) -> None:
    """Its own reordering of the stored weight gives q, k and v of all heads, one after the other."""
    reorder = definitions("minimax_h3_transformer.py", "_reorder_grouped_qkv_to_qkv")["_reorder_grouped_qkv_to_qkv"]
    arch = arch_of(tree)
    found = 0
    for name, tensor in tensors_of(*(tree / "transformer").glob("*.safetensors")).items():
        if name.endswith(".attn.qkv_proj.weight"):
            made = reorder(
                as_torch(tensor),
                num_query_groups=arch.num_attention_heads,
                heads_per_group=1,
                head_dim=arch.attention_head_dim,
            )
            block = diffusers_block(name.removesuffix(".qkv_proj.weight"))
            parts = [as_torch(plain[f"{block}.to_{part}.weight"]) for part in "qkv"]
            assert made.view(torch.int16).equal(torch.cat(parts).view(torch.int16)), name
            found += 1
        if name.endswith(".mlp.fc1.weight"):  # the server splits in two: gate, then up
            gate, up = as_torch(tensor).chunk(2)
            block = diffusers_block(name.removesuffix(".mlp.fc1.weight"))
            value, then = as_torch(plain[f"{block}.ff.net.0.proj.weight"]).chunk(2)
            assert gate.view(torch.int16).equal(then.view(torch.int16))
            assert up.view(torch.int16).equal(value.view(torch.int16))
    assert found == CONFIG["num_layers"] + CONFIG["num_refiner_layers"]


def arch_of(tree: Path) -> Any:
    config = json.loads((tree / "transformer/config.json").read_text())
    found = definitions("minimax_h3_transformer.py", "MiniMaxH3DiTArchConfig")
    return found["MiniMaxH3DiTArchConfig"].from_mapping(config)


def test_the_config_is_read_whole(tree: Path) -> None:
    """Every field of the server's architecture is said, none left to its default; shapes follow from it."""
    arch = arch_of(tree)
    config = json.loads((tree / "transformer/config.json").read_text())
    assert set(type(arch).__dataclass_fields__) <= set(config)
    assert arch.patch_size == tuple(CONFIG["patch_size"])
    shapes = {name: shape for name, (_, shape, _) in tensors_of(*(tree / "transformer").glob("*.safetensors")).items()}
    assert shapes["blocks.0.adaln_proj.linear.weight"] == [arch.adaln_out_features, arch.time_embed_dim]
    assert shapes["final_layer.adaln_proj.linear.weight"] == [arch.final_adaln_out_features, arch.time_embed_dim]
    assert shapes["blocks.0.mlp.fc1.weight"] == [2 * arch.ffn_hidden_size, arch.hidden_size]
    assert shapes[ROPE_TENSOR] == [arch.rope_inv_freq_len]


def test_what_the_server_keeps_in_fp32_is_stored_so(tree: Path) -> None:
    """Its own lists of parameters and buffers."""
    names = ("MINIMAX_H3_FP32_PARAM_NAMES", "MINIMAX_H3_FP32_BUFFER_NAMES")
    found = definitions("minimax_h3_transformer.py", *names)
    tensors = tensors_of(*(tree / "transformer").glob("*.safetensors"))
    assert {name for name, (dtype, _, _) in tensors.items() if dtype == "F32"} == found[names[0]] | found[names[1]]


def test_the_rotary_frequencies_are_those_that_the_server_would_compute(tree: Path) -> None:
    """To the last bit; the release has 16 of them."""
    [stored] = [t for n, t in tensors_of(*(tree / "transformer").glob("*.safetensors")).items() if n == ROPE_TENSOR]
    for dim, made in ((CONFIG["rope_freq_dim"], stored), (16, ("F32", [16], rope_inv_freq(16)))):
        computed = 1.0 / (10000.0 ** (torch.arange(0, 2 * dim, 2, dtype=torch.float32) / (2 * dim)))
        assert as_torch(made).equal(computed)


def test_the_index_has_a_name_that_the_server_looks_for(tree: Path) -> None:
    """One index, whose shards are all there."""
    loader = unpacked("vllm-omni", "0.30.0") / "vllm_omni/diffusion/model_loader/diffusers_loader.py"
    [index] = (tree / "transformer").glob("*.index.json")
    assert f'"{index.name}"' in loader.read_text()
    shards = set(json.loads(index.read_text())["weight_map"].values())
    assert shards == {path.name for path in (tree / "transformer").glob("*.safetensors")}
