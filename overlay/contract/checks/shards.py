"""Weights of a folder held against the index that lists them; headers are read only where the build reads them too."""

from __future__ import annotations

import posixpath
from typing import TYPE_CHECKING

from overlay.contract.finding import found
from overlay.contract.reading import MOST_DATA, is_below, is_broken, pin_of, said
from overlay.contract.tree import carried_needs, tree_of
from overlay.errors import OverlayError
from overlay.formats.checkpoint import WEIGHTS_SUFFIX, read_checkpoint
from overlay.formats.wording import counted, named
from overlay.planning.tree import weight_problems
from overlay.planning.vdn_h3 import BASE

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from overlay.contract.finding import Finding
    from overlay.contract.subject import Subject
    from overlay.hub import Repo

__all__ = ["check_shards"]

_ABSENT = ("missing-shards", "no-weights")


def check_shards(subject: Subject) -> Iterator[Finding]:
    """``shard-missing`` and ``checkpoint-broken``: of the folders that are fused or re-laid, and of carried ones.

    Carried files are held against the indexes among them by names; headers are read where the files are on this host.
    """
    read = _read(subject)
    for repo, folder in read:
        yield from _check(subject, repo, folder)
    if subject.entry.recipe.name == "vdn-h3":
        yield from _check_audio(subject)
    for place, error in weight_problems(tree_of(subject) or carried_needs(subject)):
        folder = posixpath.dirname(place.path)
        if (place.repo, folder) not in read and error.code != "lfs-pointer":  # ``component-broken`` has all of those
            yield from _said(subject, place.repo, folder, error)


def _read(subject: Subject) -> tuple[tuple[Repo, str], ...]:
    """Folders of which a plan reads every header."""
    if subject.entry.recipe.name == "vdn-h3":
        return tuple((subject.source, f"{BASE}/{component}") for component in ("transformer", "vae"))
    return (subject.base,) if subject.base else ()


def _check(subject: Subject, repo: Repo, folder: str) -> Iterator[Finding]:
    if folder and not any(is_below(path, folder) for path in repo.paths()):
        return  # what the folder lacks by name is said by ``file-missing``
    try:
        read_checkpoint(repo, folder)
    except OverlayError as error:
        yield from _said(subject, repo, folder, error)


def _check_audio(subject: Subject) -> Iterator[Finding]:
    """A folder that is carried and may hold more than one set of weights; that it has some is the recipe's affair."""
    repo, folder = subject.source, f"{BASE}/audio_vae"
    files = [path for path in repo.paths() if is_below(path, folder)]
    if files and not any(path.endswith(WEIGHTS_SUFFIX) for path in files):
        yield from _check(subject, repo, folder)


def _said(subject: Subject, repo: Repo, folder: str, error: OverlayError) -> Iterator[Finding]:
    if not is_broken(error):
        raise error
    missing: Sequence[str] = error.data.get("missing") or ()
    yield found(
        "shard-missing" if error.code in _ABSENT else "checkpoint-broken",
        subject.entry,
        _message(repo, folder, missing, error),
        place=pin_of(subject.entry, repo).place,
        fix=f"overlay bump {subject.entry.model}",
        repo=repo.repo,
        folder=folder,
        missing=list(missing[:MOST_DATA]),
    )


def _message(repo: Repo, folder: str, missing: Sequence[str], error: OverlayError) -> str:
    if not missing:
        return said(error)
    # The reader names all of them, and a hostile index may list a hundred thousand.
    where = repo.where(folder) if folder else repo.name
    return f"{where}: {counted(len(missing), 'shard')} listed and not there: {named(missing)}"
