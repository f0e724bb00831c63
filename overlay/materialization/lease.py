"""Reading a model under a lease, so that no collector takes it away meanwhile."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from overlay.cache.leases import BELIEVED, Lease, hold, lease_for
from overlay.errors import CannotWrite, TryAgain
from overlay.formats.os_errors import MAY_NOT_WRITE
from overlay.materialization.request import DEFAULTS, Options, open_cache
from overlay.materialization.resolve import present

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from overlay.cache import Cache
    from overlay.materialization.state import State

__all__ = ["Reading", "lease", "present", "reading", "timed_lease"]

_ATTEMPTS = 9


@dataclass(frozen=True, slots=True)
class Reading:
    """A model under a lease.

    Attributes:
        path: Its directory.
        descriptor: What carries the lease's lock; None where there is no lease, because the root may not be written.
        note: Why there is none, else empty.
    """

    path: Path
    descriptor: int | None
    note: str = ""


@contextmanager
def lease(
    model: str,
    options: Options = DEFAULTS,
    *,
    believed: float = BELIEVED,
    on_note: Callable[[str], None] | None = None,
) -> Iterator[Path]:
    """Keep a model's directory where it is while the context lasts, and no longer than this process lives.

    No ``gc`` takes it, and ``rm`` refuses to. Where the cache root may not be written there is no lease; reading goes
    on without.

    Args:
        model: As for :func:`resolve`.
        believed: Seconds for which collectors believe a lease where they see neither this process nor its lock: on
            another host or in another container, on a filesystem that does not share locks.
        on_note: Called with a sentence where there is no lease, and why.

    Yields:
        The directory.

    Raises:
        NotHere: The model is not in the cache as the registry pins it.
        CannotWrite: No room for a lease.
        InvalidUsage: Unknown model.
        InvalidRegistry: The registry cannot be used.
    """
    with reading(model, options, believed=believed) as found:
        if found.note and on_note is not None:
            on_note(found.note)
        yield found.path


@contextmanager
def reading(model: str, options: Options = DEFAULTS, *, believed: float = BELIEVED) -> Iterator[Reading]:
    """As :func:`lease`, with what a program needs that the lease is to be handed to."""
    cache = open_cache(options, create=False)
    for _ in range(_ATTEMPTS):
        found, tree = present(model, options, in_force=True)
        with _held(cache, tree, believed) as held:
            if _leads_there(cache, found.state, tree):
                yield held
                return
    raise _contended(cache, model)


def timed_lease(model: str, seconds: float, options: Options = DEFAULTS) -> tuple[Path, Lease]:
    """Keep a model's directory where it is for so long, whatever becomes of this process.

    Raises:
        NotHere: The model is not in the cache as the registry pins it.
        CannotWrite: The filesystem refused.
    """
    cache = open_cache(options, create=False)
    for _ in range(_ATTEMPTS):
        found, tree = present(model, options, in_force=True)
        taken = lease_for(cache.root, tree.name, seconds)
        if _leads_there(cache, found.state, tree):
            return tree, taken
        taken.file.unlink(missing_ok=True)
    raise _contended(cache, model)


@contextmanager
def _held(cache: Cache, tree: Path, believed: float) -> Iterator[Reading]:
    with ExitStack() as stack:
        try:
            found = Reading(tree, stack.enter_context(hold(cache.root, tree.name, believed=believed)))
        except CannotWrite as error:
            if error.code not in MAY_NOT_WRITE:
                raise
            note = f"no lease: {error.message}; whoever may write there can collect {tree.name}"
            found = Reading(tree, None, note)
        yield found


def _leads_there(cache: Cache, state: State, tree: Path) -> bool:
    """Whether the tree is still what the consumer finds, now that the lease is there."""
    return state.location is not None and cache.location_target(state.location.name) == tree


def _contended(cache: Cache, model: str) -> TryAgain:
    return TryAgain(
        f"{cache.root.path}: {model} was replaced {_ATTEMPTS} times while a lease on it was being taken",
        code="tree-contended",
        hint="run the same command again",
        model=model,
    )
