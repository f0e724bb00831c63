"""A MiniMax-H3 transformer of a few rows in the Diffusers layout, a native release beside it, and the way back.

``to_diffusers`` is the oracle: plain loops over rows, from native tensors to those of the Diffusers export.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from support.fuse_files import random_values, seeded
from support.hubs import add_repo, commit
from support.models import write_registry
from support.small_models import write_peft
from support.tensors import f32, write_checkpoint, write_tensors

from overlay.materialization.request import Options

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from support.tensors import Tensor

H3_REPO, ADAPTER_REPO, NATIVE_MODEL = "MiniMaxAI/MiniMax-H3", "acme/turbo", "acme/h3-turbo"
LAYERS, REFINERS, HEADS, DIM, HIDDEN, FFN, TEXT, TIME, FREQ, ROPE = 2, 1, 2, 3, 4, 5, 3, 2, 4, 4
IN_CHANNELS, AUDIO = 2, 3
CONFIG: dict[str, Any] = {
    "_class_name": "MiniMaxH3Transformer3DModel",
    "_diffusers_version": "0.42.0",
    "num_attention_heads": HEADS,
    "attention_head_dim": DIM,
    "hidden_size": HIDDEN,
    "num_layers": LAYERS,
    "num_refiner_layers": REFINERS,
    "ffn_dim": FFN,
    "in_channels": IN_CHANNELS,
    "audio_in_channels": AUDIO,
    "patch_size": [1, 2, 2],
    "text_dim": TEXT,
    "freq_dim": FREQ,
    "time_embed_hidden_dim": HIDDEN,
    "time_embed_dim": TIME,
    "rope_freq_dim": ROPE,
    "rope_theta": 10000.0,
    "norm_eps": 1e-5,
    "qk_norm_eps": 1e-5,
    "final_norm_eps": 1e-5,
}
TARGETS = {
    **{f"transformer_blocks.{b}.attn.to_{p}": (HEADS * DIM, HIDDEN) for b in range(LAYERS) for p in "qv"},
    "transformer_blocks.1.attn.to_k": (HEADS * DIM, HIDDEN),
    "transformer_blocks.0.attn.to_out.0": (HIDDEN, HEADS * DIM),
    "transformer_blocks.0.ff.net.0.proj": (2 * FFN, HIDDEN),
    "transformer_blocks.1.ff.net.2": (HIDDEN, FFN),
    "token_refiner.refiner_blocks.0.attn.to_k": (HEADS * DIM, HIDDEN),
}
"""What the adapter folds into: of one block's q, k, v only two, in the other all."""


def diffusers_transformer(seed: int = 3) -> dict[str, Tensor]:
    """Every tensor of the Diffusers export, by its inventory; fp32 where that has fp32."""
    dice = seeded(seed)
    tensors: dict[str, Tensor] = {}

    def add(name: str, *shape: int, dtype: str = "BF16") -> None:
        count = 1
        for size in shape:
            count *= size
        tensors[name] = (dtype, list(shape), random_values(dice, count, dtype))

    patch = IN_CHANNELS * 4
    for name, rows, cols, dtype in (
        ("proj_in", HIDDEN, patch, "F32"),
        ("audio_proj_in", HIDDEN, AUDIO, "F32"),
        ("context_embedder", HIDDEN, TEXT, "BF16"),
        ("time_embedder.linear_1", HIDDEN, FREQ, "F32"),
        ("time_embedder.linear_2", TIME, HIDDEN, "F32"),
        ("norm_out.linear", 2 * HIDDEN, TIME, "BF16"),
        ("proj_out", patch, HIDDEN, "F32"),
        ("audio_proj_out", AUDIO, HIDDEN, "F32"),
        *((f"transformer_blocks.{block}.adaln_proj.linear", 18 * HIDDEN, TIME, "BF16") for block in range(LAYERS)),
    ):
        add(f"{name}.weight", rows, cols, dtype=dtype)
        add(f"{name}.bias", rows, dtype=dtype)
    add("token_refiner.final_norm.weight", HIDDEN)
    add("norm_out.norm.weight", HIDDEN)
    blocks = [f"transformer_blocks.{block}" for block in range(LAYERS)]
    for prefix in [*blocks, *(f"token_refiner.refiner_blocks.{block}" for block in range(REFINERS))]:
        for norm in ("norm1", "norm2"):
            add(f"{prefix}.{norm}.weight", HIDDEN)
        for part in "qkv":
            add(f"{prefix}.attn.to_{part}.weight", HEADS * DIM, HIDDEN)
        for norm in ("norm_q", "norm_k"):
            add(f"{prefix}.attn.{norm}.weight", DIM)
        add(f"{prefix}.attn.to_out.0.weight", HIDDEN, HEADS * DIM)
        add(f"{prefix}.ff.net.0.proj.weight", 2 * FFN, HIDDEN)
        add(f"{prefix}.ff.net.2.weight", HIDDEN, FFN)
    return tensors


def turbo(seed: int = 4, rank: int = 2) -> dict[str, Tensor]:
    """A pair for each target."""
    dice = seeded(seed)
    tensors: dict[str, Tensor] = {}
    for module, (rows, cols) in TARGETS.items():
        tensors[f"{module}.lora_A.weight"] = ("BF16", [rank, cols], random_values(dice, rank * cols, "BF16"))
        tensors[f"{module}.lora_B.weight"] = ("BF16", [rows, rank], random_values(dice, rows * rank, "BF16"))
    return tensors


def to_diffusers(native: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Native tensors under the names of the Diffusers export, rows in its order; the rotary frequencies are dropped."""
    back: dict[str, Tensor] = {}
    for name, (dtype, shape, data) in native.items():
        if name == "rope.inv_freq":
            continue
        module, _, kind = name.rpartition(".")
        where = "transformer_blocks" if module.startswith("blocks.") else "token_refiner.refiner_blocks"
        block, inside = "", module
        if module.startswith(("blocks.", "token_refiner.blocks.")):
            number, _, inside = module.partition("blocks.")[2].partition(".")
            block = f"{where}.{number}."
        rows = [data[at : at + len(data) // shape[0]] for at in range(0, len(data), len(data) // shape[0])]
        if block and inside == "attn.qkv_proj":
            for index, part in enumerate("qkv"):
                mine = [row for at, row in enumerate(rows) if at // DIM % 3 == index]
                back[f"{block}attn.to_{part}.{kind}"] = (dtype, [len(mine), *shape[1:]], b"".join(mine))
        elif block and inside == "mlp.fc1":
            gate, value = rows[: len(rows) // 2], rows[len(rows) // 2 :]
            back[f"{block}ff.net.0.proj.{kind}"] = (dtype, list(shape), b"".join(value + gate))
        else:
            names = {
                "attn.q_norm": "attn.norm_q",
                "attn.k_norm": "attn.norm_k",
                "attn.out_proj": "attn.to_out.0",
                "mlp.fc2": "ff.net.2",
                "video_patch_proj": "proj_in",
                "audio_patch_proj": "audio_proj_in",
                "condition_proj": "context_embedder",
                "time_embedder.proj_in": "time_embedder.linear_1",
                "time_embedder.proj_out": "time_embedder.linear_2",
                "final_layer.norm": "norm_out.norm",
                "final_layer.adaln_proj.linear": "norm_out.linear",
                "final_layer.video_out": "proj_out",
                "final_layer.audio_out": "audio_proj_out",
            }
            back[f"{block}{names.get(inside, inside)}.{kind}"] = (dtype, list(shape), data)
    return back


def model_index(partition: str) -> str:
    """As a native release has it."""
    tasks = ["ref2va"] if partition == "ref2va" else ["t2va", "fl2va"]
    document = {
        "_class_name": "MiniMaxH3Pipeline",
        "_diffusers_version": "0.40.0",
        "_minimax_h3": {"partition": partition, "schema_version": 1, "tasks": tasks},
        "scheduler": None,
        "tokenizer": ["transformers", "Qwen2TokenizerFast"],
        "text_encoder": ["transformers", "Qwen3VLModel"],
        "video_vae": ["minimax_h3", "MiniMaxH3VideoVAE"],
        "transformer": ["minimax_h3", "MiniMaxH3DiTModel"],
    }
    return json.dumps(document)


def write_h3_hub(hub: Path, tensors: Mapping[str, Tensor] | None = None) -> tuple[Path, Path]:
    """A repo with the Diffusers export and the native folders FL2VA and Ref2VA, and one with an adapter."""
    tensors = tensors or diffusers_transformer()
    release, adapter = hub / H3_REPO / commit("a"), hub / ADAPTER_REPO / commit("b")
    names = sorted(tensors)  # in three shards, so that q, k and v of a block are in two
    cuts = {"00001": names[::3], "00002": names[1::3], "00003": names[2::3]}
    shards = {
        f"diffusion_pytorch_model-{number}-of-00003.safetensors": {name: tensors[name] for name in chosen}
        for number, chosen in cuts.items()
    }
    write_checkpoint(release / "transformer", shards)
    (release / "transformer/config.json").write_text(json.dumps(CONFIG))
    (release / "LICENSE").write_text("all rights made up\n")
    for folder in ("FL2VA", "Ref2VA"):
        write_tensors(release / folder / "transformer/model.safetensors", {"own": f32([1], [len(folder)])})
        (release / folder / "transformer/config.json").write_text("{}")
        (release / folder / "model_index.json").write_text(model_index(folder.lower()))
        add_repo(
            hub,
            H3_REPO,
            commit("a"),
            {f"{folder}/tokenizer/tokenizer.json": "{}", f"{folder}/video_vae/model.py": "class VAE: ...\n"},
        )
        for component in ("text_encoder", "video_vae"):
            write_tensors(release / folder / component / "model.safetensors", {component: f32([2], [1.0, 2.0])})
            (release / folder / component / "config.json").write_text("{}")
    write_peft(adapter, turbo())
    return release, adapter


def native_options(hub: Path, *, folder: str = "FL2VA", output: bool = True, **choices: Any) -> Options:
    """Options for ``acme/h3-turbo``; with ``output=False`` in the Diffusers layout of the base."""
    laid_out = f"\n      output: {{layout: native, folder: {folder}, siblings: {{path: {folder}}}}}" if output else ""
    registry = write_registry(
        hub,
        f"""\
  {NATIVE_MODEL}:
    source: {{repo: {H3_REPO}, revision: {commit("a")}}}
    needs:
      - {{repo: {ADAPTER_REPO}, revision: {commit("b")}}}
    recipe:
      name: lora
      base: {{path: transformer}}
      adapters: [{{repo: {ADAPTER_REPO}}}]{laid_out}
""",
    )
    return Options(**({"registry": registry, "hub": hub, "cache_root": hub.parent / "root"} | choices))
