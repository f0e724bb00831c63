"""Digests of bytes and files: block-wise xxh3_128 for damage, sha256 where trust crosses a border, git's sha1.

``xxh3_128`` here is always taken in two levels: each 16 MiB block has its own xxh3_128 digest, and the fingerprint is
the xxh3_128 of these 16-byte digests (canonical big-endian form) one after the other. So the blocks of one file may be
made in any order and on any thread. Content without a byte has no block; its fingerprint is the xxh3_128 of nothing.
"""

from __future__ import annotations

import hashlib
import os
import re
from typing import TYPE_CHECKING, Literal, Protocol

import xxhash

from overlay.errors import BrokenInput
from overlay.formats.local import open_file

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

__all__ = [
    "BLOCK",
    "Algorithm",
    "BlockHasher",
    "Buffer",
    "bytes_digest",
    "descriptor_digest",
    "file_digest",
    "git_blob_digest",
    "parse_digest",
]

BLOCK = 16 * 2**20
"""Bytes of one block of a two-level xxh3_128 fingerprint."""

Buffer = bytes | bytearray | memoryview

Algorithm = Literal["xxh3_128", "sha256"]

_BUFFER = 2**20  # stays in the processor's cache between read and hash
_HEX_DIGITS = {"xxh3_128": 32, "sha256": 64, "sha1-git": 40}
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


class _Sha256:
    def __init__(self) -> None:
        self._hash = hashlib.sha256()

    def update(self, data: Buffer) -> None:
        self._hash.update(data)

    def digest(self) -> str:
        return f"sha256:{self._hash.hexdigest()}"


class _Hasher(Protocol):
    def update(self, data: Buffer) -> None: ...

    def digest(self) -> str: ...


def file_digest(path: Path, algorithm: Algorithm) -> str:
    """Fingerprint of a file's content, read once through one buffer of 1 MiB.

    Raises:
        OverlayError: The file cannot be read (``formats.local``).
    """
    with open_file(path) as (descriptor, _):
        return descriptor_digest(descriptor, algorithm)


def descriptor_digest(descriptor: int, algorithm: Algorithm, progress: Callable[[int], None] | None = None) -> str:
    """As ``file_digest``, from an open descriptor's present position to its end.

    Args:
        progress: Called with the bytes of each read.
    """
    hasher = _hasher(algorithm)
    buffer = memoryview(bytearray(_BUFFER))
    while count := os.readv(descriptor, [buffer]):
        hasher.update(buffer[:count])
        if progress:
            progress(count)
    return hasher.digest()


def bytes_digest(data: Buffer, algorithm: Algorithm) -> str:
    """Fingerprint of bytes in memory; the same as ``file_digest`` of a file that holds them."""
    hasher = _hasher(algorithm)
    hasher.update(data)
    return hasher.digest()


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


def _hasher(algorithm: Algorithm) -> _Hasher:
    return BlockHasher() if algorithm == "xxh3_128" else _Sha256()
