"""Reading every byte of a materialization, on all cores and at the speed of the disk.

A file whose xxh3_128 is known, whole or by its tensors, is read block by block on any thread, also a single large one.
What the record knows by sha256 alone is read so too, where this cache has once seen both digests of the same bytes;
else by sha256, one thread a file, and both are remembered then.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Literal

from overlay.errors import BrokenInput, OverlayError
from overlay.fingerprint import (
    block_digest,
    blocks_of,
    digest_of_blocks,
    digest_of_parts,
    file_digests,
    parse_digest,
    part_digest,
    parts_of,
)
from overlay.formats.header import read_header
from overlay.formats.wording import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from overlay.fingerprint import DigestMemo
    from overlay.materialization.record import RecordedFile, RecordedTensor

__all__ = ["Problem", "content_problems"]

_MOST_THREADS = 16


@dataclass(frozen=True, slots=True)
class Problem:
    """One way in which a materialization is not what its record says, or the lock expects.

    Attributes:
        kind: ``lock``: the registry's lock expects something else; else it is the record that says otherwise.
        what: What was found and what was expected.
        tensors: The tensors that differ, where the record can tell.
    """

    path: str
    kind: Literal["missing", "extra", "size", "content", "unreadable", "lock"]
    what: str
    tensors: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Reading:
    """A file that is being read.

    Attributes:
        expected: The digest that it must have: the record's, or the equal one of the faster kind.
        found: Waits for the digest that it has.
    """

    file: RecordedFile
    path: Path
    expected: str
    found: Callable[[], str]


def content_problems(
    folder: Path,
    files: Sequence[RecordedFile],
    memo: DigestMemo,
    update: Callable[[int], None],
    *,
    jobs: int | None,
    only_sha256: bool,
) -> list[Problem]:
    """Read files and tell which are not what the record says, in the order of ``files``.

    Args:
        memo: Knows and learns which sha256 and which xxh3_128 are of one content.
        update: Called with the bytes of each read, from any thread.
        jobs: Reads at a time; None: two for each core, because one of them waits for the disk.
        only_sha256: Read by sha256 whatever the record knows by sha256.
    """
    workers = jobs or min(_MOST_THREADS, 2 * len(os.sched_getaffinity(0)))
    with ThreadPoolExecutor(workers, thread_name_prefix="overlay-verify") as pool:
        try:
            fast = {file.path: _fast_digest(file, None if only_sha256 else memo) for file in files}
            # What one thread must read alone first and the largest of it before, so that nothing long is left over.
            order = sorted(files, key=lambda file: (fast[file.path] is not None, -file.size))
            readings = [_start(pool, folder, file, fast[file.path], memo, update) for file in order]
            found = {reading.file.path: _outcome(reading, memo) for reading in readings}
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return [problem for file in files if (problem := found[file.path]) is not None]


def _fast_digest(file: RecordedFile, memo: DigestMemo | None) -> str | None:
    if file.algorithm != "sha256":
        return file.digest
    return memo.xxh3_of(file.digest) if memo is not None else None


def _start(
    pool: ThreadPoolExecutor,
    folder: Path,
    file: RecordedFile,
    fast: str | None,
    memo: DigestMemo,
    update: Callable[[int], None],
) -> _Reading:
    path = folder / file.path
    if fast is None:
        whole = pool.submit(_sha256, file, path, memo, update)
        return _Reading(file, path, file.digest, whole.result)

    def block(start: int, nbytes: int) -> bytes:
        digest = block_digest(path, start, nbytes)
        update(nbytes)
        return digest

    algorithm = parse_digest(fast)[0]
    try:
        parts = [[pool.submit(block, *span) for span in blocks_of(part)] for part in parts_of(path, algorithm)]
    except OverlayError as error:
        return _Reading(file, path, fast, partial(_without_parts, error))

    def found() -> str:
        return digest_of_parts(algorithm, [digest_of_blocks(block.result() for block in part) for part in parts])

    return _Reading(file, path, fast, found)


def _without_parts(error: OverlayError) -> str:
    """What is told as the digest of a file whose header makes no sense; one that cannot be read is no damage."""
    if error.code == "unreadable" or not isinstance(error, BrokenInput):
        raise error
    return f"none ({error.message})"


def _sha256(file: RecordedFile, path: Path, memo: DigestMemo, update: Callable[[int], None]) -> str:
    digests = file_digests(path, update)
    if digests.sha256 == file.digest:
        memo.remember_equal(digests, file.size)
    return digests.sha256


def _outcome(reading: _Reading, memo: DigestMemo) -> Problem | None:
    file, path = reading.file, reading.path
    try:
        found = reading.found()
        if found == reading.expected:
            return None
        if reading.expected != file.digest:
            # Either the file is damaged or what was remembered of it: the record's own digest decides.
            found = _sha256(file, path, memo, lambda _nbytes: None)
            if found == file.digest:
                return None
    except (OSError, OverlayError) as error:
        return Problem(file.path, "unreadable", str(error))
    tensors = _differing_tensors(path, file.tensors or ())
    what = f"has digest {found}, expected {file.digest}"
    if tensors:
        what += f"; {counted(len(tensors), 'tensor')} changed, {tensors[0]} first"
    return Problem(file.path, "content", what, tensors)


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
            or part_digest(path, (header.offset(name), info.nbytes)) != item.digest
        )
    except (OSError, OverlayError):
        return ()
