"""Git LFS pointers: the three lines that stand where a weight file should be after a clone without git-lfs."""

from __future__ import annotations

import re
import shlex
from pathlib import PurePosixPath

from overlay.errors import BrokenInput

__all__ = ["POINTER_LIMIT", "looks_like_pointer", "refuse_pointer"]

POINTER_LIMIT = 1024
"""A pointer is smaller than this, by git-lfs's own specification."""

_FIRST_LINE = re.compile(rb"version https://(git-lfs\.github\.com|hawser\.github\.com)/spec/")
_SIZE = re.compile(rb"^size (\d{1,20})$", re.MULTILINE)


def looks_like_pointer(beginning: bytes, file_size: int) -> bool:
    """Whether a file that begins so (8 bytes do) may be a pointer and is worth reading whole."""
    return file_size < POINTER_LIMIT and beginning[:8] == b"version "


def refuse_pointer(data: bytes, where: str) -> None:
    """Raises if ``data``, the whole content of the file ``where``, is a Git LFS pointer.

    Raises:
        BrokenInput: It is; the message has the size of the real file, the hint the command that fetches it.
    """
    if len(data) >= POINTER_LIMIT or not _FIRST_LINE.match(data):
        return
    size = _SIZE.search(data)
    real = int(size[1]) if size else None
    path = PurePosixPath(where)
    folder = f"-C {shlex.quote(str(path.parent))} " if path.is_absolute() else ""
    raise BrokenInput(
        f"{where}: found a Git LFS pointer of {len(data)} bytes, expected the file itself"
        f" ({'size unknown' if real is None else f'{real} bytes'})",
        code="lfs-pointer",
        hint=f"git {folder}lfs pull --include {shlex.quote(path.name)}",
        where=where,
        size=len(data),
        real_size=real,
    )
