"""The licence and notice files of every repo of an entry, which come to every tree."""

from __future__ import annotations

import posixpath
from typing import TYPE_CHECKING

from overlay.formats.licenses import LICENSES_FOLDER, MAX_LICENSE_FILE, is_license
from overlay.planning.outputs import CarriedFile

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from overlay.planning.outputs import OutputFile
    from overlay.planning.plan import InputBook

__all__ = ["license_files"]


def license_files(books: Iterable[InputBook], made: Collection[str]) -> list[OutputFile]:
    """``licenses/<org>__<name>/<file>`` of those in the root of each repo; for a folder by its own name.

    Of an overlay repo these are of the files that a server downloads, too: whatever else lay in its snapshot would
    change the key by which the server looks for the model.

    Args:
        made: Paths that the recipe has made already; what it has under such a name stays.
    """
    found = [
        CarriedFile(f"{LICENSES_FOLDER}/{_label(book)}/{path}", book(path))
        for book in books
        for path in book.files.paths()
        if "/" not in path and is_license(path) and book.files.size(path) <= MAX_LICENSE_FILE
    ]
    return [file for file in found if file.path not in made]


def _label(book: InputBook) -> str:
    if book.repo.startswith("/"):
        return posixpath.basename(book.repo).lstrip(".") or "_"  # nothing in a tree is hidden
    return book.repo.replace("/", "__")
