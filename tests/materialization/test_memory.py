"""The released widths: memory stays bounded whatever the size of a shard."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from support.published_rule import fold

from overlay.demo.checkpoint import write_hub

if TYPE_CHECKING:
    from pathlib import Path

SCRIPT = """
import json, sys
from pathlib import Path
import overlay

base, out, *adapters = map(Path, sys.argv[1:])
done = overlay.fuse(base, adapters, out)
status = Path("/proc/self/status").read_text()
[peak] = [line.split()[1] for line in status.splitlines() if line.startswith("VmHWM")]
print(json.dumps({"peak": int(peak) * 1024, "written": done.counters.written}))
"""


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_h19_a_fuse_of_a_release_sized_shard_stays_under_one_gib(tmp_path: Path) -> None:
    """One block at the released widths: a shard of 3 GB, both adapters, the whole program's resident memory."""
    hub = write_hub(tmp_path / "hub", preset="release-dims", blocks=1)
    base = hub.source_folder / "h3-base/transformer"
    adapters = [hub.source_folder / "stage-dmd-step-250/adapters" / name for name in ("default", "turbo")]
    try:
        done = subprocess.run(
            [sys.executable, "-c", SCRIPT, base, tmp_path / "out", *adapters],
            capture_output=True,
            text=True,
            check=True,
        )
        found = json.loads(done.stdout)
        assert found["written"] > 2 * 2**30
        assert found["peak"] < 2**30
        check_one(base, tmp_path / "out", adapters)
    finally:
        shutil.rmtree(tmp_path)


def check_one(base: Path, out: Path, adapters: list[Path]) -> None:
    """The first rows of one attention weight, which both adapters change, by the written rule."""
    name, rows = "transformer_blocks.0.attn.to_k", 64
    pairs = []
    for folder in adapters:
        tensors = load_file(folder / "adapter_model.safetensors")
        key = f"{name.replace('.attn.', '.attn.orig.')}.lora_{{}}.{folder.name}.weight"
        pairs.append((tensors[key.format("A")], tensors[key.format("B")][:rows], 1.0))
    [shard] = base.glob("*.safetensors")
    with safe_open(shard, "pt") as before, safe_open(out / shard.name, "pt") as after:
        weight, made = (file.get_slice(f"{name}.weight")[:rows] for file in (before, after))
    assert torch.equal(made, fold(weight, pairs))
    assert not torch.equal(made, weight)
