"""The published rule as a plain torch rewrite, whole shards in memory: what a fuse is measured against.

python tools/plain_rewrite.py BASE OUT ADAPTER...
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from safetensors import safe_open
from safetensors.torch import load_file, save_file

if TYPE_CHECKING:
    import torch


def read_pairs(adapter: Path) -> dict[str, tuple[torch.Tensor, torch.Tensor, float]]:
    """A, B and scale of every target of an OpenVDN adapter folder."""
    spec = next(adapter / name for name in ("adapter_spec.json", "adapter_config.json") if (adapter / name).exists())
    config = json.loads(spec.read_text(encoding="utf-8"))["config"]
    tensors = load_file(adapter / "adapter_model.safetensors")
    pairs = {}
    for key, a in tensors.items():
        if ".lora_A." not in key:
            continue
        module = key.partition(".lora_A.")[0]
        rank = config.get("rank_pattern", {}).get(module, config["rank"])
        alpha = config.get("alpha_pattern", {}).get(module, config["alpha"])
        target = module.replace(".attn.orig.", ".attn.") + ".weight"
        pairs[target] = (a, tensors[key.replace(".lora_A.", ".lora_B.")], alpha / rank)
    return pairs


def main() -> None:
    """Rewrite every shard of BASE into OUT with the adapters folded in."""
    base, out, *adapters = (Path(part) for part in sys.argv[1:])
    every = [read_pairs(adapter) for adapter in adapters]
    out.mkdir()
    for shard in sorted(base.glob("*.safetensors")):
        with safe_open(shard, framework="pt") as file:
            metadata = file.metadata() or {"format": "pt"}
        tensors = load_file(shard)
        for name, weight in tensors.items():
            folded = [pairs[name] for pairs in every if name in pairs]
            if folded:
                summed = weight.float()
                for a, b, scale in folded:
                    summed += (b.float() @ a.float()) * scale
                tensors[name] = summed.to(weight.dtype)
        save_file(tensors, out / shard.name, metadata=metadata)
    for path in base.glob("*.json"):
        shutil.copy2(path, out / path.name)


if __name__ == "__main__":
    main()
