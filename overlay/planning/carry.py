"""Files that are taken over as they are."""

from __future__ import annotations

from typing import TYPE_CHECKING

from overlay.errors import BrokenInput
from overlay.formats.files import PICKLES
from overlay.formats.overlay_repo import comes_to_tree
from overlay.formats.tree_files import is_hidden
from overlay.planning.outputs import CarriedFile, GeneratedFile

if TYPE_CHECKING:
    from collections.abc import Iterable

    from overlay.planning.outputs import OutputFile
    from overlay.planning.plan import InputBook

__all__ = ["carry_files", "carry_folder", "overlay_own_files"]


def carry_files(book: InputBook, paths: Iterable[str], moved: dict[str, str] | None = None) -> list[OutputFile]:
    """Carry each path, to ``moved[path]`` where given.

    Raises:
        BrokenInput: A path is a pickle, whose loading would run code.
    """
    outputs: list[OutputFile] = []
    for path in paths:
        if path.lower().endswith(PICKLES):
            raise BrokenInput(
                f"{book.files.where(path)}: pickled weights are refused, loading them runs code",
                code="pickle",
                hint="convert the file to safetensors",
                path=path,
            )
        outputs.append(CarriedFile((moved or {}).get(path, path), book(path)))
    return outputs


def carry_folder(book: InputBook, folder: str, out_folder: str) -> list[OutputFile]:
    """Carry every file below ``folder`` that is not hidden.

    Raises:
        BrokenInput: There is none.
    """
    prefix = f"{folder}/"
    paths = [path for path in book.files.paths() if path.startswith(prefix) and not is_hidden(path)]
    if not paths:
        raise BrokenInput(
            f"{book.files.name}: no file under {prefix}",
            code="component-missing",
            hint="the repo lacks a component that the recipe carries over; check its revision",
            folder=folder,
        )
    return carry_files(book, paths, {path: f"{out_folder}/{path.removeprefix(prefix)}" for path in paths})


def overlay_own_files(book: InputBook | None) -> list[OutputFile]:
    """The overlay repo's own files that go to the root of the tree."""
    if book is None:
        return []
    return [GeneratedFile(path, book.files.read_bytes(path)) for path in book.files.paths() if comes_to_tree(path)]
