"""The same fuse by way of diffusers and peft: load the model, load the adapters, merge them, save.

    python tools/peft_rewrite.py BASE OUT ADAPTER...

What somebody would write who has neither this program nor the published script. BASE is loaded by the diffusers class
that its ``config.json`` names, in the dtypes in which it is stored; the adapters by ``load_lora_adapter``, after two
things that peft cannot know: the spec is not a PEFT config, and the names of block attention have one level more than
the base's. Every pair must land, or it fails. Shards get the limits of BASE's, so they hold the same tensors. The
linear branch of VDN is no part of this: the fuse leaves it as it is, and so the base's own class is all it takes.

The bytes are not those of the other contenders, by design: peft rounds each delta to the weight's dtype and adds it in
that dtype, one adapter after the other, which is the rule ``openvdn``; the published rule rounds once.

Needs diffusers with the model's class (0.42 has it), peft, accelerate, and memory for the whole model.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import diffusers
import torch
from plain_rewrite import read_pairs

if TYPE_CHECKING:
    from collections.abc import Iterable


def load_model(base: Path) -> Any:
    """The model in BASE: bf16, but for what its class keeps in fp32."""
    config = json.loads((base / "config.json").read_text(encoding="utf-8"))
    return getattr(diffusers, config["_class_name"]).from_pretrained(base, torch_dtype=torch.bfloat16)


def add_adapter(model: Any, adapter: Path) -> None:
    """Load an OpenVDN adapter folder into ``model`` under the folder's name; every pair must land."""
    pairs = read_pairs(adapter)
    state, ranks, alphas = {}, {}, {}
    for target, (a, b, scale) in pairs.items():
        module = target.removesuffix(".weight")
        state[f"{module}.lora_A.weight"], state[f"{module}.lora_B.weight"] = a, b
        ranks[f"^{module}$"], alphas[f"^{module}$"] = a.shape[0], scale * a.shape[0]
    config = {
        "r": 1,  # overruled for every module by its pattern
        "rank_pattern": ranks,
        "alpha_pattern": alphas,
        "target_modules": [target.removesuffix(".weight") for target in pairs],
    }
    model.load_lora_adapter(state, prefix=None, adapter_name=adapter.name, metadata=config)
    landed = {name for name, _ in model.named_parameters() if f".lora_A.{adapter.name}." in name}
    if len(landed) != len(pairs):
        raise SystemExit(f"{adapter}: {len(landed)} of {len(pairs)} pairs landed")


def shard_limit(shards: Iterable[Path]) -> int:
    """Tensor bytes of the largest shard: as a limit it gives the same shards again, since each was filled in order."""
    return max(shard.stat().st_size - 8 - int.from_bytes(shard.open("rb").read(8), "little") for shard in shards)


def main() -> None:
    """Merge the adapters into the model in BASE and save it to OUT."""
    base, out, *adapters = (Path(part) for part in sys.argv[1:])
    model = load_model(base)
    for adapter in adapters:
        add_adapter(model, adapter)
    model.fuse_lora(adapter_names=[adapter.name for adapter in adapters])
    model.unload_lora()
    model.save_pretrained(out, max_shard_size=shard_limit(base.glob("*.safetensors")))


if __name__ == "__main__":
    main()
