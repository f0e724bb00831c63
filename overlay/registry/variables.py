"""The environment variables of sglang that are read, written and named here."""

from __future__ import annotations

__all__ = ["SGLANG_CACHE_ROOT", "SGLANG_REGISTRY"]

SGLANG_REGISTRY = "SGLANG_DIFFUSION_MODEL_OVERLAY_REGISTRY"
"""What a server is told instead of the table that it was built with: inline JSON, or the path of a JSON file."""

SGLANG_CACHE_ROOT = "SGLANG_DIFFUSION_CACHE_ROOT"
"""Where it looks for materializations."""
