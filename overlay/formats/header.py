"""Strict reading of safetensors headers: what a file says it holds, checked before anyone trusts it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from overlay.errors import BrokenInput
from overlay.formats.dtypes import MAX_ELEMENTS, tensor_nbytes
from overlay.formats.layout import MAX_HEADER, METADATA_KEY, TensorInfo, canonical_layout
from overlay.formats.lfs import looks_like_pointer, refuse_pointer
from overlay.formats.local import open_file, read_span
from overlay.formats.strict_json import parse_object

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

__all__ = ["Header", "TensorInfo", "needed_prefix", "parse_header", "read_header"]

_LENGTH = 8
_ENTRY_FIELDS = {"dtype", "shape", "data_offsets"}
_AGAIN = "the file is incomplete or damaged; download it again"


@dataclass(frozen=True, slots=True)
class Header:
    """What a safetensors file holds.

    Attributes:
        tensors: By name, in file (offset) order; they cover the data section without gap or overlap.
        metadata: The file's free strings; empty where it has none.
        data_start: Absolute offset of the data section.
        file_size: Bytes of the whole file.
        canonical: The header's bytes are those that ``canonical_layout`` gives for the same tensors and metadata.
    """

    tensors: Mapping[str, TensorInfo]
    metadata: Mapping[str, str]
    data_start: int
    file_size: int
    canonical: bool

    def offset(self, name: str) -> int:
        """Absolute file offset of a tensor's first byte."""
        return self.data_start + self.tensors[name].start


def needed_prefix(first8: bytes, file_size: int, where: str) -> int:
    """How many bytes from the start of the file ``parse_header`` needs.

    Args:
        first8: The first 8 bytes (fewer only if the file is shorter).
        file_size: Bytes of the whole file.
        where: Name of the file, for messages.

    Raises:
        BrokenInput: Too short to be a safetensors file, or a header length beyond the file or the limit of 100 MB.
    """
    if file_size < _LENGTH or len(first8) < _LENGTH:
        found = "an empty file" if file_size == 0 else f"{file_size} bytes"
        raise _truncated(where, file_size, f"{found}, expected at least {_LENGTH} bytes of safetensors header")
    if looks_like_pointer(first8, file_size):
        return file_size
    length = int.from_bytes(first8[:_LENGTH], "little")
    if length > MAX_HEADER:
        text = first8[:_LENGTH].decode("ascii", "replace")
        seen = f" (the file begins with {text!r})" if text.isprintable() else ""
        raise BrokenInput(
            f"{where}: header length {length}{seen}, expected at most {MAX_HEADER}: not a safetensors file, or damaged",
            code="header-too-large",
            hint="check where the file came from (an error page? another format?), then download it again",
            where=where,
            header_length=length,
        )
    if _LENGTH + length > file_size:
        raise _truncated(
            where,
            file_size,
            f"{file_size} bytes, expected at least {_LENGTH + length} (a header of {length} bytes)",
            expected_size=_LENGTH + length,
        )
    return _LENGTH + length


def parse_header(prefix: bytes, file_size: int, where: str) -> Header:
    """Reads and checks a header.

    Args:
        prefix: The file's first ``needed_prefix`` bytes or more.
        file_size: Bytes of the whole file.
        where: Name of the file, for messages.

    Raises:
        BrokenInput: Anything that makes the file less than certain: a Git LFS pointer, a wrong size, JSON that is not
            what the format says, unknown dtypes, sizes that contradict shapes, gaps, overlaps.
    """
    needed = needed_prefix(prefix[:_LENGTH], file_size, where)
    if len(prefix) < needed:
        raise _truncated(where, file_size, f"only {len(prefix)} bytes came, expected the first {needed}")
    if looks_like_pointer(prefix, file_size):
        refuse_pointer(prefix[:file_size], where)
        raise _bad(where, "begins with 'version ', expected a safetensors header", "bad-header")
    text = prefix[_LENGTH:needed]
    if not text.startswith(b"{"):
        raise _bad(where, f"header begins with {text[:8]!r}, expected '{{'", "bad-header")
    document = parse_object(text, f"{where} (header)")
    metadata = _metadata(document.pop(METADATA_KEY, {}), where)
    entries = [_tensor(name, entry, f"{where}: tensor {_short(name)}") for name, entry in document.items()]
    entries.sort(key=lambda tensor: (tensor.start, tensor.end))
    _check_cover(entries, needed, file_size, where)
    layout = canonical_layout(((tensor.name, tensor.dtype, tensor.shape) for tensor in entries), metadata, where)
    return Header(
        tensors={tensor.name: tensor for tensor in entries},
        metadata=metadata,
        data_start=needed,
        file_size=file_size,
        canonical=layout.header == prefix[:needed],
    )


def read_header(path: Path) -> Header:
    """Reads and checks the header of a local file, through links.

    Raises:
        OverlayError: As ``parse_header`` and ``local.file_stat``.
    """
    with open_file(path) as (descriptor, found):
        needed = needed_prefix(read_span(descriptor, 0, _LENGTH), found.st_size, str(path))
        return parse_header(read_span(descriptor, 0, needed), found.st_size, str(path))


def _metadata(value: Any, where: str) -> dict[str, str]:
    if not isinstance(value, dict) or not all(isinstance(text, str) for text in value.values()):
        raise _bad(where, f"{METADATA_KEY} is {_short(value)}, expected an object of strings", "bad-metadata")
    return value


def _tensor(name: str, entry: Any, where: str) -> TensorInfo:
    if not isinstance(entry, dict) or set(entry) != _ENTRY_FIELDS:
        raise _bad(where, f"entry is {_short(entry)}, expected exactly dtype, shape and data_offsets", "bad-tensor")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str):
        raise _bad(where, f"dtype is {_short(dtype)}, expected a string", "unknown-dtype")
    if not _sizes(shape):
        raise _bad(where, f"shape is {_short(shape)}, expected whole numbers from 0", "bad-shape")
    if not _sizes(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:  # noqa: PLR2004  # begin and end
        raise _bad(where, f"data_offsets are {_short(offsets)}, expected [begin, end]", "bad-offsets")
    start, end = offsets
    nbytes = tensor_nbytes(dtype, shape, where)
    if end - start != nbytes:
        raise _bad(
            where,
            f"data_offsets [{start}, {end}] span {end - start} bytes, expected {nbytes} for {dtype} {shape}",
            "size-mismatch",
        )
    return TensorInfo(name, dtype, tuple(shape), start, end)


def _check_cover(tensors: list[TensorInfo], data_start: int, file_size: int, where: str) -> None:
    """Tensors in offset order must cover the data section exactly."""
    end, before = 0, "the header"
    for tensor in tensors:
        if tensor.start != end:
            kind, code = ("overlaps", "overlap") if tensor.start < end else ("leaves a gap after", "gap")
            raise _bad(
                f"{where}: tensor {_short(tensor.name)}",
                f"begins at byte {tensor.start} of the data and {kind} {before}, expected byte {end}",
                code,
            )
        end, before = tensor.end, _short(tensor.name)
    expected = data_start + end
    if file_size < expected:
        raise _truncated(
            where,
            file_size,
            f"{file_size} bytes, expected {expected}: {expected - file_size} bytes are missing",
            expected_size=expected,
        )
    if file_size > expected:
        raise BrokenInput(
            f"{where}: {file_size} bytes, expected {expected}: {file_size - expected} bytes follow the last tensor",
            code="trailing-bytes",
            hint=_AGAIN,
            where=where,
            size=file_size,
            expected_size=expected,
        )


def _sizes(value: Any) -> bool:
    """Whether ``value`` is a list of whole numbers from 0 that a 64-bit reader can hold (``True`` is not a number)."""
    return isinstance(value, list) and all(type(item) is int and 0 <= item <= MAX_ELEMENTS for item in value)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."  # noqa: PLR2004  # keeps a hostile value from flooding the message


def _bad(where: str, problem: str, code: str) -> BrokenInput:
    return BrokenInput(f"{where}: {problem}", code=code, hint=_AGAIN, where=where)


def _truncated(where: str, size: int, problem: str, **data: Any) -> BrokenInput:
    return BrokenInput(f"{where}: {problem}", code="truncated", hint=_AGAIN, where=where, size=size, **data)
