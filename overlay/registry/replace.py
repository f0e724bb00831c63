"""Replacing a file that people keep: in one step, with the mode it has, through the links that lead to it."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from overlay.errors import CheckFailed
from overlay.formats.os_errors import cannot_write

__all__ = ["replace_file"]


def replace_file(path: Path, before: bytes | None, after: bytes) -> None:
    """Replace a file in one step, or make it; its mode stays, and a link stays a link to it.

    Args:
        path: The file.
        before: What the change was made from; None where there was no file.
        after: What it is to hold.

    Raises:
        CheckFailed: The file is not what it was any more.
        CannotWrite: The system refuses.
    """
    real = Path(os.path.realpath(path))
    staged = real.with_name(f".{real.name}-{os.urandom(8).hex()}.tmp")
    try:
        try:
            with staged.open("xb") as file:
                file.write(after)
                file.flush()
                with suppress(FileNotFoundError):
                    os.fchmod(file.fileno(), real.stat().st_mode & 0o7777)
                os.fsync(file.fileno())
            _check_unchanged(path, before)
            staged.replace(real)
        finally:
            staged.unlink(missing_ok=True)
    except OSError as error:
        raise cannot_write(error, str(path), "replace the file", elsewhere="name another file: --registry") from error


def _check_unchanged(path: Path, before: bytes | None) -> None:
    found = path.read_bytes() if path.exists() else None
    if found != before:
        raise CheckFailed(
            f"{path}: changed while this ran, so it was left as it is",
            code="registry-changed",
            hint="run the same command again",
            where=str(path),
        )
