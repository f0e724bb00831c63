"""Tensors made of pieces: byte ranges, literal bytes and zeros, which are copied; and these beside fused rows."""

from __future__ import annotations

from bisect import bisect_right
from itertools import accumulate
from typing import TYPE_CHECKING

import xxhash

from overlay.fusion.blocks import MadeBlock
from overlay.planning.outputs import Literal, Range

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from overlay.fusion.blocks import Hash, Pourable
    from overlay.fusion.inputs import OpenInputs
    from overlay.fusion.output import Output
    from overlay.planning.outputs import Zeros

__all__ = ["CopiedTensor", "JoinedTensor"]


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

    def write(self, output: Output, place: int, start: int, nbytes: int, buffer: memoryview) -> MadeBlock:
        """Writes ``nbytes`` of the tensor from its byte ``start`` to ``place`` in ``output``, through ``buffer``."""
        digest = xxhash.xxh3_128()
        self.pour(output, place, start, nbytes, buffer, digest)
        is_one_range = len(self._pieces) == 1 and isinstance(self._pieces[0], Range)
        return MadeBlock(digest.digest(), digest.digest() if is_one_range else None)

    def pour(self, output: Output, place: int, start: int, nbytes: int, buffer: memoryview, after: Hash) -> None:
        """As :meth:`write`, with the digest taken by a hash of the caller."""
        for index, skip, count in _cut(self._bounds, start, nbytes):
            piece = self._pieces[index]
            copied = isinstance(piece, Range) and self._copy(piece, skip, count, output, place)
            for at in range(0, count, len(buffer)):
                part = buffer[: min(len(buffer), count - at)]
                if copied:
                    output.read_back(place + at, part)
                else:
                    self._fill(part, piece, skip + at)
                    output.write_at(place + at, part)
                after.update(part)
            if isinstance(piece, Range):
                self._inputs.use_up(piece.input, piece.offset + skip, count)
            place += count

    def _copy(self, piece: Range, skip: int, count: int, output: Output, place: int) -> bool:
        return output.copy_from(self._inputs.descriptor(piece.input), piece.offset + skip, count, place)

    def _fill(self, part: memoryview, piece: Range | Literal | Zeros, skip: int) -> None:
        if isinstance(piece, Range):
            self._inputs.read_into(piece.input, piece.offset + skip, part)
        elif isinstance(piece, Literal):
            part[:] = piece.data[skip : skip + len(part)]
        else:
            part[:] = bytes(len(part))


class JoinedTensor:
    """A tensor's bytes from parts that are copied or fused, one after the other. Threads may write as in a part."""

    def __init__(self, parts: Sequence[Pourable]) -> None:
        self._parts = parts
        self._bounds = [0, *accumulate(part.nbytes for part in parts)]

    @property
    def nbytes(self) -> int:
        """Bytes of all parts."""
        return self._bounds[-1]

    def write(self, output: Output, place: int, start: int, nbytes: int, buffer: memoryview) -> MadeBlock:
        """Makes ``nbytes`` of the tensor from its byte ``start`` at ``place`` in ``output``, through ``buffer``."""
        digest = xxhash.xxh3_128()
        for index, skip, count in _cut(self._bounds, start, nbytes):
            self._parts[index].pour(output, place, skip, count, buffer, digest)
            place += count
        return MadeBlock(digest.digest(), None)


def _cut(bounds: Sequence[int], start: int, nbytes: int) -> Iterator[tuple[int, int, int]]:
    """Indexes of the parts that a stretch touches, each with the bytes to skip in it and those to take."""
    end = start + nbytes
    index = bisect_right(bounds, start) - 1
    while start < end:
        count = min(end, bounds[index + 1]) - start
        if count:
            yield index, start - bounds[index], count
        start += count
        index += 1
