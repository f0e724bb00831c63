"""What the commands that people type most do not import."""

from __future__ import annotations

import subprocess
import sys

import pytest

import overlay

pytestmark = pytest.mark.no_torch

# Everything that is slow to import and that no query needs. Of huggingface_hub only the constants are allowed.
CODE = """
import sys
from overlay.cli._main import run
status = run(sys.argv[1:])
hub = {name for name in sys.modules if name.startswith("huggingface_hub")} - {
    "huggingface_hub", "huggingface_hub.constants"}
heavy = set("torch numpy safetensors httpx2 requests tqdm hf_xet filelock fsspec".split()) & set(sys.modules)
print(status, sorted(hub | heavy))
"""
MODEL = "OpenVDN/vdn-minimax-h3"


@pytest.mark.parametrize(
    ("args", "status"),
    [
        (["--help"], 0),
        (["--version"], 0),
        (["prewarm", "--help"], 0),
        (["resolve", MODEL], 0),
        (["resolve", MODEL, "--json"], 0),
        (["path", MODEL], 3),
        (["check", MODEL, "--offline"], 3),
        (["cache", "ls"], 0),
        (["cache", "gc", "--max-size", "1TB"], 0),
        (["lease", MODEL, "--for", "1h"], 3),
    ],
    ids=str,
)
@pytest.mark.with_torch
def test_queries_import_nothing_heavy(args: list[str], status: int) -> None:
    """Help, resolve, path, lease, cache and check --offline import neither torch nor the client's network stack."""
    done = subprocess.run([sys.executable, "-c", CODE, *args], capture_output=True, text=True, check=True)

    assert done.stdout.splitlines()[-1] == f"{status} []"


def test_runs_as_a_module() -> None:
    """`python -m overlay` is the program."""
    done = subprocess.run([sys.executable, "-m", "overlay", "--version"], capture_output=True, text=True, check=True)

    assert done.stdout == f"overlay {overlay.__version__}\n"
