"""Weights of a folder held against the index that lists them; headers are read only where the build reads them too."""

from __future__ import annotations

import posixpath
from typing import TYPE_CHECKING

from overlay.contract.checks.manifest import MOST_MAPPINGS
from overlay.contract.finding import found
from overlay.contract.reading import MOST_DATA, is_below, is_broken, named, pin_of, said
from overlay.errors import OverlayError
from overlay.formats.checkpoint import list_shards, read_checkpoint
from overlay.formats.wording import counted
from overlay.planning.mappings import select
from overlay.planning.vdn_h3 import BASE, BASE_FOLDERS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from overlay.contract.finding import Finding
    from overlay.contract.subject import Subject
    from overlay.hub import Repo

__all__ = ["check_shards"]

_WEIGHTS = ".safetensors"
_INDEX = ".safetensors.index.json"
_VARIANTS = ("two-indexes", "extra-shards")
"""What is no fault of a folder that holds its weights in two precisions."""


def check_shards(subject: Subject) -> Iterator[Finding]:
    """``shard-missing`` and ``checkpoint-broken``: of the folders that are fused or re-laid, and of carried ones.

    Carried folders are held against their index by names; their headers are read where the files are on this host.
    """
    read = _read(subject)
    for repo, folder in read:
        yield from _check(subject, repo, folder, headers=True)
    for repo, folder in _of_needs(subject):
        yield from _check(subject, repo, folder, headers=False)
    for repo, folder in _taken_along(subject):
        if (repo, folder) not in read:
            yield from _check(subject, repo, folder, headers=False, but=_VARIANTS)


def _read(subject: Subject) -> tuple[tuple[Repo, str], ...]:
    """Folders of which a plan reads every header, or that hold a single file."""
    if subject.entry.recipe.name == "vdn-h3":
        return tuple((subject.source, f"{BASE}/{component}") for component in BASE_FOLDERS)
    return (subject.base,) if subject.base else ()


def _of_needs(subject: Subject) -> Iterator[tuple[Repo, str]]:
    for need in subject.entry.needs:
        repo, folders = subject.inventory.repos[need.pin.repo], tuple(f"{component}/" for component in need.components)
        for folder in _weight_folders(path for path in repo.paths() if path.startswith(folders)):
            yield repo, folder


def _taken_along(subject: Subject) -> Iterator[tuple[Repo, str]]:
    """Folders with an index that a recipe takes over because they lie there; some hold several variants."""
    entry, manifest = subject.entry, subject.manifest
    if entry.recipe.name == "lora" and subject.base is not None:
        repo = subject.base[0]
        for folder in _weight_folders(path for path in repo.paths() if path.endswith(_INDEX)):
            yield repo, folder
    elif entry.recipe.name in ("mappings", "python") and manifest is not None:
        paths = subject.source.paths()
        taken = {path for one in manifest.file_mappings[:MOST_MAPPINGS] for path in select(one, paths)}
        for folder in _weight_folders(path for path in taken if path.endswith(_INDEX)):
            yield subject.source, folder


def _weight_folders(paths: Iterable[str]) -> list[str]:
    return sorted({posixpath.dirname(path) for path in paths if path.endswith((_WEIGHTS, _INDEX))})


def _check(subject: Subject, repo: Repo, folder: str, *, headers: bool, but: tuple[str, ...] = ()) -> Iterator[Finding]:
    if folder and not any(is_below(path, folder) for path in repo.paths()):
        return  # what the folder lacks by name is said by ``file-missing``
    pin = pin_of(subject.entry, repo)
    try:
        listing = list_shards(repo, folder)
        if headers or all(repo.local(listing.path(shard)) for shard in listing.shards):
            read_checkpoint(repo, folder)
    except OverlayError as error:
        if not is_broken(error):
            raise
        if error.code in but:
            return
        absent = error.code in ("missing-shards", "no-weights")
        missing: Sequence[str] = error.data.get("missing") or ()
        yield found(
            "shard-missing" if absent else "checkpoint-broken",
            subject.entry,
            _message(repo, folder, missing, error),
            place=pin.place,
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
