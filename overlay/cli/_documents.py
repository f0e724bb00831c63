"""What ``--json`` prints: a dataclass a document. The schemas under ``docs/`` are generated from these."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

__all__ = [
    "DOCUMENTS",
    "CacheListing",
    "CachedModel",
    "Device",
    "Diagnosis",
    "ErrorDocument",
    "ErrorReport",
    "Probe",
    "Removed",
]


@dataclass(frozen=True, slots=True)
class CachedModel:
    """One materialization in the cache.

    Attributes:
        model: What its record says it is; null where the record cannot be read.
        tree: Name of its tree.
        path: Its directory.
        locations: Names of the locations that lead to it; none for a superseded generation.
        size: Bytes of its files, each inode once.
        created: When it was published, ISO 8601.
        last_used: Last use as far as the filesystem notes it, ISO 8601.
    """

    model: str | None
    tree: str
    path: str
    locations: tuple[str, ...]
    size: int
    created: str
    last_used: str


@dataclass(frozen=True, slots=True)
class CacheListing:
    """What ``overlay cache ls`` prints."""

    root: str
    decided_by: str
    models: tuple[CachedModel, ...]


@dataclass(frozen=True, slots=True)
class Removed:
    """What ``overlay cache rm`` and ``gc`` removed, or would remove.

    Attributes:
        frees: Bytes that the filesystem gets back.
        held_outside: Bytes among these files that it does not, because they have names outside the cache.
        notes: What was kept although it could go, and why.
    """

    root: str
    dry_run: bool
    locations: tuple[str, ...]
    trees: tuple[str, ...]
    objects: int
    actions: int
    unfinished: int
    frees: int
    held_outside: int
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Probe:
    """One operation of the cache root's filesystem, tried; null where it could not be tried."""

    name: str
    works: bool | None
    detail: str


@dataclass(frozen=True, slots=True)
class Device:
    """One device of the fuse, and the outcome of its start-up test; null where it has none."""

    name: str
    self_test: bool | None
    detail: str


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What ``overlay doctor`` prints.

    Attributes:
        decided_by: Option or variable that chose the root.
        free: Bytes free there.
        registry: The registry file in force, or why there is none.
        environment: Variables that change what is done; secrets only as being set.
        versions: Null where a package is not installed.
    """

    version: str
    root: str
    decided_by: str
    free: int
    probes: tuple[Probe, ...]
    registry: str
    environment: dict[str, str]
    versions: dict[str, str | None]
    devices: tuple[Device, ...]


@dataclass(frozen=True, slots=True)
class ErrorReport:
    """What went wrong.

    Attributes:
        code: Stable identifier.
        message: The place, what was found, what was expected.
        hint: What to do next.
        status: Exit status.
        data: The facts of the message by name.
    """

    code: str
    message: str
    hint: str | None
    status: int
    data: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ErrorDocument:
    """What every command prints when it fails."""

    error: ErrorReport


DOCUMENTS: dict[str, type] = {
    "cache-ls": CacheListing,
    "cache-rm": Removed,
    "doctor": Diagnosis,
    "error": ErrorDocument,
}
