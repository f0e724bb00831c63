"""The lock in force: whether it speaks of today's pins, and whether the inputs are those that it knows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from overlay.errors import BrokenInput, InvalidRegistry
from overlay.fingerprint import bytes_digest
from overlay.formats.files import MAX_SMALL_FILE
from overlay.formats.wording import counted, some
from overlay.materialization.state import difference
from overlay.registry.load import locked_model, relock_hint

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from overlay.hub import Inventory, Repo
    from overlay.materialization.record import Record
    from overlay.planning.plan import Plan
    from overlay.registry import Registry, Resolution
    from overlay.registry.lock import Expected, LockedFile, LockedModel

__all__ = ["LockInForce", "LockState", "lock_in_force", "lock_of_record", "lock_state", "why_not_comparable"]


@dataclass(frozen=True, slots=True)
class LockState:
    """What the lock beside the registry in force says of a model.

    Attributes:
        name: ``current``: it was made of the entry as it is. ``stale``: of another. ``none``: it does not speak of it.
        differences: What the entry says otherwise, a sentence each.
    """

    path: Path
    name: Literal["current", "stale", "none"]
    differences: tuple[str, ...] = ()


def lock_state(resolution: Resolution) -> LockState | None:
    """The state of the lock for a model; None where there is no lock.

    Raises:
        InvalidRegistry: There is a lock, but it cannot be read.
    """
    from overlay.registry.lock import lock_path  # pydantic is slow to import

    path = lock_path(resolution.registry_path)
    if not path.is_file():
        return None
    locked = _locked(resolution)
    if locked is None:
        return LockState(path, "none")
    differences = locked.differences(resolution.entry)
    return LockState(path, "stale" if differences else "current", differences)


def lock_in_force(resolution: Resolution) -> LockInForce | None:
    """What holds for a build of this model; None where no lock speaks of it.

    Raises:
        InvalidRegistry: The lock cannot be read, or was made of other pins.
    """
    from overlay.registry.lock import lock_path  # pydantic is slow to import

    locked = _locked(resolution)
    if locked is None:
        return None
    path = lock_path(resolution.registry_path)
    if differences := locked.differences(resolution.entry):
        raise InvalidRegistry(
            f"{path}: of other pins of {resolution.model} than {resolution.entry.place} has: {differences[0]}",
            code="lock-stale",
            hint=f"overlay lock {resolution.model}",
            where=str(path),
            model=resolution.model,
            differences=list(differences),
        )
    return LockInForce(path, resolution.registry_path, resolution.model, locked)


def _locked(resolution: Resolution) -> LockedModel | None:
    """What the lock says of an entry as registry files have it.

    Of another overlay, which a server was told by its variable or which is a folder of somebody's own, no lock speaks.
    """
    locked = locked_model(resolution.registry_path, resolution.model)
    server = resolution.entry.server
    told = server is not None and server.by == "user"
    return None if locked is None or (told and locked.differences(resolution.entry)) else locked


def lock_of_record(record: Record, registry: Registry) -> LockedModel | None:
    """What the lock in force says of what a record was made of; None where that is not what the registry pins today.

    Raises:
        InvalidRegistry: There is a lock, but it cannot be read.
    """
    entry = registry.entries.get(record.model or "")
    if entry is None or record.rule is None or difference(record, entry, record.rule):
        return None
    locked = locked_model(registry.path, entry.model)
    return locked if locked and not locked.differences(entry) else None


def why_not_comparable(expected: Expected, rule: str) -> str:
    """Why a build by this rule and this program is not held against the lock's output; empty where it is."""
    from overlay.planning.actions import WRITER_VERSION  # a query makes no plan

    if expected.rule != rule:
        return f"the lock expects the output of rule {expected.rule}, this is {rule}"
    if expected.writer_version != WRITER_VERSION:
        return f"the lock expects the output of writer version {expected.writer_version}, this is {WRITER_VERSION}"
    return ""


@dataclass(frozen=True, slots=True)
class LockInForce:
    """A lock that was made of today's pins."""

    path: Path
    registry: str
    model: str
    locked: LockedModel

    def notes(self, rule: str) -> tuple[str, ...]:
        """What a user should know of a build by this rule."""
        why = why_not_comparable(self.locked.expected, rule) if self.locked.expected else ""
        return (f"the output is not held against {self.path}: {why}",) if why else ()

    def require_inputs(self, plan: Plan, inventory: Inventory) -> None:
        """Hold every input, what the overlay requires and its own files against the lock; downloads nothing for it.

        What the Hub names by a git blob alone is compared in size, and in full where it is small and on this host.

        Raises:
            BrokenInput: Some are others, or the lock has not got them; all are named.
        """
        repos = inventory.repos
        self._refuse({(repo, path): self._difference(repos[repo], path) for repo, path in _wanted(plan, inventory)})

    def require_contents(self, digests: Mapping[tuple[str, str], str]) -> None:
        """Hold the content of small files, once they were read, against the lock.

        Args:
            digests: ``sha256:<hex>`` by repo and path.

        Raises:
            BrokenInput: Some are others; all are named.
        """
        known = {place: locked for place in digests if (locked := self._locked(*place)) is not None}
        self._refuse({place: locked.difference(locked.size, digests[place]) for place, locked in known.items()})

    def _locked(self, repo: str, path: str) -> LockedFile | None:
        found = self.locked.repos.get(repo)
        return found.files.get(path) if found else None

    def _difference(self, repo: Repo, path: str) -> str:
        """What of a file is not as it is locked; empty where nothing is, or where an incomplete lock lacks it."""
        locked, of_repo = self._locked(repo.repo, path), self.locked.repos.get(repo.repo)
        if locked is None:
            return "not in the lock" if of_repo is None or of_repo.complete else ""
        size, digest = repo.size(path), repo.digest(path)
        if digest.startswith("sha1-git:") and size <= MAX_SMALL_FILE and repo.local(path) is not None:
            digest = bytes_digest(repo.read_bytes(path), "sha256")
        return locked.difference(size, digest)

    def _refuse(self, differences: Mapping[tuple[str, str], str]) -> None:
        """Refuse the files of which there is a difference to tell, if any."""
        differing = [(repo, path, what) for (repo, path), what in sorted(differences.items()) if what]
        if not differing:
            return
        named = some(f"{repo}/{path} ({what})" for repo, path, what in differing)
        raise BrokenInput(
            f"{self.path}: {counted(len(differing), 'input')} of {self.model} not as locked: {named}",
            code="lock-differs",
            hint=relock_hint(self.registry, self.model),
            where=str(self.path),
            model=self.model,
            files=[{"repo": repo, "path": path, "difference": what} for repo, path, what in differing],
        )


def _wanted(plan: Plan, inventory: Inventory) -> Iterator[tuple[str, str]]:
    """Repo and path of every input, of every file that the overlay's manifest requires, and of the overlay's own."""
    from overlay.formats.manifest import read_manifest  # a query needs no manifest

    wanted = {(item.repo, item.path) for item in plan.inputs()}
    if inventory.overlay is not None:
        required = read_manifest(inventory.overlay).required_source_files
        wanted |= {(inventory.source.repo, path) for path in required}
        wanted |= {(inventory.overlay.repo, path) for path in inventory.overlay.paths()}
    yield from sorted(wanted)
