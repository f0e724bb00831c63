"""The start-up test of a device: its products against the ordered kernel on the CPU, before any weight is touched."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from overlay.fusion.library import Library
from overlay.fusion.ordered import ordered_product
from overlay.fusion.products import Products
from overlay.fusion.quiet_torch import torch

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["SelfTest", "run_self_test", "same_bits"]

_ORDERED = Library("ordered", {torch.float32: 128, torch.float64: 128})
"""Shapes that the ordered kernel is tried with where no library is."""

_WORDS = {torch.float32: torch.int32, torch.float64: torch.int64}


@dataclass(frozen=True, slots=True)
class SelfTest:
    """Outcome of a start-up test.

    Attributes:
        num_products: Products compared.
        mismatches: Those that differ, as ``dtype rows x rank x cols``.
    """

    num_products: int
    mismatches: tuple[str, ...]

    @property
    def passed(self) -> bool:
        """Whether the device follows the rule."""
        return not self.mismatches


def run_self_test(library: Library | None, device: torch.device, *, compiled: bool = True) -> SelfTest:
    """Compares D, and W + D in fp32, as ``device`` makes them with the ordered kernel's on the CPU.

    A library is tried at its own bounds; without one it is the device's own arithmetic that is tried. The data hold
    zeros of both signs, values over 30 binary orders of magnitude, and products that are subnormal.
    """
    products = Products(library, compiled=compiled)
    mismatches: list[str] = []
    num_products = 0
    for b, a, weight in _cases(library or _ORDERED):
        expected = ordered_product(b, a)
        summed = weight.to(device, copy=True)
        products.add_to(summed, b.to(device), a.to(device))
        same = same_bits(products.unrounded(b.to(device), a.to(device)).cpu(), expected)
        num_products += 1
        if not same or not same_bits(summed.cpu(), weight + expected.to(torch.float32)):
            mismatches.append(f"{b.dtype} {b.shape[0]}x{b.shape[1]}x{a.shape[1]}".removeprefix("torch."))
    return SelfTest(num_products, tuple(mismatches))


def _cases(bounds: Library) -> Iterator[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
    """B, A and an fp32 W of each product."""
    generator = torch.Generator().manual_seed(20)
    for dtype, max_rank in bounds.max_rank.items():
        for rows, rank, cols in _shapes(bounds, max_rank):
            b, a = (_values(generator, *shape, dtype) for shape in ((rows, rank), (rank, cols)))
            for factor in (a, a * 2.0**-140) if dtype == torch.float32 else (a,):
                yield b, factor, _values(generator, rows, cols, torch.float32)


def same_bits(left: torch.Tensor, right: torch.Tensor) -> bool:
    """Whether two fp32 or fp64 tensors are equal to the bit, signs of zero included."""
    return torch.equal(left.view(_WORDS[left.dtype]), right.view(_WORDS[right.dtype]))


def _shapes(library: Library, max_rank: int) -> tuple[tuple[int, int, int], ...]:
    rows, cols = library.min_rows, library.min_cols
    return (
        (rows, max_rank, 129),
        (67, max_rank, cols),
        (rows, 17, cols),
        (rows, 64, 515),
        (259, 64, cols),
        (33, 1, 65),
        (35, 16, 67),
        (37, max_rank - 1, 31),
    )


def _values(generator: torch.Generator, rows: int, cols: int, dtype: torch.dtype) -> torch.Tensor:
    """Values as pairs hold them (BF16 in fp32, fp32 in fp64), of mixed magnitude and sign, one in eight of them a zero.

    fp64 sums of few bits over a narrow range would be exact in any order and show nothing, hence fp32 there.
    """
    values = torch.randn(rows, cols, generator=generator, dtype=torch.float32)
    values = (values if dtype == torch.float64 else values.to(torch.bfloat16)).to(dtype)
    values *= 2.0 ** torch.randint(-15, 15, (rows, cols), generator=generator).to(dtype)
    pick = torch.randint(0, 16, (rows, cols), generator=generator)
    values[pick == 0] = 0.0
    values[pick == 1] = -0.0
    return values
