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
from overlay.formats.materialized import MARKER_NAME
from overlay.formats.tree_files import git_folder, is_hidden
from overlay.sandbox.job import LeftFile
from overlay.sandbox.usage import MAX_ENTRIES

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

__all__ = ["checked_output", "give", "make_removable"]

_LONGEST_SHOWN = 200
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
        raise _refused(".", "too many files", f"more than {MAX_ENTRIES} files and folders")
    names = Counter((found.st_dev, found.st_ino) for _, found in entries if stat.S_ISREG(found.st_mode))
    files = []
    for path, found in entries:
        name = path.relative_to(root).as_posix()
        _check_name(name)
        if stat.S_ISDIR(found.st_mode):
            continue
        if stat.S_ISLNK(found.st_mode):
            files.append(_link(path, name, allowed))
        elif not stat.S_ISREG(found.st_mode):
            raise _refused(name, _kind(found.st_mode), f"a {_kind(found.st_mode)}")
        elif found.st_mode & _SPECIAL_BITS:
            raise _refused(name, "special mode", f"a file of mode {stat.S_IMODE(found.st_mode):o}")
        elif found.st_nlink != names[found.st_dev, found.st_ino]:
            raise _refused(name, "hard link out", "a hard link to a file that is elsewhere")
        else:
            files.append(LeftFile(name, "file", found.st_size, None))
    if (folder := git_folder(file.path for file in files)) is not None:
        raise _refused(
            folder, "git repository", "a folder that git takes for a repository, whose settings run commands"
        )
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
            name = folder.relative_to(root).as_posix()
            raise _refused(name, "unreadable folder", f"a folder that cannot be read ({error.strerror})") from error
        for path in inside:
            found = path.lstat()
            count += 1
            yield path, found
            if stat.S_ISDIR(found.st_mode):
                waiting.append(path)


def _check_name(name: str) -> None:
    try:
        name.encode()
    except UnicodeEncodeError:
        raise _refused(name, "bad name", "a name that is not UTF-8") from None
    if not name.isprintable():
        raise _refused(name, "bad name", "a name with control characters")
    if is_hidden(name) and name != MARKER_NAME:
        raise _refused(name, "hidden", "a hidden file or folder, such as git, shells and editors take settings from")
    if name.rstrip(". ").lower().endswith(PICKLES):
        raise _refused(name, "pickle", "weights in a format that runs code when they are read")


def _link(path: Path, name: str, allowed: list[Path]) -> LeftFile:
    to = str(path.readlink())[:_LONGEST_SHOWN]
    try:
        target = path.resolve(strict=True)
        found = target.stat()
    except (OSError, RuntimeError):
        raise _refused(name, "dangling link", f"a link to {to!r}, which is not there") from None
    if not any(target.is_relative_to(each) for each in allowed):
        raise _refused(name, "link out", f"a link to {to!r}, which is no input of the script")
    if not stat.S_ISREG(found.st_mode):
        raise _refused(name, "link to no file", f"a link to {to!r}, which is no regular file")
    return LeftFile(name, "link", found.st_size, target)


def _kind(mode: int) -> str:
    kinds = {stat.S_IFIFO: "pipe", stat.S_IFSOCK: "socket", stat.S_IFCHR: "device", stat.S_IFBLK: "device"}
    return kinds.get(stat.S_IFMT(mode), "special file")


def _refused(name: str, found: str, words: str) -> BrokenInput:
    """An error that names the file by its place in the output, in letters that a terminal can show."""
    where = name.encode(errors="backslashreplace").decode()
    where = where if where.isprintable() else repr(where)
    return BrokenInput(
        f"{where}: the script left {words}; expected regular files, and links to its inputs",
        code="script-output",
        hint="this script may not be used as it is; ask its author, or pin another commit of the overlay",
        where=where,
        found=found,
    )
