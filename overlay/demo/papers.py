"""The small files of a made checkpoint that are carried along and never read for their meaning."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from overlay.demo.documents import DIFFUSERS_VERSION, dump_line

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = [
    "LICENSE",
    "LORA_README",
    "MATERIALIZER",
    "OVERLAY_README",
    "SOURCE_README",
    "needs_files",
    "scheduler_config",
]

_MADE_UP = "Made-up weights in the published layout, for trying out and testing model-overlay."

LICENSE = f"{_MADE_UP}\nNo rights are reserved in random numbers.\n"

SOURCE_README = f"""---
library_name: diffusers
pipeline_tag: text-to-video
---
# VDN-MiniMax-H3

{_MADE_UP}

| folder | what it holds |
|---|---|
| h3-base | transformer, video VAE, audio VAE |
| stage-b-step-2000 | linear branch and default adapter, 50 steps |
| stage-dmd-step-250 | linear branch, default and turbo adapters, 8 steps |
"""

OVERLAY_README = f"# VDN-H3 overlay\n\n{_MADE_UP}\n"

LORA_README = f"# H3 Watercolor LoRA\n\n{_MADE_UP} One file for the MiniMax-H3 transformer, with an alpha a module.\n"

MATERIALIZER = '''"""A stand-in for an overlay's materializer: overlays carry one, and it is never run here."""


def materialize(*, overlay_dir, source_dir, output_dir, manifest):
    raise RuntimeError("model-overlay builds this overlay by its recipe; this script must not run")
'''

_CHAT_TEMPLATE = "{% for message in messages %}<|{{ message.role }}|>{{ message.content }}{% endfor %}\n"


def scheduler_config(shift: float) -> dict[str, Any]:
    """The scheduler of one modality, which the release keeps beside the base."""
    return {"_class_name": "MiniMaxH3Scheduler", "_diffusers_version": DIFFUSERS_VERSION, "shift": shift}


def needs_files(text_encoder: Mapping[str, int]) -> dict[str, bytes]:
    """Everything but weights of the repo that holds text encoder, tokenizer and processor, by path."""
    vocabulary = {f"<{token}>": token for token in range(text_encoder["vocab_size"])}
    tokenizer_config = {"tokenizer_class": "Qwen2Tokenizer", "model_max_length": 262144, "pad_token": "<0>"}
    return {
        "README.md": f"# MiniMax-H3\n\n{_MADE_UP}\n".encode(),
        "text_encoder/config.json": dump_line(
            {
                "architectures": ["Qwen3VLForConditionalGeneration"],
                "model_type": "qwen3_vl",
                "dtype": "bfloat16",
                "text_config": {**text_encoder, "model_type": "qwen3_vl_text", "num_hidden_layers": 1},
            }
        ),
        "text_encoder/generation_config.json": dump_line({"do_sample": False}),
        "tokenizer/tokenizer.json": dump_line(
            {"version": "1.0", "model": {"type": "BPE", "vocab": vocabulary, "merges": []}}
        ),
        "tokenizer/tokenizer_config.json": dump_line(tokenizer_config),
        "tokenizer/vocab.json": dump_line(vocabulary),
        "tokenizer/merges.txt": b"#version: 0.2\n",
        "tokenizer/chat_template.jinja": _CHAT_TEMPLATE.encode(),
        "processor/preprocessor_config.json": dump_line(
            {"image_processor_type": "Qwen2VLImageProcessorFast", "patch_size": 16, "merge_size": 2}
        ),
        "processor/video_preprocessor_config.json": dump_line(
            {"video_processor_type": "Qwen3VLVideoProcessor", "patch_size": 16, "merge_size": 2}
        ),
        "processor/tokenizer_config.json": dump_line(tokenizer_config),
        "processor/chat_template.jinja": _CHAT_TEMPLATE.encode(),
    }
