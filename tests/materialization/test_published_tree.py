"""The tree of a stage, byte for byte against a plain rebuild of what the published overlay's script makes."""

from __future__ import annotations

import hashlib
import json
import random
from typing import TYPE_CHECKING

import pytest
import torch
from support.fuse_files import random_values
from support.fuse_oracle import Pair, fuse
from support.models import STAGE, STAGE_B, VDN, options
from support.published_rule import files_of, fold, published_tree, rope_file

from overlay.materialization.materialize import materialize
from overlay.materialization.record import RECORD_NAME

if TYPE_CHECKING:
    from pathlib import Path

    from conftest import Built


@pytest.mark.parametrize("stage", [STAGE, STAGE_B])
def test_every_file_of_the_tree_equals_the_plain_rebuild(shared_build: Built, tmp_path: Path, stage: str) -> None:
    """Shards, VAE, rope, index, configs, provenance, marker: the same files with the same bytes."""
    tree = shared_build.tree
    if stage != STAGE:
        found = materialize(VDN, options(shared_build.hub, tmp_path / "root", stage=stage)).path
        assert found is not None
        tree = found
    published_tree(shared_build.hub, tmp_path / "expected", stage)
    expected, made = files_of(tmp_path / "expected"), files_of(tree)
    del made[RECORD_NAME]
    licence = made.pop("licenses/OpenVDN__vdn-minimax-h3/LICENSE")  # which the published script leaves behind
    assert licence == (shared_build.hub.source_folder / "LICENSE").read_bytes()
    assert sorted(made) == sorted(expected)
    assert [path for path in expected if made[path] != expected[path]] == []


def test_both_names_of_the_video_vae_are_one_inode(shared_build: Built) -> None:
    """``video_vae/model.safetensors`` costs no room of its own."""
    vae = shared_build.tree / "video_vae"
    assert (vae / "model.safetensors").samefile(vae / "source/model.safetensors")


@pytest.mark.parametrize("dtype", ["BF16", "F16"])
def test_the_plain_rebuild_fuses_by_the_written_rule(dtype: str) -> None:
    """The rebuild's own arithmetic equals the exact loop, two pairs and a scale that is no power of two included."""
    dice, rows, cols, rank = random.Random(5), 5, 7, 6
    torch_dtype = {"BF16": torch.bfloat16, "F16": torch.float16}[dtype]

    def tensor(data: bytes, *shape: int) -> torch.Tensor:
        return torch.frombuffer(bytearray(data), dtype=torch_dtype).reshape(shape)

    weight = random_values(dice, rows * cols, dtype)
    scales = [float(torch.tensor(5 / 7, dtype=torch.float32)), 1.0]
    factors = [
        (random_values(dice, rank * cols, dtype), random_values(dice, rows * rank, dtype), scale) for scale in scales
    ]
    expected = fuse(weight, dtype, cols, [Pair(a, b, dtype, rank, scale) for a, b, scale in factors], "fp32-once")
    pairs = [(tensor(a, rank, cols), tensor(b, rows, rank), scale) for a, b, scale in factors]
    made = fold(tensor(weight, rows, cols), pairs)
    assert made.view(torch.int16).numpy().tobytes() == expected


def test_the_plain_rebuild_writes_the_published_rope_file(tmp_path: Path) -> None:
    """At the release's size it has the published sha256."""
    rope_file(16, tmp_path / "rope.safetensors")
    digest = hashlib.sha256((tmp_path / "rope.safetensors").read_bytes()).hexdigest()
    assert digest == "46a93a8fea7b81ecd4ab1996b84cb1fde442f820cb27d26a5ae0b57d3d7f1dad"


def test_provenance_of_the_stage_counts_its_pairs(shared_build: Built) -> None:
    """Every pair of both adapters is merged: the tiny stage has 20 and 34, on 34 tensors."""
    provenance = json.loads((shared_build.tree / "transformer/sglang_vdn_prefused.json").read_bytes())
    assert [adapter["pairs"] for adapter in provenance["adapters"]] == [20, 34]
    assert (provenance["merge"]["pairs_merged"], provenance["merge"]["tensors_touched"]) == (54, 34)
