"""How far two tensors of the same dtype and shape are apart."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from overlay.errors import BrokenInput
from overlay.formats.dtypes import BITS

if TYPE_CHECKING:
    from io import FileIO
    from pathlib import Path

    from torch import Tensor

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
        max_abs: Largest absolute difference, over pairs in which both are finite; None for dtypes without a value here.
        max_ulp: Largest distance in units of the last place (steps between neighbouring floats); None for others.
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
        None if total.max_abs is None or more.max_abs is None else max(total.max_abs, more.max_abs),
        None if total.max_ulp is None or more.max_ulp is None else max(total.max_ulp, more.max_ulp),
    )


def _chunk_differences(a: bytes, b: bytes, dtype: str) -> ValueDifferences:
    # torch is needed for nothing else here, and two equal directories compare without it.
    import torch

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
    distance = (values_a - values_b).abs()[finite]
    max_abs = float(distance.max()) if distance.numel() else 0.0
    if dtype not in _FLOATS:
        return ValueDifferences(count, 0, max_abs, None)
    steps_a, steps_b = (_ordered(part[differing][finite].to(torch.int64), bits) for part in (bits_a, bits_b))
    # Distances between float64 of opposite signs do not fit an int64.
    largest = max((abs(x - y) for x, y in zip(steps_a.tolist(), steps_b.tolist(), strict=True)), default=0)
    return ValueDifferences(count, 0, max_abs, largest)


def _ordered(bits: Tensor, width: int) -> Tensor:
    """Sign-magnitude bits as integers in the order of the floats, both zeros at 0."""
    magnitude = bits & ((1 << (width - 1)) - 1)
    return magnitude.where(bits >= 0, -magnitude)
