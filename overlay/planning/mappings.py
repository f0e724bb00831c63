"""Recipe ``mappings``: what an overlay manifest's file, glob and tree mappings say, and nothing else."""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from overlay.errors import BrokenInput
from overlay.formats.manifest import FileMapping, GlobMapping
from overlay.formats.tree_files import is_hidden
from overlay.planning.carry import carry_files, overlay_own_files
from overlay.planning.plan import overlaid
from overlay.planning.sources import Outcome

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from overlay.formats.manifest import Manifest, TreeMapping
    from overlay.planning.outputs import OutputFile
    from overlay.planning.sources import Sources
    from overlay.registry import Entry

__all__ = ["hidden_from_trees", "mapped", "mappings", "select"]


def mappings(_entry: Entry, sources: Sources, _rule: str) -> Outcome:
    """The overlay's own files, then each mapping in order; a later one replaces what an earlier one put at a path.

    Raises:
        BrokenInput: A mapping finds nothing in the source.
    """
    return Outcome(mapped(sources, sources.source.files.paths()))


def mapped(sources: Sources, paths: Sequence[str]) -> list[OutputFile]:
    """The overlay's own files with what its mappings take of these files of the source laid over them, in order.

    What would be hidden in the tree is left out, where a server takes it along: no server reads it, but tools do.

    Raises:
        BrokenInput: A mapping finds nothing.
    """
    source = sources.source
    layers = [overlay_own_files(sources.overlay)]
    for mapping in sources.manifest.file_mappings if sources.manifest else ():
        moved = select(mapping, paths)
        if not moved:
            raise BrokenInput(
                f"{source.files.name}: nothing matches the overlay's {mapping.type} mapping {mapping.src!r}",
                code="mapping-without-match",
                hint="pin an overlay and a source that belong together",
                src=mapping.src,
            )
        layers.append(carry_files(source, [path for path, out in moved.items() if not is_hidden(out)], moved))
    return list(overlaid(*layers))


def hidden_from_trees(manifest: Manifest | None, paths: Sequence[str]) -> dict[str, str]:
    """What a server takes along of these files of the source and :func:`mapped` leaves out: each by its new path."""
    return {
        out: path
        for mapping in (manifest.file_mappings if manifest else ())
        for path, out in select(mapping, paths).items()
        if is_hidden(out)
    }


def select(mapping: FileMapping | GlobMapping | TreeMapping, paths: Iterable[str]) -> dict[str, str]:
    """Where each file of the source goes that the mapping takes."""
    match mapping:
        case FileMapping():
            return {path: mapping.destination for path in paths if path == mapping.src}
        case GlobMapping():
            pattern = mapping.src.split("/")
            return {path: path for path in paths if _matches(path.split("/"), pattern)}
        case _:
            inside = f"{mapping.src}/" if mapping.src else ""
            outside = f"{mapping.destination}/" if mapping.destination else ""
            return {path: outside + path.removeprefix(inside) for path in paths if path.startswith(inside)}


def _matches(parts: list[str], pattern: list[str]) -> bool:
    """Python's recursive glob: ``**`` is any number of folders, and no wildcard matches a leading dot.

    Follows every way to match at once, so that a pattern full of ``**`` costs no more than its length.
    """
    reached = _through_folders({0}, pattern)
    for part in parts:
        hidden = part.startswith(".")
        stepped = set()
        for place in reached - {len(pattern)}:
            if pattern[place] == "**":
                if not hidden:
                    stepped.add(place)
            elif hidden == pattern[place].startswith(".") and fnmatchcase(part, pattern[place]):
                stepped.add(place + 1)
        reached = _through_folders(stepped, pattern)
    return len(pattern) in reached


def _through_folders(reached: set[int], pattern: list[str]) -> set[int]:
    """With each place before a ``**``, the one behind it: ``**`` may stand for no folder at all."""
    found = set(reached)
    for place, part in enumerate(pattern):
        if place in found and part == "**":
            found.add(place + 1)
    return found
