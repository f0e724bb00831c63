"""Where a file went that a repo has no longer under its name: the best evidence that listing and small files give."""

from __future__ import annotations

import heapq
import posixpath
import re
from collections import defaultdict
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from overlay.formats.adapters.find import SPEC_NAMES
from overlay.planning.former import Former, is_description, json_of, same_content, size_of

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from overlay.hub import Repo

__all__ = ["Former", "Rename", "find_renames"]

_EXAMINED = 100
"""Missing files that are looked for; a repo that lacks more is another repo."""

_CANDIDATES = 20
"""Files that are compared with one missing file, the nearest first."""

_SIMILAR = 0.75


@dataclass(frozen=True, slots=True)
class Rename:
    """A missing file and the one that it most probably is now.

    Attributes:
        path: The name that is missing.
        found: The file's name now.
        evidence: Why, for a message: ``same content, 415 bytes``.
    """

    path: str
    found: str
    evidence: str

    @property
    def shown(self) -> str:
        """The new name, without the folder where that stayed the same."""
        same = posixpath.dirname(self.path) == posixpath.dirname(self.found)
        return posixpath.basename(self.found) if same else self.found


def find_renames(repo: Repo, wanted: Collection[str], former: Mapping[str, Former] | None = None) -> dict[str, Rename]:
    """The renames among the wanted files that a repo lacks, by missing path.

    The best evidence wins: equal content under any name; equal JSON nearby; a nearby adapter description under its
    other name, by its content; the same name a folder up or down; a similar name in the folder. No weights are read.

    Args:
        repo: What lacks them.
        wanted: Paths that something asks for; those that are there are no one's new name.
        former: What is known of files that the repo once had, by path, of any that it had then.
    """
    present = repo.paths()
    there, asked, former = set(present), set(wanted), former or {}
    missing = sorted(asked - there)
    if not missing:
        return {}
    search = _Search(repo, [path for path in present if path not in asked], former)
    found = {path: rename for path in missing[:_EXAMINED] if (rename := search.find(path))}
    return _one_each(found.values())


def _one_each(renames: Iterable[Rename]) -> dict[str, Rename]:
    """A file that is there is the new name of one missing file at most."""
    taken: dict[str, Rename] = {}
    for rename in renames:
        taken.setdefault(rename.found, rename)
    return {rename.path: rename for rename in taken.values()}


class _Search:
    def __init__(self, repo: Repo, free: Sequence[str], former: Mapping[str, Former]) -> None:
        self._repo = repo
        self._free = free
        self._former = former
        self._in_folder: dict[str, list[str]] = defaultdict(list)
        self._by_name: dict[str, list[str]] = defaultdict(list)
        for path in free:
            folder, name = posixpath.split(path)
            self._in_folder[folder].append(path)
            self._by_name[name].append(path)

    @cached_property
    def _by_size(self) -> Mapping[int | None, Sequence[str]]:
        """Files by size; asked for only where the size of a missing file is known."""
        sizes: dict[int | None, list[str]] = defaultdict(list)
        for path in self._free:
            sizes[size_of(self._repo, path)].append(path)
        return sizes

    def find(self, path: str) -> Rename | None:
        """The file that ``path`` is now, by the best evidence."""
        for found, evidence in self._evidence(path):
            return Rename(path, found, evidence)
        return None

    def _evidence(self, path: str) -> Iterator[tuple[str, str]]:
        """Files and why they are what ``path`` was, the best evidence first."""
        folder, name = posixpath.split(path)
        if then := self._former.get(path):
            yield from self._equal_content(path, then)
            yield from self._equal_json(path, then)
        yield from self._descriptions(folder, name, ", but not the former one" if then else "")
        for other in self._near_named(folder, name):
            if posixpath.dirname(other) != folder:
                yield other, f"same name, a folder {'up' if len(other) < len(path) else 'deeper'}"
        yield from self._similar(folder, name)

    def _equal_content(self, path: str, then: Former) -> Iterator[tuple[str, str]]:
        if not then.size:
            return
        folder = posixpath.dirname(path)
        # A file elsewhere that was there already is a copy and not the new place.
        equal = [
            other
            for other in self._by_size.get(then.size, ())
            if posixpath.dirname(other) == folder or other not in self._former
        ]
        for other in heapq.nsmallest(_CANDIDATES, equal, key=lambda other: _distance(path, other)):
            if evidence := same_content(self._repo, other, path, then):
                yield other, evidence

    def _equal_json(self, path: str, then: Former) -> Iterator[tuple[str, str]]:
        if then.repo is None or not path.endswith(".json"):
            return
        folder, name = posixpath.split(path)
        near = [*self._in_folder.get(folder, ())[:_CANDIDATES], *self._near_named(folder, name)]
        said = json_of(then.repo, path)
        for other in near:
            if said is not None and other.endswith(".json") and json_of(self._repo, other) == said:
                yield other, "same JSON, written otherwise"

    def _descriptions(self, folder: str, name: str, but: str) -> Iterator[tuple[str, str]]:
        """An adapter's description under its other name: whatever it was, its content has to show that it is one."""
        for twin in SPEC_NAMES if name in SPEC_NAMES else ():
            for other in self._near_named(folder, twin) if twin != name else ():
                if is_description(self._repo, other):
                    yield other, f"by its content an adapter's description{but}"

    def _similar(self, folder: str, name: str) -> Iterator[tuple[str, str]]:
        import difflib  # 3 ms that only an error needs

        suffix = posixpath.splitext(name)[1]
        others = {
            posixpath.basename(path): path
            for path in self._in_folder.get(folder, ())[: 10 * _CANDIDATES]
            if path.endswith(suffix) and _without_digits(path) != _without_digits(posixpath.join(folder, name))
        }
        for other in difflib.get_close_matches(name, others, n=1, cutoff=_SIMILAR):
            yield others[other], "a similar name; nothing tells what the old file held"

    def _near_named(self, folder: str, name: str) -> list[str]:
        """Files of a name in the folder itself, one folder up and one deeper, in this order."""
        up = posixpath.dirname(folder)
        ranks = {folder: 0, up: 1}
        places = ((posixpath.dirname(path), path) for path in self._by_name.get(name, ()))
        near = [(ranks.get(place, 2), path) for place, path in places if _adjoins(place, folder)]
        return [path for _, path in sorted(near)]


def _adjoins(place: str, folder: str) -> bool:
    return place in (folder, posixpath.dirname(folder)) or posixpath.dirname(place) == folder


def _distance(path: str, other: str) -> tuple[int, int, str]:
    """How far apart two files are: by their folders first, then by how little their names have in common."""
    shared = len(posixpath.commonprefix([posixpath.dirname(path), posixpath.dirname(other)]))
    return (posixpath.dirname(path) != posixpath.dirname(other), -shared, other)


def _without_digits(name: str) -> str:
    """Shards and versions differ in their numbers: one of them is not the new name of another."""
    return re.sub(r"\d+", "0", name)
