"""``overlay cache rm`` and ``gc``: removing what is named, and what nobody needs."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import click

from overlay.cache.removal import Kept  # noqa: TC001  # the JSON schema is made of it
from overlay.cli._options import FILE, Common, common_options
from overlay.cli._output import columns
from overlay.cli._types import AGE, SIZE
from overlay.formats.wording import counted, format_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from overlay.cache.removal import Removal

__all__ = ["Removed", "gc", "rm"]

_WHY = {
    "leased": "leased",
    "pinned": "pinned",
    "rollback": "one of the last two of its model",
    "registry": "named by a registry",
    "open": "open in a process without a lease",
    "young": "younger than an hour",
    "build": "a build is running",
}


@dataclass(frozen=True, slots=True)
class Removed:
    """What ``overlay cache rm`` and ``gc`` removed, or would remove.

    Attributes:
        frees: Bytes that the filesystem gets back.
        held_outside: Bytes among these files that it does not, because they have names outside the cache.
        unfinished: Folders and temporary files of builds that were killed.
        ended: Leases that are over.
        kept: What was kept although it could go, and why.
        notes: What else to know.
    """

    root: str
    dry_run: bool
    locations: tuple[str, ...]
    trees: tuple[str, ...]
    objects: int
    actions: int
    unfinished: int
    ended: int
    frees: int
    held_outside: int
    kept: tuple[Kept, ...]
    notes: tuple[str, ...]


@click.command(short_help="Remove models, and the objects that only they use.")
@click.argument("targets", metavar="TARGET...", nargs=-1, required=True)
@click.option(
    "--leased", is_flag=True, help="Also what readers hold leases on or have open: it vanishes from under them."
)
@click.option("--dry-run", is_flag=True, help="Only say what would go.")
@common_options
def rm(common: Common, targets: tuple[str, ...], leased: bool, dry_run: bool) -> None:
    """Remove models, locations or trees, and the objects that only they use.

    What is pinned, and what a reader holds a lease on or has open, is refused.
    """
    from overlay.cache import choose_root
    from overlay.cache.collecting import rm

    root = choose_root(common.cache_root, os.environ)
    _print(common, rm(root, targets, leased=leased, dry_run=dry_run), str(root.path), dry_run=dry_run)


@click.command(short_help="Collect what killed runs left; with a limit, also models.")
@click.option("--max-size", type=SIZE, help="Remove the least recently used until at most this stays (500GB).")
@click.option("--max-age", type=AGE, help="Remove what was not used for longer (30d).")
@click.option("--also", type=FILE, multiple=True, help="Keep what this registry names, too. Repeatable.")
@click.option("--dry-run", is_flag=True, help="Only say what would go.")
@common_options
def gc(common: Common, max_size: int | None, max_age: int | None, also: tuple[Path, ...], dry_run: bool) -> None:
    """Collect what a killed run left, and objects that nothing needs; with a limit, also materializations.

    What is leased, pinned or open stays, what the registry in force pins today, and the last two generations of each
    model. Superseded generations go first.
    """
    from overlay.cache import choose_root
    from overlay.cache.collecting import gc
    from overlay.cache.kept import kept_folders, kept_note
    from overlay.materialization.wanted import wanted_trees

    root = choose_root(common.cache_root, os.environ)
    removal = gc(
        root,
        max_size=max_size,
        max_age=max_age,
        wanted=lambda: wanted_trees(common.options(), also),
        dry_run=dry_run,
    )
    if kept := kept_folders(root):
        removal = replace(removal, notes=(*removal.notes, kept_note(kept)))
    _print(common, removal, str(root.path), dry_run=dry_run)


def _print(common: Common, removal: Removal, root: str, *, dry_run: bool) -> None:
    document = Removed(
        root=root,
        dry_run=dry_run,
        locations=tuple(os.fspath(path) for path in removal.locations),
        trees=tuple(os.fspath(path) for path in removal.trees),
        objects=len(removal.objects),
        actions=len(removal.actions),
        unfinished=len(removal.unfinished),
        ended=len(removal.ended),
        frees=removal.frees,
        held_outside=removal.held_outside,
        kept=removal.kept,
        notes=removal.notes,
    )
    common.output.result(document, lambda: _text(document))
    for note in removal.notes:
        common.output.remark(note)


def _text(done: Removed) -> Iterator[str]:
    counts = {
        "location": len(done.locations),
        "tree": len(done.trees),
        "object": done.objects,
        "action entry": done.actions,
        "unfinished build": done.unfinished,
        "ended lease": done.ended,
    }
    gone = [counted(count, name) for name, count in counts.items() if count]
    verb = "would remove" if done.dry_run else "removed"
    yield f"{verb} {', '.join(gone)} · frees {format_bytes(done.frees)}" if gone else "nothing to remove"
    yield from columns([[path] for path in (*done.locations, *done.trees)])
    if done.kept:
        yield "kept"
        yield from columns([[_what(kept), format_bytes(kept.size), _WHY[kept.why]] for kept in done.kept])


def _what(kept: Kept) -> str:
    return counted(kept.count, "tree" if kept.what == "tree" else "unused object")
