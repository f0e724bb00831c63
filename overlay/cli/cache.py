"""``overlay cache``: what the cache holds, and removing it."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import click

from overlay.cli._options import Common, common_options
from overlay.cli._output import columns, format_age, style
from overlay.cli._types import AGE, SIZE
from overlay.cli.cache_repair import repair
from overlay.errors import BrokenInput, InvalidUsage, NotHere
from overlay.formats.wording import counted, format_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from overlay.cache.collecting import Removal
    from overlay.cache.listing import TreeInfo

__all__ = ["CacheDetails", "CacheListing", "CachedModel", "Removed", "cache"]


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
    """What ``overlay cache ls`` prints.

    Attributes:
        unused: Bytes of objects that no materialization has: of killed runs, and of ``prewarm --only``.
    """

    root: str
    decided_by: str
    models: tuple[CachedModel, ...]
    unused: int


@dataclass(frozen=True, slots=True)
class CacheDetails:
    """What ``overlay cache info`` prints.

    Attributes:
        files: Number of its files.
        frees: Bytes that removing it gives back.
        held_outside: Bytes that it does not, because the inodes have names outside the cache.
        pins: Repos and commits that it was built from, by its record.
        rule: Numeric rule that it was built by; null where the record cannot be read.
    """

    root: str
    materialization: CachedModel
    files: int
    frees: int
    held_outside: int
    pins: tuple[str, ...]
    rule: str | None


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


@click.group()
def cache() -> None:
    """Look into the cache, repair it, remove from it."""


cache.add_command(repair)


@cache.command("ls")
@common_options
def list_models(common: Common) -> None:
    """List what is materialized: size, last use, location."""
    from overlay.cache import choose_root
    from overlay.cache.collecting import unreferenced
    from overlay.cache.listing import Files, ls

    root = choose_root(common.cache_root, os.environ)
    trees = ls(root)
    models = tuple(_cached(tree) for tree in trees)
    listing = CacheListing(str(root.path), root.decided_by, models, Files(unreferenced(root, trees)).size())

    def text() -> Iterator[str]:
        yield f"{listing.root}  (from {listing.decided_by})"
        rows = [["MODEL", "SIZE", "USED", "LOCATION"]] if models else []
        rows += [_row(model) for model in models]
        yield from columns(rows) or ["  nothing is materialized here"]
        if listing.unused:
            yield f"  {format_bytes(listing.unused)} of objects wait for a run that uses them, or for overlay cache gc"

    common.output.result(listing, text)


@cache.command(short_help="Show one materialization, and what removing it frees.")
@click.argument("target")
@common_options
def info(common: Common, target: str) -> None:
    """Show one materialization: what it was built from, and what removing it really frees.

    TARGET is a location, a tree, a model, or the path of one of the first two.
    """
    from overlay.cache import choose_root
    from overlay.cache.collecting import rm
    from overlay.cache.listing import find

    root = choose_root(common.cache_root, os.environ)
    trees = find(root, target)[0]
    if not trees:
        raise NotHere(f"{target}: leads to no tree", code="not-in-cache", hint="overlay cache gc", target=target)
    if len(trees) > 1:
        names = ", ".join(f"{tree.name} ({', '.join(tree.locations) or 'superseded'})" for tree in trees)
        raise InvalidUsage(
            f"{target}: {len(trees)} generations, expected one: {names}",
            code="ambiguous-target",
            hint=common.command("cache", "info", trees[0].name),
            target=target,
            trees=[tree.name for tree in trees],
        )
    tree, removal = trees[0], rm(root, [trees[0].name], dry_run=True)
    pins, rule = _provenance(tree.path)
    details = CacheDetails(
        str(root.path), _cached(tree), len(tree.files), removal.frees, removal.held_outside, pins, rule
    )
    common.output.result(details, lambda: _details_text(details))


@cache.command(short_help="Remove models, and the objects that only they use.")
@click.argument("targets", metavar="TARGET...", nargs=-1, required=True)
@click.option("--dry-run", is_flag=True, help="Only say what would go.")
@common_options
def rm(common: Common, targets: tuple[str, ...], dry_run: bool) -> None:
    """Remove models, locations or trees, and the objects that only they use."""
    from overlay.cache import choose_root
    from overlay.cache.collecting import rm

    root = choose_root(common.cache_root, os.environ)
    _print_removal(common, rm(root, targets, dry_run=dry_run), str(root.path), dry_run=dry_run)


@cache.command(short_help="Collect what killed runs left; with a limit, also models.")
@click.option("--max-size", type=SIZE, help="Remove the least recently used until at most this stays (500GB).")
@click.option("--max-age", type=AGE, help="Remove what was not used for longer (30d).")
@click.option("--dry-run", is_flag=True, help="Only say what would go.")
@common_options
def gc(common: Common, max_size: int | None, max_age: int | None, dry_run: bool) -> None:
    """Collect what a killed run left, and objects that nothing needs; with a limit, also materializations."""
    from overlay.cache import choose_root
    from overlay.cache.collecting import gc

    root = choose_root(common.cache_root, os.environ)
    removal = gc(root, max_size=max_size, max_age=max_age, dry_run=dry_run)
    _print_removal(common, removal, str(root.path), dry_run=dry_run)


def _cached(tree: TreeInfo) -> CachedModel:
    return CachedModel(
        tree.model, tree.name, str(tree.path), tree.locations, tree.size, _iso(tree.created), _iso(tree.last_used)
    )


def _provenance(tree: Path) -> tuple[tuple[str, ...], str | None]:
    """Pins and rule of a record; nothing where it cannot be read, which `overlay verify` explains."""
    from overlay.materialization.record import read_record

    try:
        record = read_record(tree)
    except BrokenInput:
        record = None
    if record is None:
        return (), None
    return tuple(f"{repo.repo}@{repo.revision}" for repo in record.repos), record.rule


def _details_text(found: CacheDetails) -> Iterator[str]:
    model = found.materialization
    yield style(model.model or model.tree, "strong")
    rows = [["directory", model.path]]
    rows += [["location", name] for name in model.locations] or [["location", "none: a superseded generation"]]
    rows += [["from", pin] for pin in found.pins]
    if found.rule:
        rows.append(["rule", found.rule])
    shared = model.size - found.frees - found.held_outside
    kept = [f"{format_bytes(found.held_outside)} have names outside the cache"] if found.held_outside else []
    kept += [f"{format_bytes(shared)} are shared with other trees"] if shared > 0 else []
    rows += [
        ["size", f"{format_bytes(model.size)} in {counted(found.files, 'file')}"],
        ["removing", "; ".join([f"frees {format_bytes(found.frees)}", *kept])],
        ["created", model.created],
        ["last used", model.last_used],
    ]
    yield from columns(rows)


def _row(model: CachedModel) -> list[str]:
    age = time.time() - datetime.fromisoformat(model.last_used).timestamp()
    name = model.model or style(f"{model.tree} (record unreadable)", "bad")
    where = ", ".join(model.locations) or style("superseded", "dim")
    return [name, format_bytes(model.size), format_age(age), where]


def _print_removal(common: Common, removal: Removal, root: str, *, dry_run: bool) -> None:
    document = Removed(
        root=root,
        dry_run=dry_run,
        locations=tuple(os.fspath(path) for path in removal.locations),
        trees=tuple(os.fspath(path) for path in removal.trees),
        objects=len(removal.objects),
        actions=len(removal.actions),
        unfinished=len(removal.unfinished),
        frees=removal.frees,
        held_outside=removal.held_outside,
        notes=removal.notes,
    )

    def text() -> Iterator[str]:
        counts = {
            "location": len(removal.locations),
            "tree": len(removal.trees),
            "object": len(removal.objects),
            "action entry": len(removal.actions),
            "unfinished build": len(removal.unfinished),
        }
        gone = [counted(count, name) for name, count in counts.items() if count]
        verb = "would remove" if dry_run else "removed"
        yield f"{verb} {', '.join(gone)} · frees {format_bytes(removal.frees)}" if gone else "nothing to remove"
        yield from columns([[path] for path in (*document.locations, *document.trees)])

    common.output.result(document, text)
    for note in removal.notes:
        common.output.remark(note)


def _iso(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")
