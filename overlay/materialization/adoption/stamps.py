"""Whether somebody wrote into a file whose inode the cache shares, from the look at its bytes to the published link."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from overlay.errors import TryAgain
from overlay.fingerprint import file_digest
from overlay.formats.local import file_stat

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from overlay.materialization.record import RecordedFile

__all__ = ["Stamps", "written_meanwhile"]

_Inode = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Stamps:
    """Size and times of the files of a folder, by inode, since their names may be many.

    The time of an inode's last change is asked too, which no program can set back. Every link moves it: after one of
    ours a file is stamped anew, and where another program's moved it, the bytes are read again and decide.

    Attributes:
        folder: The folder, where it lies when the files are stamped.
        written: Paths of files that somebody wrote into.
    """

    folder: Path
    written: set[str] = field(default_factory=set)
    _inodes: dict[str, _Inode] = field(default_factory=dict)
    _stamps: dict[_Inode, tuple[int, int, int]] = field(default_factory=dict)

    def take(self, paths: Iterable[str]) -> None:
        """Stamp files, before they are compared."""
        for path in paths:
            self._inodes[path], stamp = _stamp(self.folder / path)
            self._stamps[self._inodes[path]] = stamp

    def renew(self, path: str, place: Path) -> None:
        """Stamp a file anew, by whatever name, after a link of ours moved the time of its last change.

        Raises:
            TryAgain: Somebody wrote into it, or another one has the name.
        """
        inode, stamp = _stamp(place)
        if inode != self._inodes[path] or stamp[:2] != self._stamps[inode][:2]:
            raise self._was_written(path)
        self._stamps[inode] = stamp

    def shares(self, path: str, place: Path) -> bool:
        """Whether another name leads to the inode that a path of the folder had when it was stamped."""
        try:
            found = place.lstat()
        except OSError:
            return False
        return (found.st_dev, found.st_ino) == self._inodes.get(path)

    def require_unwritten(self, path: str, place: Path, file: RecordedFile) -> None:
        """Hold a file against its stamp, by whatever name.

        Raises:
            TryAgain: Somebody wrote into it, or another one has the name.
        """
        inode, stamp = _stamp(place)
        if inode == self._inodes[path] and stamp == self._stamps[inode]:
            return
        is_linked_at_most = inode == self._inodes[path] and stamp[:2] == self._stamps[inode][:2]
        if not is_linked_at_most or file_digest(place, file.algorithm) != file.digest:
            raise self._was_written(path)
        self._stamps[inode] = stamp

    def is_written(self, path: str, place: Path) -> bool:
        """Whether a file was found to be written into, or shows it by size or time. Reads no bytes."""
        inode, stamp = _stamp(place)
        return path in self.written or stamp[:2] != self._stamps.get(inode, stamp)[:2]

    def _was_written(self, path: str) -> TryAgain:
        self.written.add(path)
        return written_meanwhile(self.folder / path)


def written_meanwhile(path: Path) -> TryAgain:
    """The error of a file that is not what was compared."""
    return TryAgain(
        f"{path}: was changed since it was compared",
        code="input-changed",
        hint="let whatever writes it finish, then run the same command again",
        path=str(path),
    )


def _stamp(path: Path) -> tuple[_Inode, tuple[int, int, int]]:
    found = file_stat(path)
    return (found.st_dev, found.st_ino), (found.st_size, found.st_mtime_ns, found.st_ctime_ns)
