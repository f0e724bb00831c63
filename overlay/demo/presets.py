"""The sizes that a made checkpoint can have: a tiny one, and the released widths with any number of blocks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from overlay.errors import InvalidUsage

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["PRESETS", "Preset", "make_preset"]

PRESETS = ("tiny", "release-dims")
_RELEASE_VAE_LAYERS = 36


@dataclass(frozen=True, slots=True)
class Preset:
    """Everything about a checkpoint but its weights.

    Attributes:
        name: One of ``PRESETS``.
        transformer: Config of the base transformer, under diffusers' field names; ``video_vae`` and ``audio_vae``
            likewise.
        text_encoder: Width and vocabulary of the text encoder's stand-in.
        rank: Rank (and alpha) of the adapters.
        narrow_rank: Rank (and alpha) of the turbo adapter's AdaLN and ``norm_out`` pairs.
        shard_limit: Most tensor bytes in one shard of the base; ``vae_shard_limit`` likewise for the video VAE.
    """

    name: str
    transformer: Mapping[str, Any]
    video_vae: Mapping[str, Any]
    audio_vae: Mapping[str, Any]
    text_encoder: Mapping[str, int]
    rank: int
    narrow_rank: int
    shard_limit: int
    vae_shard_limit: int

    @property
    def blocks(self) -> int:
        """Transformer blocks."""
        return int(self.transformer["num_layers"])

    @property
    def refiner_blocks(self) -> int:
        """Blocks of the token refiner, which are counted apart."""
        return int(self.transformer["num_refiner_layers"])


def make_preset(name: str, blocks: int) -> Preset:
    """Return the preset ``name`` with ``blocks`` transformer blocks.

    Raises:
        InvalidUsage: The name is unknown, or there is not at least one block.
    """
    if name not in PRESETS:
        raise InvalidUsage(
            f"preset {name!r} is unknown", code="unknown-preset", hint=f"use one of {', '.join(PRESETS)}", preset=name
        )
    if blocks < 1:
        raise InvalidUsage(f"{blocks} blocks asked for, at least 1 expected", code="too-few-blocks", blocks=blocks)
    return _tiny(blocks) if name == "tiny" else _release(blocks)


def _tiny(blocks: int) -> Preset:
    return Preset(
        name="tiny",
        transformer=_transformer(
            num_layers=blocks,
            hidden_size=192,
            num_attention_heads=4,
            attention_head_dim=64,
            ffn_dim=512,
            text_dim=160,
            freq_dim=32,
            time_embed_hidden_dim=192,
            time_embed_dim=96,
            rope_freq_dim=8,
        ),
        video_vae=_video_vae(
            block_out_channels=[8, 16, 16, 16, 16, 32],
            norm_num_groups=4,
            decoder_num_layers=2,
            decoder_num_attention_heads=3,
            decoder_attention_head_dim=16,
        ),
        audio_vae=_audio_vae(
            encoder_dim=4,
            encoder_rates=[8, 10, 10],
            latent_dim=64,
            decoder_dim=32,
            decoder_rates=[10, 10, 8],
            decoder_kernel_sizes=[20, 20, 16],
        ),
        text_encoder={"hidden_size": 160, "vocab_size": 256},
        rank=8,
        narrow_rank=4,
        shard_limit=2_500_000,
        vae_shard_limit=800_000,
    )


def _release(blocks: int) -> Preset:
    return Preset(
        name="release-dims",
        transformer=_transformer(
            num_layers=blocks,
            hidden_size=5376,
            num_attention_heads=56,
            attention_head_dim=128,
            ffn_dim=14336,
            text_dim=5120,
            freq_dim=256,
            time_embed_hidden_dim=5376,
            time_embed_dim=2688,
            rope_freq_dim=16,
        ),
        video_vae=_video_vae(
            block_out_channels=[128, 256, 256, 512, 512, 1024],
            norm_num_groups=32,
            decoder_num_layers=min(blocks, _RELEASE_VAE_LAYERS),
            decoder_num_attention_heads=32,
            decoder_attention_head_dim=64,
        ),
        audio_vae=_audio_vae(
            encoder_dim=64,
            encoder_rates=[2, 4, 4, 5, 5],
            latent_dim=2048,
            decoder_dim=1024,
            decoder_rates=[5, 5, 2, 2, 2, 2, 2],
            decoder_kernel_sizes=[9, 9, 4, 4, 4, 4, 4],
        ),
        text_encoder={"hidden_size": 5120, "vocab_size": 8192},
        rank=64,
        narrow_rank=16,
        shard_limit=5_000_000_000,
        vae_shard_limit=5_000_000_000,
    )


def _transformer(**sizes: int) -> dict[str, Any]:
    return {
        **sizes,
        "num_refiner_layers": 2,
        "in_channels": 24,
        "audio_in_channels": 32,
        "patch_size": [1, 2, 2],
        "rope_theta": 10000.0,
        "norm_eps": 1e-5,
        "qk_norm_eps": 1e-5,
        "final_norm_eps": 1e-5,
    }


def _video_vae(**sizes: Any) -> dict[str, Any]:
    return {
        **sizes,
        "in_channels": 3,
        "out_channels": 3,
        "latent_channels": 24,
        "layers_per_block": 2,
        "spatial_downsample_factors": [2, 2, 2, 2, 1, 1],
        "temporal_downsample_factors": [1, 2, 2, 1, 1, 1],
        "norm_eps": 1e-6,
        "spatial_padding_mode": "reflect",
        "decoder_num_register_tokens": 4,
        "decoder_ffn_mult": 4,
        "decoder_rope_theta": 100.0,
        "decoder_rope_dim_ratio": 0.75,
        "decoder_norm_eps": 1e-5,
        "clip_length": 17,
        "token_drop": 3,
        **_latent_statistics(24),
    }


def _audio_vae(**sizes: Any) -> dict[str, Any]:
    return {
        **sizes,
        "latent_channels": 32,
        "num_attention_heads": 8,
        "resblock_kernel_sizes": [3, 7, 11],
        "resblock_dilation_sizes": [[1, 3, 5], [1, 3, 5], [1, 3, 5]],
        "sampling_rate": 32000,
        **_latent_statistics(32),
    }


def _latent_statistics(channels: int) -> dict[str, list[float]]:
    return {
        "latents_mean": [(channel - channels // 2) / 64 for channel in range(channels)],
        "latents_std": [1 + channel / 128 for channel in range(channels)],
    }
