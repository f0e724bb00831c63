"""What a script left in its output folder: listed, or refused for anything but files, folders and links to inputs.

Called when every process of the script is gone, so nothing changes under the check.
"""

from __future__ import annotations

import os
import stat
from collections import Counter
from typing import TYPE_CHECKING

from overlay.errors import BrokenInput
from overlay.formats.files import PICKLES
from overlay.sandbox.job import LeftFile
from overlay.sandbox.usage import MAX_ENTRIES

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

__all__ = ["checked_output", "give", "make_removable"]

_DEEPEST = 12  # with the longest names still a path that the system takes
_SPECIAL_BITS = stat.S_ISUID | stat.S_ISGID | stat.S_ISVTX


def checked_output(output: Path, inputs: Iterable[Path]) -> tuple[LeftFile, ...]:
    """Every file below ``output``, sorted by path.

    Raises:
        BrokenInput: ``script-output``: something there may not be taken over.
    """
    root = output.resolve()
    allowed = [root, *(path.resolve() for path in inputs)]
    entries = list(_entries(root))
    if len(entries) > MAX_ENTRIES:
        raise _refused(output, "too many files", f"more than {MAX_ENTRIES} files and folders")
    names = Counter((found.st_dev, found.st_ino) for _, found in entries if stat.S_ISREG(found.st_mode))
    files = []
    for path, found in entries:
        _check_name(path, path.relative_to(root).as_posix())
        if stat.S_ISDIR(found.st_mode):
            continue
        if stat.S_ISLNK(found.st_mode):
            files.append(_link(path, root, allowed))
        elif not stat.S_ISREG(found.st_mode):
            raise _refused(path, _kind(found.st_mode), f"{_kind(found.st_mode)}")
        elif found.st_mode & _SPECIAL_BITS:
            raise _refused(path, "special mode", f"a file of mode {stat.S_IMODE(found.st_mode):o}")
        elif found.st_nlink != names[found.st_dev, found.st_ino]:
            raise _refused(path, "hard link out", "a hard link to a file that is elsewhere")
        else:
            files.append(LeftFile(path.relative_to(root).as_posix(), "file", found.st_size, None))
    return tuple(sorted(files, key=lambda file: file.path))


def give(output: Path, user: int, group: int) -> None:
    """Make somebody the owner of all of an output folder: the script's own user before it runs, the caller after it."""
    root = output.resolve()
    for path in (root, *(path for path, _ in _entries(root))):
        os.chown(path, user, group, follow_symlinks=False)


def make_removable(root: Path) -> None:
    """Bring folders nested without end nearer to ``root``, and open closed ones: what removes a tree recurses."""
    waiting = [(root, 0)]
    while waiting:
        folder, depth = waiting.pop()
        if os.geteuid() != 0:
            folder.chmod(0o700)
        for path in folder.iterdir():
            if path.is_symlink() or not path.is_dir():
                continue
            if depth == _DEEPEST:
                path = path.rename(root / f"deep-{os.urandom(8).hex()}")  # noqa: PLW2901 - it is the same folder
            waiting.append((path, 1 if depth == _DEEPEST else depth + 1))


def _entries(root: Path) -> Iterator[tuple[Path, os.stat_result]]:
    """Everything below, folders before what they hold; stops soon after ``MAX_ENTRIES``."""
    waiting, count = [root], 0
    while waiting and count <= MAX_ENTRIES:
        folder = waiting.pop()
        try:
            inside = sorted(folder.iterdir())
        except OSError as error:
            raise _refused(folder, "unreadable folder", f"a folder that cannot be read ({error.strerror})") from error
        for path in inside:
            found = path.lstat()
            count += 1
            yield path, found
            if stat.S_ISDIR(found.st_mode):
                waiting.append(path)


def _check_name(path: Path, name: str) -> None:
    try:
        name.encode()
    except UnicodeEncodeError:
        raise _refused(path, "bad name", f"a name that is not UTF-8: {name!r}") from None
    if not name.isprintable():
        raise _refused(path, "bad name", f"a name with control characters: {name!r}")
    if name.lower().endswith(PICKLES):
        raise _refused(path, "pickle", "weights in a format that runs code when they are read")


def _link(path: Path, root: Path, allowed: list[Path]) -> LeftFile:
    try:
        target = path.resolve(strict=True)
        found = target.stat()
    except (OSError, RuntimeError):
        raise _refused(path, "dangling link", f"a link to {str(path.readlink())!r}, which is not there") from None
    if not any(target.is_relative_to(each) for each in allowed):
        raise _refused(path, "link out", f"a link to {str(target)!r}, which is no input of the script")
    if not stat.S_ISREG(found.st_mode):
        raise _refused(path, "link to no file", f"a link to {str(target)!r}, which is no regular file")
    return LeftFile(path.relative_to(root).as_posix(), "link", found.st_size, target)


def _kind(mode: int) -> str:
    kinds = {stat.S_IFIFO: "pipe", stat.S_IFSOCK: "socket", stat.S_IFCHR: "device", stat.S_IFBLK: "device"}
    return kinds.get(stat.S_IFMT(mode), "special file")


def _refused(path: Path, found: str, words: str) -> BrokenInput:
    where = str(path).encode(errors="backslashreplace").decode()
    where = where if where.isprintable() else repr(where)
    return BrokenInput(
        f"{where}: the script left {words}; expected regular files, and links to its inputs",
        code="script-output",
        hint="this script may not be used as it is; ask its author, or pin another commit of the overlay",
        where=where,
        found=found,
    )
