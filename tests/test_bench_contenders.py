"""The scripts that a fuse is measured against do the work that they are said to do."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import bench_floor
import pytest
from bench_fuse import Source, run, write_source
from safetensors.torch import load_file

import overlay

if TYPE_CHECKING:
    import torch

pytestmark = pytest.mark.slow

TOOLS = Path(bench_floor.__file__).parent


@pytest.fixture
def source(tmp_path: Path) -> Source:
    """The tiny checkpoint: two shards, two adapters, two ranks."""
    return write_source(tmp_path / "source", 0)


def shards(folder: Path) -> dict[str, dict[str, torch.Tensor]]:
    return {path.name: load_file(path) for path in folder.glob("*.safetensors")}


@pytest.mark.parametrize(("script", "rule"), [("plain_rewrite.py", "fp32-once"), ("peft_rewrite.py", "openvdn")])
def test_a_rewrite_makes_what_its_rule_makes(script: str, rule: str, source: Source, tmp_path: Path) -> None:
    """Every tensor of every shard is the fuse's by that rule: no pair was lost on the way.

    Where the library does not keep the order of the sums, the last bit of a few values may differ. The other rule
    differs in a tenth of them.
    """
    run(sys.executable, TOOLS / script, source.base, tmp_path / "theirs", *source.adapters)
    overlay.fuse(source.base, source.adapters, tmp_path / "ours", rule=rule)

    theirs, ours, base = shards(tmp_path / "theirs"), shards(tmp_path / "ours"), shards(source.base)

    assert {name: sorted(tensors) for name, tensors in theirs.items()} == {
        name: sorted(tensors) for name, tensors in base.items()
    }
    for shard, tensors in theirs.items():
        for name, tensor in tensors.items():
            assert tensor.dtype == base[shard][name].dtype
            assert (tensor != ours[shard][name]).float().mean() < 0.001, name
    changed = {name for shard, found in theirs.items() for name, t in found.items() if not t.equal(base[shard][name])}
    assert len(changed) == 20  # 7 linears of one block, 6 of each of two refiner blocks, and norm_out


def test_the_floor_measures_its_parts(source: Source, tmp_path: Path) -> None:
    """Wall and CPU seconds of each, and nothing stays behind."""
    found = run(sys.executable, TOOLS / "bench_floor.py", source.base, tmp_path / "out", *source.adapters).printed

    assert set(found) == {"processors", "read", "arithmetic", "write"}
    assert all(found[part]["wall"] > 0 and found[part]["cpu"] >= 0 for part in ("read", "arithmetic", "write"))
    assert not (tmp_path / "out").exists()


def test_the_floor_writes_every_byte(tmp_path: Path) -> None:
    """A size that is no multiple of the block is written to its last byte."""
    bench_floor.write(tmp_path / "out", bench_floor.BLOCK + 5)

    assert (tmp_path / "out").stat().st_size == bench_floor.BLOCK + 5
