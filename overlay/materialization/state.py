"""Whether a model is here: looked up from names and records alone, with no request and without writing."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from overlay.cache.generations import rolled_back
from overlay.cache.trees import is_our_link
from overlay.consumers import sglang
from overlay.errors import BrokenInput, OverlayError
from overlay.fingerprint import DigestMemo
from overlay.formats.local import read_small_file
from overlay.formats.materialized import MARKER_NAME
from overlay.formats.strict_json import parse_object
from overlay.formats.wording import iso_time
from overlay.materialization.record import read_record
from overlay.materialization.sealing import portable
from overlay.materialization.verify import quick_problems
from overlay.registry import LOCAL

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from overlay.cache import Cache
    from overlay.materialization.record import Record
    from overlay.registry import Entry, Resolution

__all__ = ["State", "difference", "find_state", "is_settled", "known_location"]

_KEYED = re.compile(r"-[0-9a-f]{16}")


@dataclass(frozen=True, slots=True)
class State:
    """What is known of a model in a cache.

    Attributes:
        name: ``present``: a tree whose record names today's pins. ``stale``: one of other pins or another rule.
            ``damaged``: one that is not what its record says. ``absent``: none. ``unknown``: none found, and where it
            would be cannot be told without the overlay's files.
        location: Where a consumer looks; None where that is unknown.
        tree: The materialization that the location leads to.
        why: One sentence for every state but ``present`` and ``absent``.
        rule: The rule that a tree was built by, where that is not the one that is wanted; else empty.
        rolled_back_from: The tree of today's pins, there or gone, where a user rolled the location back from it: a
            consumer is to get ``tree`` although it is ``stale``, until the user goes forward.
    """

    name: Literal["present", "stale", "damaged", "absent", "unknown"]
    location: Path | None
    tree: Path | None = None
    why: str = ""
    rule: str = ""
    rolled_back_from: Path | None = None

    @property
    def is_in_force(self) -> bool:
        """Whether ``tree`` is what a consumer is to get: today's, or what a user rolled back to."""
        return self.tree is not None and (self.name == "present" or self.rolled_back_from is not None)


def is_settled(resolution: Resolution) -> bool:
    """Whether pins alone decide: nothing floats, and no folder takes the place of a repo."""
    return resolution.source_folder is None and all(
        pin.revision not in (None, "local") for pin in resolution.entry.pins
    )


def find_state(resolution: Resolution, cache: Cache, rule: str, location: str | None = None) -> State:
    """Look a model up.

    Args:
        rule: The numeric rule that is wanted.
        location: Directory name where the consumer looks, if the caller has worked it out from the overlay's files.
    """
    entry = resolution.entry
    name = location or known_location(entry)
    worst: State | None = None
    for candidate in _candidates(cache, entry.model, name):
        state = _state_at(cache, candidate, resolution, rule)
        if name is None and state.is_in_force:
            state = _of_this_key(state, entry)
        if state.is_in_force:
            return state
        worst = worst or state
    if worst is not None:
        return worst
    if name is None:
        why = f"its directory is named after the files of {entry.overlay}, which are not here yet"
        return State("unknown", None, None, why)
    return State("absent", cache.location_path(name))


def known_location(entry: Entry) -> str | None:
    """The location as far as the registry alone tells."""
    if entry.overlay is None:
        return sglang.location_name(entry, None)
    if entry.overlay_fingerprint is None:
        return None
    return sglang.location_name(entry, entry.overlay_fingerprint, entry.materializer_version)


def _candidates(cache: Cache, model: str, name: str | None) -> Iterator[str]:
    """The named location, or every one that could be this model's."""
    if name is not None:
        yield name
        return
    label = model.replace("/", "__")
    try:
        names = sorted(path.name for path in cache.root.locations.iterdir())
    except OSError:
        return
    yield from (found for found in names if found.startswith(label) and _KEYED.fullmatch(found[len(label) :]))


def _of_this_key(state: State, entry: Entry) -> State:
    """The state of a location that could be the model's: stale where its server was told other pins, or is another.

    What only the overlay's files say, the marker does.
    """
    if state.location is None or entry.overlay is None:
        return state
    marker = (state.rolled_back_from or state.location) / MARKER_NAME
    try:
        said = parse_object(read_small_file(marker), str(marker))
    except OverlayError as error:
        return state if state.rolled_back_from else replace(state, name="damaged", why=error.message)
    wanted = sglang.location_name(
        entry,
        str(said.get("overlay_fingerprint")),
        str(said.get("materializer_version")),
        manifest_source_revision=said.get("source_revision"),
    )
    if wanted == state.location.name:
        return state
    return State(
        "stale", state.location, state.tree, f"{state.location} is where a server looks that was told other pins"
    )


def _state_at(  # noqa: PLR0911 - one return for each state
    cache: Cache, name: str, resolution: Resolution, rule: str
) -> State:
    location = cache.location_path(name)
    if not location.is_symlink() and not location.exists():
        return State("absent", location)
    tree = cache.location_target(name)
    if tree is None:
        if is_our_link(location):
            return State("damaged", location, None, f"{location} leads nowhere")
        return State("stale", location, None, f"{location} was not built by this program, so nothing is known of it")
    try:
        record = read_record(tree)
    except BrokenInput as error:
        return State("damaged", location, tree, str(error))
    if record is None:
        return State("damaged", location, tree, f"{tree} has no record")
    folder, entry = resolution.source_folder, resolution.entry
    what = difference(record, entry, rule, from_folder=folder is not None)
    if folder is not None:
        what = what or _changed_since(record, entry.source.repo, folder, cache)
    if what:
        before = _rolled_back_from(cache, location, tree, entry, rule)
        if before is not None and not quick_problems(tree, record):
            came_from, when = before
            why = f"rolled back from {came_from.name} on {iso_time(when)}: {what}"
            return State("stale", location, tree, why, rolled_back_from=came_from)
        other = record.rule if record.rule != rule else None
        return State("stale", location, tree, what, other or "")
    if problems := quick_problems(tree, record):
        return State("damaged", location, tree, f"{problems[0].path}: {problems[0].what}")
    return State("present", location, tree)


def _rolled_back_from(cache: Cache, location: Path, tree: Path, entry: Entry, rule: str) -> tuple[Path, float] | None:
    """The tree that a location was rolled back from, and when, unless that is none that is wanted today either."""
    found = rolled_back(cache.root, location.name, tree.name)
    if found is None:
        return None
    came_from = cache.tree_path(found.came_from)
    try:
        record = read_record(came_from)
    except BrokenInput:
        record = None
    return (came_from, found.when) if record is None or not difference(record, entry, rule) else None


def _changed_since(record: Record, source: str, folder: Path, cache: Cache) -> str:
    """What of a folder that takes the source's place is not as it was built from; empty when nothing is known to be.

    By size, and by digest where that was taken of the file as it is: a build looks closer.
    """
    memo = DigestMemo(cache.root.digests, write=False, objects=cache.object_path)
    for item in record.inputs:
        if item.repo != source:
            continue
        path = folder / item.path
        if not path.is_file() or path.stat().st_size != item.size:
            return f"built from another {path}"
        if memo.knows(path) and memo.sha256(path) != item.digest:
            return f"built from another {path}"
    return ""


def difference(record: Record, entry: Entry, rule: str, *, from_folder: bool = False) -> str:
    """What of the record is not today's; empty when nothing is. A floating pin agrees with any commit.

    Args:
        from_folder: Whether a folder takes the source's place.
    """
    if record.rule != rule:
        return f"built by rule {record.rule}, asked for {rule}"
    if len(record.repos) != len(entry.pins):
        return "built from other repos"
    for was, pin in zip(record.repos, entry.pins, strict=True):
        if was.repo != portable(pin):
            return f"built from {was.repo}, pinned is {pin.repo}"
        wanted = LOCAL if from_folder and pin is entry.source else pin.revision
        if wanted not in (None, was.revision):
            asked = "asked for a folder" if wanted == LOCAL else f"pinned is {wanted[:12]}"
            return f"built from {pin.repo}@{was.revision[:12]}, {asked}"
    recipe = {"name": entry.recipe.name, **entry.recipe.options}
    needs = record.repos[len(record.repos) - len(entry.needs) :]
    if record.recipe != recipe or [need.components for need in needs] != [need.components for need in entry.needs]:
        return "built by another recipe, or with other components"
    return ""
