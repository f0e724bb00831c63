"""The licence and notice files of every repo of an entry, which come to every tree."""

from __future__ import annotations

import posixpath
from itertools import count
from typing import TYPE_CHECKING

from overlay.formats.licenses import LICENSES_FOLDER, MAX_LICENSE_FILE, is_license
from overlay.planning.outputs import CarriedFile

if TYPE_CHECKING:
    from collections.abc import Iterable

    from overlay.planning.outputs import OutputFile
    from overlay.planning.plan import InputBook

__all__ = ["with_licenses"]


def with_licenses(outputs: Iterable[OutputFile], books: Iterable[InputBook]) -> list[OutputFile]:
    """Outputs, and ``licenses/<org>__<name>/<file>`` of those in the root of each repo; for a folder by its own name.

    Such a folder holds what its repo has and nothing else, whatever another repo carries there. Of an overlay repo
    these are of the files that a server downloads, too: whatever else lay in its snapshot would change the key by which
    the server looks for the model.
    """
    folders: dict[str, InputBook] = {}
    for book in books:
        folders[_free(f"{LICENSES_FOLDER}/{_label(book)}", folders)] = book
    own = tuple(f"{folder.casefold()}/" for folder in folders)
    files: dict[str, OutputFile] = {}
    for folder, book in folders.items():
        for path in book.files.paths():
            if "/" not in path and is_license(path) and book.files.size(path) <= MAX_LICENSE_FILE:
                place = _free(f"{folder}/{path}", files)
                files[place] = CarriedFile(place, book(path))
    return [*(output for output in outputs if not output.path.casefold().startswith(own)), *files.values()]


def _free(path: str, taken: Iterable[str]) -> str:
    """The path, with a number where another one of that name is taken, in whatever case."""
    names = {name.casefold() for name in taken}
    numbered = (path if number == 1 else f"{path}-{number}" for number in count(1))
    return next(one for one in numbered if one.casefold() not in names)


def _label(book: InputBook) -> str:
    if book.repo.startswith("/"):
        return posixpath.basename(book.repo).lstrip(".") or "_"  # nothing in a tree is hidden
    return book.repo.replace("/", "__")
