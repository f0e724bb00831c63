"""The factors of the pairs that go into one tensor: read, checked, widened."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from overlay.errors import BrokenInput
from overlay.fusion.inputs import place_of
from overlay.fusion.quiet_torch import torch
from overlay.fusion.rule import STORED, WORKING, all_finite

if TYPE_CHECKING:
    from overlay.fusion.engine import Engine
    from overlay.fusion.inputs import OpenInputs
    from overlay.planning.outputs import Range, Term

__all__ = ["FactorReader"]

_COUNT_BYTES = 2**22


class FactorReader:
    """A and B of pairs. Each A is read once and kept widened; B is read as it is needed. Any thread may ask."""

    def __init__(self, engine: Engine, inputs: OpenInputs) -> None:
        self._engine = engine
        self._inputs = inputs
        self._lock = threading.Lock()
        self._a: dict[Range, torch.Tensor] = {}

    def a(self, term: Term, cols: int) -> torch.Tensor:
        """A of a pair [rank, cols].

        Raises:
            BrokenInput: NaN or infinity in it; or the input changed meanwhile.
        """
        with self._lock:
            if term.a not in self._a:
                self._a[term.a] = self._read(term, term.a, term.a_name, 0, (term.rank, cols))
            return self._a[term.a]

    def b(self, term: Term, row: int, rows: int) -> torch.Tensor:
        """Rows of B [rows, rank] from ``row``. Errors as for :meth:`a`."""
        row_bytes = term.rank * STORED[term.dtype].itemsize
        return self._read(term, term.b, term.b_name, row * row_bytes, (rows, term.rank))

    def _read(self, term: Term, source: Range, name: str, start: int, shape: tuple[int, int]) -> torch.Tensor:
        stored = STORED[term.dtype]
        data = bytearray(shape[0] * shape[1] * stored.itemsize)
        self._inputs.read_into(source.input, source.offset + start, memoryview(data))
        widened = torch.frombuffer(data, dtype=stored).view(shape).to(WORKING[term.dtype])
        if not all_finite(widened, torch.finfo(stored).max):
            raise self._not_finite(term, source, name)
        return self._engine.place(widened)

    def _not_finite(self, term: Term, source: Range, name: str) -> BrokenInput:
        stored = STORED[term.dtype]
        count = 0
        for start in range(0, source.nbytes, _COUNT_BYTES):
            data = bytearray(min(_COUNT_BYTES, source.nbytes - start))
            self._inputs.read_into(source.input, source.offset + start, memoryview(data))
            count += int((~torch.isfinite(torch.frombuffer(data, dtype=stored))).sum())
        total = source.nbytes // stored.itemsize
        return BrokenInput(
            f"{place_of(source.input)}: {name} of adapter {term.adapter}: {count} of {total} values not finite",
            code="adapter-not-finite",
            hint="fetch the adapter again; if it was trained so, it cannot be fused: values are never replaced",
            where=place_of(source.input),
            adapter=term.adapter,
            tensor=name,
            count=count,
        )
