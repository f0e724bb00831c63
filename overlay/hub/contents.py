"""What a lock leaves behind for checks without a connection: headers and scalars of safetensors files, small files.

All lie below the cache root by the sha256 of the file that they are of. ``overlay lock`` writes them, and the commands
that lock again; nobody else does. What was damaged or edited since is as if it were not there.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

from overlay.errors import OverlayError
from overlay.fingerprint import action_key, bytes_digest
from overlay.fingerprint.entries import entry_bytes, entry_in
from overlay.formats.files import MAX_SMALL_FILE
from overlay.formats.header import Header, TensorInfo
from overlay.formats.local import read_small_file, write_small_file

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

__all__ = ["Contents", "header_digest"]

_VERSION = 1
_MAX_ENTRY = 4 * MAX_SMALL_FILE
"""Bytes of a header's entry at most: more than any header that the format allows makes."""


def header_digest(header: Header) -> str:
    """``sha256:<hex>`` of the names, dtypes and shapes of a file's tensors, whatever their order in it."""
    return f"sha256:{action_key(sorted([info.name, info.dtype, list(info.shape)] for info in header.tensors.values()))}"


class Contents:
    """The store.

    Args:
        folder: Where it lies; made when the first thing is kept. None: nothing is kept, and nothing is there.
    """

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder

    def small_file(self, sha256: str) -> bytes | None:
        """A small file by its sha256 (64 hex digits); None where it is not at hand."""
        data = self._read(sha256, "", MAX_SMALL_FILE)
        return data if data is not None and bytes_digest(data, "sha256") == f"sha256:{sha256}" else None

    def header(self, sha256: str, size: int, digest: str | None) -> Header | None:
        """The header of a safetensors file; None where it is not at hand.

        Args:
            sha256: Of the whole file, 64 hex digits.
            size: Bytes of the whole file.
            digest: The ``header_digest`` that it must have.
        """
        data = self._read(sha256, ".header", _MAX_ENTRY)
        entry = entry_in(data, _VERSION, sha256) if data is not None else None
        try:
            header = _header(entry)
        except (TypeError, ValueError, KeyError, AttributeError):
            return None
        return header if header.file_size == size and header_digest(header) == digest else None

    def scalar(self, sha256: str, start: int, nbytes: int) -> bytes | None:
        """The bytes of a scalar of a safetensors file, such as an adapter's alpha; None where they are not at hand.

        Args:
            sha256: Of the whole file, 64 hex digits.
            start: Absolute offset of the scalar.
            nbytes: Its size.
        """
        data = self._read(sha256, ".scalars", _MAX_ENTRY)
        entry = entry_in(data, _VERSION, sha256) if data is not None else None
        found = bytes.fromhex(entry.get(str(start), "")) if isinstance(entry, dict) else b""
        return found if len(found) == nbytes else None

    def keep_file(self, sha256: str, data: bytes) -> None:
        """Keep a small file."""
        if self.small_file(sha256) is None:
            self._write(sha256, "", data)

    def keep_header(self, sha256: str, header: Header) -> None:
        """Keep the header of a safetensors file."""
        if self.header(sha256, header.file_size, header_digest(header)) != header:
            self._write(sha256, ".header", entry_bytes(_VERSION, sha256, _document(header)))

    def keep_scalars(self, sha256: str, scalars: Mapping[int, bytes]) -> None:
        """Keep scalars of a safetensors file by their absolute offsets."""
        entry = {str(start): data.hex() for start, data in sorted(scalars.items())}
        self._write(sha256, ".scalars", entry_bytes(_VERSION, sha256, entry))

    def _read(self, sha256: str, suffix: str, most: int) -> bytes | None:
        if self._folder is None:
            return None
        try:
            return read_small_file(self._folder / sha256[:2] / f"{sha256}{suffix}", most)
        except (OSError, OverlayError):  # absent, or nothing that can be read
            return None

    def _write(self, sha256: str, suffix: str, data: bytes) -> None:
        if self._folder is None:
            return
        place = self._folder / sha256[:2] / f"{sha256}{suffix}"
        with suppress(OSError):  # a store that cannot be written costs a request some day, nothing else
            write_small_file(place, data)


def _document(header: Header) -> dict[str, Any]:
    return {
        "tensors": [
            [info.name, info.dtype, list(info.shape), info.start, info.end] for info in header.tensors.values()
        ],
        "metadata": dict(header.metadata),
        "data_start": header.data_start,
        "file_size": header.file_size,
        "canonical": header.canonical,
    }


def _header(entry: Any) -> Header:
    """The header that ``entry`` was made of; an entry is believed bit by bit or not at all, so types are as written."""
    tensors = [TensorInfo(name, dtype, tuple(shape), start, end) for name, dtype, shape, start, end in entry["tensors"]]
    return Header(
        tensors={info.name: info for info in tensors},
        metadata=entry["metadata"],
        data_start=entry["data_start"],
        file_size=entry["file_size"],
        canonical=entry["canonical"],
    )
