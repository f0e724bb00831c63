"""One fused weight, made in any pieces: which rows and columns a stretch of its bytes covers, what goes into them."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING

import xxhash

from overlay.errors import BrokenInput
from overlay.fusion.blocks import MadeBlock
from overlay.fusion.inputs import place_of
from overlay.fusion.quiet_torch import torch
from overlay.fusion.rule import STORED, WORKING, Factors, all_finite
from overlay.planning.rules import check_rule

if TYPE_CHECKING:
    from collections.abc import Iterator

    from overlay.fusion.engine import Engine
    from overlay.fusion.inputs import OpenInputs
    from overlay.fusion.output import PartialFile
    from overlay.planning.outputs import Fused, Range, Term

__all__ = ["FusedTensor", "Rectangle", "rectangles"]

_COUNT_BYTES = 2**22


@dataclass(frozen=True, slots=True)
class Rectangle:
    """Rows and columns of a matrix whose elements follow each other in memory: whole rows, or a stretch of one."""

    row: int
    rows: int
    col: int
    cols: int


def rectangles(first: int, count: int, cols: int, chunk: int, rank: int = 1) -> Iterator[Rectangle]:
    """Cuts the elements ``first`` to ``first + count`` of a row-major matrix with ``cols`` columns.

    Args:
        first: Index of the first element.
        count: How many.
        cols: Columns of the matrix.
        chunk: Most elements of a rectangle, and of the rows of B [rows, rank] that belong to it.
        rank: Largest rank in use.
    """
    end = first + count
    while first < end:
        row, col = divmod(first, cols)
        if col or end - first < cols or cols > chunk:
            found = Rectangle(row, 1, col, min(cols - col, end - first, chunk))
        else:
            found = Rectangle(row, min((end - first) // cols, max(1, chunk // max(cols, rank))), 0, cols)
        yield found
        first += found.rows * found.cols


class FusedTensor:
    """A weight with pairs folded in. Threads may write different stretches at once.

    A is read once and kept widened, [rank, cols]; W and B are read as they are needed.

    Args:
        name: For messages.
        piece: What to fold into what.
        rule: One of ``overlay.planning.rules.RULES``.

    Raises:
        InvalidUsage: An unknown rule.
    """

    def __init__(self, name: str, piece: Fused, rule: str, engine: Engine, inputs: OpenInputs) -> None:
        check_rule(rule)
        self._name = name
        self._piece = piece
        self._rule = rule
        self._engine = engine
        self._inputs = inputs
        self._itemsize = STORED[piece.dtype].itemsize
        self._max_rank = max(term.rank for term in piece.terms)
        self._lock = threading.Lock()
        self._a: list[torch.Tensor] | None = None

    def write(self, output: PartialFile, place: int, start: int, nbytes: int, buffer: memoryview) -> MadeBlock:
        """Makes ``nbytes`` of the tensor from its byte ``start`` (whole elements both), at ``place`` in ``output``.

        Each chunk is read, hashed, folded, hashed and written while it is in a core's cache.

        Args:
            buffer: Takes one chunk.

        Raises:
            BrokenInput: NaN or infinity in a pair, or made from finite values; or an input changed meanwhile.
        """
        piece, size = self._piece, self._itemsize
        source, offset = piece.weight.input, piece.weight.offset + start
        before, after = xxhash.xxh3_128(), xxhash.xxh3_128()
        all_a = self._read_a()
        chunk = min(self._engine.chunk_elements, len(buffer) // size)
        done = 0
        for part in rectangles(start // size, nbytes // size, piece.cols, chunk, self._max_rank):
            weight = buffer[: part.rows * part.cols * size]
            self._inputs.read_into(source, offset + done, weight)
            before.update(weight)
            factors = [
                Factors(self._read_b(term, part), a[:, part.col : part.col + part.cols], term.scale)
                for term, a in zip(piece.terms, all_a, strict=True)
            ]
            if not self._engine.fold(weight, piece.dtype, part.cols, factors, self._rule):
                raise self._overflow()
            after.update(weight)
            output.write_at(place + done, weight)
            done += len(weight)
        self._inputs.use_up(source, offset, nbytes)
        return MadeBlock(after.digest(), before.digest())

    def _read_a(self) -> list[torch.Tensor]:
        with self._lock:
            if self._a is None:
                self._a = [
                    self._read(term, term.a, term.a_name, 0, (term.rank, self._piece.cols))
                    for term in self._piece.terms
                ]
            return self._a

    def _read_b(self, term: Term, part: Rectangle) -> torch.Tensor:
        row_bytes = term.rank * STORED[term.dtype].itemsize
        return self._read(term, term.b, term.b_name, part.row * row_bytes, (part.rows, term.rank))

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

    def _overflow(self) -> BrokenInput:
        adapters = sorted({term.adapter for term in self._piece.terms})
        return BrokenInput(
            f"{self._name}: finite values of {place_of(self._piece.weight.input)} would become NaN or infinite in "
            f"{self._piece.dtype} with {', '.join(adapters)} folded in",
            code="result-not-finite",
            hint="the adapter does not fit this base, or its scale (alpha/rank) is wrong",
            where=place_of(self._piece.weight.input),
            tensor=self._name,
            adapters=adapters,
        )
