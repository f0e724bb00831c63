"""A tensor made of byte ranges, literal bytes and zeros: copied, never computed."""

from __future__ import annotations

from bisect import bisect_right
from itertools import accumulate
from typing import TYPE_CHECKING

from overlay.planning.outputs import Literal, Range

if TYPE_CHECKING:
    from collections.abc import Sequence

    from overlay.fusion.inputs import OpenInputs
    from overlay.planning.outputs import Zeros

__all__ = ["CopiedTensor"]


class CopiedTensor:
    """A tensor's bytes from its pieces, one after the other. Threads may fill different stretches at once."""

    def __init__(self, pieces: Sequence[Range | Literal | Zeros], inputs: OpenInputs) -> None:
        self._pieces = pieces
        self._bounds = [0, *accumulate(piece.nbytes for piece in pieces)]
        self._inputs = inputs

    @property
    def nbytes(self) -> int:
        """Bytes of all pieces."""
        return self._bounds[-1]

    def fill(self, view: memoryview, start: int) -> None:
        """Puts the tensor's bytes from ``start`` into ``view``."""
        end = start + len(view)
        index = bisect_right(self._bounds, start) - 1
        while start < end:
            skip = start - self._bounds[index]
            count = min(end, self._bounds[index + 1]) - start
            self._fill_from(self._pieces[index], skip, view[:count])
            view = view[count:]
            start += count
            index += 1

    def _fill_from(self, piece: Range | Literal | Zeros, skip: int, part: memoryview) -> None:
        if isinstance(piece, Range):
            self._inputs.read_into(piece.input, piece.offset + skip, part)
        elif isinstance(piece, Literal):
            part[:] = piece.data[skip : skip + len(part)]
        else:
            part[:] = bytes(len(part))
