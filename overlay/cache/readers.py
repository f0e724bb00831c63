"""Who has files of a tree open, or mapped into memory, without a lease.

Seen in ``/proc``, and so only of processes of this host and container that this user may look into. A file is known by
its name and inode. Two trees share the inodes of equal files, so it is told by the path which of them a process reads;
where that path cannot be followed from here (another mount namespace), it may be any of them. A process that opened a
file by another name, of an object or in the Hub's cache, does not need the tree.
"""

from __future__ import annotations

import os
import re
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from overlay.cache.listing import TreeInfo

__all__ = ["Reader", "Readers", "find_readers"]

_PROC = Path("/proc")
_IN_A_TREE = re.compile(r"/\.overlay/(trees|quarantine)/([^/]+)/")
_GONE = " (deleted)"
_NOTE = "processes of other users cannot be looked into: what only they have open without a lease is not known"
_KERNEL_THREAD = 0x00200000  # PF_KTHREAD of linux/sched.h


@dataclass(frozen=True, slots=True)
class Reader:
    """A process that has files of a tree open; ``program`` as the kernel names it."""

    pid: int
    program: str

    def __str__(self) -> str:
        return f"pid {self.pid} ({self.program})"


@dataclass(frozen=True, slots=True)
class Readers:
    """What was seen.

    Attributes:
        of: Readers by the path of their tree.
        note: Why there may be more, in one sentence; empty where every process was seen.
    """

    of: dict[Path, tuple[Reader, ...]]
    note: str


def find_readers(trees: Iterable[TreeInfo]) -> Readers:
    """Look through all processes once for files of these trees."""
    by_file: dict[tuple[str, int], list[TreeInfo]] = {}
    for tree in trees:
        for file in tree.files:
            by_file.setdefault((file.path.name, file.inode[1]), []).append(tree)
    names = {name for name, _ in by_file}
    found: dict[Path, set[int]] = {}
    is_unseen = False
    for pid in sorted(int(path.name) for path in _PROC.iterdir() if path.name.isdecimal()):
        try:
            for path, inode in _open_files(pid, names):
                for tree in _read_by(path, by_file.get((Path(path).name, inode), ())):
                    found.setdefault(tree.path, set()).add(pid)
        except PermissionError:
            is_unseen = is_unseen or _has_files(pid)
        except OSError:  # it ended meanwhile
            continue
    readers = {path: tuple(Reader(pid, _program(pid)) for pid in sorted(pids)) for path, pids in found.items()}
    is_hidden = not (_PROC / "1").exists()  # the mount option hidepid
    return Readers(readers, _NOTE if is_unseen or is_hidden else "")


def _open_files(pid: int, names: set[str]) -> Iterator[tuple[str, int]]:
    """Path and inode of what a process has open under one of these names; nothing else is touched: it might hang."""
    for descriptor in (_PROC / str(pid) / "fd").iterdir():
        with suppress(FileNotFoundError):  # closed meanwhile
            path = os.readlink(descriptor).removesuffix(_GONE)  # noqa: PTH115 - not of every kind a path
            if path.rpartition("/")[2] in names:
                yield path, descriptor.stat().st_ino
    for line in (_PROC / str(pid) / "maps").read_text(encoding="utf-8", errors="surrogateescape").splitlines():
        if "/" in line:
            _, _, _, _, inode, path = line.split(maxsplit=5)
            path = path.removesuffix(_GONE)
            if path.rpartition("/")[2] in names:
                yield path, int(inode)


def _read_by(path: str, trees: Iterable[TreeInfo]) -> Iterator[TreeInfo]:
    """Those of the trees with this file that a process may mean that opened it by ``path``."""
    match = _IN_A_TREE.search(path)
    for tree in trees:
        if match is not None:
            if (tree.path.parent.name, tree.name) == match.groups():
                yield tree
        elif not os.path.exists(path):  # noqa: PTH110 - Path.exists raises where it may not look
            yield tree


def _has_files(pid: int) -> bool:
    """Whether a process may have any, because it is neither dead nor a thread of the kernel."""
    try:
        text = (_PROC / str(pid) / "stat").read_text(encoding="utf-8", errors="replace")
        fields = text.rpartition(")")[2].split()
        return fields[0] not in "ZX" and not int(fields[6]) & _KERNEL_THREAD
    except (OSError, ValueError, IndexError):
        return False


def _program(pid: int) -> str:
    with suppress(OSError):
        return (_PROC / str(pid) / "comm").read_text(encoding="utf-8", errors="replace").strip()
    return "ended meanwhile"
