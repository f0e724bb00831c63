"""The end of a run: the tree is sealed, moves in, its location is swung; or it is kept where nobody looks."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from overlay.cache.leases import hold
from overlay.errors import BrokenInput, CannotWrite, TryAgain
from overlay.formats.os_errors import MAY_NOT_WRITE
from overlay.materialization import sinks
from overlay.materialization.record import read_record, record_bytes, tree_name
from overlay.materialization.verify import quick_problems

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from contextlib import AbstractContextManager
    from pathlib import Path

    from overlay.cache import Cache
    from overlay.materialization.build import Made
    from overlay.materialization.record import RecordedFile
    from overlay.materialization.survey import Counters, Work

__all__ = ["Materialization", "Published", "Result", "Sealed", "publish", "quarantine", "seal", "where_one_may"]

Result = Literal["built", "reused", "adopted", "pulled", "present"]


@dataclass(frozen=True, slots=True)
class Materialization:
    """Outcome of a run.

    Attributes:
        path: The published directory, links resolved; None with ``only``, which publishes nothing.
        location: Where the consumer looks.
        result: ``built``: something was made. ``reused``: every object was in the cache, a new tree was linked.
            ``adopted``: another process published the same tree first. ``pulled``: all that was not in the
            cache came from a store. ``present``: there was nothing to do.
        counters: What was moved.
        seconds: From the call to its return.
    """

    model: str
    path: Path | None
    location: Path | None
    result: Result
    counters: Counters
    seconds: float
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Published:
    """Where a tree is, and its location; None with ``only``, which publishes nothing."""

    tree: Path | None
    location: Path | None
    result: Result


@dataclass(frozen=True, slots=True)
class Sealed:
    """The name, the record and the files of a tree."""

    name: str
    record: bytes
    files: tuple[RecordedFile, ...]

    def is_sound(self, found: Path) -> bool:
        """Whether a tree that is there already is this one, as far as a quick look tells."""
        try:
            record = read_record(found)
        except BrokenInput:
            return False
        return record is not None and record.outputs == self.files and not quick_problems(found, record)


def seal(work: Work, made: Made, identity: Mapping[str, Any], run: Mapping[str, Any]) -> Sealed:
    """Name the tree of what was made, and write its record."""
    files = tuple(made.files[step.output.path] for step in work.steps)
    outputs = [file.to_json() for file in files]
    name = tree_name(work.plan.model, identity, outputs)
    record = {**identity, "tree": name, "location": work.plan.location, "outputs": outputs, "run": run}
    return Sealed(name, record_bytes(record), files)


def publish(
    work: Work,
    made: Made,
    cache: Cache,
    sealed: Sealed,
    swing: Callable[[str, str], Path] | None = None,
    is_sound: Callable[[Path], bool] | None = None,
) -> Published:
    """Move the tree in, swing the location.

    Args:
        swing: Called with the names of location and tree, where the location is to be swung in another way.
        is_sound: Whether a tree that is there already may stay, where a quick look is not enough.
    """
    tree, is_sound = cache.tree_path(sealed.name), is_sound or sealed.is_sound
    result: Result = work.result
    with where_one_may(hold(cache.root, sealed.name)):  # what is found here stays until its location leads to it
        if tree.is_dir() and is_sound(tree):
            if work.is_done and cache.location_target(work.plan.location) == tree:
                result = "present"
        else:
            with cache.staging() as staging:
                sinks.place_tree(work, made, cache, staging / "tree", sealed.record)
                published = cache.publish_tree(staging / "tree", sealed.name, verify=is_sound)
            if published.result == "adopted":
                result = "adopted"
        location = (swing or cache.swing_location)(work.plan.location, sealed.name)
    if not tree.is_dir():
        raise TryAgain(
            f"{tree}: was removed while this ran",
            code="tree-removed",
            hint="another process removes from this cache (overlay cache rm, gc); run the same command again",
            path=str(tree),
        )
    return Published(tree, location, result)


def quarantine(work: Work, made: Made, cache: Cache, sealed: Sealed) -> Path:
    """Keep a tree that must not be published, whole and with its record; one that is there already is kept."""
    with cache.staging() as staging:
        sinks.place_tree(work, made, cache, staging / "tree", sealed.record)
        return cache.quarantine_tree(staging / "tree", sealed.name, verify=sealed.is_sound).path


@contextmanager
def where_one_may(announce: AbstractContextManager[object]) -> Iterator[None]:
    """Announce this run to collectors; not on a root that may not be written, where only a hit succeeds."""
    with ExitStack() as stack:
        try:
            stack.enter_context(announce)
        except CannotWrite as error:
            if error.code not in MAY_NOT_WRITE:
                raise
        yield
