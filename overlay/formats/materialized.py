"""Names of the files by which a finished folder tells what was done to it."""

from __future__ import annotations

__all__ = ["FUSED_NAME", "LARGEST_RECORD", "MARKER_NAME", "OURS", "PREFUSED_NAME", "RECORD_NAME"]

RECORD_NAME = "overlay_record.json"
"""This program's record, at the top of the folder."""

LARGEST_RECORD = 2**30
"""Bytes of a record at most: it tells of every tensor, and of 300,000 tensors that takes some 70 MB."""

MARKER_NAME = ".sglang_overlay_materialized.json"
"""SGLang's mark that a materialization is finished: it tests that this file exists, and never reads it."""

OURS = (MARKER_NAME, RECORD_NAME)
"""What is written once a tree is known: nothing that is carried, made or left by a script takes such a place."""

PREFUSED_NAME = "sglang_vdn_prefused.json"
"""What the published VDN-H3 materializer says of the adapters that it fused, beside the transformer's shards."""

FUSED_NAME = "overlay_fused.json"
"""This program's stamp beside weights that it fused and laid out otherwise: which adapters are in."""
