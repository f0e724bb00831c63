"""``overlay lock``: what the pins of a registry hold, written down beside it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import click

from overlay.cli._options import DIRECTORY, Common, common_options
from overlay.cli._output import Role, style
from overlay.cli._progress import phases
from overlay.formats.wording import format_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

__all__ = ["Locked", "LockedModel", "lock"]

_ROLES: dict[str, Role] = {"new": "good", "changed": "good", "unchanged": "dim", "skipped": "warn", "removed": "warn"}


@dataclass(frozen=True, slots=True)
class LockedModel:
    """What locking one model came to.

    Attributes:
        result: ``skipped``: it cannot be locked. ``removed``: it is not in the registry file any more, or floats
            now.
        changes: What the lock says otherwise now, a line each; or why it was skipped or removed.
    """

    model: str
    result: Literal["new", "changed", "unchanged", "skipped", "removed"]
    changes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Locked:
    """What ``overlay lock`` prints.

    Attributes:
        path: The lock file.
        written: Whether it was written: only where its bytes change, and never by a dry run.
        bytes_fetched: Bytes that came from the Hub.
    """

    path: str
    written: bool
    dry_run: bool
    bytes_fetched: int
    models: tuple[LockedModel, ...]


@click.command(short_help="Write down what the pins of the registry hold.")
@click.argument("models", metavar="[MODEL]...", nargs=-1)
@click.option(
    "--from-build",
    type=DIRECTORY,
    metavar="DIR",
    help="Verify this materialization of MODEL in full, and expect its output from now on.",
)
@click.option("--dry-run", is_flag=True, help="Say what would change; write nothing.")
@common_options
def lock(common: Common, models: tuple[str, ...], from_build: Path | None, dry_run: bool) -> None:
    """Write registry.lock beside the registry in force: every file's size and sha256, and what adapters mean.

    Without MODEL, exactly the models of the registry file: others leave the lock. Nothing but headers and small files
    is downloaded. Entries whose pins float are skipped. Commit the file together with the registry.
    """
    from overlay.materialization.locking.lock import lock as write_lock

    found = write_lock(models, common.options(), from_build=from_build, dry_run=dry_run, phase=phases(common.output))
    document = Locked(
        path=str(found.path),
        written=found.written,
        dry_run=dry_run,
        bytes_fetched=found.bytes_fetched,
        models=tuple(LockedModel(item.model, item.result, item.changes) for item in found.entries),
    )
    common.output.result(document, lambda: _text(document))


def _text(found: Locked) -> Iterator[str]:
    for item in found.models:
        yield f"{style(item.model, 'strong')}  {style(item.result, _ROLES[item.result])}"
        yield from (f"  {line}" for line in item.changes)
    would_change = any(item.result in ("new", "changed", "removed") for item in found.models)
    if found.written:
        state = "written"
    elif found.dry_run and would_change:
        state = "would be written"
    else:
        state = "unchanged"
    yield f"{found.path}  {state} · {format_bytes(found.bytes_fetched)} fetched"
