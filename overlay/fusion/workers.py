"""The threads of a build and their buffers: made once, shared by all files that are being written."""

from __future__ import annotations

import mmap
import os
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from queue import SimpleQueue
from typing import TYPE_CHECKING, Self, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from concurrent.futures import Future

    from overlay.fusion.engine import Engine

__all__ = ["Workers"]

_BUFFER = 2**22
"""Bytes of a worker's buffer where nothing is fused."""

_WORKER_SCRATCH = 32 * 2**20
"""Memory that a worker needs beside its buffer: chunks of W in fp32 and of D, in fp64 at worst."""

_OWN_MEMORY = 384 * 2**20
"""What Python and torch take of the budget before anything is read."""

_MOST_JOBS = {"cpu": 16, "cuda": 8}
"""Workers past these only wait for each other: for the disk on a CPU, for the device on a GPU."""

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


class Workers:
    """A context: worker threads, each with a buffer of its own.

    Args:
        engine: Folds pairs; None where nothing is fused.
        jobs: Threads at most; None for one for each processor that this process may use, as far as they pay.
        memory: Bytes that the process may take at most, beside what the device needs; there are fewer workers where it
            is small. One, about 50 MB over Python and torch, there always is.
    """

    def __init__(self, engine: Engine | None, jobs: int | None, memory: int) -> None:
        self.engine = engine
        nbytes = engine.chunk_bytes if engine else _BUFFER
        self.count = _affordable(jobs or _default_jobs(engine), memory, nbytes)
        self._buffers = [memoryview(mmap.mmap(-1, nbytes, mmap.MAP_PRIVATE)) for _ in range(self.count)]
        self._free: SimpleQueue[memoryview] = SimpleQueue()
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            if self.engine:
                stack.enter_context(self.engine.session(self._buffers))
            for buffer in self._buffers:
                self._free.put(buffer)
            prepare = self.engine.enter_thread if self.engine else None
            self._pool = ThreadPoolExecutor(self.count, "overlay-build", initializer=prepare)
            stack.callback(self._pool.shutdown, cancel_futures=True)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def run(self, make: Callable[[_Item, memoryview], _Result], items: Iterable[_Item]) -> Iterator[_Result]:
        """``make(item, buffer)`` of each item, on any thread, given back in their order. Any thread may call this.

        Only as many items are taken ahead as keep all workers busy.
        """
        running: deque[Future[_Result]] = deque()
        try:
            for item in items:
                if len(running) > self.count:
                    yield running.popleft().result()
                running.append(self._pool.submit(self._with_buffer, make, item))
            while running:
                yield running.popleft().result()
        finally:
            for future in running:
                future.cancel()
            for future in running:
                if not future.cancelled():
                    future.exception()  # it may still be writing into what is about to be closed

    def _with_buffer(self, make: Callable[[_Item, memoryview], _Result], item: _Item) -> _Result:
        buffer = self._free.get()
        try:
            return make(item, buffer)
        finally:
            self._free.put(buffer)


def _default_jobs(engine: Engine | None) -> int:
    return min(_MOST_JOBS[engine.device.type if engine else "cpu"], len(os.sched_getaffinity(0)))


def _affordable(jobs: int, memory: int, buffer: int) -> int:
    return max(1, min(jobs, (memory - _OWN_MEMORY) // (_WORKER_SCRATCH + buffer)))
