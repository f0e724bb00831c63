"""Jobs for sandboxes, and the sandboxes that work on this machine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from overlay.sandbox import Job, Limits, available

if TYPE_CHECKING:
    from pathlib import Path

SANDBOXES = available()
JOB_LIMITS = Limits(seconds=30, memory=96 * 2**20, processes=32, disk=24 * 2**20)


def job_of(folder: Path, script: str, manifest: dict[str, Any] | None = None, **changes: Any) -> Job:
    """A job with an overlay, a source of one file, an empty output folder, and what would mislead an interpreter."""
    for name in ("overlay", "source", "output"):
        (folder / name).mkdir(exist_ok=True)
    (folder / "source/config.json").write_text("{}")
    values: dict[str, Any] = {
        "script": script.encode(),
        "overlay_dir": folder / "overlay",
        "source_dir": folder / "source",
        "output_dir": folder / "output",
        "manifest": manifest or {},
        "readable": (),
        "python_path": (),
        "environ": {
            "HF_HUB_OFFLINE": "1",
            "PYTHONPATH": str(folder / "planted"),
            "PYTHONSTARTUP": str(folder / "x.py"),
        },
        "limits": JOB_LIMITS,
    }
    return Job(**values | changes)
