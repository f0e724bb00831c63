"""What overlay scripts import works inside: tensors read from inputs, written, and the Hub's client offline."""

from __future__ import annotations

import sysconfig
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import torch
from safetensors.torch import load_file, save_file
from support.sandboxes import JOB_LIMITS, SANDBOXES, job_of

from overlay.sandbox import run

if TYPE_CHECKING:
    from overlay.sandbox import Sandbox

SCRIPT = """
import torch, numpy, safetensors.torch, huggingface_hub
from huggingface_hub.errors import LocalEntryNotFoundError
def materialize(*, source_dir, output_dir, manifest, **_):
    weights = safetensors.torch.load_file(source_dir + "/model.safetensors")
    safetensors.torch.save_file({"w": weights["w"] @ weights["w"]}, output_dir + "/model.safetensors")
    print(torch.backends.cpu.get_cpu_capability())
    try:
        huggingface_hub.hf_hub_download("some/repo", "config.json")
    except LocalEntryNotFoundError:
        print("offline")
"""


@pytest.mark.slow
@pytest.mark.parametrize("sandbox", SANDBOXES, ids=lambda sandbox: sandbox.name)
def test_torch_safetensors_and_the_client_work(tmp_path: Path, sandbox: Sandbox) -> None:
    """Products are those of this process, on the same kind of processor; the client finds that it is offline."""
    weight = torch.arange(64 * 64, dtype=torch.float32).reshape(64, 64) / 4096
    packages = tuple({Path(sysconfig.get_path(name)) for name in ("purelib", "platlib")})
    limits = replace(JOB_LIMITS, seconds=100, memory=2**30, processes=512)
    job = job_of(tmp_path, SCRIPT, python_path=packages, limits=limits, environ={"HF_HUB_OFFLINE": "1"})
    save_file({"w": weight}, job.source_dir / "model.safetensors")

    done = run(job, sandbox=sandbox)

    assert done.output_tail == f"{torch.backends.cpu.get_cpu_capability()}\noffline\n"
    assert torch.equal(load_file(tmp_path / "output/model.safetensors")["w"], weight @ weight)
