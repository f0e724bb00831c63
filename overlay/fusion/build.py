"""The streaming writer: makes a safetensors file in parallel units, hashing while it writes, in bounded memory."""

from __future__ import annotations

import mmap
import os
from collections import Counter, deque
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import xxhash

from overlay.fingerprint import BLOCK, BlockHasher
from overlay.formats.layout import canonical_layout
from overlay.fusion.inputs import OpenInputs
from overlay.fusion.output import PartialFile
from overlay.fusion.pieces import CopiedTensor
from overlay.planning.outputs import Fused

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from concurrent.futures import Future
    from pathlib import Path

    from overlay.formats.layout import Layout, TensorInfo
    from overlay.fusion.engine import Engine
    from overlay.planning.outputs import Input, OutputTensor, SafetensorsFile

__all__ = ["BuiltFile", "BuiltTensor", "build_safetensors", "default_jobs"]

_UNIT = BLOCK
"""Bytes of a unit of work: one block of a tensor's fingerprint."""

_WORKER_SCRATCH = 32 * 2**20
"""Memory that a worker needs beside its unit: chunks of W in fp32 and of D, in fp64 at worst."""

_UNITS_AHEAD = 2
"""Finished units that may wait for their turn to be hashed."""

_OWN_MEMORY = 384 * 2**20
"""What Python and torch take of the budget before anything is read."""

_MOST_JOBS = {"cpu": 16, "cuda": 4}
"""Workers past these only wait for each other: for the disk on a CPU, for the device on a GPU."""


@dataclass(frozen=True, slots=True)
class BuiltTensor:
    """A tensor as written; ``digest`` is that of its own bytes, whatever file they are in."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    digest: str


@dataclass(frozen=True, slots=True)
class BuiltFile:
    """What was written.

    Attributes:
        size: Bytes of the file.
        digest: ``xxh3_128:<hex>`` of the file.
        tensors: In file order.
        bytes_read: Tensor payload read: each input range once.
        bytes_written: Tensor payload written.
        kernels: Values of all D made, by kernel.
    """

    size: int
    digest: str
    tensors: tuple[BuiltTensor, ...]
    bytes_read: int
    bytes_written: int
    kernels: Mapping[str, int]


_Made = tuple[bytes, Counter[str]]
"""Block digest of a unit, and values of D made for it, by kernel."""


class _Source(Protocol):
    def fill(self, view: memoryview, start: int) -> None: ...


@dataclass(frozen=True, slots=True)
class _Unit:
    """``nbytes`` of a tensor from its byte ``start``; ``place`` is where they go in the file."""

    tensor: TensorInfo
    source: _Source
    start: int
    place: int
    nbytes: int


def default_jobs(engine: Engine | None) -> int:
    """Worker threads where nobody says: one for each processor that this process may use, as far as they pay."""
    return min(_MOST_JOBS[engine.device.type if engine else "cpu"], len(os.sched_getaffinity(0)))


def build_safetensors(
    spec: SafetensorsFile,
    out: Path,
    *,
    open_input: Callable[[Input], Path],
    engine: Engine | None,
    rule: str,
    jobs: int,
    memory: int,
    progress: Callable[[int], None] | None = None,
) -> BuiltFile:
    """Writes ``out`` and syncs it; the caller moves it to its place. The bytes depend on ``spec`` and ``rule`` alone.

    Args:
        spec: The file; tensors in any order.
        out: Must not exist; removed again if anything fails.
        open_input: Where on this host an input's bytes lie.
        engine: Folds pairs; None for a file without fused weights.
        rule: One of ``overlay.planning.rules.RULES``.
        jobs: Worker threads at most.
        memory: Bytes that the process may take at most, beside what the device needs; fewer units are in flight where
            it is small. One worker and its unit, about 50 MB over Python and torch, are always used.
        progress: Called in this thread with the bytes of each finished unit, at last with those of the header.

    Raises:
        BrokenInput: An input changed or cannot be read, or a value that is not finite (``fused``).
        NotHere: An input is gone.
        CannotWrite: No room, no permission, a filesystem that lacks an operation.
    """
    layout = canonical_layout(((t.name, t.dtype, t.shape) for t in spec.tensors), spec.metadata, spec.path)
    wanted = {tensor.name: tensor for tensor in spec.tensors}
    unit_bytes = min(_UNIT, max((info.nbytes for info in layout.tensors), default=0))
    workers, count = _plan_memory(jobs, memory, unit_bytes)
    buffers = [memoryview(mmap.mmap(-1, max(1, unit_bytes), mmap.MAP_PRIVATE)) for _ in range(count)]

    def make(unit: _Unit, view: memoryview) -> _Made:
        unit.source.fill(view, unit.start)
        output.write_at(unit.place, view)
        return xxhash.xxh3_128_digest(view), engine.take_counts() if engine else Counter()

    with ExitStack() as stack:
        inputs = stack.enter_context(OpenInputs(open_input))
        output = stack.enter_context(PartialFile(out, layout.file_size))
        if engine:
            stack.enter_context(engine.session(buffers))
        pool = ThreadPoolExecutor(workers, "build", initializer=engine.enter_thread if engine else None)
        stack.callback(pool.shutdown, cancel_futures=True)

        output.write_at(0, layout.header)
        whole = BlockHasher()
        whole.update(layout.header)
        blocks = {info.name: xxhash.xxh3_128() for info in layout.tensors}
        kernels: Counter[str] = Counter()
        source_of = _Sources(rule, engine, inputs)
        units = (
            unit for info in layout.tensors for unit in _units(info, layout, source_of(wanted[info.name], info.nbytes))
        )
        for unit, view, (block, made) in _in_order(pool, make, units, buffers):
            whole.update(view)
            blocks[unit.tensor.name].update(block)
            kernels += made
            if progress:
                progress(unit.nbytes)
        if progress:
            progress(len(layout.header))
    return BuiltFile(
        size=layout.file_size,
        digest=whole.digest(),
        tensors=tuple(
            BuiltTensor(info.name, info.dtype, info.shape, f"xxh3_128:{blocks[info.name].hexdigest()}")
            for info in layout.tensors
        ),
        bytes_read=sum(piece.bytes_read for tensor in spec.tensors for piece in tensor.pieces),
        bytes_written=layout.file_size - len(layout.header),
        kernels=dict(sorted(kernels.items())),
    )


class _Sources:
    """What makes the bytes of an output tensor."""

    def __init__(self, rule: str, engine: Engine | None, inputs: OpenInputs) -> None:
        self._rule = rule
        self._engine = engine
        self._inputs = inputs

    def __call__(self, tensor: OutputTensor, nbytes: int) -> _Source:
        pieces = [piece for piece in tensor.pieces if not isinstance(piece, Fused)]
        if len(pieces) == len(tensor.pieces):
            copied = CopiedTensor(pieces, self._inputs)
            if copied.nbytes != nbytes:
                raise ValueError(f"{tensor.name}: pieces of {copied.nbytes} bytes, {nbytes} wanted")
            return copied
        [piece] = tensor.pieces
        if self._engine is None or not isinstance(piece, Fused):
            raise ValueError(f"{tensor.name}: a fused weight stands alone and needs an engine")
        from overlay.fusion.fused import FusedTensor  # needs torch; copying does not

        return FusedTensor(tensor.name, piece, self._rule, self._engine, self._inputs)


def _units(info: TensorInfo, layout: Layout, source: _Source) -> Iterator[_Unit]:
    for start in range(0, info.nbytes, _UNIT):
        place = len(layout.header) + info.start + start
        yield _Unit(info, source, start, place, min(_UNIT, info.nbytes - start))


def _in_order(
    pool: ThreadPoolExecutor,
    make: Callable[[_Unit, memoryview], _Made],
    units: Iterable[_Unit],
    buffers: Sequence[memoryview],
) -> Iterator[tuple[_Unit, memoryview, _Made]]:
    """Makes units on the pool, as many at once as there are buffers, and gives them back in their order.

    A unit's buffer is used again as soon as the next unit is asked for.
    """
    free = list(buffers)
    running: deque[tuple[_Unit, memoryview, Future[_Made]]] = deque()
    for unit in units:
        if not free:
            yield from _oldest(running, free)
        buffer = free.pop()
        running.append((unit, buffer, pool.submit(make, unit, buffer[: unit.nbytes])))
    while running:
        yield from _oldest(running, free)


def _oldest(
    running: deque[tuple[_Unit, memoryview, Future[_Made]]], free: list[memoryview]
) -> Iterator[tuple[_Unit, memoryview, _Made]]:
    unit, buffer, future = running.popleft()
    yield unit, buffer[: unit.nbytes], future.result()
    free.append(buffer)


def _plan_memory(jobs: int, memory: int, unit_bytes: int) -> tuple[int, int]:
    """Workers and buffers that fit: every worker needs scratch and a buffer, finished units a buffer each."""
    memory = max(0, memory - _OWN_MEMORY)
    workers = max(1, min(jobs, memory // (_WORKER_SCRATCH + unit_bytes)))
    spare = (memory - workers * (_WORKER_SCRATCH + unit_bytes)) // max(1, unit_bytes)
    return workers, workers + max(0, min(_UNITS_AHEAD, spare))
