"""The tensors of both VAEs, in the order of the published models' modules."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any

from overlay.demo.tensors import linear

if TYPE_CHECKING:
    from collections.abc import Mapping

    from overlay.demo.tensors import Tensor

__all__ = ["audio_vae_tensors", "video_vae_tensors"]


def video_vae_tensors(config: Mapping[str, Any]) -> list[Tensor]:
    """The video VAE (causal convolutional encoder, ViT decoder), all fp32."""
    channels, latent = config["block_out_channels"], config["latent_channels"]
    factors = zip(config["spatial_downsample_factors"], config["temporal_downsample_factors"], strict=True)
    tensors = _conv("encoder.conv_in", channels[0], config["in_channels"])
    for block, (spatial, temporal) in enumerate(factors):
        prefix = f"encoder.down_blocks.{block}"
        out, width = channels[block], channels[max(block - 1, 0)]
        for layer in range(config["layers_per_block"]):
            tensors += _resnet(f"{prefix}.resnets.{layer}", out, width if layer == 0 else out)
        if spatial * temporal > 1:
            tensors += _conv(f"{prefix}.downsamplers.0.conv", out, out)
    tensors += _norm("encoder.norm_out", channels[-1])
    tensors += _conv("encoder.conv_out", 2 * latent, channels[-1])
    tensors += _conv("quant_conv", 2 * latent, 2 * latent, 1)
    tensors += _conv("post_quant_conv", latent, latent, 1)

    width = config["decoder_num_attention_heads"] * config["decoder_attention_head_dim"]
    tensors.append(("decoder.register_tokens", "F32", (1, config["decoder_num_register_tokens"], width)))
    tensors += linear("decoder.proj_in", "F32", width, latent)
    for layer in range(config["decoder_num_layers"]):
        tensors += _decoder_block(f"decoder.transformer_blocks.{layer}", width, config["decoder_ffn_mult"] * width)
    tensors += _norm("decoder.norm_out", width)
    patch = prod(config["spatial_downsample_factors"]) ** 2 * prod(config["temporal_downsample_factors"])
    return [*tensors, *linear("decoder.proj_out", "F32", config["out_channels"] * patch, width)]


def _resnet(prefix: str, out: int, width: int) -> list[Tensor]:
    return [
        *_norm(f"{prefix}.norm1", width),
        *_conv(f"{prefix}.conv1", out, width),
        *_norm(f"{prefix}.norm2", out),
        *_conv(f"{prefix}.conv2", out, out),
        *(_conv(f"{prefix}.conv_shortcut", out, width, 1) if out != width else []),
    ]


def _decoder_block(prefix: str, width: int, ffn: int) -> list[Tensor]:
    return [
        (f"{prefix}.scale1", "F32", (width,)),
        (f"{prefix}.scale2", "F32", (width,)),
        (f"{prefix}.norm1.weight", "F32", (width,)),
        *(
            tensor
            for name in ("to_q", "to_k", "to_v", "to_out.0")
            for tensor in linear(f"{prefix}.attn.{name}", "F32", width, width)
        ),
        (f"{prefix}.norm2.weight", "F32", (width,)),
        *linear(f"{prefix}.ff.net.0.proj", "F32", 2 * ffn, width),
        *linear(f"{prefix}.ff.net.2", "F32", width, ffn),
    ]


def audio_vae_tensors(config: Mapping[str, Any]) -> list[Tensor]:
    """The audio VAE (strided convolutional encoder, attention projection, BigVGAN decoder), all fp32."""
    trunk, latent, width = config["latent_dim"], config["latent_channels"], config["encoder_dim"]
    tensors = _normed_conv("encoder.block.0", width, 1, 7)
    for level, stride in enumerate(config["encoder_rates"], start=1):
        prefix = f"encoder.block.{level}.block"
        for unit in range(3):
            tensors += _residual_unit(f"{prefix}.{unit}.block", width)
        tensors.append((f"{prefix}.3.alpha", "F32", (1, width, 1)))
        tensors += _normed_conv(f"{prefix}.4", 2 * width, width, 2 * stride)
        width *= 2
    last = len(config["encoder_rates"]) + 1
    tensors.append((f"encoder.block.{last}.alpha", "F32", (1, width, 1)))
    tensors += _normed_conv(f"encoder.block.{last + 1}", trunk, width, 3)

    tensors += _norm("pre_block.norm1", trunk)
    tensors += [(f"pre_block.attn.{name}", "F32", (trunk,)) for name in ("q_bias", "v_bias", "zero_k_bias")]
    tensors.append(("pre_block.attn.qkv.weight", "F32", (3 * trunk, trunk)))
    tensors += linear("pre_block.attn.proj", "F32", latent, latent)
    tensors += linear("pre_block.proj", "F32", latent, trunk)
    tensors += [
        *_norm("pre_block.norm3", trunk),
        *_norm("pre_block.norm2", latent),
        *_norm("pre_block.mlp.norm", latent),
    ]
    tensors += linear("pre_block.mlp.w0", "F32", 2 * latent, latent)
    tensors += linear("pre_block.mlp.w1", "F32", 2 * latent, latent)
    tensors += linear("pre_block.mlp.w2", "F32", latent, 2 * latent)
    for name, out in (("mean_proj", latent), ("logs_proj", latent), ("dec_in_proj", trunk)):
        tensors += [(f"{name}.weight", "F32", (out, latent, 1)), (f"{name}.bias", "F32", (out,))]
    return [*tensors, *_bigvgan(config)]


def _residual_unit(prefix: str, width: int) -> list[Tensor]:
    return [
        (f"{prefix}.0.alpha", "F32", (1, width, 1)),
        *_normed_conv(f"{prefix}.1", width, width, 7),
        (f"{prefix}.2.alpha", "F32", (1, width, 1)),
        *_normed_conv(f"{prefix}.3", width, width, 1),
    ]


def _bigvgan(config: Mapping[str, Any]) -> list[Tensor]:
    width = config["decoder_dim"]
    tensors = _normed_conv("decoder.conv_pre", width, config["latent_dim"], 7)
    for level, kernel in enumerate(config["decoder_kernel_sizes"]):
        # A transposed convolution stores [in, out, kernel], and its norm goes with the first axis.
        up, out = f"decoder.ups.{level}.0", width >> (level + 1)
        tensors.append((f"{up}.bias", "F32", (out,)))
        tensors.append((f"{up}.weight_g", "F32", (2 * out, 1, 1)))
        tensors.append((f"{up}.weight_v", "F32", (2 * out, out, kernel)))
    block = 0
    for level in range(len(config["decoder_rates"])):
        out = width >> (level + 1)
        for kernel, dilations in zip(config["resblock_kernel_sizes"], config["resblock_dilation_sizes"], strict=True):
            prefix = f"decoder.resblocks.{block}"
            for convs in ("convs1", "convs2"):
                for index in range(len(dilations)):
                    tensors += _normed_conv(f"{prefix}.{convs}.{index}", out, out, kernel)
            for index in range(2 * len(dilations)):
                tensors += _snake(f"{prefix}.activations.{index}", out)
            block += 1
    last = width >> len(config["decoder_rates"])
    tensors += _snake("decoder.activation_post", last)
    tensors.append(("decoder.conv_post.weight_g", "F32", (1, 1, 1)))
    return [*tensors, ("decoder.conv_post.weight_v", "F32", (1, last, 7))]


def _snake(prefix: str, width: int) -> list[Tensor]:
    return [
        (f"{prefix}.act.alpha", "F32", (width,)),
        (f"{prefix}.act.beta", "F32", (width,)),
        (f"{prefix}.upsample.filter", "F32", (1, 1, 12)),
        (f"{prefix}.downsample.lowpass.filter", "F32", (1, 1, 12)),
    ]


def _norm(name: str, width: int) -> list[Tensor]:
    return [(f"{name}.weight", "F32", (width,)), (f"{name}.bias", "F32", (width,))]


def _conv(name: str, out: int, width: int, kernel: int = 3) -> list[Tensor]:
    return [(f"{name}.weight", "F32", (out, width, kernel, kernel, kernel)), (f"{name}.bias", "F32", (out,))]


def _normed_conv(name: str, out: int, width: int, kernel: int) -> list[Tensor]:
    return [
        (f"{name}.bias", "F32", (out,)),
        (f"{name}.weight_g", "F32", (out, 1, 1)),
        (f"{name}.weight_v", "F32", (out, width, kernel)),
    ]
