"""Digests of bytes and files: block-wise xxh3_128 for damage, sha256 where trust crosses a border, git's sha1.

``xxh3_128`` here is always taken in two levels: each 16 MiB block has its own xxh3_128 digest, and the fingerprint is
the xxh3_128 of these 16-byte digests (canonical big-endian form) one after the other. So the blocks of one file may be
made in any order and on any thread. Content without a byte has no block; its fingerprint is the xxh3_128 of nothing.
A safetensors file of our own has a third level, ``safetensors_xxh3_128``: see ``safetensors_digest``.
"""

from __future__ import annotations

import hashlib
import os
import re
import threading
from typing import TYPE_CHECKING, Literal, NamedTuple

import xxhash

from overlay.errors import BrokenInput
from overlay.formats.local import open_file

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

__all__ = [
    "BLOCK",
    "BY_TENSORS",
    "BlockHasher",
    "Buffer",
    "Digests",
    "block_digest",
    "bytes_digest",
    "descriptor_digests",
    "digest_of_blocks",
    "file_digests",
    "git_blob_digest",
    "parse_digest",
    "safetensors_digest",
]

BLOCK = 16 * 2**20
"""Bytes of one block of a two-level xxh3_128 fingerprint."""

BY_TENSORS = "safetensors_xxh3_128"
"""Name of the fingerprint of ``safetensors_digest``."""

Buffer = bytes | bytearray | memoryview

_BUFFER = 2**19  # stays in the processor's cache between read and hash
_of_thread = threading.local()
_HEX_DIGITS = {"xxh3_128": 32, BY_TENSORS: 32, "sha256": 64, "sha1-git": 40}
_DIGEST = re.compile(r"([a-z0-9_-]+):([0-9a-f]+)")


class BlockHasher:
    """Two-level xxh3_128 of bytes that are fed in order, in pieces of any size."""

    def __init__(self) -> None:
        self._whole = xxhash.xxh3_128()
        self._block = xxhash.xxh3_128()
        self._room = BLOCK

    def update(self, data: Buffer) -> None:
        """Adds the next bytes."""
        view = memoryview(data).cast("B")
        while len(view):
            piece = view[: self._room]
            self._block.update(piece)
            self._room -= len(piece)
            view = view[len(piece) :]
            if not self._room:
                self._close_block()

    def digest(self) -> str:
        """The fingerprint of what was fed so far, ``xxh3_128:<hex>``. More may be fed afterwards."""
        whole = self._whole.copy()
        if self._room != BLOCK:
            whole.update(self._block.digest())
        return f"xxh3_128:{whole.hexdigest()}"

    def _close_block(self) -> None:
        self._whole.update(self._block.digest())
        self._block.reset()
        self._room = BLOCK


class Digests(NamedTuple):
    """Both fingerprints of one content."""

    sha256: str
    xxh3_128: str


def file_digests(path: Path, progress: Callable[[int], None] | None = None) -> Digests:
    """Both fingerprints of a file's content, which is read once; beside sha256 the other costs next to nothing.

    Args:
        progress: Called with the number of bytes of each read.

    Raises:
        OverlayError: The file cannot be read (``formats.local``).
    """
    with open_file(path) as (descriptor, _):
        return descriptor_digests(descriptor, progress)


def descriptor_digests(
    descriptor: int,
    progress: Callable[[int], None] | None = None,
    see: Callable[[memoryview], None] | None = None,
) -> Digests:
    """As ``file_digests``, from an open descriptor's present position to its end.

    Args:
        progress: Called with the number of bytes of each read.
        see: Called with these bytes, which are the next read's as soon as it returns.
    """
    sha256, xxh3, buffer = hashlib.sha256(), BlockHasher(), _buffer()
    while count := os.readv(descriptor, [buffer]):
        piece = buffer[:count]
        sha256.update(piece)
        xxh3.update(piece)
        if see:
            see(piece)
        if progress:
            progress(count)
    return Digests(f"sha256:{sha256.hexdigest()}", xxh3.digest())


def block_digest(path: Path, start: int, nbytes: int) -> bytes:
    """xxh3_128 of ``nbytes`` of a file from ``start``, for ``digest_of_blocks``; any thread may read any block.

    Fewer are read where the file ends before.

    Raises:
        OverlayError: As ``file_digests``.
    """
    block, buffer = xxhash.xxh3_128(), _buffer()
    end = start + nbytes
    # A descriptor of its own: the kernel reads ahead by descriptor, and gives that up where threads share one.
    with open_file(path) as (descriptor, _):
        while start < end and (count := os.preadv(descriptor, [buffer[: end - start]], start)):
            block.update(buffer[:count])
            start += count
    return block.digest()


def digest_of_blocks(blocks: Iterable[bytes]) -> str:
    """The ``xxh3_128:<hex>`` of content by the digests of its blocks, in their order."""
    whole = xxhash.xxh3_128()
    for block in blocks:
        whole.update(block)
    return f"xxh3_128:{whole.hexdigest()}"


def _buffer() -> memoryview:
    """This thread's buffer: made once, because the kernel would have to clear a new one each time."""
    try:
        found: memoryview = _of_thread.buffer
    except AttributeError:
        found = _of_thread.buffer = memoryview(bytearray(_BUFFER))
    return found


def bytes_digest(data: Buffer, algorithm: Literal["xxh3_128", "sha256"]) -> str:
    """Fingerprint of bytes in memory; the same as ``file_digest`` of a file that holds them."""
    if algorithm == "sha256":
        return f"sha256:{hashlib.sha256(data).hexdigest()}"
    hasher = BlockHasher()
    hasher.update(data)
    return hasher.digest()


def safetensors_digest(header: str, tensors: Iterable[str]) -> str:
    """Fingerprint of a safetensors file, ``safetensors_xxh3_128:<hex>``, from those of its parts.

    It is the xxh3_128 of theirs, one after the other: so whoever has the tensors' has the file's, and a difference of
    two files can be told by tensors.

    Args:
        header: ``xxh3_128:<hex>`` of everything before the first tensor, the eight bytes of the length included.
        tensors: ``xxh3_128:<hex>`` of each tensor, in file order.
    """
    whole = xxhash.xxh3_128()
    for part in (header, *tensors):
        whole.update(bytes.fromhex(parse_digest(part)[1]))
    return f"{BY_TENSORS}:{whole.hexdigest()}"


def git_blob_digest(data: bytes) -> str:
    """Git's name for a file's content, ``sha1-git:<hex>``: what the Hub lists for files that are not in LFS."""
    return "sha1-git:" + hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()


def parse_digest(text: str) -> tuple[str, str]:
    """Splits ``algorithm:hex``.

    Raises:
        BrokenInput: Another form, an unknown algorithm, or the wrong number of digits.
    """
    match = _DIGEST.fullmatch(text)
    if match is None or _HEX_DIGITS.get(match[1]) != len(match[2]):
        forms = ", ".join(f"{name}:<{digits} hex digits>" for name, digits in _HEX_DIGITS.items())
        raise BrokenInput(
            f"digest {text[:100]!r} is not usable, expected {forms}",
            code="bad-digest",
            hint="write the digest as algorithm:hex, in lower case",
            digest=text,
        )
    return match[1], match[2]
