"""A bucket that is a folder of this host, or one that is mounted here."""

from __future__ import annotations

import os
import stat
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from overlay.formats.os_errors import cannot_read, cannot_write

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

__all__ = ["FolderBucket"]

_NOT_THERE = (FileNotFoundError, NotADirectoryError)


@dataclass(frozen=True, slots=True)
class FolderBucket:
    """See :class:`overlay.store.Bucket`. Files come to their places by a link or a rename, and so are whole."""

    root: Path
    url: str

    def read(self, key: str, limit: int) -> bytes | None:
        """See :class:`overlay.store.Bucket`."""
        path = self.root / key
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # a pipe would wait for its writer
            with os.fdopen(descriptor, "rb") as file:
                return file.read(limit + 1) if stat.S_ISREG(os.fstat(descriptor).st_mode) else b""
        except _NOT_THERE:
            return None
        except OSError as error:
            raise cannot_read(error, str(path)) from error

    def size(self, key: str) -> int | None:
        """See :class:`overlay.store.Bucket`."""
        path = self.root / key
        try:
            return path.stat().st_size
        except _NOT_THERE:
            return None
        except OSError as error:
            raise cannot_read(error, str(path)) from error

    def create(self, key: str, data: bytes) -> bool:
        """See :class:`overlay.store.Bucket`."""
        path = self.root / key
        if self.size(key) is not None:
            return False
        with self._written(path, data) as temporary:
            try:
                path.hardlink_to(temporary)
            except FileExistsError:
                return False
            except OSError:  # no hardlinks here: of two writers the last one wins
                temporary.replace(path)
        return True

    def replace(self, key: str, data: bytes) -> None:
        """See :class:`overlay.store.Bucket`."""
        with self._written(self.root / key, data) as temporary:
            temporary.replace(self.root / key)

    def names(self, folder: str) -> list[str]:
        """See :class:`overlay.store.Bucket`."""
        try:
            return sorted(path.name for path in (self.root / folder).iterdir() if not path.name.startswith("."))
        except _NOT_THERE:
            return []
        except OSError as error:
            raise cannot_read(error, str(self.root / folder)) from error

    def close(self) -> None:
        """See :class:`overlay.store.Bucket`. Nothing takes long here."""

    @contextmanager
    def _written(self, path: Path, data: bytes) -> Iterator[Path]:
        """A synced file of these bytes beside its place, gone at the end."""
        temporary = path.with_name(f".{path.name}.{os.getpid()}-{os.urandom(4).hex()}.tmp")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with temporary.open("xb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            yield temporary
        except OSError as error:
            raise cannot_write(error, self.url, f"write {path}", first="", elsewhere="choose another store") from error
        finally:
            with suppress(OSError):
                temporary.unlink()
