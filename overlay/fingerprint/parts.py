"""Fingerprints of parts of files, on any thread: a file is cut where its fingerprint is, and put together again.

A plain file is one part. A safetensors file that this program wrote is fingerprinted by its parts, the header and each
tensor, so that what differs has a name, and a tensor has the same fingerprint in whatever file it lies.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from overlay.fingerprint.digests import (
    BLOCK,
    BY_TENSORS,
    block_digest,
    digest_of_blocks,
    file_digests,
    safetensors_digest,
)
from overlay.formats.header import read_header
from overlay.formats.local import file_stat

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from overlay.fingerprint.tensors import Span

__all__ = ["blocks_of", "digest_of_parts", "file_digest", "part_digest", "parts_of"]


def parts_of(path: Path, algorithm: str) -> list[Span]:
    """Offset and size of each part of a file that has a fingerprint of its own.

    Raises:
        OverlayError: The file cannot be read, or is not safetensors although ``algorithm`` says so.
    """
    if algorithm != BY_TENSORS:
        return [(0, file_stat(path).st_size)]
    header = read_header(path)
    tensors = ((header.offset(name), info.nbytes) for name, info in header.tensors.items())
    return [(0, header.data_start), *tensors]


def blocks_of(part: Span) -> list[Span]:
    """The blocks of a part, each for :func:`overlay.fingerprint.block_digest`."""
    start, nbytes = part
    return [(start + at, min(BLOCK, nbytes - at)) for at in range(0, nbytes, BLOCK)]


def part_digest(path: Path, part: Span) -> str:
    """``xxh3_128:<hex>`` of one part, read on this thread.

    Raises:
        OverlayError: The file cannot be read.
    """
    return digest_of_blocks(block_digest(path, *block) for block in blocks_of(part))


def digest_of_parts(algorithm: str, parts: Sequence[str]) -> str:
    """The fingerprint of a file from those of its parts, in their order."""
    return safetensors_digest(parts[0], parts[1:]) if algorithm == BY_TENSORS else parts[0]


def file_digest(path: Path, algorithm: str) -> str:
    """Fingerprint of a file's content, read on this thread through one small buffer.

    Raises:
        OverlayError: It cannot be read (``formats.local``), or is not safetensors although ``algorithm`` says so.
    """
    if algorithm == "sha256":
        return file_digests(path).sha256
    return digest_of_parts(algorithm, [part_digest(path, part) for part in parts_of(path, algorithm)])
