"""Verifying: a materialization held against its own record, and that against the lock in force."""

from __future__ import annotations

import shlex
import stat
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from overlay.cache.verified import forget_verified, remember_verified, root_of
from overlay.errors import InvalidUsage, NotHere
from overlay.fingerprint import DigestMemo, file_digests
from overlay.formats.folders import files_below
from overlay.formats.materialized import MARKER_NAME
from overlay.materialization.content import Problem, content_problems
from overlay.materialization.record import RECORD_NAME, read_record
from overlay.materialization.request import existing_folder, silent

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from overlay.materialization.locking.of_tree import ExpectedTree
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
        """Whether it is what its record says, and the lock expects."""
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
        registry: The registry in force. Where the lock beside it expects an output of these pins, the record is held
            against that; with ``sha256``, the files themselves.
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
            hint=f"a server built it: overlay adopt {shlex.quote(str(folder))}"
            if (folder / MARKER_NAME).is_file()
            else "only what `overlay prewarm` or `overlay fuse` wrote can be verified; "
            "two directories can be held against each other: overlay compare A B",
            path=str(folder),
        )
    seen = folder.stat()  # before the first look: what is remembered is of this tree, if another one takes its place
    lock = _lock(record, registry)
    problems = quick_problems(folder, record)
    of_lock = lock.problems(record) if lock else []
    bytes_read = 0
    if level != "quick":
        root = root_of(folder)
        broken = {problem.path for problem in problems}
        unread = _distinct(folder, [item for item in record.outputs if item.path not in broken])
        bytes_read = sum(item.size for item in unread)
        memo = DigestMemo(root.digests if root else None, write=remember)
        with (phase or silent)("verify", bytes_read) as update:
            read = partial(content_problems, folder, memo=memo, update=update, jobs=jobs)
            if level == "sha256":
                bad, beside = _sha256_problems(folder, unread, read, lock)
                problems, of_lock = problems + bad, of_lock + beside
            else:
                problems += read(unread, only_sha256=False)
        if root and remember:  # of the tree itself: the lock may change without it
            forget_verified(root, folder) if problems else remember_verified(root, folder, seen, level)
    return Verification(
        folder,
        level,
        record.model if record.repos else None,
        len(record.outputs),
        bytes_read,
        tuple(sorted([*problems, *of_lock], key=lambda problem: problem.path)),
    )


def _lock(record: Record, registry: Registry | None) -> ExpectedTree | None:
    if registry is None:
        return None
    from overlay.materialization.locking.of_tree import expected_tree  # it looks for what is published with this module

    return expected_tree(record, registry)


def _sha256_problems(
    folder: Path, files: Sequence[RecordedFile], read: Callable[..., list[Problem]], lock: ExpectedTree | None
) -> tuple[list[Problem], list[Problem]]:
    """What is not as the record says; and what is, but has another sha256 than the lock has."""
    by_sha256 = {item.path: lock.by_sha256(item) if lock else item for item in files}
    problems = read(list(by_sha256.values()), only_sha256=True)
    doubtful = [item for item in files if by_sha256[item.path] != item]
    doubtful = [item for item in doubtful if any(p.path == item.path and p.kind == "content" for p in problems)]
    if lock is None or not doubtful:
        return problems, []
    damaged = {problem.path: problem for problem in read(doubtful, only_sha256=False)}
    sound = {item.path for item in doubtful if item.path not in damaged}
    return (
        [damaged.get(problem.path, problem) for problem in problems if problem.path not in sound],
        [
            lock.sha256_problem(by_sha256[path], file_digests(folder / path, lambda _nbytes: None).sha256)
            for path in sorted(sound)
        ],
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
    extra = sorted(path for path in files_below(folder) if path not in named)
    problems += [Problem(path, "extra", "is not in the record") for path in extra]
    return problems


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
