"""Runs of the job on small hub folders: registries that pin them, options, and copies of a finished cache root."""

from __future__ import annotations

import hashlib
import os
import stat
import subprocess
from typing import TYPE_CHECKING, Any

from overlay.demo.checkpoint import NEEDS_REPO, NEEDS_REVISION, OVERLAY_REPO
from overlay.materialization.request import Options

if TYPE_CHECKING:
    from pathlib import Path

    from overlay.demo.checkpoint import HubFolder

__all__ = ["STAGE", "STAGE_B", "VDN", "copy_root", "options", "readable_by_all", "vdn_registry", "write_registry"]

VDN = "OpenVDN/vdn-minimax-h3"
STAGE, STAGE_B = "stage-dmd-step-250", "stage-b-step-2000"


def vdn_registry(folder: Path, hub: HubFolder, *, stage: str = STAGE, overlay: str = "") -> Path:
    """A registry that pins the revisions which ``hub`` stands for; ``overlay``: more lines of that section."""
    return write_registry(
        folder,
        f"""\
  {VDN}:
    source: {{revision: {hub.source}}}
    overlay:
      repo: {OVERLAY_REPO}
      revision: {hub.overlay}
{overlay}
    needs:
      - {{repo: {NEEDS_REPO}, revision: {NEEDS_REVISION}, components: [text_encoder, tokenizer, processor]}}
    recipe: {{name: vdn-h3, stage: {stage}}}
""",
    )


def write_registry(folder: Path, entries: str) -> Path:
    """A registry file with these entries, named by what is in it: another one is another file."""
    text = f"schema_version: 1\nmodels:\n{entries}"
    path = folder / f"registry-{hashlib.sha256(text.encode()).hexdigest()[:12]}.yaml"
    folder.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def options(hub: HubFolder, root: Path, /, **choices: Any) -> Options:
    """Options that read from a hub folder, pinned to the revisions that it stands for."""
    stage = choices.pop("stage", STAGE)
    chosen = {"registry": vdn_registry(root.parent, hub, stage=stage), "hub": hub.root, "cache_root": root}
    return Options(**(chosen | choices))


def copy_root(root: Path, to: Path) -> Path:
    """A copy of a cache root in which what shares an inode still does."""
    to.parent.mkdir(parents=True, exist_ok=True)
    subprocess.run(["/bin/cp", "-a", root, to], check=True)
    return to


def readable_by_all(folder: Path) -> None:
    """Let every user reach a test's folder and read what is in it; what is closed on purpose stays so."""
    for path in (folder, *folder.rglob("*")):
        if not path.is_symlink() and path.stat().st_mode & stat.S_IRUSR:
            path.chmod(stat.S_IMODE(path.stat().st_mode) | 0o444 | (0o111 if path.is_dir() else 0))
    for parent in folder.parents:
        if parent.stat().st_uid == os.geteuid() and not parent.stat().st_mode & stat.S_IXOTH:
            parent.chmod(stat.S_IMODE(parent.stat().st_mode) | 0o011)
