"""The inputs of a run: brought here, and held against what the plan says of them."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from overlay.errors import BrokenInput
from overlay.formats.local import file_stat
from overlay.hub import check_digests
from overlay.materialization.survey import making_order
from overlay.planning.plan import inputs_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from concurrent.futures import Future
    from pathlib import Path

    from overlay.fingerprint import DigestMemo
    from overlay.hub import Inventory, Repo
    from overlay.materialization.request import Phase
    from overlay.materialization.survey import Step, Work
    from overlay.planning.outputs import Input

__all__ = ["Checks", "Inputs", "fetch", "fetch_files", "file_identity", "hash_ahead", "input_changed"]

_MOST_HASHED = 8
"""Files at a time; a disk gives no more to more readers."""


@dataclass(frozen=True, slots=True)
class Inputs:
    """Where every input of the work lies on this host."""

    paths: Mapping[tuple[str, str], Path]

    def path(self, source: Input) -> Path:
        """Local path of one input."""
        return self.paths[source.repo, source.path]


def fetch(work: Work, repos: Mapping[str, Repo], phase: Phase) -> Inputs:
    """Bring what the work needs and is missing, and find the rest."""
    return fetch_files([source for step in work.steps for source in _needed(step)], work.missing, repos, phase)


def fetch_files(wanted: Iterable[Input], missing: Iterable[Input], repos: Mapping[str, Repo], phase: Phase) -> Inputs:
    """Bring those files that are missing, and find the others."""
    by_repo: dict[str, set[str]] = {}
    for source in wanted:
        by_repo.setdefault(source.repo, set()).add(source.path)
    total = sum(source.size for source in missing)
    with phase("download", total) if total else nullcontext(None) as update:
        paths = {
            (name, path): local
            for name, wanted in sorted(by_repo.items())
            for path, local in repos[name].fetch(sorted(wanted), update).items()
        }
    return Inputs(paths)


def hash_ahead(inventory: Inventory, rule: str, memo: DigestMemo, phase: Phase) -> None:
    """Take the digests of a folder's files that the plan will ask for: several at a time, and for all to see."""
    from overlay.planning.recipes import files_to_digest

    places = [repo.local(path) for repo, path in files_to_digest(inventory, rule)]
    # Largest first, so that no long file is left for the end.
    sizes = {path: path.stat().st_size for path in places if path is not None and not memo.knows(path)}
    if not sizes:
        return
    workers = min(_MOST_HASHED, len(os.sched_getaffinity(0)))
    with phase("hash", sum(sizes.values())) as update, ThreadPoolExecutor(workers) as pool:
        for _ in pool.map(lambda path: memo.sha256(path, update), sorted(sizes, key=lambda path: -sizes[path])):
            pass


class Checks:
    """The digests of the plan held against the bytes of the inputs.

    Files of the Hub are read for that on threads of their own, beside the build. That both read the same file is known
    by its stat, taken before either began and after both were done. A folder's digests were taken from its bytes, but
    people edit those in place: they are asked for once more, which costs a look at an unchanged file.

    Args:
        work: Its inputs are checked in the order in which they are needed.
        memo: Remembers what was checked before.
    """

    def __init__(self, work: Work, inputs: Inputs, repos: Mapping[str, Repo], memo: DigestMemo) -> None:
        self._repos = repos
        self._inputs = inputs
        self._pool = ThreadPoolExecutor(_checkers(), thread_name_prefix="overlay-sha256")
        self._results: dict[tuple[str, str], tuple[Future[None], tuple[int, ...]]] = {}
        for step in making_order(work.steps):
            for source in _needed(step):
                repo, key = repos[source.repo], (source.repo, source.path)
                if repo.shared_store and key not in self._results:
                    files = {source.path: inputs.path(source)}
                    seen = file_identity(inputs.path(source))
                    self._results[key] = self._pool.submit(check_digests, repo, files, memo), seen

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(cancel_futures=True)

    def wait(self, step: Step) -> None:
        """Until the inputs of one output, which were read, are proven; before that no object may be made of them.

        Raises:
            BrokenInput: One is not what the Hub says, or was changed since the plan was made.
        """
        for source in dict.fromkeys(_needed(step)):
            where = self._repos[source.repo].where(source.path)
            if (source.repo, source.path) in self._results:
                result, seen = self._results[source.repo, source.path]
                result.result()
                if file_identity(self._inputs.path(source)) != seen:
                    raise input_changed(where, "another file than at first", source.path)
            elif (found := self._repos[source.repo].digest(source.path)) != source.digest:
                raise input_changed(where, f"{found}, expected {source.digest}", source.path)

    def is_done(self, source: Input) -> bool:
        """Whether this input was read to its end, or need not be."""
        check = self._results.get((source.repo, source.path))
        return check is None or check[0].done()


def _checkers() -> int:
    """Threads for sha256, some 1.3 GB/s each: one, or a quarter of the processors where there are many."""
    return max(1, min(_MOST_HASHED, len(os.sched_getaffinity(0)) // 4))


def file_identity(path: Path) -> tuple[int, ...]:
    """What tells that a file is still the one that was read: device, inode, size and time of the last write.

    Without the time of the last change of the inode, which a link made elsewhere moves.

    Raises:
        OverlayError: The file is gone or cannot be read (``formats.local``).
    """
    found = file_stat(path)
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


def input_changed(where: str, found: str, path: str) -> BrokenInput:
    """The error of an input that is not what it was when the plan was made."""
    return BrokenInput(
        f"{where}: {found}: it was changed while this ran",
        code="input-changed",
        hint="let whatever writes it finish, then run the same command again",
        path=path,
    )


def _needed(step: Step) -> Iterator[Input]:
    """Inputs that making one output reads; none where the cache holds it."""
    if step.moves_bytes:
        yield from inputs_of(step.output)
