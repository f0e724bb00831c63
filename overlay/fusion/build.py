"""The streaming writer: makes a safetensors file in parallel blocks, hashing while it writes, in bounded memory."""

from __future__ import annotations

from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING

from overlay.fingerprint import blocks_of, bytes_digest, digest_of_blocks, safetensors_digest
from overlay.formats.layout import canonical_layout
from overlay.fusion.inputs import OpenInputs
from overlay.fusion.output import PartialFile
from overlay.fusion.pieces import CopiedTensor, JoinedTensor
from overlay.planning.outputs import Fused

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from overlay.formats.layout import Layout, TensorInfo
    from overlay.fusion.blocks import MadeBlock, Source
    from overlay.fusion.fused import FusedTensor
    from overlay.fusion.output import OpenOutput
    from overlay.fusion.workers import Workers
    from overlay.planning.outputs import Input, OutputTensor, SafetensorsFile

__all__ = ["BuiltFile", "BuiltTensor", "build_safetensors"]


@dataclass(frozen=True, slots=True)
class BuiltTensor:
    """A tensor as written.

    Attributes:
        digest: Of its own bytes, whatever file they are in.
        source_digest: Of the tensor that it was made from, before anything was folded in; None where it comes from
            several places.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    digest: str
    source_digest: str | None


@dataclass(frozen=True, slots=True)
class BuiltFile:
    """What was written.

    Attributes:
        size: Bytes of the file.
        digest: ``safetensors_xxh3_128:<hex>`` of the file.
        tensors: In file order.
        bytes_read: Tensor payload read: each input range once.
        bytes_written: Tensor payload written, or compared.
        kernels: Values of all D made, by kernel.
    """

    size: int
    digest: str
    tensors: tuple[BuiltTensor, ...]
    bytes_read: int
    bytes_written: int
    kernels: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class _Block:
    """``nbytes`` of a tensor from its byte ``start``; ``place`` is where they go in the file."""

    tensor: TensorInfo
    source: Source
    start: int
    place: int
    nbytes: int


def build_safetensors(
    spec: SafetensorsFile,
    out: Path,
    *,
    open_input: Callable[[Input], Path],
    workers: Workers,
    rule: str,
    is_last_reader: Callable[[Input], bool] = lambda _source: False,
    progress: Callable[[int], None] | None = None,
    into: OpenOutput = PartialFile,
) -> BuiltFile:
    """Writes ``out`` and syncs it; the caller moves it to its place. The bytes depend on ``spec`` and ``rule`` alone.

    Args:
        spec: The file; tensors in any order.
        out: Must not exist; removed again if anything fails. With ``ComparedFile``: the file to compare.
        open_input: Where on this host an input's bytes lie.
        workers: Make the blocks; several files may be built by them at once.
        rule: One of ``overlay.planning.rules.RULES``.
        is_last_reader: Whether an input's bytes, once used, may leave the page cache.
        progress: Called in this thread with the bytes of each finished block, at last with those of the header.
        into: What takes the bytes: ``PartialFile`` writes, ``ComparedFile`` compares.

    Raises:
        CheckFailed: With ``ComparedFile``: what is there is something else.
        BrokenInput: An input changed or cannot be read, or a value that is not finite (``fused``).
        NotHere: An input is gone.
        CannotWrite: No room, no permission, a filesystem that lacks an operation.
    """
    layout = canonical_layout(((t.name, t.dtype, t.shape) for t in spec.tensors), spec.metadata, spec.path)
    wanted = {tensor.name: tensor for tensor in spec.tensors}
    engine = workers.engine
    kernels: Counter[str] = Counter()

    def make(block: _Block, buffer: memoryview) -> tuple[_Block, MadeBlock, Counter[str]]:
        made = block.source.write(output, block.place, block.start, block.nbytes, buffer)
        return block, made, engine.take_counts() if engine else Counter()

    with ExitStack() as stack:
        inputs = stack.enter_context(OpenInputs(open_input, is_last_reader))
        output = stack.enter_context(into(out, layout.file_size))
        output.write_at(0, layout.header)
        blocks_made: dict[str, list[MadeBlock]] = {info.name: [] for info in layout.tensors}
        blocks = (
            block
            for info in layout.tensors
            for block in _blocks(info, layout, _source_of(wanted[info.name], info.nbytes, rule, workers, inputs))
        )
        for block, made, counts in workers.run(make, blocks):
            blocks_made[block.tensor.name].append(made)
            kernels += counts
            if progress:
                progress(block.nbytes)
        if progress:
            progress(len(layout.header))
    tensors = tuple(
        BuiltTensor(info.name, info.dtype, info.shape, *_digests(blocks_made[info.name])) for info in layout.tensors
    )
    header = bytes_digest(layout.header, "xxh3_128")
    return BuiltFile(
        size=layout.file_size,
        digest=safetensors_digest(header, [tensor.digest for tensor in tensors]),
        tensors=tensors,
        bytes_read=sum(tensor.bytes_read for tensor in spec.tensors),
        bytes_written=layout.file_size - len(layout.header),
        kernels=dict(sorted(kernels.items())),
    )


def _digests(blocks: Sequence[MadeBlock]) -> tuple[str, str | None]:
    """Fingerprints of a tensor and of its source."""
    sources = [block.source_digest for block in blocks if block.source_digest is not None]
    of_source = digest_of_blocks(sources) if len(sources) == len(blocks) else None
    return digest_of_blocks(block.digest for block in blocks), of_source


def _source_of(tensor: OutputTensor, nbytes: int, rule: str, workers: Workers, inputs: OpenInputs) -> Source:
    """What makes the bytes of an output tensor."""
    source = _joined(tensor, rule, workers, inputs)
    if source.nbytes != nbytes:
        raise ValueError(f"{tensor.name}: pieces of {source.nbytes} bytes, {nbytes} wanted")
    return source


def _joined(
    tensor: OutputTensor, rule: str, workers: Workers, inputs: OpenInputs
) -> CopiedTensor | FusedTensor | JoinedTensor:
    copied = [piece for piece in tensor.pieces if not isinstance(piece, Fused)]
    if len(copied) == len(tensor.pieces):
        return CopiedTensor(copied, inputs)
    if workers.engine is None:
        raise ValueError(f"{tensor.name}: a fused weight needs an engine")
    from overlay.fusion.factor_reader import FactorReader  # these need torch; copying does not
    from overlay.fusion.fused import FusedTensor

    engine, factors = workers.engine, FactorReader(workers.engine, inputs)
    parts = [
        FusedTensor(tensor.name, piece, rule, engine, inputs, factors)
        if isinstance(piece, Fused)
        else CopiedTensor([piece], inputs)
        for piece in tensor.pieces
    ]
    # One weight alone is known by the digest of what it was before, too.
    return parts[0] if len(parts) == 1 else JoinedTensor(parts)


def _blocks(info: TensorInfo, layout: Layout, source: Source) -> Iterator[_Block]:
    for start, nbytes in blocks_of((0, info.nbytes)):
        yield _Block(info, source, start, len(layout.header) + info.start + start, nbytes)
