"""The canonical layout of a safetensors file: the header that the safetensors library itself would write."""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING

from overlay.errors import BrokenInput
from overlay.formats.dtypes import ORDER, tensor_nbytes

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

__all__ = ["MAX_HEADER", "METADATA_KEY", "Layout", "TensorInfo", "canonical_layout"]

METADATA_KEY = "__metadata__"
MAX_HEADER = 100_000_000
"""Bytes of header JSON that the library reads at most; a longer header is no valid file."""

_ALIGNMENT = 8
_RANK = {dtype: place for place, dtype in enumerate(ORDER)}


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One tensor of a file.

    Attributes:
        name: Its key in the header.
        dtype: A key of ``dtypes.BITS``.
        shape: Elements along each axis.
        start: First byte, relative to the data section (which begins after the header).
        end: One past its last byte, likewise.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    start: int
    end: int

    @property
    def nbytes(self) -> int:
        """Bytes of its data."""
        return self.end - self.start


@dataclass(frozen=True, slots=True)
class Layout:
    """Where everything goes in a file to be written.

    Attributes:
        header: The file's first bytes: 8-byte length, JSON, padding. The data section follows at ``len(header)``.
        tensors: In file order, without gaps.
        file_size: Bytes of the whole file.
    """

    header: bytes
    tensors: tuple[TensorInfo, ...]
    file_size: int


def canonical_layout(
    tensors: Iterable[tuple[str, str, tuple[int, ...]]], metadata: Mapping[str, str], where: str = "output"
) -> Layout:
    """Lays out a file as safetensors 0.8 does, byte for byte, with metadata keys sorted (the library's are random).

    Tensors go by dtype (``dtypes.ORDER``), then by name; the JSON is compact, metadata first, padded with spaces to 8
    bytes. Empty metadata is left out, as the library does for ``None``.

    Args:
        tensors: (name, dtype, shape) in any order.
        metadata: Free strings of the file.
        where: Name of the file, for messages.

    Raises:
        BrokenInput: A name given twice or reserved, an impossible dtype or shape, or a header over 100 MB.
    """
    document: dict[str, object] = {METADATA_KEY: dict(sorted(metadata.items()))} if metadata else {}
    placed: list[TensorInfo] = []
    end = 0
    sized = [(name, dtype, shape, tensor_nbytes(dtype, shape, f"{where}: {name}")) for name, dtype, shape in tensors]
    # Code points order as UTF-8 bytes do, so Python's string order is the library's.
    for name, dtype, shape, nbytes in sorted(sized, key=lambda tensor: (_RANK[tensor[1]], tensor[0])):
        if name in document or name == METADATA_KEY:
            raise BrokenInput(
                f"{where}: tensor name {name!r} is {'reserved' if name == METADATA_KEY else 'given twice'}",
                code="duplicate-tensor",
                hint="every tensor of a file needs a name of its own",
                where=where,
                tensor=name,
            )
        start, end = end, end + nbytes
        placed.append(TensorInfo(name, dtype, shape, start, end))
        document[name] = {"dtype": dtype, "shape": shape, "data_offsets": (start, end)}
    text = json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode("utf-8")
    text += b" " * (-len(text) % _ALIGNMENT)
    if len(text) > MAX_HEADER:
        raise BrokenInput(
            f"{where}: header of {len(text)} bytes, expected at most {MAX_HEADER}",
            code="header-too-large",
            hint="split the tensors over more files",
            where=where,
        )
    header = struct.pack("<Q", len(text)) + text
    return Layout(header, tuple(placed), len(header) + end)
