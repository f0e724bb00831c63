"""Verifying: a materialization held against its own record."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from overlay.errors import InvalidUsage, NotHere, OverlayError
from overlay.fingerprint import BlockHasher, file_digest
from overlay.formats.header import read_header
from overlay.formats.wording import counted
from overlay.materialization.record import RECORD_NAME, read_record
from overlay.materialization.request import existing_folder, silent

if TYPE_CHECKING:
    from collections.abc import Sequence

    from overlay.materialization.record import Record, RecordedFile, RecordedTensor
    from overlay.materialization.request import Phase

__all__ = ["LEVELS", "Problem", "Verification", "quick_problems", "verify"]

LEVELS = ("quick", "full")
_CHUNK = 2**20


@dataclass(frozen=True, slots=True)
class Problem:
    """One way in which a materialization is not what its record says.

    Attributes:
        what: What was found and what was expected.
        tensors: The tensors that differ, where the record can tell.
    """

    path: str
    kind: Literal["missing", "extra", "size", "content", "unreadable"]
    what: str
    tensors: tuple[str, ...] = ()


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


def verify(folder: Path, level: str = "full", *, jobs: int | None = None, phase: Phase | None = None) -> Verification:
    """Hold a folder against the record in it.

    Args:
        level: ``quick`` for names and sizes, ``full`` for every byte.
        jobs: Files that are read at a time.

    Raises:
        InvalidUsage: No such level, or the folder is a file.
        NotHere: No such folder, or it has no record.
        BrokenInput: The record cannot be read.
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
    problems = quick_problems(folder, record)
    bytes_read = 0
    if level == "full":
        broken = {problem.path for problem in problems}
        unread = _distinct(folder, [item for item in record.outputs if item.path not in broken])
        bytes_read = sum(item.size for item in unread)
        problems += _content_problems(folder, unread, bytes_read, jobs, phase)
    problems.sort(key=lambda problem: problem.path)
    return Verification(
        folder,
        level,
        record.model if record.repos else None,
        len(record.outputs),
        bytes_read,
        tuple(problems),
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
        status = (folder / item.path).stat()
        seen.setdefault((status.st_dev, status.st_ino, item.digest), item)
    return list(seen.values())


def _content_problems(
    folder: Path, items: Sequence[RecordedFile], total: int, jobs: int | None, phase: Phase | None
) -> list[Problem]:
    from concurrent.futures import ThreadPoolExecutor

    workers = jobs or min(8, len(os.sched_getaffinity(0)))
    with (phase or silent)("verify", total) as update, ThreadPoolExecutor(workers) as pool:

        def check(item: RecordedFile) -> Problem | None:
            problem = _content_problem(folder, item)
            update(item.size)
            return problem

        # Largest first, so that no long file is left for the end.
        found = pool.map(check, sorted(items, key=lambda item: -item.size))
        return [problem for problem in found if problem is not None]


def _content_problem(folder: Path, item: RecordedFile) -> Problem | None:
    path = folder / item.path
    try:
        digest = file_digest(path, item.algorithm)
    except (OSError, OverlayError) as error:
        return Problem(item.path, "unreadable", str(error))
    if digest == item.digest:
        return None
    tensors = _differing_tensors(path, item.tensors or ())
    what = f"has digest {digest}, expected {item.digest}"
    if tensors:
        what += f"; {counted(len(tensors), 'tensor')} changed, {tensors[0]} first"
    return Problem(item.path, "content", what, tensors)


def _differing_tensors(path: Path, recorded: Sequence[RecordedTensor]) -> tuple[str, ...]:
    """Names of recorded tensors that the file holds otherwise; empty where record or header cannot tell."""
    expected = {item.name: item for item in recorded if item.digest}
    if not expected:
        return ()
    try:
        header = read_header(path)
        return tuple(
            name
            for name, item in expected.items()
            if (info := header.tensors.get(name)) is None
            or (info.dtype, info.shape) != (item.dtype, item.shape)
            or tensor_digest(path, header.offset(name), info.nbytes) != item.digest
        )
    except (OSError, OverlayError):
        return ()


def tensor_digest(path: Path, offset: int, nbytes: int) -> str:
    """Digest of one tensor's bytes, the same whatever file they are in."""
    hasher = BlockHasher()
    with path.open("rb", buffering=0) as file:
        file.seek(offset)
        while nbytes > 0 and (chunk := file.read(min(_CHUNK, nbytes))):
            hasher.update(chunk)
            nbytes -= len(chunk)
    return hasher.digest()
