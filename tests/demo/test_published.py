"""At the released size, a made checkpoint has the published files' digests and sizes."""

from __future__ import annotations

import hashlib
import re
from math import prod

import pytest

from overlay.demo.checkpoint import vdn_adapter_tensors
from overlay.demo.documents import DMD_STAGE, adapter_spec, branch_config, dump_line, metadata, model_spec
from overlay.demo.presets import Preset, make_preset
from overlay.demo.shards import split_shards
from overlay.demo.tensors import Tensor, branch_tensors, transformer_tensors
from overlay.demo.vae_tensors import audio_vae_tensors, video_vae_tensors
from overlay.formats.layout import canonical_layout

pytestmark = pytest.mark.no_torch

SAVED = {"format": "pt"}


@pytest.fixture(scope="module")
def release() -> Preset:
    return make_preset("release-dims", 50)


def test_json_files_have_the_published_digests(release: Preset) -> None:
    """Both adapter specs, the branch config, the model spec and the metadata equal the published bytes."""
    digests = {
        "default": "89e0ff8920b9629b826eb99ab6150cce6924a53aa445186d1b493225fd091b96",
        "turbo": "627968f670747c29cd7a0d3f8c75166e501d70f9e829b5cd3242a8f14cefbc18",
        "branch": "decb06ac7e664610f677fb445318502b3c51f9c1b8603a2cdd00b16042be5bc8",
        "model": "4171f4384e952f1f73467981a893440c03298af4956b947e2c8a857ba9f5a62b",
        "metadata": "54054ceb1c91b3fdf7fa0278e4a8841c127e8cf666b5e240d69613661f9d3e9e",
    }
    files = {
        "default": dump_line(adapter_spec(release, "default")),
        "turbo": dump_line(adapter_spec(release, "turbo")),
        "branch": dump_line(branch_config(release)),
        "model": dump_line(model_spec(release, DMD_STAGE)),
        "metadata": metadata(DMD_STAGE),
    }
    assert {name: hashlib.sha256(content).hexdigest() for name, content in files.items()} == digests


def test_transformer_has_the_published_shards(release: Preset) -> None:
    """638 tensors, 14 shards, and their sizes add up to the published bytes."""
    tensors = transformer_tensors(release.transformer)
    shards = split_shards(tensors, release.shard_limit)
    assert len(tensors) == 638
    assert len(shards) == 14
    assert sum(canonical_layout(shard, SAVED).file_size for shard in shards) == 66_280_504_216


def test_single_files_have_the_published_sizes(release: Preset) -> None:
    """Branch, adapters and audio VAE have the published tensor counts and sizes in bytes."""
    files: dict[str, tuple[list[Tensor], dict[str, str]]] = {
        "branch": (branch_tensors(release.transformer), {}),
        "default": (vdn_adapter_tensors(release, "default"), {}),
        "turbo": (vdn_adapter_tensors(release, "turbo"), {}),
        "audio VAE": (audio_vae_tensors(release.audio_vae), SAVED),
    }
    assert {
        name: (len(tensors), canonical_layout(tensors, meta).file_size) for name, (tensors, meta) in files.items()
    } == {
        "branch": (800, 4_279_428_112),
        "default": (2 * 208, 334_026_912),
        "turbo": (2 * 363, 851_452_696),
        "audio VAE": (1087, 605_429_340),
    }


def test_video_vae_has_the_published_shards_and_materialized_size(release: Preset) -> None:
    """Three shards; re-laid by the published rules the tensors make the published file."""
    config = release.video_vae
    tensors = video_vae_tensors(config)
    assert len(split_shards(tensors, release.vae_shard_limit)) == 3
    width = config["decoder_num_attention_heads"] * config["decoder_attention_head_dim"]
    relaid = [("decoder.mask_token", "F32", (1, 1, width))]
    for name, dtype, shape in tensors:
        if ".attn.to_q." in name:
            relaid.append((name.replace(".to_q.", ".to_qkv."), dtype, (3 * shape[0], *shape[1:])))
        elif ".attn.to_k." not in name and ".attn.to_v." not in name:
            relaid.append((_materialized_name(name), dtype, shape))
    assert canonical_layout(relaid, {}).file_size == 10_415_548_320


def _materialized_name(name: str) -> str:
    for old, new in (
        (r"\.ff\.net\.0\.proj\.", ".ff.w1."),
        (r"\.ff\.net\.2\.", ".ff.w2."),
        (r"\.attn\.to_out\.0\.", ".attn.to_out."),
        (r"^decoder\.proj_in\.", "decoder.x_embedder."),
        (r"^encoder\.down_blocks\.(\d+)\.resnets\.(\d+)\.", r"encoder.down.\1.block.\2."),
        (r"^encoder\.down_blocks\.(\d+)\.downsamplers\.\d+\.", r"encoder.down.\1.downsample."),
        (r"\.conv_shortcut\.", ".nin_shortcut."),
    ):
        name = re.sub(old, new, name)
    return name


def test_tiny_checkpoint_has_the_counts_of_its_config() -> None:
    """The tiny preset's base and branch have the parameter counts worked out for its config."""
    tiny = make_preset("tiny", 3)
    base, branch = transformer_tensors(tiny.transformer), branch_tensors(tiny.transformer)
    assert (len(base), sum(prod(shape) for _, _, shape in base)) == (74, 3_608_928)
    assert (len(branch), sum(prod(shape) for _, _, shape in branch)) == (48, 371_928)


@pytest.mark.parametrize(("blocks", "default", "turbo"), [(1, 12, 20), (3, 20, 34), (50, 208, 363)])
def test_adapters_have_a_pair_for_every_target(blocks: int, default: int, turbo: int) -> None:
    """The pair counts follow from the numbers of blocks."""
    preset = make_preset("tiny", blocks)
    assert len(vdn_adapter_tensors(preset, "default")) == 2 * default
    assert len(vdn_adapter_tensors(preset, "turbo")) == 2 * turbo
    assert len(adapter_spec(preset, "turbo")["config"]["targets"]) == turbo
