"""A survey that knows the adapters: where what can be reused hangs on their tensors, these are read first."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from overlay.cache.tensors import TensorDigests
from overlay.fingerprint import TensorHasher
from overlay.hub import check_digests
from overlay.materialization.build import require_device
from overlay.materialization.inputs import fetch_files, input_changed
from overlay.materialization.room import require_room, room_for
from overlay.materialization.survey import (
    downloading_counters,
    learning_counters,
    survey,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from overlay.cache import Cache
    from overlay.fingerprint import DigestMemo, Span
    from overlay.hub import Repo
    from overlay.materialization.request import Options, Phase
    from overlay.materialization.survey import Fill, Work
    from overlay.planning.outputs import Input
    from overlay.planning.plan import Plan

__all__ = ["learn", "settled_survey"]


def settled_survey(
    plan: Plan,
    repos: Mapping[str, Repo],
    cache: Cache,
    memo: DigestMemo,
    options: Options,
    phase: Phase,
    fill: Fill | None = None,
) -> Work:
    """Survey for a run, with room for it; unknown adapters are fetched and read, and counted, nothing else is.

    Args:
        memo: Remembers the adapters' own digests, too.
        fill: As for ``survey``.

    Raises:
        InvalidUsage: The device of the options is not there; said before anything is fetched.
        CannotWrite: There is no room for what is to be done, or files cannot be linked as the options ask.
        BrokenInput: An adapter is not what the Hub says, or was changed since the plan was made.
    """
    tensors = TensorDigests(cache.root)
    look = partial(survey, plan, repos, cache, options.link, tensors, publishes=not options.only, fill=fill)
    work = look()
    if work.unlearned:
        require_device(options.device)
        missing = tuple(source for source in work.missing if source in work.unlearned)
        # Of what may be less, only what is needed to know more.
        first = replace(work, missing=missing, room=room_for(missing, repos, cache)) if work.is_most else work
        require_room(first, repos, cache)
        spent = learning_counters(work.unlearned, repos) + downloading_counters(missing, repos)
        learn(work.unlearned, missing, repos, memo, tensors, phase)
        work = look()
        work = replace(work, counters=work.counters + spent)
    require_room(work, repos, cache)
    return work


def learn(
    adapters: tuple[Input, ...],
    missing: tuple[Input, ...],
    repos: Mapping[str, Repo],
    memo: DigestMemo,
    tensors: TensorDigests,
    phase: Phase,
) -> None:
    """Fetch adapters and take their tensors' digests.

    Raises:
        BrokenInput: As :func:`settled_survey`.
    """
    inputs = fetch_files(adapters, missing, repos, phase)
    workers = min(len(adapters), len(os.sched_getaffinity(0)))
    with phase("hash", sum(source.size for source in adapters)) as update, ThreadPoolExecutor(workers) as pool:

        def digests(source: Input) -> dict[Span, str]:
            return _tensor_digests(source, inputs.path(source), repos[source.repo], memo, update)

        for source, found in zip(adapters, pool.map(digests, adapters), strict=True):
            tensors.keep(source.digest, found)


def _tensor_digests(
    source: Input, path: Path, repo: Repo, memo: DigestMemo, update: Callable[[int], None]
) -> dict[Span, str]:
    """Of an adapter's tensors, taken of the very bytes that are held against the plan's digest of the file."""
    hasher = TensorHasher(repo.header(source.path))
    digest = memo.sha256(path, update, hasher.update)
    if digest != source.digest:
        if repo.shared_store:
            check_digests(repo, {source.path: path}, memo)
        raise input_changed(repo.where(source.path), f"{digest}, expected {source.digest}", source.path)
    return hasher.digests()
