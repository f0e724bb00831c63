"""What the commands share that look upstream, and those that change the registry of a project."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from overlay.cli._check import findings_text
from overlay.cli._progress import phases
from overlay.errors import InvalidUsage, OverlayError
from overlay.hub.history import Histories
from overlay.materialization.locking.changes import EXPECTED_DROPPED
from overlay.materialization.locking.lock import lock
from overlay.materialization.request import open_cache, open_memo
from overlay.registry import load_registry, resolve
from overlay.registry.replace import replace_file
from overlay.upkeep.repos import Repos

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from overlay.cli._errors import ErrorReport
    from overlay.cli._options import Common
    from overlay.contract.check import Report
    from overlay.registry import Registry, Resolution

__all__ = [
    "change_registry",
    "report_text",
    "resolution_of",
    "trouble_text",
    "upstream",
    "usage",
    "write_lock",
]


def upstream(common: Common) -> Repos:
    """The repos of the Hub, or of the folder in its place, and their histories; what is fetched is counted."""
    memo = open_memo(open_cache(common.options(), create=False), write=False)
    histories = Histories(common.hub, common.offline)
    return Repos(common.hub, common.offline, memo, histories)


def resolution_of(model: str, registry: Registry) -> Resolution:
    """What a model of the registry stands for; folders and paths have no pins to look after.

    Raises:
        InvalidUsage: There is no such model.
    """
    resolution = resolve(model, registry)
    if model not in registry.entries:
        raise InvalidUsage(
            f"{model}: is a folder; expected a model of {registry.path}",
            code="not-a-model",
            hint=f"name the model: {resolution.model}",
            model=resolution.model,
        )
    return resolution


def change_registry(registry: Registry, change: Callable[[bytes, str], bytes]) -> None:
    """Change the registry file in one step, from what it held when ``registry`` was read.

    Args:
        change: Gives the new content, from the old one and the file's name for messages.

    Raises:
        InvalidRegistry: As ``registry.edit``; the file is as it was.
        CheckFailed: Somebody else changed it meanwhile.
        CannotWrite: The system refuses.
    """
    replace_file(Path(registry.path), registry.content, change(registry.content, registry.path))


def write_lock(common: Common, registry: Registry, models: Sequence[str]) -> str | None:
    """Lock models whose entries were changed; the lock's path, or None where none of them can be locked.

    The registry is written before its lock: where this ends in between, ``overlay check`` finds the lock stale, and
    ``overlay lock`` makes it anew.
    """
    entries = load_registry(Path(registry.path)).entries
    pinned = []
    for model in models:
        floating = [f"{pin.repo} floats" for pin in entries[model].pins if pin.revision is None]
        if floating:
            common.output.remark(f"{model} is not locked: {', '.join(floating)}")
        else:
            pinned.append(model)
    if not pinned:
        return None
    try:
        locking = lock(pinned, common.options(), phase=phases(common.output))
    except OverlayError:
        command = common.command("lock", *pinned)
        common.output.remark(f"{registry.path} is written, its lock is not; once this is mended: {command}")
        raise
    for entry in locking.entries:
        if EXPECTED_DROPPED in entry.changes:
            command = common.command("lock", entry.model, "--from-build")
            common.output.remark(f"{entry.model}: {EXPECTED_DROPPED}; once the new pins are built: {command} DIR")
    return str(locking.path)


def trouble_text(trouble: ErrorReport) -> Iterator[str]:
    """What could not be told, and what may help."""
    yield f"  not told[{trouble.code}]: {trouble.message}"
    if trouble.hint:
        yield f"    hint: {trouble.hint}"


def report_text(report: Report) -> Iterator[str]:
    """The findings of a report below its model's name, but the cost, which is said by itself."""
    return findings_text((finding for finding in report.findings if finding.code != "cost"), "  ")


def usage(message: str, command: str, hint: str = "") -> NoReturn:
    """Refuse options that do not go together."""
    raise InvalidUsage(message, code="usage", hint=hint or f"overlay {command} --help")
