"""Small safetensors files written byte by byte, without the product's code and without the library."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

Tensor = tuple[str, Iterable[int], bytes]
"""(dtype, shape, data)."""


def raw_file(header: str | bytes, data: bytes = b"", *, length: int | None = None, pad: int = 8) -> bytes:
    """A file with this header text, padded to ``pad`` bytes; ``length`` lies about the header's size."""
    text = header.encode() if isinstance(header, str) else header
    text += b" " * (-len(text) % pad)
    return struct.pack("<Q", len(text) if length is None else length) + text + data


def entry(dtype: str, shape: Iterable[int], start: int, end: int) -> dict[str, object]:
    """One tensor of a header."""
    return {"dtype": dtype, "shape": list(shape), "data_offsets": [start, end]}


def tensors_file(tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None) -> bytes:
    """A valid file with its tensors in the order given (not the canonical one); ``None`` leaves metadata out."""
    header: dict[str, object] = {} if metadata is None else {"__metadata__": dict(metadata)}
    data = b""
    for name, (dtype, shape, payload) in tensors.items():
        header[name] = entry(dtype, shape, len(data), len(data) + len(payload))
        data += payload
    return raw_file(json.dumps(header, ensure_ascii=False, separators=(",", ":")), data)


def write_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None) -> Path:
    """Writes ``tensors_file``, making folders as needed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(tensors_file(tensors, metadata))
    return path


def write_checkpoint(
    folder: Path,
    shards: Mapping[str, Mapping[str, Tensor]],
    *,
    index: str = "model.safetensors.index.json",
    weight_map: Mapping[str, object] | None = None,
) -> Path:
    """Writes shards and the index that lists them; ``weight_map`` replaces what the index says."""
    for shard, tensors in shards.items():
        write_tensors(folder / shard, tensors, {"format": "pt"})
    listed = {name: shard for shard, tensors in shards.items() for name in tensors}
    total = sum(len(data) for tensors in shards.values() for _, _, data in tensors.values())
    document = {"metadata": {"total_size": total}, "weight_map": listed if weight_map is None else weight_map}
    (folder / index).write_text(json.dumps(document))
    return folder


def u8(*values: int) -> Tensor:
    """A 1-d U8 tensor."""
    return "U8", [len(values)], bytes(values)


def f32(shape: Iterable[int], values: Iterable[float]) -> Tensor:
    """An F32 tensor, row-major."""
    values = list(values)
    return "F32", list(shape), struct.pack(f"<{len(values)}f", *values)


def f16(shape: Iterable[int], values: Iterable[float]) -> Tensor:
    """An F16 tensor, row-major, rounded to nearest even."""
    values = list(values)
    return "F16", list(shape), struct.pack(f"<{len(values)}e", *values)


def bf16(shape: Iterable[int], values: Iterable[float]) -> Tensor:
    """A BF16 tensor, row-major, of values that BF16 holds exactly (anything else is refused)."""
    data = b""
    for value in values:
        single = struct.pack("<f", value)
        assert single[:2] == b"\0\0", f"{value} is not exact in BF16"
        data += single[2:]
    return "BF16", list(shape), data


def lfs_pointer(real_size: int = 4_279_428_112, sha256: str = "ab" * 32) -> bytes:
    """What a clone without git-lfs has in place of a file."""
    return f"version https://git-lfs.github.com/spec/v1\noid sha256:{sha256}\nsize {real_size}\n".encode()
