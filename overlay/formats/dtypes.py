"""The dtypes of safetensors 0.8: their sizes, and the order in which the library lays them out."""

from __future__ import annotations

from typing import TYPE_CHECKING

from overlay.errors import BrokenInput

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["BITS", "MAX_ELEMENTS", "ORDER", "tensor_nbytes"]

BITS: Mapping[str, int] = {
    "U64": 64,
    "I64": 64,
    "F64": 64,
    "C64": 64,
    "F32": 32,
    "U32": 32,
    "I32": 32,
    "BF16": 16,
    "F16": 16,
    "U16": 16,
    "I16": 16,
    "F8_E5M2FNUZ": 8,
    "F8_E4M3FNUZ": 8,
    "F8_E8M0": 8,
    "F8_E4M3": 8,
    "F8_E5M2": 8,
    "I8": 8,
    "U8": 8,
    "F6_E3M2": 6,
    "F6_E2M3": 6,
    "F4": 4,
    "BOOL": 8,
}
"""Bits of one element, by dtype name, in the library's file order (its dtype enum, descending)."""

ORDER: tuple[str, ...] = tuple(BITS)
"""File order of dtypes: tensors are laid out by this, then by name."""

MAX_ELEMENTS = 2**60
"""More elements than this overflow the 64-bit sizes of other readers, so no valid file has them."""


def tensor_nbytes(dtype: str, shape: Sequence[int], where: str = "tensor") -> int:
    """Size of a tensor's data.

    Args:
        dtype: Name as the header spells it, a key of ``BITS``.
        shape: Elements along each axis; ``()`` is a scalar.
        where: Place, for messages.

    Raises:
        BrokenInput: Unknown dtype, a size that is not whole bytes, or more elements than 64-bit readers can count.
    """
    if dtype not in BITS:
        raise BrokenInput(
            f"{where}: unknown dtype {dtype!r}, expected one of {', '.join(ORDER)}",
            code="unknown-dtype",
            hint="the file was written by a newer or another program; convert it to a dtype of safetensors 0.8",
            where=where,
            dtype=dtype,
        )
    elements = 1
    for extent in shape:
        # Checked at every step, as the library does: a later zero does not excuse an overflow.
        elements *= extent
        if elements > MAX_ELEMENTS:
            raise BrokenInput(
                f"{where}: shape {list(shape)} has more than 2^60 elements",
                code="bad-shape",
                hint="the header is damaged; download the file again",
                where=where,
            )
    bits = elements * BITS[dtype]
    if bits % 8:
        raise BrokenInput(
            f"{where}: {dtype} of shape {list(shape)} is {bits} bits, expected whole bytes",
            code="bad-shape",
            hint="the last axis of a packed dtype must fill whole bytes; write the file again",
            where=where,
        )
    return bits // 8
