"""Folding LoRA pairs into weights, and writing safetensors files without ever holding one in memory.

The numeric rule is :mod:`overlay.fusion.rule`; who computes its products, and why that may be trusted, is
:mod:`overlay.fusion.library` and :mod:`overlay.fusion.ordered`; :mod:`overlay.fusion.build` writes files. Only modules
that compute import torch, so a file without a fused weight is written where torch is not installed.
"""

from __future__ import annotations
