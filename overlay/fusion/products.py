"""Who computes a product: a library where it is known to follow the rule, the ordered kernel everywhere else."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from overlay.fusion.ordered import ordered_product
from overlay.fusion.ordered_cuda import fused_product
from overlay.fusion.quiet_torch import torch

if TYPE_CHECKING:
    from overlay.fusion.library import Library

__all__ = ["Products"]


class Products:
    """Products D = B A of one thread, and a count of who made them.

    Args:
        library: Where torch's own product may be used; None for nowhere.
        compiled: Whether a GPU may use the kernel that is compiled for it (``ordered_cuda``).

    Attributes:
        elements: Elements of D made so far, by kernel (the library's name, or ``ordered``).
    """

    def __init__(self, library: Library | None, *, compiled: bool = True) -> None:
        self._library = library
        self._compiled = compiled
        self.elements: Counter[str] = Counter()

    def of(self, b: torch.Tensor, a: torch.Tensor) -> torch.Tensor:
        """D [rows, cols] in fp32, from ``b`` [rows, rank] and ``a`` [rank, cols] in their working dtype."""
        return self.unrounded(b, a).to(torch.float32)

    def unrounded(self, b: torch.Tensor, a: torch.Tensor) -> torch.Tensor:
        """D as it was accumulated, in the working dtype."""
        return torch.mm(b, a) if self._by_library(b, a) else self._ordered(b, a)

    def add_to(self, total: torch.Tensor, b: torch.Tensor, a: torch.Tensor) -> None:
        """Adds D to ``total`` (fp32, [rows, cols]) in place, rounding as ``total + D`` would."""
        if b.dtype != torch.float32:
            total.add_(self.of(b, a))
        elif self._by_library(b, a):
            # The library finishes D before it adds C: the same two roundings, one pass over memory less. Tested.
            total.addmm_(b, a)
        else:
            total.add_(self._ordered(b, a))

    def _by_library(self, b: torch.Tensor, a: torch.Tensor) -> bool:
        rows, rank, cols = b.shape[0], b.shape[1], a.shape[1]
        trusted = self._library is not None and self._library.covers(rows, cols, rank, b.dtype)
        self.elements[self._library.name if self._library and trusted else "ordered"] += rows * cols
        return trusted

    def _ordered(self, b: torch.Tensor, a: torch.Tensor) -> torch.Tensor:
        product = fused_product(b, a) if b.is_cuda and self._compiled else None
        return ordered_product(b, a) if product is None else product
