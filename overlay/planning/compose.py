"""Recipe ``compose``: a tree of parts of several sources, some of them proven equal to what they stand for."""

from __future__ import annotations

import posixpath
from typing import TYPE_CHECKING, Any

from overlay.errors import BrokenInput
from overlay.formats.checkpoint import WEIGHTS_SUFFIX
from overlay.formats.tree_files import is_hidden
from overlay.formats.wording import counted, some
from overlay.planning.carry import carry_files
from overlay.planning.fuse import sha256_of
from overlay.planning.outputs import AliasFile, CarriedFile
from overlay.planning.plan import finish
from overlay.planning.sources import Outcome

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from overlay.planning.outputs import OutputFile
    from overlay.planning.plan import InputBook
    from overlay.planning.sources import Sources
    from overlay.registry import Entry

__all__ = ["compose", "part_paths", "placed"]


def compose(entry: Entry, sources: Sources, _rule: str) -> Outcome:
    """The recipe's option ``parts``: each a ``repo`` and a ``path`` in it, taken to ``to``.

    With ``same_as``, another place, the part stands for that one: their listings have to name the same files with the
    same digests. None of the other is fetched, but small files that two listings name by different kinds of digests.

    Raises:
        BrokenInput: Nothing lies at a place, two parts claim one path, or a part is not equal to what it stands for.
    """
    books = {**sources.by_repo, entry.source.repo: sources.source}
    outputs: list[OutputFile] = []
    notes: list[str] = []
    for part in entry.recipe.options["parts"]:
        book = books[part["repo"]]
        taken = _taken(book, part["path"])
        if "same_as" in part:
            notes.append(_proven(taken, part, books, sources.made_up))
        outputs += carry_files(book, taken.values(), {path: _place(inside, part) for inside, path in taken.items()})
    return Outcome(finish(_once(outputs), entry.model), notes=tuple(notes))


def _once(outputs: Iterable[OutputFile]) -> Iterator[OutputFile]:
    """Weights that go to several places come once, and to the others under a second name."""
    first: dict[str, str] = {}
    for output in outputs:
        if isinstance(output, CarriedFile) and output.path.endswith(WEIGHTS_SUFFIX):
            of = first.setdefault(output.input.digest, output.path)
            yield output if of == output.path else AliasFile(output.path, of)
        else:
            yield output


def placed(paths: Iterable[str], part: Mapping[str, str]) -> dict[str, str]:
    """The files of a part by their place in the tree."""
    return {_place(inside, part): path for inside, path in part_paths(paths, part["path"]).items()}


def part_paths(paths: Iterable[str], path: str) -> dict[str, str]:
    """Files at a place by their path inside it, ``""`` for the place itself where it is a file; no hidden ones."""
    if (found := list(paths)) and path in found:
        return {"": path}
    prefix = f"{path}/" if path else ""
    inside = [name.removeprefix(prefix) for name in found if name.startswith(prefix)]
    return {name: prefix + name for name in inside if not is_hidden(name)}


def _taken(book: InputBook, path: str) -> dict[str, str]:
    taken = part_paths(book.files.paths(), path)
    if not taken:
        raise BrokenInput(
            f"{book.files.name}: has no file or folder {path or '/'}, which recipe compose takes",
            code="part-missing",
            hint="correct the path in the recipe, or pin a commit that has it",
            path=path,
        )
    return taken


def _place(inside: str, part: Mapping[str, str]) -> str:
    """Where a file goes; a single one that is taken to the root keeps its name."""
    if not inside:
        return part["to"] or posixpath.basename(part["path"])
    return f"{part['to']}/{inside}" if part["to"] else inside


def _proven(
    taken: Mapping[str, str], part: Mapping[str, Any], books: Mapping[str, InputBook], made_up: frozenset[str]
) -> str:
    """The sentence that says so.

    Args:
        made_up: Repos whose digests stand for others in this plan, and prove nothing.
    """
    book, twin = books[part["repo"]], books[part["same_as"]["repo"]]
    others = _taken(twin, part["same_as"]["path"])
    here, there = (_name(one, place["path"]) for one, place in ((book, part), (twin, part["same_as"])))
    differ = sorted(taken.keys() ^ others.keys())
    if differ:
        alone = [f"{inside or 'the file itself'} (only in {here if inside in taken else there})" for inside in differ]
        raise _differing(here, there, alone, differ)
    told = made_up.isdisjoint((book.repo, twin.repo))
    for inside in sorted(taken):
        one, other = (book, taken[inside]), (twin, others[inside])
        if book(one[1]).size != twin(other[1]).size or (told and not _is_equal(*one, *other)):
            differ.append(inside)
    if differ:
        raise _differing(here, there, [taken[inside] for inside in differ], differ)
    what, whose = f"{book.repo}/{part['path']}", f"{twin.repo}/{part['same_as']['path']}"
    how = f"equal to {whose} by their digests" if told else f"named as in {whose}; nobody read them yet"
    return f"{what}: {counted(len(taken), 'file')} {how}"


def _is_equal(book: InputBook, path: str, twin: InputBook, other: str) -> bool:
    one, two = book(path).digest, twin(other).digest
    if one.partition(":")[0] != two.partition(":")[0]:
        one, two = sha256_of(book, path), sha256_of(twin, other)
    return one == two


def _name(book: InputBook, path: str) -> str:
    return book.files.where(path) if path else book.files.name


def _differing(here: str, there: str, said: list[str], paths: list[str]) -> BrokenInput:
    return BrokenInput(
        f"{here}: is not equal to {there}: {counted(len(paths), 'file')} differ: {some(said, 20)}",
        code="parts-differ",
        hint="take the part from where it belongs, without same_as",
        where=here,
        other=there,
        paths=paths[:1000],
    )
