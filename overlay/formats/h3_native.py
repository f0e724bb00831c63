"""MiniMax-H3's transformer by MiniMax's own names: what each tensor of the Diffusers export is called there.

Three things are more than a name. q, k and v are one weight, interleaved per head: the rows of head 0's q, its k, its
v, then head 1's. The two halves of a gated feed-forward change places: gate before value. And ``rope.inv_freq``, which
Diffusers computes, is stored. The config's fields have other names for the same numbers.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from overlay.errors import BrokenInput

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

__all__ = ["ROPE_TENSOR", "Architecture", "NativeName", "native_config", "native_name", "read_architecture"]

ROPE_TENSOR = "rope.inv_freq"

_MODULES: Mapping[str, str] = {
    "proj_in": "video_patch_proj",
    "audio_proj_in": "audio_patch_proj",
    "context_embedder": "condition_proj",
    "time_embedder.linear_1": "time_embedder.proj_in",
    "time_embedder.linear_2": "time_embedder.proj_out",
    "norm_out.linear": "final_layer.adaln_proj.linear",
    "proj_out": "final_layer.video_out",
    "audio_proj_out": "final_layer.audio_out",
}
"""Outside the blocks, with weight and bias."""

_NORMS: Mapping[str, str] = {
    "norm_out.norm": "final_layer.norm",
    "token_refiner.final_norm": "token_refiner.final_norm",
}

_IN_BLOCKS: Mapping[str, str] = {
    "norm1": "norm1",
    "norm2": "norm2",
    "attn.to_q": "attn.qkv_proj",
    "attn.to_k": "attn.qkv_proj",
    "attn.to_v": "attn.qkv_proj",
    "attn.norm_q": "attn.q_norm",
    "attn.norm_k": "attn.k_norm",
    "attn.to_out.0": "attn.out_proj",
    "ff.net.0.proj": "mlp.fc1",
    "ff.net.2": "mlp.fc2",
}
"""Of every block; weights alone."""

_TRANSFORMER, _REFINER = "transformer_blocks", "token_refiner.refiner_blocks"
_BLOCKS: Mapping[str, str] = {_TRANSFORMER: "blocks", _REFINER: "token_refiner.blocks"}
_BLOCK = re.compile(rf"({'|'.join(map(re.escape, _BLOCKS))})\.(\d+)\.(.+)")
_ADALN = "adaln_proj.linear"
"""Of the transformer's blocks, not of the refiner's; with weight and bias."""

_FIELDS: Mapping[str, str] = {
    "num_refiner_layers": "token_refiner_num_layers",
    "ffn_dim": "ffn_hidden_size",
    "in_channels": "latents_dim",
    "audio_in_channels": "audio_latents_dim",
    "freq_dim": "timestep_input_dim",
    "time_embed_hidden_dim": "time_embed_hidden_size",
    "rope_freq_dim": "rope_inv_freq_len",
}

_ROPE_THETA = 10000.0
_LARGEST_THETA = 1e12  # its powers and their reciprocals are float32, and no model is anywhere near
_MOST_LAYERS = 10_000


Layout = Literal["plain", "q", "k", "v", "gated"]
_LAYOUTS: Mapping[str, Layout] = {"attn.to_q": "q", "attn.to_k": "k", "attn.to_v": "v", "ff.net.0.proj": "gated"}


@dataclass(frozen=True, slots=True)
class NativeName:
    """Where a tensor goes.

    Attributes:
        name: Of the native tensor.
        layout: ``plain``: as it is; ``q``, ``k``, ``v``: a third of it, per head; ``gated``: its halves change places.
    """

    name: str
    layout: Layout


@dataclass(frozen=True, slots=True)
class Architecture:
    """What the config says of the layout.

    Attributes:
        num_heads, head_dim: A projection has their product for rows.
        rope_freq_dim, rope_theta: Frequencies on each axis, and their base.
        config: The Diffusers config, whole.
    """

    num_layers: int
    num_refiner_layers: int
    num_heads: int
    head_dim: int
    rope_freq_dim: int
    rope_theta: float
    config: Mapping[str, Any]

    def diffusers_names(self) -> Iterator[str]:
        """Every tensor that the Diffusers export has."""
        for module in _MODULES:
            yield from (f"{module}.weight", f"{module}.bias")
        yield from (f"{norm}.weight" for norm in _NORMS)
        for blocks, count in ((_TRANSFORMER, self.num_layers), (_REFINER, self.num_refiner_layers)):
            for number in range(count):
                yield from (f"{blocks}.{number}.{module}.weight" for module in _IN_BLOCKS)
        for number in range(self.num_layers):
            yield from (f"{_TRANSFORMER}.{number}.{_ADALN}.{kind}" for kind in ("weight", "bias"))


def read_architecture(config: Mapping[str, Any], where: str) -> Architecture:
    """Reads a Diffusers config of the transformer.

    Raises:
        BrokenInput: A number is missing or none, or two names of one field have different values.
    """

    def count(key: str) -> int:
        value = config.get(key)
        if type(value) is not int or not 0 < value <= _MOST_LAYERS:
            raise _wrong(where, key, value, "a positive integer")
        return value

    theta = config.get("rope_theta", _ROPE_THETA)
    if type(theta) not in (int, float) or not 1 <= theta <= _LARGEST_THETA:
        raise _wrong(where, "rope_theta", theta, f"a number from 1 to {_LARGEST_THETA:g}")
    for key, native in _FIELDS.items():
        if key in config and native in config and config[key] != config[native]:
            raise _wrong(where, native, config[native], f"{str(config[key])[:80]!r}, as {key} says")
    return Architecture(
        num_layers=count("num_layers"),
        num_refiner_layers=count("num_refiner_layers"),
        num_heads=count("num_attention_heads"),
        head_dim=count("attention_head_dim"),
        rope_freq_dim=count("rope_freq_dim"),
        rope_theta=float(theta),
        config=config,
    )


def native_name(name: str) -> NativeName:
    """The native tensor that a tensor of the Diffusers export goes to; ``KeyError`` for a name that it has not."""
    module, _, kind = name.rpartition(".")
    if match := _BLOCK.fullmatch(module):
        blocks, number, inside = match.groups()
        renamed = inside if inside == _ADALN else _IN_BLOCKS[inside]
        return NativeName(f"{_BLOCKS[blocks]}.{number}.{renamed}.{kind}", _LAYOUTS.get(inside, "plain"))
    return NativeName(f"{_MODULES.get(module) or _NORMS[module]}.{kind}", "plain")


def native_config(architecture: Architecture, adaln_rows: int, final_adaln_rows: int, where: str) -> dict[str, Any]:
    """The config by native names, without the class that would have a server take the tensors for Diffusers'.

    Args:
        adaln_rows: Rows of a block's AdaLN projection.
        final_adaln_rows: Rows of the last one.
        where: The config, for the message.

    Raises:
        BrokenInput: The config itself says other rows.
    """
    config = {_FIELDS.get(key, key): value for key, value in architecture.config.items() if not key.startswith("_")}
    rows = {"adaln_out_features": adaln_rows, "final_adaln_out_features": final_adaln_rows}
    for key, count in rows.items():
        if config.get(key, count) != count:
            raise _wrong(where, key, config[key], f"{count}, the rows of the tensor")
    return {**config, **rows}


def _wrong(where: str, key: str, value: Any, expected: str) -> BrokenInput:
    return BrokenInput(
        f"{where}: {key} is {str(value)[:80]!r}; expected {expected}", code="config-value", where=where, key=key
    )
