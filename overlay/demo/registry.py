"""A registry that pins the revisions which a made hub folder stands for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from overlay.consumers.sglang import overlay_fingerprint
from overlay.demo.checkpoint import NEEDS_REPO, NEEDS_REVISION, OVERLAY_REPO, SOURCE_REPO

if TYPE_CHECKING:
    from pathlib import Path

    from overlay.demo.checkpoint import HubFolder

__all__ = ["write_registry"]


def write_registry(path: Path, hub: HubFolder) -> None:
    """Write the registry file of the VDN-H3 job on this hub folder."""
    fingerprint = overlay_fingerprint(hub.overlay_folder)
    path.write_text(f"""\
schema_version: 1
models:
  {SOURCE_REPO}:
    source: {{revision: {hub.source}}}
    overlay: {{repo: {OVERLAY_REPO}, revision: {hub.overlay}, fingerprint: {fingerprint}}}
    needs:
      - {{repo: {NEEDS_REPO}, revision: {NEEDS_REVISION}, components: [text_encoder, tokenizer, processor]}}
    recipe: {{name: vdn-h3, stage: stage-dmd-step-250}}
""")
