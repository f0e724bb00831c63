"""The made hub folder: complete, readable, and the same everywhere."""

from __future__ import annotations

import hashlib
import json
import struct
from typing import TYPE_CHECKING

import pytest
from support.checkpoints import tiny_hub

from overlay.demo.checkpoint import HubFolder, write_hub
from overlay.demo.shards import write_shards
from overlay.demo.tensors import transformer_tensors
from overlay.demo.weights import Weights
from overlay.errors import InvalidUsage
from overlay.formats.checkpoint import read_checkpoint
from overlay.formats.files import Folder
from overlay.formats.header import read_header

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.no_torch

TURBO = "stage-dmd-step-250/adapters/turbo"


@pytest.fixture
def hub(tmp_path_factory: pytest.TempPathFactory) -> HubFolder:
    return tiny_hub(tmp_path_factory)


def contents(root: Path) -> dict[str, bytes]:
    return {file.relative_to(root).as_posix(): file.read_bytes() for file in sorted(root.rglob("*")) if file.is_file()}


def test_folder_has_the_four_pinned_repos(hub: HubFolder) -> None:
    """Each repo lies under its name and commit."""
    assert sorted(path.relative_to(hub.root).as_posix() for path in hub.root.glob("*/*/*")) == [
        "MiniMaxAI/MiniMax-H3/42ed227ee7df40d41602854ae760620d6eb651fe",
        "OpenVDN/vdn-minimax-h3/6d052b3e9cc6b5d29009ac0ba71bc4ccb1fd4a14",
        "kevin-mi/VDN-H3-overlay/7de18275dddfe59da36a234e222bcdd274963bc3",
        "lakeside-studio/H3-Watercolor-LoRA/b1f0c8f5a7d94e3c96b2f6d07c1e8a4459d3e276",
    ]


def test_tiny_checkpoint_is_the_same_on_every_machine(hub: HubFolder) -> None:
    """Names and bytes of the whole folder have a known digest."""
    digest = hashlib.sha256()
    for path, content in contents(hub.root).items():
        digest.update(f"{path} {hashlib.sha256(content).hexdigest()}\n".encode())
    assert digest.hexdigest() == "da2a764cefeaef36926d412cedd506f1bd8d93f31c6f22a80ebed5bcce83c126"


def test_seed_changes_weights_and_nothing_else(hub: HubFolder, tmp_path: Path) -> None:
    """With another seed, exactly the safetensors files differ."""
    other = contents(write_hub(tmp_path / "hub", seed=1).root)
    same = contents(hub.root)
    assert other.keys() == same.keys()
    changed = {path for path, content in same.items() if other[path] != content}
    assert changed == {path for path in same if path.endswith(".safetensors")}


@pytest.mark.parametrize("spec_name", ["adapter_spec.json", "adapter_config.json"])
def test_source_has_every_file_that_the_overlay_requires(
    spec_name: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """The manifest's twelve required files exist, under the spec name of the day."""
    hub = tiny_hub(tmp_path_factory, spec_name)
    manifest = json.loads((hub.overlay_folder / "_overlay" / "overlay_manifest.json").read_bytes())
    required = manifest["required_source_files"]
    assert len(required) == 12
    assert f"{TURBO}/{spec_name}" in required
    assert [path for path in required if not (hub.source_folder / path).is_file()] == []
    assert (hub.overlay_folder / manifest["custom_materializer"]).is_file()


@pytest.mark.parametrize(
    ("folder", "shards", "tensors"),
    [("h3-base/transformer", 3, 74), ("h3-base/vae", 3, 157), ("h3-base/audio_vae", 1, 515)],
)
def test_base_reads_as_checkpoints(hub: HubFolder, folder: str, shards: int, tensors: int) -> None:
    """The strict reader accepts every component, its shards in the library's own layout."""
    checkpoint = read_checkpoint(Folder(hub.source_folder), folder)
    assert (len(checkpoint.shards), len(checkpoint.weight_map)) == (shards, tensors)
    assert all(header.canonical and header.metadata == {"format": "pt"} for header in checkpoint.shards.values())


def test_base_is_bf16_but_for_the_published_fp32_tensors(hub: HubFolder) -> None:
    """Twelve tensors of the transformer are fp32: both patch projections, the time embedder, both heads."""
    checkpoint = read_checkpoint(Folder(hub.source_folder), "h3-base/transformer")
    dtypes = {name: checkpoint.tensor(name)[1].dtype for name in checkpoint.weight_map}
    assert set(dtypes.values()) == {"BF16", "F32"}
    single = {name.rsplit(".", 1)[0] for name, dtype in dtypes.items() if dtype == "F32"}
    assert single == {
        *("proj_in", "audio_proj_in", "time_embedder.linear_1", "time_embedder.linear_2"),
        *("proj_out", "audio_proj_out"),
    }


def test_index_counts_the_tensor_bytes(hub: HubFolder) -> None:
    """``total_size`` is the sum over the shards of their data."""
    folder = hub.source_folder / "h3-base" / "transformer"
    index = json.loads((folder / "diffusion_pytorch_model.safetensors.index.json").read_bytes())
    headers = [read_header(shard) for shard in folder.glob("*.safetensors")]
    assert index["metadata"] == {"total_size": sum(header.file_size - header.data_start for header in headers)}


def test_a_single_shard_has_an_index_too(tmp_path: Path) -> None:
    """The overlay requires the indexes, however few blocks a checkpoint has."""
    write_shards(tmp_path, [("a", "BF16", (2, 3)), ("b", "F32", (4,))], Weights("tiny", 0), "x", limit=2**40)
    checkpoint = read_checkpoint(Folder(tmp_path))
    assert checkpoint.index == "diffusion_pytorch_model.safetensors.index.json"
    assert list(checkpoint.shards) == ["diffusion_pytorch_model-00001-of-00001.safetensors"]


def test_turbo_ranks_follow_its_spec(hub: HubFolder) -> None:
    """AdaLN and norm_out have the pattern's rank, every other module the spec's."""
    spec = json.loads((hub.source_folder / TURBO / "adapter_spec.json").read_bytes())["config"]
    header = read_header(hub.source_folder / TURBO / "adapter_model.safetensors")
    ranks = {
        name.removesuffix(".lora_A.turbo.weight"): info.shape[0]
        for name, info in header.tensors.items()
        if ".lora_A." in name
    }
    assert ranks == {module: spec["rank_pattern"].get(module, spec["rank"]) for module in spec["targets"]}
    assert set(ranks.values()) == {4, 8}


def test_stage_b_has_the_default_adapter_alone(hub: HubFolder) -> None:
    """The stage before distillation has no turbo adapter, and other weights."""
    stage, dmd = (hub.source_folder / name for name in ("stage-b-step-2000", "stage-dmd-step-250"))
    assert [path.name for path in (stage / "adapters").iterdir()] == ["default"]
    for path in ("linear_branch/model.safetensors", "adapters/default/adapter_model.safetensors"):
        assert (stage / path).read_bytes() != (dmd / path).read_bytes()
        assert read_header(stage / path) == read_header(dmd / path)


def test_community_adapter_is_one_file_with_an_alpha_a_module(hub: HubFolder) -> None:
    """Every module has down, up and a scalar alpha of an eighth of its rank, and is a weight of the base."""
    header = read_header(hub.lora_file)
    base = {name for name, _, _ in transformer_tensors(hub.preset.transformer)}
    modules = {name.removesuffix(".alpha") for name in header.tensors if name.endswith(".alpha")}
    assert {
        f"{module}.{part}" for module in modules for part in ("lora_down.weight", "lora_up.weight", "alpha")
    } == set(header.tensors)
    assert {f"{module}.weight" for module in modules} <= base
    module = min(modules)
    start = header.offset(f"{module}.alpha")
    (alpha,) = struct.unpack("<f", hub.lora_file.read_bytes()[start : start + 4])
    assert alpha == header.tensors[f"{module}.lora_down.weight"].shape[0] / 8 == 1.0


@pytest.mark.parametrize(("preset", "blocks"), [("huge", 3), ("tiny", 0)])
def test_impossible_checkpoint_is_refused_before_writing(preset: str, blocks: int, tmp_path: Path) -> None:
    """An unknown preset or no block at all is a usage error, and nothing is written."""
    with pytest.raises(InvalidUsage):
        write_hub(tmp_path / "hub", preset=preset, blocks=blocks)
    assert not (tmp_path / "hub").exists()
