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
    taken: set[str] = set()
    folders = {_free(f"{LICENSES_FOLDER}/{_label(book)}", taken): book for book in books}
    own = tuple(f"{folder.casefold()}/" for folder in folders)
    return [
        *(output for output in outputs if not output.path.casefold().startswith(own)),
        *(
            CarriedFile(_free(f"{folder}/{path}", taken), book(path))
            for folder, book in folders.items()
            for path in book.files.paths()
            if "/" not in path and is_license(path) and book.files.size(path) <= MAX_LICENSE_FILE
        ),
    ]


def _free(path: str, taken: set[str]) -> str:
    """The path, with a number where another one of that name is taken, in whatever case; taken from now on."""
    numbered = (path if number == 1 else f"{path}-{number}" for number in count(1))
    free = next(one for one in numbered if one.casefold() not in taken)
    taken.add(free.casefold())
    return free


def _label(book: InputBook) -> str:
    if book.repo.startswith("/"):
        return posixpath.basename(book.repo).lstrip(".") or "_"  # nothing in a tree is hidden
    return book.repo.replace("/", "__")
