"""Which tensors a checkpoint holds: names, dtypes and shapes, each list in the order of the published model's modules.

The order decides which tensor lands in which shard, exactly as it does for a saved model.
"""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any

from overlay.formats.vdn import linear_branch_shapes

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from overlay.demo.presets import Preset

__all__ = [
    "Tensor",
    "branch_tensors",
    "default_modules",
    "linear",
    "lora_tensors",
    "text_encoder_tensors",
    "transformer_tensors",
    "turbo_modules",
]

Tensor = tuple[str, str, tuple[int, ...]]
"""Name, safetensors dtype and shape."""

_ATTENTION = ("attn.to_k", "attn.to_out.0", "attn.to_q", "attn.to_v")
_FEED_FORWARD = ("ff.net.0.proj", "ff.net.2")


def transformer_tensors(config: Mapping[str, Any]) -> list[Tensor]:
    """The base transformer: bf16, but for the patch projections, the time embedder and the heads, which are fp32."""
    width, time_hidden, time_width = config["hidden_size"], config["time_embed_hidden_dim"], config["time_embed_dim"]
    video_row = config["in_channels"] * prod(config["patch_size"])
    audio_row = config["audio_in_channels"]
    return [
        *linear("proj_in", "F32", width, video_row),
        *linear("audio_proj_in", "F32", width, audio_row),
        *linear("context_embedder", "BF16", width, config["text_dim"]),
        *linear("time_embedder.linear_1", "F32", time_hidden, config["freq_dim"]),
        *linear("time_embedder.linear_2", "F32", time_width, time_hidden),
        *(
            tensor
            for block in range(config["num_refiner_layers"])
            for tensor in _block(f"token_refiner.refiner_blocks.{block}.", config)
        ),
        ("token_refiner.final_norm.weight", "BF16", (width,)),
        *(
            tensor
            for block in range(config["num_layers"])
            for prefix in [f"transformer_blocks.{block}."]
            for tensor in (
                *_block(prefix, config),
                *linear(f"{prefix}adaln_proj.linear", "BF16", 6 * 3 * width, time_width),
            )
        ),
        ("norm_out.norm.weight", "BF16", (width,)),
        *linear("norm_out.linear", "BF16", 2 * width, time_width),
        *linear("proj_out", "F32", video_row, width),
        *linear("audio_proj_out", "F32", audio_row, width),
    ]


def _block(prefix: str, config: Mapping[str, Any]) -> Iterator[Tensor]:
    width, head, ffn = config["hidden_size"], config["attention_head_dim"], config["ffn_dim"]
    inner = config["num_attention_heads"] * head
    yield f"{prefix}norm1.weight", "BF16", (width,)
    for name in ("to_q", "to_k", "to_v"):
        yield f"{prefix}attn.{name}.weight", "BF16", (inner, width)
    for name in ("norm_q", "norm_k"):
        yield f"{prefix}attn.{name}.weight", "BF16", (head,)
    yield f"{prefix}attn.to_out.0.weight", "BF16", (width, inner)
    yield f"{prefix}norm2.weight", "BF16", (width,)
    yield f"{prefix}ff.net.0.proj.weight", "BF16", (2 * ffn, width)
    yield f"{prefix}ff.net.2.weight", "BF16", (width, ffn)


def branch_tensors(config: Mapping[str, Any]) -> list[Tensor]:
    """The linear branch: 16 bf16 tensors a block, with short convolutions on k and v."""
    shapes = linear_branch_shapes(config["hidden_size"], config["num_attention_heads"], config["attention_head_dim"])
    return [
        (f"transformer_blocks.{block}.attn.{name}", "BF16", shape)
        for block in range(config["num_layers"])
        for name, shape in shapes.items()
    ]


def default_modules(preset: Preset) -> list[str]:
    """The modules of the default adapter, under the base's names: the attention projections of every block."""
    return [
        f"{block}.{module}"
        for block in _block_names("transformer_blocks", preset.blocks)
        + _block_names("token_refiner.refiner_blocks", preset.refiner_blocks)
        for module in _ATTENTION
    ]


def turbo_modules(preset: Preset) -> list[str]:
    """The modules of the turbo adapter, under the base's names: every linear of every block, and ``norm_out``."""
    return [
        *(
            f"{block}.{module}"
            for block in _block_names("transformer_blocks", preset.blocks)
            for module in (*_ATTENTION, *_FEED_FORWARD, "adaln_proj.linear")
        ),
        *(
            f"{block}.{module}"
            for block in _block_names("token_refiner.refiner_blocks", preset.refiner_blocks)
            for module in (*_ATTENTION, *_FEED_FORWARD)
        ),
        "norm_out.linear",
    ]


def _block_names(prefix: str, count: int) -> list[str]:
    return [f"{prefix}.{block}" for block in range(count)]


def lora_tensors(config: Mapping[str, Any], ranks: Mapping[str, int], a_name: str, b_name: str) -> list[Tensor]:
    """The bf16 pairs of an adapter.

    Args:
        config: The base transformer's config, which gives every module its shape.
        ranks: Rank of each module, by its name in the base.
        a_name: Pattern of the names of the A tensors, with ``{}`` for the module.
        b_name: Pattern of the names of the B tensors, likewise.
    """
    shapes = {name: shape for name, _, shape in transformer_tensors(config)}
    pairs: list[Tensor] = []
    for module, rank in ranks.items():
        rows, columns = shapes[f"{module}.weight"]
        pairs.append((a_name.format(module), "BF16", (rank, columns)))
        pairs.append((b_name.format(module), "BF16", (rows, rank)))
    return pairs


def text_encoder_tensors(config: Mapping[str, int]) -> list[Tensor]:
    """A stand-in for the text encoder: an embedding and one projection, enough to be carried over."""
    width, vocabulary = config["hidden_size"], config["vocab_size"]
    return [
        ("model.language_model.embed_tokens.weight", "BF16", (vocabulary, width)),
        ("model.language_model.layers.0.self_attn.q_proj.weight", "BF16", (width, width)),
        ("model.language_model.norm.weight", "BF16", (width,)),
    ]


def linear(name: str, dtype: str, out: int, width: int) -> list[Tensor]:
    """Weight [out, width] and bias [out] of a linear layer."""
    return [(f"{name}.weight", dtype, (out, width)), (f"{name}.bias", dtype, (out,))]
