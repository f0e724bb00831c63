"""The licence and notice files of every repo of an entry, which come to every tree."""

from __future__ import annotations

import posixpath
from typing import TYPE_CHECKING

from overlay.formats.licenses import LICENSES_FOLDER, MAX_LICENSE_FILE, is_license
from overlay.planning.outputs import CarriedFile

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from overlay.planning.outputs import OutputFile
    from overlay.planning.plan import InputBook

__all__ = ["with_licenses"]


def with_licenses(outputs: Iterable[OutputFile], books: Iterable[InputBook]) -> list[OutputFile]:
    """Outputs, and ``licenses/<org>__<name>/<file>`` of those in the root of each repo; for a folder by its own name.

    Such a folder holds what its repo has and nothing else, whatever another repo carries there. Of an overlay repo
    these are of the files that a server downloads, too: whatever else lay in its snapshot would change the key by which
    the server looks for the model.
    """
    folders = _folders(books)
    own = tuple(f"{folder.casefold()}/" for folder in folders)
    return [
        *(output for output in outputs if not output.path.casefold().startswith(own)),
        *(
            CarriedFile(f"{folder}/{path}", book(path))
            for folder, book in folders.items()
            for path in book.files.paths()
            if "/" not in path and is_license(path) and book.files.size(path) <= MAX_LICENSE_FILE
        ),
    ]


def _folders(books: Iterable[InputBook]) -> Mapping[str, InputBook]:
    """The folder of each repo; a second one of the same name gets a number."""
    found: dict[str, InputBook] = {}
    taken: set[str] = set()
    for book in books:
        label = name = _label(book)
        number = 1
        while name.casefold() in taken:
            number += 1
            name = f"{label}-{number}"
        taken.add(name.casefold())
        found[f"{LICENSES_FOLDER}/{name}"] = book
    return found


def _label(book: InputBook) -> str:
    if book.repo.startswith("/"):
        return posixpath.basename(book.repo).lstrip(".") or "_"  # nothing in a tree is hidden
    return book.repo.replace("/", "__")
