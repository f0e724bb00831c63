"""Verifying: a materialization held against its own record."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from overlay.cache.verified import forget_verified, remember_verified, root_of
from overlay.errors import InvalidUsage, NotHere
from overlay.fingerprint import DigestMemo
from overlay.materialization.content import Problem, content_problems
from overlay.materialization.record import RECORD_NAME, read_record
from overlay.materialization.request import existing_folder, silent

if TYPE_CHECKING:
    from collections.abc import Sequence

    from overlay.materialization.record import Record, RecordedFile
    from overlay.materialization.request import Phase
    from overlay.registry import Registry

__all__ = ["LEVELS", "Verification", "quick_problems", "verify"]

LEVELS = ("quick", "full", "sha256")


@dataclass(frozen=True, slots=True)
class Verification:
    """Outcome of a verify.

    Attributes:
        path: The folder, links resolved.
        num_files: Files that the record names.
        bytes_read: Bytes that were read and digested; 0 at level quick.
    """

    path: Path
    level: str
    model: str | None
    num_files: int
    bytes_read: int
    problems: tuple[Problem, ...]

    @property
    def ok(self) -> bool:
        """Whether it is what its record says."""
        return not self.problems


def verify(
    folder: Path,
    level: str = "full",
    *,
    jobs: int | None = None,
    phase: Phase | None = None,
    remember: bool = True,
    registry: Registry | None = None,
) -> Verification:
    """Hold a folder against the record in it.

    Level ``full`` finds whatever broke or was changed by mistake. A file that somebody made to pass is found by
    ``sha256``, as far as one is known: the record has it of the files that were carried over from a repo, a lock of all
    that it expects.

    Args:
        level: ``quick`` for names and sizes; ``full`` for every byte, by the fastest digest that is known of it;
            ``sha256`` for every byte, by sha256 where that is known.
        registry: The registry in force. With ``sha256``, what the lock beside it expects of this very build is used.
        jobs: Reads at a time; None: as many as pay on this machine.
        remember: Of a tree in a cache, note there which digests are of one content, and that it was found to be sound
            or is not any more; without it nothing is written.

    Raises:
        InvalidUsage: No such level, or the folder is a file.
        NotHere: No such folder, or it has no record.
        BrokenInput: The record cannot be read.
        InvalidRegistry: The lock cannot be read.
    """
    if level not in LEVELS:
        raise InvalidUsage(f"no level {level!r}", code="unknown-level", hint=f"level is one of {', '.join(LEVELS)}")
    folder = existing_folder(folder).resolve()
    record = read_record(folder)
    if record is None:
        raise NotHere(
            f"{folder}: has no {RECORD_NAME}, so there is nothing to verify it against",
            code="no-record",
            hint="only what `overlay prewarm` or `overlay fuse` wrote can be verified; "
            "two directories can be held against each other: overlay compare A B",
            path=str(folder),
        )
    seen = folder.stat()  # before the first look: what is remembered is of this tree, if another one takes its place
    problems = quick_problems(folder, record)
    bytes_read = 0
    if level != "quick":
        root = root_of(folder)
        broken = {problem.path for problem in problems}
        outputs = _by_sha256(record, registry) if registry and level == "sha256" else record.outputs
        unread = _distinct(folder, [item for item in outputs if item.path not in broken])
        bytes_read = sum(item.size for item in unread)
        memo = DigestMemo(root.digests if root else None, write=remember)
        with (phase or silent)("verify", bytes_read) as update:
            problems += content_problems(folder, unread, memo, update, jobs=jobs, only_sha256=level == "sha256")
        if root and remember:
            forget_verified(root, folder) if problems else remember_verified(root, folder, seen, level)
    problems.sort(key=lambda problem: problem.path)
    return Verification(
        folder,
        level,
        record.model if record.repos else None,
        len(record.outputs),
        bytes_read,
        tuple(problems),
    )


def _by_sha256(record: Record, registry: Registry) -> tuple[RecordedFile, ...]:
    """The outputs, by sha256 where the lock knows that of the very same file."""
    from overlay.materialization.lock_in_force import (
        lock_of_record,  # which looks for what is published with this module
    )

    locked = lock_of_record(record, registry)
    expected = locked.expected.files if locked and locked.expected else {}
    return tuple(
        replace(item, digest=f"sha256:{known.sha256}")
        if (known := expected.get(item.path)) is not None and known.digest == item.digest
        else item
        for item in record.outputs
    )


def quick_problems(folder: Path, record: Record) -> list[Problem]:
    """The record itself, names and sizes: what was edited, is missing, is too much, has another size."""
    problems = []
    if not record.is_intact:
        problems.append(Problem(RECORD_NAME, "content", "is not the record that this tree was named by"))
    for item in record.outputs:
        try:
            found = (folder / item.path).stat()
        except OSError as error:
            problems.append(Problem(item.path, "missing", f"cannot be found: {error.strerror}"))
            continue
        if not stat.S_ISREG(found.st_mode):
            problems.append(Problem(item.path, "missing", "is no regular file"))
        elif found.st_size != item.size:
            what = f"has {found.st_size} bytes, expected {item.size}"
            problems.append(Problem(item.path, "size", what))
    named = {item.path for item in record.outputs} | {RECORD_NAME}
    extra = sorted(path for path in _files_below(folder) if path not in named)
    problems += [Problem(path, "extra", "is not in the record") for path in extra]
    return problems


def _files_below(folder: Path) -> list[str]:
    return [Path(parent, name).relative_to(folder).as_posix() for parent, _, names in os.walk(folder) for name in names]


def _distinct(folder: Path, items: Sequence[RecordedFile]) -> list[RecordedFile]:
    """One of each inode and digest: a second name of the same bytes is not read again."""
    seen: dict[tuple[int, int, str], RecordedFile] = {}
    for item in items:
        try:
            status = (folder / item.path).stat()
            seen.setdefault((status.st_dev, status.st_ino, item.digest), item)
        except OSError:  # gone since the first look: reading it says why
            seen.setdefault((0, 0, item.path), item)
    return list(seen.values())
