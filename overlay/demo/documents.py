"""The JSON and text files of a made checkpoint, as their published counterparts are written.

At 50 blocks and the released ranks the adapter specs, the branch config, the model spec and the metadata are the
published files, byte for byte.
"""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any

from overlay.demo.tensors import default_modules, turbo_modules

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from overlay.demo.presets import Preset

__all__ = [
    "ADAPTER_STAGES",
    "DIFFUSERS_VERSION",
    "DMD_STAGE",
    "STAGE_B",
    "adapter_ranks",
    "adapter_spec",
    "branch_config",
    "component_config",
    "dump_line",
    "metadata",
    "model_spec",
    "overlay_manifest",
    "overlay_model_index",
    "spec_module",
]

DMD_STAGE = "stage-dmd-step-250"
STAGE_B = "stage-b-step-2000"
ADAPTER_STAGES: Mapping[str, tuple[str, ...]] = {DMD_STAGE: ("default", "turbo"), STAGE_B: ("default",)}
"""Stages of the source repo, and the adapters of each in merge order."""

DIFFUSERS_VERSION = "0.42.1"
"""The version that the files say they were saved by."""

_MODELS = {
    "transformer": "MiniMaxH3Transformer3DModel",
    "vae": "AutoencoderKLMiniMaxH3",
    "audio_vae": "AutoencoderKLMiniMaxH3Audio",
}


def dump_line(document: Any) -> bytes:
    """The document as OpenVDN and diffusers write it: indent 2, sorted keys, a newline at the end."""
    return json.dumps(document, indent=2, sort_keys=True).encode() + b"\n"


def component_config(component: str, config: Mapping[str, Any]) -> bytes:
    """``config.json`` of a component of the base, as diffusers' ``save_pretrained`` writes it."""
    return dump_line({"_class_name": _MODELS[component], "_diffusers_version": DIFFUSERS_VERSION, **config})


def spec_module(module: str) -> str:
    """A module's name in a VDN adapter, where attention in the blocks has one more level than in the base."""
    return module.replace(".attn.", ".attn.orig.") if module.startswith("transformer_blocks.") else module


def adapter_ranks(preset: Preset, adapter: str) -> dict[str, int]:
    """Rank of each module of a VDN adapter, by the module's name in the base."""
    if adapter == "default":
        return dict.fromkeys(default_modules(preset), preset.rank)
    return {
        module: preset.narrow_rank if module.endswith((".adaln_proj.linear", "norm_out.linear")) else preset.rank
        for module in turbo_modules(preset)
    }


def adapter_spec(preset: Preset, adapter: str) -> dict[str, Any]:
    """The ``adapter_spec.json`` of a VDN adapter; alpha equals the rank everywhere, as in the release."""
    config: dict[str, Any] = {"alpha": preset.rank, "rank": preset.rank}
    if adapter == "default":
        projections = ("to_k", "to_out.0", "to_q", "to_v")
        config["targets"] = [
            *(f"attn.orig.{name}" for name in projections),
            *(f"token_refiner.refiner_blocks.*.attn.{name}" for name in projections),
        ]
    else:
        ranks = {spec_module(module): rank for module, rank in adapter_ranks(preset, adapter).items()}
        narrow = {module: rank for module, rank in ranks.items() if rank == preset.narrow_rank}
        config |= {
            "exact_targets": True,
            "name": "turbo",
            "family": "larryvrh_v4_step600_ema",
            "rank_pattern": narrow,
            "alpha_pattern": narrow,
            "targets": sorted(ranks),
        }
    return {"type": "lora", "version": 1, "config": config}


def branch_config(preset: Preset) -> dict[str, Any]:
    """The ``linear_branch/config.json``."""
    return {
        "type": "hybrid_attention",
        "version": 2,
        "config": {
            "anchor_frames": "both",
            "enable_softmax_gate": True,
            "linear_attention": {
                "a_fp32": True,
                "bridge": "alpha",
                "delta_rule": "vdn_solve",
                "enable_text_state": True,
                "linear_head_dim": preset.transformer["attention_head_dim"],
                "short_conv": {"targets": ["k", "v"]},
            },
            "softmax_attention": {"chunk": 5, "radius": 1},
        },
    }


def model_spec(preset: Preset, stage: str) -> dict[str, Any]:
    """The ``model_spec.json``, which repeats the adapter specs and the branch config whole."""
    resolved = {"_note": "stamped at conversion; verify on load"}
    compact = json.dumps(resolved, sort_keys=True, separators=(",", ":")).encode()
    return {
        "format_version": 2,
        "adapters": [adapter_spec(preset, adapter) for adapter in ADAPTER_STAGES[stage]],
        "transforms": [branch_config(preset)],
        "base": {
            "class_name": _MODELS["transformer"],
            "library": "diffusers",
            "source": "ckpts/h3-base",
            "subfolder": "transformer",
            "revision": "939557dc319dd91227e30195a763f272ba7f8765",
            "resolved_config": resolved,
            "config_hash": hashlib.sha256(compact).hexdigest(),
        },
    }


def metadata(stage: str) -> bytes:
    """The ``metadata.json``: how the stage was trained. Published without a newline at its end."""
    shifts = {"audio_shift": 3.0, "video_shift": 12.0}
    if stage == DMD_STAGE:
        training: dict[str, Any] = {
            "fake_rank": 128,
            "fake_updates_per_step": 3,
            "fake_warmup_steps": 10,
            "objective": "dmd2_no_gan",
            "real_score": "vdn",
            "stage": "dmd",
            "step": 250,
            "student": "stage_b_vdn+external_v4_step600_ema_trainable",
            "teacher": "vdn_stage_b_step2000",
            "turbo_num_steps": 8,
        }
    else:
        training = {"stage": "stage_b", "step": 2000}
    document = {
        "checkpoint_format_version": 2,
        "kind": "weights",
        "weights_dtype": "bfloat16",
        "metadata": training | shifts,
    }
    return dump_line(document).rstrip(b"\n")


def overlay_manifest(source_model_id: str, spec_name: str) -> dict[str, Any]:
    """The overlay's ``_overlay/overlay_manifest.json``.

    Args:
        source_model_id: Repo of the source.
        spec_name: File name of an adapter's spec in the source, which the manifest requires.
    """
    base, index = "h3-base", "diffusion_pytorch_model.safetensors.index.json"
    adapters = [f"{DMD_STAGE}/adapters/{adapter}" for adapter in ADAPTER_STAGES[DMD_STAGE]]
    required: Sequence[str] = [
        *(f"{base}/{component}/{name}" for component in ("transformer", "vae") for name in ("config.json", index)),
        *(f"{base}/audio_vae/{name}" for name in ("config.json", "diffusion_pytorch_model.safetensors")),
        *(f"{DMD_STAGE}/linear_branch/{name}" for name in ("config.json", "model.safetensors")),
        *(f"{adapter}/{name}" for adapter in adapters for name in (spec_name, "adapter_model.safetensors")),
    ]
    return {
        "source_model_id": source_model_id,
        "materializer_version": "v1",
        "custom_materializer": "_overlay/materialize.py",
        "source_allow_patterns": [f"{base}/**", f"{DMD_STAGE}/**", "*.json", "*.md", "LICENSE"],
        "required_source_files": required,
        "file_mappings": [{"type": "tree", "src": f"{base}/audio_vae", "dst_dir": "audio_vae"}],
    }


def overlay_model_index() -> dict[str, Any]:
    """The overlay's ``model_index.json``, which the materialization takes over."""
    return {
        "_class_name": "VDNH3Pipeline",
        "_diffusers_version": DIFFUSERS_VERSION,
        "_minimax_h3": {
            "schema_version": 1,
            "partition": "fl2va",
            "tasks": ["t2va", "fl2va"],
            "sigma_shifts": {"video": 12.0, "audio": 3.0},
        },
        "text_encoder": ["transformers", "Qwen3VLForConditionalGeneration"],
        "tokenizer": ["transformers", "Qwen2TokenizerFast"],
        "processor": ["transformers", "Qwen3VLProcessor"],
        "video_vae": ["diffusers", "MiniMaxH3VideoVAE"],
        "audio_vae": ["diffusers", "MiniMaxH3AudioVAE"],
        "transformer": ["diffusers", "MiniMaxH3Transformer3DModel"],
        "scheduler": None,
    }
