"""What a benchmark ran on."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import time
from importlib import metadata
from pathlib import Path

__all__ = ["filesystem", "machine"]


def gpu() -> str | None:
    """Name of the GPU, if there is one. A child asks: memory held here would count in the peaks of later children."""
    code = "import torch; print(torch.cuda.get_device_name() if torch.cuda.is_available() else '')"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)  # noqa: S603  # own
    return found.stdout.strip() or None


def machine() -> dict[str, object]:
    """What the figures were taken on."""
    lines = Path("/proc/cpuinfo").read_text(encoding="ascii", errors="replace").splitlines()
    cpu = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown")
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return {
        "cpu": cpu,
        "gpu": gpu(),
        "processors": len(os.sched_getaffinity(0)),
        "memory_gib": round(pages / 2**30, 1),
        "kernel": platform.release(),
        "python": platform.python_version(),
        **{name: version(name) for name in ("torch", "safetensors", "xxhash", "diffusers", "peft")},
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
    }


def version(package: str) -> str | None:
    """Version of an installed package."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def filesystem(folder: Path) -> str:
    """Type of the filesystem that ``folder`` is on."""
    command = ["stat", "--file-system", "--format=%T", str(folder)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()  # noqa: S603  # own
