"""The unit of work of a build: one block of a tensor's fingerprint, up to 16 MiB, made by one thread."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from overlay.fusion.output import Output

__all__ = ["Hash", "MadeBlock", "Pourable", "Source"]


@dataclass(frozen=True, slots=True)
class MadeBlock:
    """A block that was written.

    Attributes:
        digest: xxh3_128 of its bytes.
        source_digest: Of the bytes of the one tensor that it was made from, before anything was folded in; None where
            it comes from several places.
    """

    digest: bytes
    source_digest: bytes | None


class Hash(Protocol):
    """A running digest."""

    def update(self, data: memoryview, /) -> None:
        """Take more bytes in."""


class Source(Protocol):
    """What makes the bytes of an output tensor."""

    def write(self, output: Output, place: int, start: int, nbytes: int, buffer: memoryview) -> MadeBlock:
        """Makes ``nbytes`` of the tensor from its byte ``start`` and writes them to ``place``, through ``buffer``."""


class Pourable(Protocol):
    """What makes a part of an output tensor's bytes, ``nbytes`` of them."""

    @property
    def nbytes(self) -> int:
        """How many."""

    def pour(self, output: Output, place: int, start: int, nbytes: int, buffer: memoryview, after: Hash, /) -> None:
        """As :meth:`Source.write`, with the digest of what is written taken by ``after``."""
