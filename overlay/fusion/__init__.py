"""Folding LoRA pairs into weights, and writing safetensors files without ever holding one in memory.

The numeric rule is :mod:`overlay.fusion.rule`; who computes its products, and why that may be trusted, is
:mod:`overlay.fusion.library` and :mod:`overlay.fusion.ordered`; :mod:`overlay.fusion.build` writes files. Only modules
that compute import torch, so a file without a fused weight is written where torch is not installed.
"""

from __future__ import annotations

__all__ = ["DEFAULT_RULE", "RULES"]

RULES = ("fp32-once", "openvdn")
"""Names of the numeric rules; what each means is written down in :mod:`overlay.fusion.rule`."""

DEFAULT_RULE = "fp32-once"
