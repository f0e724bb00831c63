"""Rows of a fused weight, made in any pieces: which of them a stretch of its bytes covers, what goes into them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import xxhash

from overlay.errors import BrokenInput
from overlay.fusion.blocks import MadeBlock
from overlay.fusion.inputs import place_of
from overlay.fusion.rule import STORED, Factors
from overlay.planning.rules import check_rule

if TYPE_CHECKING:
    from collections.abc import Iterator

    from overlay.fusion.blocks import Hash
    from overlay.fusion.engine import Engine
    from overlay.fusion.factor_reader import FactorReader
    from overlay.fusion.inputs import OpenInputs
    from overlay.fusion.output import Output
    from overlay.planning.outputs import Fused

__all__ = ["FusedTensor", "Rectangle", "rectangles"]


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
    """Rows of a weight with pairs folded in. Threads may write different stretches at once.

    W and B are read as they are needed.

    Args:
        name: For messages.
        piece: What to fold into what.
        rule: One of ``overlay.planning.rules.RULES``.
        factors: Reads the pairs; shared by the pieces of one tensor, which mostly have their A in common.

    Raises:
        InvalidUsage: An unknown rule.
    """

    def __init__(
        self, name: str, piece: Fused, rule: str, engine: Engine, inputs: OpenInputs, factors: FactorReader
    ) -> None:
        check_rule(rule)
        self._name = name
        self._piece = piece
        self._rule = rule
        self._engine = engine
        self._inputs = inputs
        self._factors = factors
        self._itemsize = STORED[piece.dtype].itemsize
        self._max_rank = max(term.rank for term in piece.terms)

    @property
    def nbytes(self) -> int:
        """Bytes of the rows."""
        return self._piece.nbytes

    def write(self, output: Output, place: int, start: int, nbytes: int, buffer: memoryview) -> MadeBlock:
        """Makes ``nbytes`` of the rows from their byte ``start`` (whole elements both), at ``place`` in ``output``.

        Args:
            buffer: Takes one chunk.

        Raises:
            BrokenInput: NaN or infinity in a pair, or made from finite values; or an input changed meanwhile.
        """
        before, after = xxhash.xxh3_128(), xxhash.xxh3_128()
        self.pour(output, place, start, nbytes, buffer, after, before)
        return MadeBlock(after.digest(), before.digest())

    def pour(
        self,
        output: Output,
        place: int,
        start: int,
        nbytes: int,
        buffer: memoryview,
        after: Hash,
        before: Hash | None = None,
    ) -> None:
        """As :meth:`write`, with the digests of what is written and of what is read taken by hashes of the caller.

        Each chunk is read, hashed, folded, hashed and written while it is in a core's cache.
        """
        piece, size = self._piece, self._itemsize
        start += piece.first_row * piece.cols * size
        source, offset = piece.weight.input, piece.weight.offset + start
        all_a = [self._factors.a(term, piece.cols) for term in piece.terms]
        chunk = min(self._engine.chunk_elements, len(buffer) // size)
        done = 0
        for part in rectangles(start // size, nbytes // size, piece.cols, chunk, self._max_rank):
            weight = buffer[: part.rows * part.cols * size]
            self._inputs.read_into(source, offset + done, weight)
            if before is not None:
                before.update(weight)
            factors = [
                Factors(self._factors.b(term, part.row, part.rows), a[:, part.col : part.col + part.cols], term.scale)
                for term, a in zip(piece.terms, all_a, strict=True)
            ]
            if not self._engine.fold(weight, piece.dtype, part.cols, factors, self._rule):
                raise self._overflow()
            after.update(weight)
            output.write_at(place + done, weight)
            done += len(weight)
        self._inputs.use_up(source, offset, nbytes)

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
