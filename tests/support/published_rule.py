"""The materialized VDN-H3 tree, made the plain way: whole tensors in memory, one statement for each step of the format.

Uses torch, the safetensors library and ``json``, and of the product only where a made hub folder keeps its repos.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from typing import TYPE_CHECKING, Any

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from torch import Tensor

    from overlay.demo.checkpoint import HubFolder

__all__ = ["files_of", "fold", "ordered_product", "published_tree", "rope_file", "shard_metadata"]

STAGES = {"stage-dmd-step-250": ["default", "turbo"], "stage-b-step-2000": ["default"]}
MODEL = "OpenVDN/vdn-minimax-h3"
RULE = "W += (alpha / rank) * B @ A, fp32 accumulate, one rounding to the stored dtype"
BRANCH_FILE = "sglang_vdn_linear_branch.safetensors"
ROPE_FILE = "sglang_rope_inv_freq.safetensors"


def published_tree(hub: HubFolder, out: Path, stage: str = "stage-dmd-step-250") -> None:
    """Write the whole tree of a stage, the server's marker included, to the new folder ``out``."""
    source = hub.source_folder
    shutil.copytree(hub.overlay_folder, out, ignore=shutil.ignore_patterns("_overlay"))
    shutil.copytree(source / "h3-base/audio_vae", out / "audio_vae")
    for component in ("text_encoder", "tokenizer", "processor"):
        shutil.copytree(hub.needs_folder / component, out / component)
    _video_vae(source / "h3-base/vae", out / "video_vae")
    audio_config = {**read_json(source / "h3-base/audio_vae/config.json"), "_class_name": "MiniMaxH3AudioVAE"}
    write_json(out / "audio_vae/config.json", audio_config)
    _transformer(source, stage, out / "transformer")
    (out / ".sglang_overlay_materialized.json").write_bytes(_marker(hub))


def files_of(folder: Path) -> dict[str, bytes]:
    """Content of every file below a folder, by relative path."""
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def read_json(path: Path) -> Any:
    return json.loads(path.read_bytes())


def write_json(path: Path, document: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document, indent=2, sort_keys=True))


def shard_metadata(path: Path) -> dict[str, str] | None:
    """``__metadata__`` of a safetensors file."""
    with safe_open(path, framework="pt") as file:
        return file.metadata()


# The fuse


def ordered_product(b: Tensor, a: Tensor) -> Tensor:
    """B @ A in fp32, k ascending, one rounding a step: products of two bf16 or fp16 values are exact in fp32."""
    b, a = b.float(), a.float()
    total = torch.zeros(b.shape[0], a.shape[1])
    for k in range(a.shape[0]):
        total = total + b[:, k : k + 1] * a[k : k + 1, :]
    return total


def fold(weight: Tensor, pairs: list[tuple[Tensor, Tensor, float]]) -> Tensor:
    """W with pairs (A, B, s) added in order in fp32, rounded once to the dtype of W."""
    total = weight.float()
    for a, b, scale in pairs:
        total = total + torch.tensor(scale, dtype=torch.float32) * ordered_product(b, a)
    return total.to(weight.dtype)


def _adapter(folder: Path, name: str) -> tuple[dict[str, Any], dict[str, tuple[Tensor, Tensor, float]]]:
    """Config of a VDN adapter, and its pairs with their scale by target."""
    config = read_json(folder / "adapter_spec.json")["config"]
    tensors = load_file(folder / "adapter_model.safetensors")
    ranks, alphas = config.get("rank_pattern", {}), config.get("alpha_pattern", {})
    pairs = {}
    for key in tensors:
        module, infix, tail = key.partition(f".lora_A.{name}.")
        if not infix:
            continue
        alpha, rank = alphas.get(module, config["alpha"]), ranks.get(module, config["rank"])
        a, b = tensors[key], tensors[f"{module}.lora_B.{name}.{tail}"]
        assert a.shape[0] == b.shape[1] == rank
        pairs[f"{module.replace('.attn.orig.', '.attn.')}.weight"] = a, b, alpha / rank
    assert len(pairs) * 2 == len(tensors)
    return config, pairs


def _transformer(source: Path, stage: str, out: Path) -> None:
    base, branch = source / "h3-base/transformer", source / stage / "linear_branch/model.safetensors"
    adapters = {name: _adapter(source / stage / "adapters" / name, name) for name in STAGES[stage]}
    out.mkdir(parents=True)
    for shard in sorted(base.glob("*.safetensors")):
        tensors = load_file(shard)
        for name in tensors:
            pairs = [adapter[name] for _, adapter in adapters.values() if name in adapter]
            if pairs:
                tensors[name] = fold(tensors[name], pairs)
        save_file(tensors, out / shard.name, metadata=shard_metadata(shard) or {"format": "pt"})

    shutil.copyfile(branch, out / BRANCH_FILE)
    branch_names = list(load_file(branch))
    branch_config = read_json(source / stage / "linear_branch/config.json")
    config = read_json(base / "config.json")
    write_json(out / "config.json", {**config, "hybrid_attention": branch_config["config"]})
    rope_file(config["rope_freq_dim"], out / ROPE_FILE)

    [index_path] = base.glob("*.index.json")
    index = read_json(index_path)
    index["metadata"]["total_size"] += branch.stat().st_size
    index["weight_map"] |= {**dict.fromkeys(branch_names, BRANCH_FILE), "rope.inv_freq": ROPE_FILE}
    write_json(out / index_path.name, index)

    targets = {name for _, pairs in adapters.values() for name in pairs}
    provenance = {
        "source_model_id": MODEL,
        "vdn_checkpoint": stage,
        "checkpoint_metadata": read_json(source / stage / "metadata.json"),
        "merge": {
            "rule": RULE,
            "order": STAGES[stage],
            "pairs_merged": sum(len(pairs) for _, pairs in adapters.values()),
            "tensors_touched": len(targets),
        },
        "adapters": [
            {
                "name": name,
                "path": f"{stage}/adapters/{name}",
                "pairs": len(pairs),
                "rank": adapter_config["rank"],
                "alpha": adapter_config["alpha"],
                "rank_pattern_modules": len(adapter_config.get("rank_pattern", {})),
                "scales": sorted({scale for _, _, scale in pairs.values()}),
                "adapter_model_sha256": sha256(source / stage / "adapters" / name / "adapter_model.safetensors"),
                "adapter_config_sha256": sha256(source / stage / "adapters" / name / "adapter_spec.json"),
            }
            for name, (adapter_config, pairs) in adapters.items()
        ],
        "linear_branch": {
            "file": BRANCH_FILE,
            "tensors": len(branch_names),
            "sha256": sha256(branch),
            "config": branch_config,
        },
    }
    write_json(out / "sglang_vdn_prefused.json", provenance)


def rope_file(freq_dim: int, path: Path) -> None:
    """The rotary frequencies, computed in fp32."""
    exponents = torch.arange(0, 2 * freq_dim, 2, dtype=torch.float32) / (2 * freq_dim)
    save_file({"rope.inv_freq": 1.0 / 10000.0**exponents}, path)


# The video VAE


def _video_vae(source: Path, out: Path) -> None:
    config = read_json(source / "config.json")
    heads, dim_head = config["decoder_num_attention_heads"], config["decoder_attention_head_dim"]
    tensors: dict[str, Tensor] = {}
    for shard in source.glob("*.safetensors"):
        tensors |= load_file(shard)
    relaid = {"decoder.mask_token": torch.zeros(1, 1, heads * dim_head)}
    for name, tensor in tensors.items():
        if ".attn.to_q." in name:
            triple = torch.cat([tensors[name.replace(".to_q.", f".to_{part}.")] for part in "qkv"])
            by_head = triple.reshape(3, heads, dim_head, -1).transpose(0, 1)
            relaid[name.replace(".to_q.", ".to_qkv.")] = by_head.reshape(triple.shape).contiguous()
        elif ".attn.to_k." in name or ".attn.to_v." in name:
            continue
        elif ".ff.net.0.proj." in name:
            value, gate = tensor.chunk(2)
            relaid[name.replace(".ff.net.0.proj.", ".ff.w1.")] = torch.cat([gate, value])
        else:
            relaid[_vae_name(name)] = tensor
    (out / "source").mkdir(parents=True)
    save_file(relaid, out / "source/model.safetensors")
    os.link(out / "source/model.safetensors", out / "model.safetensors")
    write_json(out / "config.json", {**config, "_class_name": "MiniMaxH3VideoVAE"})


def _vae_name(name: str) -> str:
    match name.split("."):
        case ["encoder", "down_blocks", block, "resnets", number, kind, *tail]:
            kind = kind.replace("conv_shortcut", "nin_shortcut")
            return ".".join(["encoder", "down", block, "block", number, kind, *tail])
        case ["encoder", "down_blocks", block, "downsamplers", _, *tail]:
            return ".".join(["encoder", "down", block, "downsample", *tail])
    name = name.replace(".attn.to_out.0.", ".attn.to_out.").replace(".ff.net.2.", ".ff.w2.")
    return name.replace("decoder.proj_in.", "decoder.x_embedder.") if name.startswith("decoder.proj_in.") else name


# The server's marker


def _marker(hub: HubFolder) -> bytes:
    manifest = read_json(hub.overlay_folder / "_overlay/overlay_manifest.json")
    marker = {
        "source_model_id": MODEL,
        "overlay_repo_id": "kevin-mi/VDN-H3-overlay",
        "overlay_revision": hub.overlay,
        "materializer_version": manifest.get("materializer_version", "v1"),
        "overlay_fingerprint": fingerprint(files_of(hub.overlay_folder)),
        "source_revision": None,
        "source_dir": f"{MODEL}@{hub.source}",
    }
    return json.dumps(marker, indent=2, sort_keys=True).encode()


def fingerprint(files: Mapping[str, bytes]) -> str:
    """The server's fingerprint of an overlay whose folders are one deep: files of the root first."""
    whole = hashlib.sha256()
    for path in sorted(files, key=lambda path: ("/" in path, path)):
        whole.update(path.encode())
        whole.update(hashlib.sha256(files[path]).digest())
    return whole.hexdigest()


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
