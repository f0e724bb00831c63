"""Jobs for sandboxes, and the sandboxes that have to work on this machine."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from overlay.sandbox import Job, Limits, Sandbox

# By what is installed: every worker has to collect the same tests, and one that does not work must fail, not vanish.
_INSTALLED = ("bubblewrap", "landlock") if Path("/usr/bin/bwrap").exists() else ("landlock",)
SANDBOXES = tuple(Sandbox(name, None) for name in _INSTALLED)
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


def left_running() -> list[str]:
    """Sandboxed processes that were started in this test: their scratch folder is in one of its own."""
    tests = Path(tempfile.gettempdir()).parents[1]
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if f"inside.py\0{tests}/".encode() in path.read_bytes():
                found.append(path.parent.name)
        except OSError:
            continue  # it has ended
    return found
