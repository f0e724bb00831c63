"""A tensor made of byte ranges, literal bytes and zeros: copied, never computed."""

from __future__ import annotations

from bisect import bisect_right
from itertools import accumulate
from typing import TYPE_CHECKING

import xxhash

from overlay.fusion.blocks import MadeBlock
from overlay.planning.outputs import Literal, Range

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from overlay.fusion.inputs import OpenInputs
    from overlay.fusion.output import PartialFile
    from overlay.planning.outputs import Zeros

__all__ = ["CopiedTensor"]


class CopiedTensor:
    """A tensor's bytes from its pieces, one after the other. Threads may write different stretches at once.

    Ranges of files go from file to file inside the kernel, where it can do that: on some network filesystems they then
    never leave the server. What has arrived is read back for its digest.
    """

    def __init__(self, pieces: Sequence[Range | Literal | Zeros], inputs: OpenInputs) -> None:
        self._pieces = pieces
        self._bounds = [0, *accumulate(piece.nbytes for piece in pieces)]
        self._inputs = inputs

    @property
    def nbytes(self) -> int:
        """Bytes of all pieces."""
        return self._bounds[-1]

    def write(self, output: PartialFile, place: int, start: int, nbytes: int, buffer: memoryview) -> MadeBlock:
        """Writes ``nbytes`` of the tensor from its byte ``start`` to ``place`` in ``output``, through ``buffer``."""
        digest = xxhash.xxh3_128()
        for piece, skip, count in self._cut(start, nbytes):
            copied = isinstance(piece, Range) and self._copy(piece, skip, count, output, place)
            for at in range(0, count, len(buffer)):
                part = buffer[: min(len(buffer), count - at)]
                if copied:
                    output.read_back(place + at, part)
                else:
                    self._fill(part, piece, skip + at)
                    output.write_at(place + at, part)
                digest.update(part)
            if isinstance(piece, Range):
                self._inputs.use_up(piece.input, piece.offset + skip, count)
            place += count
        is_one_range = len(self._pieces) == 1 and isinstance(self._pieces[0], Range)
        return MadeBlock(digest.digest(), digest.digest() if is_one_range else None)

    def _cut(self, start: int, nbytes: int) -> Iterator[tuple[Range | Literal | Zeros, int, int]]:
        """Pieces that the stretch touches, each with the bytes to skip in it and those to take."""
        end = start + nbytes
        index = bisect_right(self._bounds, start) - 1
        while start < end:
            count = min(end, self._bounds[index + 1]) - start
            if count:
                yield self._pieces[index], start - self._bounds[index], count
            start += count
            index += 1

    def _copy(self, piece: Range, skip: int, count: int, output: PartialFile, place: int) -> bool:
        return output.copy_from(self._inputs.descriptor(piece.input), piece.offset + skip, count, place)

    def _fill(self, part: memoryview, piece: Range | Literal | Zeros, skip: int) -> None:
        if isinstance(piece, Range):
            self._inputs.read_into(piece.input, piece.offset + skip, part)
        elif isinstance(piece, Literal):
            part[:] = piece.data[skip : skip + len(part)]
        else:
            part[:] = bytes(len(part))
