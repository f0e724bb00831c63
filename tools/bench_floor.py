"""What the parts of a fuse cost each on its own: the floor under every program that does the same work.

    python tools/bench_floor.py BASE OUT ADAPTER...

Prints one JSON line, wall seconds and CPU seconds of each part, on every processor that this process may use:

- ``read``: BASE's files from the page cache into buffers, which is a copy in memory.
- ``arithmetic``: for every target of the adapters, in chunks of rows that stay in the processor's cache: the weight to
  fp32, one in-place addmm for each adapter, and back. The chunks are made up; nothing is read from memory.
- ``write``: as many bytes from one buffer to a file, a thread beside it starting their writeback at once, and a sync.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from plain_rewrite import read_pairs

if TYPE_CHECKING:
    from collections.abc import Iterator

BLOCK = 2**20
"""Bytes of a read: what stays in a processor's cache."""
PIECE = 2**17
"""Bytes of a write: larger ones make some kernels look for larger pages, which costs more than it saves."""
CHUNK_VALUES = 2**18
"""Weights of a chunk: 1 MiB in fp32."""
THREADS = len(os.sched_getaffinity(0))
_SYNC_FILE_RANGE_WRITE = 2


@contextmanager
def timed(parts: dict[str, dict[str, float]], name: str) -> Iterator[None]:
    """Note the wall and the CPU seconds of all threads under ``name``."""
    usage, started = resource.getrusage(resource.RUSAGE_SELF), time.monotonic()
    yield
    wall, after = time.monotonic() - started, resource.getrusage(resource.RUSAGE_SELF)
    parts[name] = {"wall": wall, "cpu": after.ru_utime + after.ru_stime - usage.ru_utime - usage.ru_stime}


def shares(count: int) -> list[range]:
    """``range(count)`` dealt out to the threads."""
    return [range(thread, count, THREADS) for thread in range(THREADS)]


def read(files: list[Path], pool: ThreadPoolExecutor) -> None:
    """Every block of the files, each thread into a buffer of its own."""
    blocks = [(path, start) for path in files for start in range(0, path.stat().st_size, BLOCK)]

    def work(share: range) -> None:
        buffer = bytearray(BLOCK)
        for path, start in (blocks[index] for index in share):
            with path.open("rb", buffering=0) as file:
                os.preadv(file.fileno(), [buffer], start)

    list(pool.map(work, shares(len(blocks))))


def arithmetic(targets: list[list[tuple[torch.Tensor, torch.Tensor]]], pool: ThreadPoolExecutor) -> None:
    """The sums of every target. Each target has its fp32 pairs A [rank, columns] and B [rows, rank]."""
    chunks = [
        (pairs, start, rows)
        for pairs in targets
        for rows in [max(1, CHUNK_VALUES // pairs[0][0].shape[1])]
        for start in range(0, pairs[0][1].shape[0], rows)
    ]

    def work(share: range) -> None:
        stored = torch.zeros(2 * CHUNK_VALUES, dtype=torch.bfloat16)
        summed = torch.zeros(2 * CHUNK_VALUES)
        for pairs, start, rows in (chunks[index] for index in share):
            factors = [(b[start : start + rows], a) for a, b in pairs]
            shape = (factors[0][0].shape[0], factors[0][1].shape[1])
            weight = stored[: shape[0] * shape[1]].view(shape)
            acc = summed[: shape[0] * shape[1]].view(shape)
            acc.copy_(weight)
            for b, a in factors:
                acc.addmm_(b, a)
            weight.copy_(acc)

    list(pool.map(work, shares(len(chunks))))


def write(out: Path, nbytes: int) -> None:
    """As many bytes to ``out`` and to the disk, their writeback started as soon as they are in the page cache."""
    flush = ctypes.CDLL(None, use_errno=True).sync_file_range
    flush.argtypes = [ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint]
    block = memoryview(os.urandom(PIECE))
    with out.open("xb", buffering=0) as file, ThreadPoolExecutor(1) as beside:
        for start in range(0, nbytes, PIECE):
            rest = block[: min(PIECE, nbytes - start)]
            done = start
            while rest:
                count = os.write(file.fileno(), rest)
                done, rest = done + count, rest[count:]
            beside.submit(flush, file.fileno(), start, done - start, _SYNC_FILE_RANGE_WRITE)
        beside.shutdown()
        os.fsync(file.fileno())


def main() -> None:
    """Measure the three parts, one after the other."""
    base, out, *adapters = (Path(part) for part in sys.argv[1:])
    torch.set_num_threads(1)
    targets: dict[str, list[tuple[torch.Tensor, torch.Tensor]]] = {}
    for adapter in adapters:
        for target, (a, b, _scale) in read_pairs(adapter).items():
            targets.setdefault(target, []).append((a.float(), b.float()))
    files = sorted(path for path in base.iterdir() if path.is_file())
    parts: dict[str, dict[str, float]] = {}
    with ThreadPoolExecutor(THREADS) as pool:
        with timed(parts, "read"):
            read(files, pool)
        with timed(parts, "arithmetic"):
            arithmetic(list(targets.values()), pool)
    with timed(parts, "write"):
        write(out, sum(path.stat().st_size for path in files))
    out.unlink()
    print(json.dumps({"processors": THREADS, **parts}))


if __name__ == "__main__":
    main()
