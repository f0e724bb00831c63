"""A base of a few small tensors and adapters for it, with real values, and what fusing them must give."""

from __future__ import annotations

import json
import struct
from typing import TYPE_CHECKING

from support.fuse_files import random_values
from support.fuse_files import seeded as dice_of
from support.fuse_oracle import Pair, fuse
from support.tensors import f32

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from support.tensors import Tensor

OUT, IN = 6, 4
MODULES = ("blocks.0.q", "blocks.0.k", "blocks.1.q", "blocks.1.k")


def small_base(seed: int = 0, dtype: str = "BF16") -> dict[str, Tensor]:
    """Four weights of ``dtype``, an fp32 norm, a bias, and a tensor that is only carried."""
    dice = dice_of(seed)
    tensors: dict[str, Tensor] = {
        f"{module}.weight": (dtype, [OUT, IN], random_values(dice, OUT * IN, dtype)) for module in MODULES
    }
    tensors["blocks.0.norm.weight"] = f32([IN], [1.0, 1.1, -0.5, 1e-30])
    tensors["blocks.0.q.bias"] = (dtype, [OUT], random_values(dice, OUT, dtype))
    tensors["scale"] = ("F8_E4M3", [3], b"\x01\x7f\xff")
    return tensors


def small_adapter(
    seed: int = 1,
    modules: Iterable[str] = MODULES,
    *,
    rank: int = 2,
    dtype: str = "BF16",
    a: str = "{}.lora_A.weight",
    b: str = "{}.lora_B.weight",
) -> dict[str, Tensor]:
    """A pair for each module."""
    dice = dice_of(seed)
    tensors: dict[str, Tensor] = {}
    for module in modules:
        tensors[a.format(module)] = (dtype, [rank, IN], random_values(dice, rank * IN, dtype))
        tensors[b.format(module)] = (dtype, [OUT, rank], random_values(dice, OUT * rank, dtype))
    return tensors


def fused(
    base: Mapping[str, Tensor], adapters: Sequence[tuple[Mapping[str, Tensor], float]], rule: str = "fp32-once"
) -> dict[str, Tensor]:
    """The base with adapters (named as by default) folded in by the exact loop, each with its scale."""
    result = {}
    for name, (dtype, shape, data) in base.items():
        module = name.removesuffix(".weight")
        pairs = []
        for tensors, scale in adapters:
            if f"{module}.lora_A.weight" in tensors:
                pair_dtype, (rank, _), a = tensors[f"{module}.lora_A.weight"]
                single = struct.unpack("<f", struct.pack("<f", scale))[0]
                pairs.append(Pair(a, tensors[f"{module}.lora_B.weight"][2], pair_dtype, rank, single))
        result[name] = (dtype, list(shape), fuse(data, dtype, IN, pairs, rule) if pairs else data)
    return result


def tensors_of(*files: Path) -> dict[str, Tensor]:
    """Every tensor of safetensors files."""
    found: dict[str, Tensor] = {}
    for file in files:
        content = file.read_bytes()
        [length] = struct.unpack("<Q", content[:8])
        for name, info in json.loads(content[8 : 8 + length]).items():
            if name != "__metadata__":
                start, end = info["data_offsets"]
                found[name] = (info["dtype"], info["shape"], content[8 + length + start : 8 + length + end])
    return found
