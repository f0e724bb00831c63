"""Torch, imported without its complaint that NumPy is not installed: nothing here needs NumPy.

Every module of this program takes ``torch`` from here, because whoever imports it first sees the warning.
"""

from __future__ import annotations

import warnings
from typing import Any, cast

__all__ = ["torch"]

warnings.filterwarnings("ignore", message="Failed to initialize NumPy: ")
_ours = warnings.filters[0]
try:
    import torch
finally:
    # Not catch_warnings: that would also take back the filters which torch itself sets.
    cast("list[Any]", warnings.filters).remove(_ours)
