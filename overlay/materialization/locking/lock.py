"""Locking: writing down, beside the registry, what its pins hold and what was built of them."""

from __future__ import annotations

import fcntl
import os
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from overlay.errors import CannotWrite, InvalidUsage
from overlay.fingerprint import DigestMemo
from overlay.hub.contents import Contents
from overlay.hub.traffic import Traffic
from overlay.materialization.inputs import hash_ahead
from overlay.materialization.locking.changes import changes
from overlay.materialization.locking.expected import expected_output
from overlay.materialization.request import DEFAULTS, Options, open_cache, open_memo, silent
from overlay.registry import LOCAL, Entry, Registry, Resolution
from overlay.registry import resolve as resolve_model
from overlay.registry.load import project_registry
from overlay.registry.lock import Lock, LockedModel, dump_lock, lock_path, read_lock
from overlay.registry.replace import replace_file

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence
    from pathlib import Path

    from overlay.materialization.request import Phase

__all__ = ["LockedEntry", "Locking", "facts_of", "lock"]


@dataclass(frozen=True, slots=True)
class LockedEntry:
    """What locking one model came to.

    Attributes:
        result: ``new``, ``changed`` or ``unchanged``; ``skipped``: it cannot be locked; ``removed``: it was locked, and
            is not in the registry file any more or floats now.
        changes: What the lock says otherwise now, a line each; why, where it was skipped or removed.
    """

    model: str
    result: Literal["new", "changed", "unchanged", "skipped", "removed"]
    changes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Locking:
    """Outcome of a run.

    Attributes:
        path: The lock.
        written: Whether the file was written: only where its bytes change.
        bytes_fetched: Bytes that came from the Hub.
    """

    path: Path
    entries: tuple[LockedEntry, ...]
    written: bool
    bytes_fetched: int


def lock(
    models: Sequence[str] = (),
    options: Options = DEFAULTS,
    *,
    from_build: Path | None = None,
    dry_run: bool = False,
    phase: Phase = silent,
) -> Locking:
    """Write what the pins of models hold into the lock beside the registry in force.

    The expected output of a model stays while its pins and its recipe do.

    Args:
        models: Registry keys; none for exactly the models of the registry file, so that others leave the lock.
        from_build: A materialization of the one model: verified in full, its output becomes the expected one.
        dry_run: Write nothing, in the project or elsewhere.

    Raises:
        InvalidUsage: An unknown model, one whose pins float, or no registry of a project.
        CheckFailed: ``from_build`` is not what its record says, or was built of something else.
        OverlayError: As ``take_inventory`` and ``make_plan``; nothing is written then.
    """
    registry = project_registry(options.registry)
    path = lock_path(registry.path)
    before = read_lock(path) or Lock()
    if from_build is not None and len(models) != 1:
        raise InvalidUsage(
            f"{from_build}: is a build of one model; {len(models)} are named",
            code="one-model",
            hint="name it: overlay lock MODEL --from-build DIR",
        )
    found: dict[str, LockedModel] = {}
    told: dict[str, LockedEntry] = {}
    traffic = Traffic()
    own = registry.own
    for model in models or own:
        resolution = resolve_model(model, registry)
        if why := _cannot_be_locked(resolution):
            if models:
                raise InvalidUsage(
                    f"{model}: cannot be locked: {why}",
                    code="floating-pin",
                    hint="pin every repo of it in the registry",
                    model=model,
                )
            told[model] = LockedEntry(model, "removed" if model in before.models else "skipped", (why,))
            continue
        expected = expected_output(from_build, resolution.entry, phase) if from_build is not None else None
        known = before.models.get(model)
        if expected is None or known is None or not _is_current(known, resolution.entry):
            known = facts_of(resolution, options, traffic, dry_run=dry_run, phase=phase)
        found[model] = known.model_copy(update={"expected": expected})
    with _alone(path.parent):
        entries, written = _merge(path, registry, found, told, registry.entries if models else own, dry_run=dry_run)
    return Locking(path, entries, written, traffic.nbytes)


def facts_of(
    resolution: Resolution, options: Options, traffic: Traffic, *, dry_run: bool = False, phase: Phase = silent
) -> LockedModel:
    """What the repos of a model hold; what checks read of them is kept for checks without a connection.

    Raises:
        OverlayError: As ``take_inventory`` and ``make_plan``.
    """
    from overlay.contract.facts import lock_model
    from overlay.contract.prefetch import prefetch
    from overlay.contract.subject import Subject
    from overlay.hub import take_inventory
    from overlay.planning.recipes import make_plan

    contents, memo = _stores(options, write=not dry_run)
    inventory = take_inventory(
        resolution, hub=options.hub, offline=options.offline, memo=memo, allow_floating=False, traffic=traffic
    )
    subject, plan = Subject(inventory), None
    prefetch(subject)
    if resolution.entry.is_buildable:
        hash_ahead(inventory, options.rule, memo, phase)
        plan = make_plan(inventory, options.rule)
    return lock_model(subject, plan, contents)


def _stores(options: Options, *, write: bool) -> tuple[Contents, DigestMemo]:
    """Where contents and digests are kept; a cache that cannot be used is done without."""
    with suppress(CannotWrite):
        if write:
            cache = open_cache(options, create=True)
            return Contents(cache.root.contents), open_memo(cache, write=True)
    with suppress(CannotWrite):
        return Contents(None), open_memo(open_cache(options, create=False), write=False)
    return Contents(None), DigestMemo(None, write=False)


def _cannot_be_locked(resolution: Resolution) -> str:
    """Why; empty where it can be."""
    pins = resolution.entry.pins
    floating = [f"{pin.repo} floats: {pin.floating}" for pin in pins if pin.revision is None]
    folders = [pin.repo for pin in pins if pin.revision == LOCAL]
    folders += [str(resolution.source_folder)] if resolution.source_folder else []
    return "; ".join([*floating, *(f"{folder} is a folder, which has no commit" for folder in folders)])


def _is_current(known: LockedModel, entry: Entry) -> bool:
    return not known.differences(entry) and all(repo.complete for repo in known.repos.values())


def _merge(
    path: Path,
    registry: Registry,
    found: dict[str, LockedModel],
    told: dict[str, LockedEntry],
    staying: Collection[str],
    *,
    dry_run: bool,
) -> tuple[tuple[LockedEntry, ...], bool]:
    """Lay what was found over what the file holds now, which another run may have written meanwhile.

    Args:
        staying: Models that may stay in the lock; others leave it.
    """
    now = path.read_bytes() if path.is_file() else None
    before = (read_lock(path) or Lock()).models
    models = dict(before)
    for model, locked in found.items():
        known, kept = before.get(model), locked
        if known is not None and locked.expected is None and not known.differences(registry.entries[model]):
            kept = locked.model_copy(update={"expected": known.expected})
        models[model] = kept
        said = changes(known, kept)
        told[model] = LockedEntry(model, "new" if known is None else "changed" if said else "unchanged", said)
    for model in before:
        if model not in staying:
            why = "not in the registry any more"
            if model in registry.entries:
                why = f"not in {registry.path}: the entry that ships with this program is in force"
            told[model] = LockedEntry(model, "removed", (why,))
        if model in told and told[model].result == "removed":
            del models[model]
    after = dump_lock(Lock(models=models))
    written = after != now and not dry_run and (bool(models) or now is not None)
    if written:
        replace_file(path, now, after)
    return tuple(told[model] for model in sorted(told)), written


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Hold the folder while its lock is read and written, so that two runs never lose each other's model.

    The kernel frees it with the process. Where a folder cannot be locked, ``replace_file`` still sees a change.
    """
    descriptor = None
    with suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
    try:
        yield
    finally:
        if descriptor is not None:
            os.close(descriptor)
