"""Asking for what the checks will read, several files at once: one after the other takes a minute on a real Hub."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from overlay.contract.reading import is_below
from overlay.errors import BrokenInput, NotHere, Refused
from overlay.formats.files import MAX_CHECKED_FILE
from overlay.hub import HubRepo
from overlay.planning.vdn_h3 import BASE

if TYPE_CHECKING:
    from overlay.contract.subject import Subject
    from overlay.hub import Repo

__all__ = ["prefetch"]

_READ = (".json", ".py", ".md", ".txt")

_MOST_FILES = 500
"""Of each kind and repo: what is published has fewer, and a hostile listing is not worth more."""


def prefetch(subject: Subject) -> None:
    """Bring the headers and small files of a subject, and of the one before it, into memory and the Hub's cache.

    What cannot be had for good is left for the check that asks for it.

    Raises:
        TryAgain: The Hub cannot be reached now.
    """
    former = subject.before.inventory.repos if subject.before else {}
    for name, repo in subject.inventory.repos.items():
        _bring(repo, _folders(subject, name))
        twin = former.get(name)
        if isinstance(repo, HubRepo) and isinstance(twin, HubRepo):
            twin.take_headers(repo)
    if subject.before is not None:
        for name, repo in former.items():
            _bring(repo, _folders(subject.before, name))


def _bring(repo: Repo, folders: tuple[str, ...]) -> None:
    if not isinstance(repo, HubRepo):
        return
    wanted = [path for path in repo.paths() if any(is_below(path, folder) for folder in folders)]
    with suppress(Refused, NotHere, BrokenInput):
        small = [path for path in wanted if path.endswith(_READ) and repo.size(path) <= MAX_CHECKED_FILE]
        repo.fetch(small[:_MOST_FILES])
    with suppress(Refused, NotHere, BrokenInput):
        repo.fetch_headers([path for path in wanted if path.endswith(".safetensors")][:_MOST_FILES])


def _folders(subject: Subject, name: str) -> tuple[str, ...]:
    """Folders and files of a repo that the recipe reads; ``""`` for all of it."""
    inventory = subject.inventory
    if inventory.overlay is not None and inventory.overlay.repo == name:
        return ("",)
    if subject.branch is not None:  # recipe vdn-h3 takes other parts of the base and the stage, too
        return (BASE, subject.branch.partition("/")[0]) if inventory.source.repo == name else ()
    base = [subject.base] if subject.base else []
    places = [*base, *((adapter.repo, adapter.path) for adapter in subject.adapters)]
    return tuple(path for repo, path in places if repo.repo == name)
