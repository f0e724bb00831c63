"""What may lie in the place of a small file that this program keeps, put there by a hand or a broken disk."""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

__all__ = ["INTRUDERS", "put_in_place"]


def _folder(path: Path) -> None:
    path.mkdir()
    (path / "inside").write_bytes(b"")


def _sparse(path: Path) -> None:
    path.write_bytes(b"{")
    os.truncate(path, 2**40)


INTRUDERS: dict[str, Callable[[Path], object]] = {
    "empty": lambda path: path.write_bytes(b""),
    "no text": lambda path: path.write_bytes(b"\xff\x00"),
    "deep JSON": lambda path: path.write_bytes(b"[" * 100_000),
    "long number": lambda path: path.write_bytes(b"9" * 10_000),
    "a terabyte": _sparse,
    "folder": _folder,
    "pipe": os.mkfifo,
    "link to nothing": lambda path: path.symlink_to("/nonexistent/file"),
    "link to itself": lambda path: path.symlink_to(path.name),
    "link to a device": lambda path: path.symlink_to("/dev/zero"),
}


def put_in_place(path: Path, intruder: str) -> None:
    """Replace what is at ``path``."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
    INTRUDERS[intruder](path)
