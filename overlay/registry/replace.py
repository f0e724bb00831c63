"""Replacing a file that people keep: in one step, with the mode it has, through the links that lead to it."""

from __future__ import annotations

import os
import tempfile
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
    try:
        descriptor, name = tempfile.mkstemp(dir=real.parent, prefix=f".{real.name}.", suffix=".tmp")
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(after)
                file.flush()
                os.fchmod(descriptor, _mode(real))
                os.fsync(descriptor)
            _check_unchanged(path, before)
            Path(name).replace(real)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise
    except OSError as error:
        raise cannot_write(error, str(path), "replace the file", elsewhere="name another file: --registry") from error


def _mode(path: Path) -> int:
    """That of the file; of a new one, what a shell would give it."""
    try:
        return path.stat().st_mode & 0o7777
    except FileNotFoundError:
        mask = os.umask(0o022)
        os.umask(mask)
        return 0o666 & ~mask


def _check_unchanged(path: Path, before: bytes | None) -> None:
    found = path.read_bytes() if path.exists() else None
    if found != before:
        raise CheckFailed(
            f"{path}: changed while this ran, so it was left as it is",
            code="registry-changed",
            hint="run the same command again",
            where=str(path),
        )
