"""What the lock in force expects of a tree: held against its record without reading a file, and by sha256 beyond it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from overlay.materialization.content import Problem
from overlay.materialization.locking.deviations import deviations
from overlay.materialization.locking.in_force import lock_of_record

if TYPE_CHECKING:
    from pathlib import Path

    from overlay.materialization.locking.deviations import Deviation
    from overlay.materialization.record import Record, RecordedFile
    from overlay.registry import Registry
    from overlay.registry.lock import Expected

__all__ = ["ExpectedTree", "expected_tree"]


@dataclass(frozen=True, slots=True)
class ExpectedTree:
    """The output that a lock expects, for a tree that was built of its pins by its rule."""

    lock: Path
    expected: Expected

    def problems(self, record: Record) -> list[Problem]:
        """Files that by their record are not what the lock expects."""
        made = {item.path: item for item in record.outputs}
        return [
            Problem(item.path, "lock", self._said(item, made.get(item.path)), item.tensors)
            for item in deviations(self.expected, made, whole=True)
        ]

    def by_sha256(self, file: RecordedFile) -> RecordedFile:
        """The same file by the sha256 that the lock has of its digest; as it is where the lock has another one."""
        known = self.expected.files.get(file.path)
        return replace(file, digest=f"sha256:{known.sha256}") if known and known.digest == file.digest else file

    def sha256_problem(self, file: RecordedFile, found: str) -> Problem:
        """A file that is as its record says, and whose sha256 is not the lock's.

        Args:
            file: As of :meth:`by_sha256`.
            found: Its sha256.
        """
        what = f"{self.lock} expects {file.digest}, it has {found}; by its own digest it is as its record says"
        return Problem(file.path, "lock", what)

    def _said(self, item: Deviation, made: RecordedFile | None) -> str:
        if item.found is None:
            return f"{self.lock} expects this file, which was not made"
        if item.expected is None:
            return f"{self.lock} does not expect this file"
        if item.found != item.expected:
            return f"{self.lock} expects {item.expected}, the record has {item.found}"
        if item.tensors:
            return f"{self.lock} expects other bytes of tensor {item.tensors[0]} than the record has"
        size = made.size if made else 0
        return f"{self.lock} expects {self.expected.files[item.path].size} bytes, the record has {size}"


def expected_tree(record: Record, registry: Registry) -> ExpectedTree | None:
    """What the lock in force expects of a tree; None where it expects nothing of these pins, this rule and writer.

    Raises:
        InvalidRegistry: There is a lock, but it cannot be read.
    """
    locked = lock_of_record(record, registry)
    expected = locked.expected if locked else None
    if expected is None or (expected.rule, expected.writer_version) != (record.rule, record.writer_version):
        return None
    from overlay.registry.lock import lock_path  # pydantic is slow to import

    return ExpectedTree(lock_path(registry.path), expected)
