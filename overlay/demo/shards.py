"""Writing safetensors files and sharded folders with made-up weights, a chunk at a time."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from overlay.demo.documents import dump_line
from overlay.formats.dtypes import tensor_nbytes
from overlay.formats.layout import canonical_layout

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from overlay.demo.tensors import Tensor
    from overlay.demo.weights import Weights

__all__ = ["split_shards", "write_shards", "write_tensors"]


def split_shards(tensors: Iterable[Tensor], limit: int) -> list[list[Tensor]]:
    """Split tensors as saving with ``max_shard_size`` does: in order, a new shard where the next tensor does not fit.

    Args:
        tensors: In the model's own order.
        limit: Most tensor bytes of one shard; a larger tensor gets a shard of its own.
    """
    shards: list[list[Tensor]] = []
    current: list[Tensor] = []
    filled = 0
    for tensor in tensors:
        nbytes = tensor_nbytes(tensor[1], tensor[2])
        if nbytes > limit:
            shards.append([tensor])
            continue
        if filled + nbytes > limit:
            shards.append(current)
            current, filled = [], 0
        current.append(tensor)
        filled += nbytes
    return [*shards, current] if current else shards


def write_shards(
    folder: Path,
    tensors: Sequence[Tensor],
    weights: Weights,
    scope: str,
    *,
    limit: int,
    stem: str = "diffusion_pytorch_model",
) -> None:
    """Write tensors to ``folder`` as ``<stem>-00001-of-0000N.safetensors`` with an index.

    Saving leaves the index away where there is one shard. What is published has it, and the overlay requires it, so
    here a checkpoint of few blocks has it too.
    """
    shards = split_shards(tensors, limit)
    weight_map: dict[str, str] = {}
    for number, shard in enumerate(shards, start=1):
        name = f"{stem}-{number:05d}-of-{len(shards):05d}.safetensors"
        write_tensors(folder / name, shard, weights, scope, metadata={"format": "pt"})
        weight_map |= dict.fromkeys((tensor[0] for tensor in shard), name)
    total = sum(tensor_nbytes(dtype, shape) for _, dtype, shape in tensors)
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    (folder / f"{stem}.safetensors.index.json").write_bytes(dump_line(index))


def write_tensors(
    path: Path,
    tensors: Iterable[Tensor],
    weights: Weights,
    scope: str,
    *,
    metadata: Mapping[str, str] | None = None,
    values: Mapping[str, bytes] | None = None,
) -> None:
    """Write one safetensors file in the canonical layout.

    Args:
        path: The file; its folder is made if need be.
        tensors: In any order.
        weights: Where values come from.
        scope: What the tensors belong to; see ``Weights.chunks``.
        metadata: The file's metadata, if any.
        values: Bytes of tensors whose values are given rather than made up.
    """
    layout = canonical_layout(tensors, metadata or {})
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb", buffering=0) as file:
        _write(file.fileno(), layout.header)
        for tensor in layout.tensors:
            chunks: Iterator[bytes | memoryview] | list[bytes]
            if values and tensor.name in values:
                chunks = [values[tensor.name]]
            else:
                chunks = weights.chunks(scope, tensor.name, tensor.dtype, tensor.nbytes)
            for chunk in chunks:
                _write(file.fileno(), chunk)


def _write(descriptor: int, data: bytes | memoryview) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(descriptor, rest) :]
