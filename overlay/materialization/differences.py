"""How far two tensors of the same dtype and shape are apart."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from overlay.errors import BrokenInput
from overlay.formats.dtypes import BITS

if TYPE_CHECKING:
    from io import FileIO
    from pathlib import Path

__all__ = ["ValueDifferences", "value_differences"]

_CHUNK = 16 * 2**20
_FLOATS = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16"}
_INTEGERS = {"I64": "int64", "I32": "int32", "I16": "int16", "I8": "int8", "U8": "uint8", "BOOL": "uint8"}
_BITS_OF = {8: "int8", 16: "int16", 32: "int32", 64: "int64"}


@dataclass(frozen=True, slots=True)
class ValueDifferences:
    """Differences of two tensors.

    Attributes:
        num_differing: Elements whose bits differ; where the dtype packs several elements in a byte, bytes.
        max_abs: Largest absolute difference, over differing pairs in which both are finite; None where there are none,
            and for dtypes without a value here.
        max_ulp: Largest distance of such pairs in units of the last place (steps between neighbouring floats), over
            those of the same sign: across zero it would count every float in between, and say nothing.
    """

    num_differing: int
    num_elements: int
    max_abs: float | None
    max_ulp: int | None


def value_differences(
    a: Path, offset_a: int, b: Path, offset_b: int, nbytes: int, dtype: str
) -> ValueDifferences | None:
    """Compare ``nbytes`` at two places; None where they are equal. Bounded memory."""
    total: ValueDifferences | None = None
    with a.open("rb", buffering=0) as file_a, b.open("rb", buffering=0) as file_b:
        file_a.seek(offset_a)
        file_b.seek(offset_b)
        for start in range(0, nbytes, _CHUNK):
            count = min(_CHUNK, nbytes - start)
            chunk_a, chunk_b = _read(file_a, count, a), _read(file_b, count, b)
            if chunk_a != chunk_b:
                total = _sum(total, _chunk_differences(chunk_a, chunk_b, dtype))
    if total is None:
        return None
    elements = nbytes * 8 // BITS[dtype] if BITS[dtype] >= 8 else nbytes  # noqa: PLR2004 - bits in a byte
    return ValueDifferences(total.num_differing, elements, total.max_abs, total.max_ulp)


def _read(file: FileIO, count: int, path: Path) -> bytes:
    data = bytearray()
    while len(data) < count and (more := file.read(count - len(data))):
        data += more
    if len(data) < count:
        raise BrokenInput(f"{path}: shrank while it was read", code="input-changed", path=str(path))
    return bytes(data)


def _sum(total: ValueDifferences | None, more: ValueDifferences) -> ValueDifferences:
    if total is None:
        return more
    return ValueDifferences(
        total.num_differing + more.num_differing,
        0,
        max((value for value in (total.max_abs, more.max_abs) if value is not None), default=None),
        max((value for value in (total.max_ulp, more.max_ulp) if value is not None), default=None),
    )


def _chunk_differences(a: bytes, b: bytes, dtype: str) -> ValueDifferences:
    # torch is needed for nothing else here, and two equal directories compare without it.
    from overlay.fusion.quiet_torch import torch

    bits = BITS[dtype]
    raw = getattr(torch, _BITS_OF.get(bits, "int8"))
    bits_a, bits_b = (torch.frombuffer(bytearray(data), dtype=raw) for data in (a, b))
    differing = bits_a != bits_b
    count = int(differing.sum())
    if dtype not in _FLOATS and dtype not in _INTEGERS:
        return ValueDifferences(count, 0, None, None)
    kind = getattr(torch, _FLOATS.get(dtype) or _INTEGERS[dtype])
    values_a, values_b = (part[differing].view(kind).to(torch.float64) for part in (bits_a, bits_b))
    finite = values_a.isfinite() & values_b.isfinite()
    if not finite.any():
        return ValueDifferences(count, 0, None, None)
    max_abs = float((values_a - values_b).abs()[finite].max())
    if dtype not in _FLOATS:
        return ValueDifferences(count, 0, max_abs, None)
    ints_a, ints_b = (part[differing][finite].to(torch.int64) for part in (bits_a, bits_b))
    same_sign = (ints_a < 0) == (ints_b < 0)
    # Of one sign the bits are in the order of the floats, or in the reverse order.
    steps = (ints_a - ints_b)[same_sign].abs()
    return ValueDifferences(count, 0, max_abs, int(steps.max()) if same_sign.any() else None)
