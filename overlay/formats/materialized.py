"""Names of the files by which a finished folder tells what was done to it."""

from __future__ import annotations

__all__ = ["MARKER_NAME", "PREFUSED_NAME", "RECORD_NAME"]

RECORD_NAME = "overlay_record.json"
"""This program's record, at the top of the folder."""

MARKER_NAME = ".sglang_overlay_materialized.json"
"""SGLang's mark that a materialization is finished: it tests that this file exists, and never reads it."""

PREFUSED_NAME = "sglang_vdn_prefused.json"
"""What the published VDN-H3 materializer says of the adapters that it fused, beside the transformer's shards."""
