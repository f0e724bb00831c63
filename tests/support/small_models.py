"""A base of a few small tensors and adapters for it, with real values, and what fusing them must give."""

from __future__ import annotations

import json
import struct
from typing import TYPE_CHECKING, Any

from support.fuse_files import random_values
from support.fuse_files import seeded as dice_of
from support.fuse_oracle import Pair, fuse
from support.hubs import commit
from support.lora import peft_config
from support.models import write_registry
from support.tensors import f32, write_checkpoint, write_tensors

from overlay.materialization.request import Options

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
    tensors["scale"] = ("F8_E4M3", [16], bytes(range(120, 136)))
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


# The same as files: a folder for the fuse, repos of a hub folder for the recipe ``lora``


def write_base(folder: Path, tensors: Mapping[str, Tensor] | None = None, *, inside: str = "") -> Path:
    """A base in three shards and an index; the last shard holds no target."""
    tensors = tensors or small_base()
    shards = {
        f"{inside}a.safetensors": {name: tensors[name] for name in tensors if name.startswith("blocks.0")},
        f"{inside}b.safetensors": {name: tensors[name] for name in tensors if name.startswith("blocks.1")},
        f"{inside}c.safetensors": {name: tensors[name] for name in tensors if not name.startswith("blocks")},
    }
    return write_checkpoint(folder, shards)


def write_peft(folder: Path, tensors: Mapping[str, Tensor], **config: Any) -> Path:
    """An adapter folder as PEFT saves it; rank and alpha 2 unless told."""
    write_tensors(folder / "adapter_model.safetensors", tensors)
    modules = sorted({name.partition(".lora_")[0] for name in tensors})
    (folder / "adapter_config.json").write_text(json.dumps(peft_config(modules, **config)))
    return folder


MODEL, BASE_REPO, STYLE_REPO = "acme/model", "acme/base", "acme/style"


def write_small_hub(hub: Path) -> tuple[Path, Path]:
    """A base repo with its weights in ``unet/``, and a repo with a PEFT adapter; returns their folders."""
    base, style = hub / BASE_REPO / commit("a"), hub / STYLE_REPO / commit("b")
    write_base(base / "unet")
    (base / "unet/config.json").write_text('{"in": 4}')
    (base / "README.md").write_text("a base")
    (base / ".gitattributes").write_text("*.safetensors filter=lfs")
    write_tensors(base / "vae/model.safetensors", {"v": f32([2], [1.0, 2.0])})
    write_peft(style, small_adapter())
    return base, style


def small_options(hub: Path, *, adapters: Sequence[str] = (f"{{repo: {STYLE_REPO}}}",), **choices: Any) -> Options:
    """Options for ``acme/model``: the base of ``write_small_hub`` with these adapters folded in."""
    registry = write_registry(
        hub,
        f"""\
  {MODEL}:
    source: {{repo: {BASE_REPO}, revision: {commit("a")}}}
    needs:
      - {{repo: {STYLE_REPO}, revision: {commit("b")}}}
    recipe:
      name: lora
      base: {{path: unet}}
      adapters: [{", ".join(adapters)}]
""",
    )
    return Options(**({"registry": registry, "hub": hub, "cache_root": hub.parent / "root"} | choices))
