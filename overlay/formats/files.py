"""Reading one repo or folder: names, sizes, small files and safetensors headers, without its weights."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from overlay.errors import BrokenInput, NotHere
from overlay.formats.folders import DEEPEST, too_deep
from overlay.formats.header import Header, read_header
from overlay.formats.lfs import refuse_pointer
from overlay.formats.local import (
    MAX_SMALL_FILE,
    explain_os_error,
    file_stat,
    open_file,
    read_small_file,
    read_span,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = ["MAX_CHECKED_FILE", "MAX_RANGE", "MAX_SMALL_FILE", "PICKLES", "Files", "Folder", "safe_path"]

MAX_CHECKED_FILE = 2**20
"""Bytes of a file that is read to be checked, at most, where nothing has to have it: a config or script has fewer."""

MAX_RANGE = 2**20
"""Bytes that ``read_range`` reads at most: scalars such as an adapter's alpha."""

PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle")
"""Suffixes of weights that can run code when they are read."""


class Files(Protocol):
    """What can be read of one repo or folder. Every ``path`` is POSIX and relative.

    Attributes:
        name: For messages: ``org/name@6d052b3e9cc6``, or the folder.
    """

    name: str

    def paths(self) -> Sequence[str]:
        """Every file, sorted."""

    def size(self, path: str) -> int:
        """Bytes of a file. Raises ``NotHere`` where there is none."""

    def read_bytes(self, path: str, most: int = MAX_SMALL_FILE) -> bytes:
        """A small file, whole. Raises ``BrokenInput`` on more than ``most`` bytes or a Git LFS pointer."""

    def read_range(self, path: str, start: int, nbytes: int) -> bytes:
        """Exactly ``nbytes`` (up to ``MAX_RANGE``) from the absolute offset ``start``. Raises ``BrokenInput``."""

    def header(self, path: str) -> Header:
        """The header of a safetensors file, checked. Raises ``BrokenInput``."""

    def where(self, path: str) -> str:
        """Full name of a file, for messages."""


def safe_path(path: str, where: str) -> str:
    """The path in plain form (no ``.`` or empty parts), if it stays inside the folder that it is relative to.

    Args:
        path: A path out of a manifest, an index or a command.
        where: Where it stands, for messages.

    Raises:
        BrokenInput: Absolute, with ``..``, empty, or with a NUL or a backslash.
    """
    parts = [part for part in path.split("/") if part not in ("", ".")]
    if path.startswith("/"):
        problem = "is absolute"
    elif ".." in parts:
        problem = "leads out of its folder with '..'"
    elif "\0" in path or "\\" in path:
        problem = "has a NUL or a backslash"
    elif not parts:
        problem = "is empty"
    else:
        return "/".join(parts)
    raise BrokenInput(
        f"{where}: {path[:200]!r} {problem}, expected a relative POSIX path inside the folder",
        code="unsafe-path",
        hint="do not use this file; its paths would reach other files of this machine",
        where=where,
        found=path,
    )


class Folder:
    """A folder of this host as ``Files``.

    Links to files are followed (snapshots of the Hub's cache are links), and so are links to folders, except in
    circles. Headers are read once and kept.

    Args:
        root: The folder.

    Raises:
        NotHere: There is no such folder.
    """

    def __init__(self, root: Path) -> None:
        self.root = Path(os.path.abspath(root))  # noqa: PTH100  # resolve() would replace the user's name for a link
        self.name = str(self.root)
        if not self.root.is_dir():
            raise NotHere(
                f"{self.name}: no such folder", code="no-such-folder", hint=f"ls {self.root.parent}", where=self.name
            )
        self._paths: tuple[str, ...] | None = None
        self._headers: dict[str, Header] = {}

    def paths(self) -> Sequence[str]:
        """Every file, sorted; listed once. Dangling links are listed too, and refused when they are read.

        Raises:
            BrokenInput: A folder that links to one above it, or a name that is not UTF-8.
        """
        if self._paths is None:
            self._paths = tuple(sorted(self._walk(self.root, "", frozenset())))
        return self._paths

    def size(self, path: str) -> int:
        """Bytes of a file, through links."""
        return file_stat(self._at(path)).st_size

    def read_bytes(self, path: str, most: int = MAX_SMALL_FILE) -> bytes:
        """A small file, whole."""
        data = read_small_file(self._at(path), most)
        refuse_pointer(data, self.where(path))
        return data

    def read_range(self, path: str, start: int, nbytes: int) -> bytes:
        """Exactly ``nbytes`` from ``start``."""
        if not 0 <= nbytes <= MAX_RANGE or start < 0:
            raise ValueError(f"range {start}+{nbytes} is not within 0 to {MAX_RANGE} bytes")
        with open_file(self._at(path)) as (descriptor, found):
            data = read_span(descriptor, start, nbytes)
        if len(data) != nbytes:
            raise BrokenInput(
                f"{self.where(path)}: {found.st_size} bytes, expected at least {start + nbytes}",
                code="truncated",
                hint="the file is incomplete or damaged; download it again",
                where=self.where(path),
                size=found.st_size,
            )
        return data

    def header(self, path: str) -> Header:
        """The header of a safetensors file, checked."""
        if path not in self._headers:
            self._headers[path] = read_header(self._at(path))
        return self._headers[path]

    def where(self, path: str) -> str:
        """The absolute path."""
        return f"{self.name}/{path}"

    def _at(self, path: str) -> Path:
        return self.root / safe_path(path, self.name)

    def _walk(self, folder: Path, prefix: str, above: frozenset[tuple[int, int]]) -> Iterator[str]:
        try:
            found = folder.stat()
            with os.scandir(folder) as scanned:
                entries = list(scanned)
        except OSError as error:
            raise explain_os_error(folder, error) from error
        identity = (found.st_dev, found.st_ino)
        if len(above) > DEEPEST:
            raise too_deep(folder)
        if identity in above:
            raise BrokenInput(
                f"{folder}: link to a folder above it",
                code="link-loop",
                hint=f"remove the link: rm {folder}",
                where=str(folder),
            )
        for entry in entries:
            if _not_utf8(entry.name):
                raise BrokenInput(
                    f"{folder}: file name {os.fsencode(entry.name)!r} is not UTF-8",
                    code="unsafe-path",
                    hint="rename the file",
                    where=str(folder),
                )
            if _is_folder(entry):
                yield from self._walk(folder / entry.name, f"{prefix}{entry.name}/", above | {identity})
            else:
                yield prefix + entry.name


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return stat.S_ISDIR(entry.stat().st_mode)
    except OSError:  # a dangling link, or a link in a circle; reading it says so
        return False


def _not_utf8(name: str) -> bool:
    try:
        name.encode("utf-8")
    except UnicodeEncodeError:
        return True
    return False
