"""Manifests of published overlays, written from their fields, with made-up files of the sources that they are about."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

__all__ = ["MANIFESTS", "OverlayManifest"]

_SCRIPT = "_overlay/materialize.py"
_SHARDED = ("config.json", "diffusion_pytorch_model.safetensors.index.json")


def _tree(*folders: str) -> list[dict[str, str]]:
    return [{"type": "tree", "src": folder, "dst_dir": folder} for folder in folders]


@dataclass(frozen=True)
class OverlayManifest:
    """A manifest, and what it takes of a source.

    Attributes:
        document: The manifest.
        source: Files of a source that has all it asks for, and some more.
        given: Those of them that a server fetches.
        mapped: Output path to source path, before any script runs.
    """

    document: dict[str, Any]
    source: tuple[str, ...]
    given: tuple[str, ...]
    mapped: dict[str, str]


def _same(*paths: str) -> dict[str, str]:
    return {path: path for path in paths}


_VDN_REQUIRED = (
    *(f"h3-base/transformer/{name}" for name in _SHARDED),
    *(f"h3-base/vae/{name}" for name in _SHARDED),
    "h3-base/audio_vae/config.json",
    "h3-base/audio_vae/diffusion_pytorch_model.safetensors",
    "stage-dmd-step-250/linear_branch/config.json",
    "stage-dmd-step-250/linear_branch/model.safetensors",
    *(
        f"stage-dmd-step-250/adapters/{adapter}/{name}"
        for adapter in ("default", "turbo")
        for name in ("adapter_spec.json", "adapter_model.safetensors")
    ),
)
_VDN_MORE = ("LICENSE", "README.md", "h3-base/transformer/deep/x.txt", "model_spec.json")

_LTX = (
    "ltx-2.3-22b-dev.safetensors",
    "ltx-2.3-22b-distilled-lora-384.safetensors",
    "ltx-2.3-spatial-upscaler-x2-1.1.safetensors",
)

_V2_REQUIRED = (
    "fastvideo_inference.json",
    "scheduler/scheduler_config.json",
    "audio_scheduler/scheduler_config.json",
    *(f"transformer/{name}" for name in _SHARDED),
    *(f"vae/{name}" for name in _SHARDED),
    "audio_vae/config.json",
    "text_encoder/config.json",
)
_V2_MAPPED = (
    "fastvideo_inference.json",
    "scheduler/scheduler_config.json",
    "audio_scheduler/scheduler_config.json",
    *(f"transformer/{name}" for name in _SHARDED),
    "transformer/shard.safetensors",
    "audio_vae/config.json",
    "text_encoder/config.json",
    "text_encoder/deep/model.safetensors",
    "tokenizer/vocab.json",
    "processor/config.json",
)
_PREVIEW_REQUIRED = tuple(
    path for path in _V2_REQUIRED if not path.startswith(("fastvideo", "scheduler", "audio_scheduler"))
)
_PREVIEW_MAPPED = tuple(
    path for path in _V2_MAPPED if not path.startswith(("fastvideo", "scheduler", "audio_scheduler"))
)

MANIFESTS: dict[str, OverlayManifest] = {
    "VDN-H3": OverlayManifest(
        {
            "source_model_id": "OpenVDN/vdn-minimax-h3",
            "materializer_version": "v1",
            "custom_materializer": _SCRIPT,
            "source_allow_patterns": ["h3-base/**", "stage-dmd-step-250/**", "*.json", "*.md", "LICENSE"],
            "required_source_files": list(_VDN_REQUIRED),
            "file_mappings": [{"type": "tree", "src": "h3-base/audio_vae", "dst_dir": "audio_vae"}],
        },
        source=(*_VDN_REQUIRED, *_VDN_MORE, "assets/a.png", "stage-b-step-2000/model.safetensors"),
        given=(*_VDN_REQUIRED, *_VDN_MORE),
        mapped={
            "audio_vae/config.json": "h3-base/audio_vae/config.json",
            "audio_vae/diffusion_pytorch_model.safetensors": "h3-base/audio_vae/diffusion_pytorch_model.safetensors",
        },
    ),
    "LTX-2.3": OverlayManifest(
        {
            "source_model_id": "Lightricks/LTX-2.3",
            "materializer_version": "v4",
            "custom_materializer": _SCRIPT,
            "source_allow_patterns": list(_LTX),
            "required_source_files": list(_LTX),
        },
        source=(*_LTX, "README.md", "ltx-2.3-22b-dev-fp8.safetensors"),
        given=_LTX,
        mapped={},
    ),
    "FastH3 8-step V2": OverlayManifest(
        {
            "source_model_id": "FastVideo/FastVideo-FastH3-8-Step-V2",
            "materializer_version": "v1",
            "custom_materializer": _SCRIPT,
            "required_source_files": list(_V2_REQUIRED),
            "file_mappings": [
                *_tree(
                    *("transformer", "audio_vae", "text_encoder", "tokenizer"),
                    *("processor", "scheduler", "audio_scheduler"),
                ),
                {"type": "file", "src": "fastvideo_inference.json"},
            ],
        },
        source=tuple(dict.fromkeys((*_V2_REQUIRED, *_V2_MAPPED, "vae/shard.safetensors", "model.onnx"))),
        given=tuple(dict.fromkeys((*_V2_REQUIRED, *_V2_MAPPED, "vae/shard.safetensors"))),
        mapped=_same(*_V2_MAPPED),
    ),
    "FastH3 4-step preview": OverlayManifest(
        {
            "source_model_id": "FastVideo/FastVideo-FastH3-4-step-Preview-v1-VSA-DataFree",
            "materializer_version": "v1",
            "custom_materializer": _SCRIPT,
            "required_source_files": list(_PREVIEW_REQUIRED),
            "file_mappings": _tree("transformer", "audio_vae", "text_encoder", "tokenizer", "processor"),
        },
        source=tuple(dict.fromkeys((*_PREVIEW_REQUIRED, *_PREVIEW_MAPPED, "x.msgpack", "README.md"))),
        given=tuple(dict.fromkeys((*_PREVIEW_REQUIRED, *_PREVIEW_MAPPED, "README.md"))),
        mapped=_same(*_PREVIEW_MAPPED),
    ),
    "a unit test's, one file": OverlayManifest(
        {
            "required_source_files": ["transformer/config.json"],
            "file_mappings": [{"src": "transformer/config.json", "dst": "unet/config.json"}],
        },
        source=("transformer/config.json", "README.md"),
        given=("transformer/config.json", "README.md"),
        mapped={"unet/config.json": "transformer/config.json"},
    ),
    "a unit test's, a script": OverlayManifest(
        {
            "source_model_id": "org/s2v",
            "materializer_version": "test-s2v-v1",
            "custom_materializer": _SCRIPT,
        },
        source=("a.safetensors",),
        given=("a.safetensors",),
        mapped={},
    ),
}
"""By overlay; the last two are those of a server's own unit tests."""
