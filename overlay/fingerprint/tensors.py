"""Digests of the tensors of one file, taken while the file itself is hashed."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from overlay.fingerprint.digests import Buffer
    from overlay.formats.header import Header

__all__ = ["Span", "TensorHasher"]

Span = tuple[int, int]
"""Absolute file offset of a tensor's first byte, and its number of bytes."""


class TensorHasher:
    """sha256 of every tensor of a safetensors file whose bytes are fed in order, in pieces of any size.

    Args:
        header: Says where the tensors lie; what it says of them holds whatever else may be wrong with it.
    """

    def __init__(self, header: Header) -> None:
        starts = ((header.data_start + info.start, info.nbytes) for info in header.tensors.values())
        self._spans = [(0, header.data_start), *(span for span in starts if span[1])]  # end to end, as a header has it
        self._done: dict[Span, str] = {}
        self._hash = hashlib.sha256()
        self._room = header.data_start

    def update(self, data: Buffer) -> None:
        """Adds the next bytes of the file."""
        view = memoryview(data)
        while view and len(self._done) < len(self._spans):
            piece = view[: self._room]
            self._hash.update(piece)
            self._room -= len(piece)
            view = view[len(piece) :]
            if not self._room:
                self._close_span()

    def digests(self) -> dict[Span, str]:
        """``sha256:<hex>`` of each tensor that was fed whole; one without a byte has none."""
        return {span: digest for span, digest in self._done.items() if span[0]}

    def _close_span(self) -> None:
        self._done[self._spans[len(self._done)]] = f"sha256:{self._hash.hexdigest()}"
        self._hash = hashlib.sha256()
        if len(self._done) < len(self._spans):
            self._room = self._spans[len(self._done)][1]
