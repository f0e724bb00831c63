"""A hub folder with the repos of the VDN-H3 job, in the published layout, with made-up weights.

``DIR/<org>/<name>/<revision>/…`` holds the source (base, linear branch, adapters), the repo of the text encoder, the
overlay, and a community adapter in one file for the ``lora`` recipe.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING

from overlay.demo import papers
from overlay.demo.documents import (
    ADAPTER_STAGES,
    adapter_ranks,
    adapter_spec,
    branch_config,
    component_config,
    dump_line,
    metadata,
    model_spec,
    overlay_manifest,
    overlay_model_index,
    spec_module,
)
from overlay.demo.presets import make_preset
from overlay.demo.shards import write_shards, write_tensors
from overlay.demo.tensors import (
    branch_tensors,
    default_modules,
    lora_tensors,
    text_encoder_tensors,
    transformer_tensors,
)
from overlay.demo.vae_tensors import audio_vae_tensors, video_vae_tensors
from overlay.demo.weights import Weights
from overlay.formats.dtypes import tensor_nbytes
from overlay.formats.strict_json import dump_json

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from overlay.demo.presets import Preset
    from overlay.demo.tensors import Tensor

__all__ = [
    "LORA_FILE",
    "LORA_REPO",
    "LORA_REVISION",
    "NEEDS_REPO",
    "NEEDS_REVISION",
    "OVERLAY_REPO",
    "OVERLAY_REVISION",
    "SOURCE_REPO",
    "SOURCE_REVISION",
    "SPEC_NAME",
    "HubFolder",
    "vdn_adapter_tensors",
    "write_hub",
    "write_overlay",
    "write_vdn_adapter",
]

SOURCE_REPO, SOURCE_REVISION = "OpenVDN/vdn-minimax-h3", "6d052b3e9cc6b5d29009ac0ba71bc4ccb1fd4a14"
NEEDS_REPO, NEEDS_REVISION = "MiniMaxAI/MiniMax-H3", "42ed227ee7df40d41602854ae760620d6eb651fe"
OVERLAY_REPO, OVERLAY_REVISION = "kevin-mi/VDN-H3-overlay", "7de18275dddfe59da36a234e222bcdd274963bc3"
LORA_REPO, LORA_REVISION = "lakeside-studio/H3-Watercolor-LoRA", "b1f0c8f5a7d94e3c96b2f6d07c1e8a4459d3e276"
LORA_FILE = "h3_watercolor_lora_rank{rank}_bf16.safetensors"
SPEC_NAME = "adapter_spec.json"


@dataclass(frozen=True, slots=True)
class HubFolder:
    """A made hub folder, and which revision of the source and of the overlay is meant.

    Attributes:
        root: The folder, as ``--hub`` takes it.
        preset: What its checkpoint looks like.
        seed: What its weights were made from.
        source: 40-hex revision of the source; ``overlay`` likewise.
        spec_name: File name of an adapter's spec in this revision of the source.
    """

    root: Path
    preset: Preset
    seed: int
    source: str = SOURCE_REVISION
    overlay: str = OVERLAY_REVISION
    spec_name: str = SPEC_NAME

    @property
    def source_folder(self) -> Path:
        """This revision of the source."""
        return self.root / SOURCE_REPO / self.source

    @property
    def overlay_folder(self) -> Path:
        """This revision of the overlay."""
        return self.root / OVERLAY_REPO / self.overlay

    @property
    def needs_folder(self) -> Path:
        """The repo of text encoder, tokenizer and processor."""
        return self.root / NEEDS_REPO / NEEDS_REVISION

    @property
    def lora_file(self) -> Path:
        """The community adapter."""
        return self.root / LORA_REPO / LORA_REVISION / LORA_FILE.format(rank=self.preset.rank)


def write_hub(
    folder: Path, *, preset: str = "tiny", blocks: int = 3, seed: int = 0, spec_name: str = SPEC_NAME
) -> HubFolder:
    """Write the four repos to ``folder``; the same arguments give the same bytes everywhere.

    Args:
        folder: The hub folder; made if need be.
        preset: ``tiny`` or ``release-dims``.
        blocks: Transformer blocks.
        seed: Weights differ between seeds.
        spec_name: File name of the adapters' specs: the present one, or the former ``adapter_config.json``.

    Raises:
        InvalidUsage: The preset is unknown, or there is not at least one block.
    """
    hub = HubFolder(folder, make_preset(preset, blocks), seed, spec_name=spec_name)
    weights = Weights(preset, seed)
    _write_source(hub, weights)
    _write_needs(hub, weights)
    write_overlay(hub)
    _write_lora(hub, weights)
    return hub


def _write_source(hub: HubFolder, weights: Weights) -> None:
    root, preset = hub.source_folder, hub.preset
    _write(root / "README.md", papers.SOURCE_README)
    _write(root / "LICENSE", papers.LICENSE)
    base = root / "h3-base"
    for scheduler, shift in (("scheduler", 12.0), ("audio_scheduler", 3.0)):
        _write(base / scheduler / "scheduler_config.json", dump_line(papers.scheduler_config(shift)))
    for component, config, tensors, limit in (
        ("transformer", preset.transformer, transformer_tensors, preset.shard_limit),
        ("vae", preset.video_vae, video_vae_tensors, preset.vae_shard_limit),
        ("audio_vae", preset.audio_vae, audio_vae_tensors, None),
    ):
        scope = f"h3-base/{component}"
        if limit is not None:
            write_shards(base / component, tensors(config), weights, scope, limit=limit)
        else:  # the overlay requires this one as a single file
            path = base / component / "diffusion_pytorch_model.safetensors"
            write_tensors(path, tensors(config), weights, scope, metadata={"format": "pt"})
        _write(base / component / "config.json", component_config(component, config))
    for stage, adapters in ADAPTER_STAGES.items():
        _write(root / stage / "model_spec.json", dump_line(model_spec(preset, stage)))
        _write(root / stage / "metadata.json", metadata(stage))
        branch = root / stage / "linear_branch"
        write_tensors(
            branch / "model.safetensors", branch_tensors(preset.transformer), weights, f"{stage}/linear_branch"
        )
        _write(branch / "config.json", dump_line(branch_config(preset)))
        for adapter in adapters:
            adapter_folder = root / stage / "adapters" / adapter
            _write(adapter_folder / hub.spec_name, dump_line(adapter_spec(preset, adapter)))
            write_vdn_adapter(adapter_folder, preset, weights, stage, adapter)


def write_vdn_adapter(
    folder: Path,
    preset: Preset,
    weights: Weights,
    stage: str,
    adapter: str,
    *,
    retrained: Mapping[str, bytes] | None = None,
) -> None:
    """Write ``adapter_model.safetensors`` of a VDN adapter.

    Args:
        folder: The adapter's folder.
        preset: What the checkpoint looks like.
        weights: Where values come from.
        stage: A key of ``ADAPTER_STAGES``.
        adapter: One of its adapters.
        retrained: Bytes of tensors that differ from what ``weights`` gives.
    """
    tensors = vdn_adapter_tensors(preset, adapter)
    scope = f"{stage}/adapters/{adapter}"
    write_tensors(folder / "adapter_model.safetensors", tensors, weights, scope, values=retrained)


def vdn_adapter_tensors(preset: Preset, adapter: str) -> list[Tensor]:
    """The tensors of a VDN adapter: its name is part of theirs."""
    pairs = lora_tensors(
        preset.transformer,
        adapter_ranks(preset, adapter),
        f"{{}}.lora_A.{adapter}.weight",
        f"{{}}.lora_B.{adapter}.weight",
    )
    return [(spec_module(name), dtype, shape) for name, dtype, shape in pairs]


def write_overlay(hub: HubFolder) -> None:
    """Write the overlay repo: its manifest requires the adapters' specs under ``hub.spec_name``."""
    root = hub.overlay_folder
    _write(root / "README.md", papers.OVERLAY_README)
    _write(root / "model_index.json", dump_json(overlay_model_index()))
    _write(root / "_overlay" / "overlay_manifest.json", dump_json(overlay_manifest(SOURCE_REPO, hub.spec_name)))
    _write(root / "_overlay" / "materialize.py", papers.MATERIALIZER)


def _write_needs(hub: HubFolder, weights: Weights) -> None:
    root, sizes = hub.needs_folder, hub.preset.text_encoder
    for path, content in papers.needs_files(sizes).items():
        _write(root / path, content)
    tensors = text_encoder_tensors(sizes)
    embedding = tensor_nbytes(tensors[0][1], tensors[0][2])
    write_shards(root / "text_encoder", tensors, weights, "text_encoder", limit=embedding, stem="model")


def _write_lora(hub: HubFolder, weights: Weights) -> None:
    preset = hub.preset
    ranks = {module: preset.rank for module in default_modules(preset) if module.startswith("transformer_blocks.")}
    tensors = lora_tensors(preset.transformer, ranks, "{}.lora_down.weight", "{}.lora_up.weight")
    alpha = preset.rank / 8
    alphas = {f"{module}.alpha": struct.pack("<f", alpha) for module in ranks}
    write_tensors(
        hub.lora_file,
        [*tensors, *((name, "F32", ()) for name in alphas)],
        weights,
        "lora",
        metadata={"format": "pt", "ss_network_dim": str(preset.rank), "ss_network_alpha": str(alpha)},
        values=alphas,
    )
    _write(hub.lora_file.parent / "README.md", papers.LORA_README)


def _write(path: Path, content: bytes | str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
