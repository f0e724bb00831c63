"""``overlay cache ls`` and ``info``: what the cache holds."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

import click

from overlay.cache.kept import KeptFolder  # noqa: TC001  # the JSON schema is made of it
from overlay.cli._options import Common, common_options
from overlay.cli._output import columns, format_age, style
from overlay.cli.cache_pins import the_tree
from overlay.cli.cached_model import CachedModel, kept_rows
from overlay.errors import BrokenInput
from overlay.formats.wording import counted, format_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from overlay.cli.cached_model import HeldLease, TreePin
    from overlay.materialization.record import Record

__all__ = ["CacheDetails", "CacheListing", "LastVerify", "info", "list_models"]


@dataclass(frozen=True, slots=True)
class CacheListing:
    """What ``overlay cache ls`` prints.

    Attributes:
        unused: Bytes of objects that no materialization has: of killed runs, and of ``prewarm --only``.
        kept: Folders that a server built and ``overlay adopt`` left beside their location; no part of the cache.
    """

    root: str
    decided_by: str
    models: tuple[CachedModel, ...]
    unused: int
    kept: tuple[KeptFolder, ...]


@dataclass(frozen=True, slots=True)
class LastVerify:
    """A verify that found nothing wrong.

    Attributes:
        when: ISO 8601.
        version: Of the program that read it.
    """

    when: str
    level: str
    version: str


@dataclass(frozen=True, slots=True)
class CacheDetails:
    """What ``overlay cache info`` prints.

    Attributes:
        files: Number of its files.
        frees: Bytes that removing it gives back.
        held_outside: Bytes that it does not, because the inodes have names outside the cache.
        pins: Repos and commits that it was built from, by its record.
        rule: Numeric rule that it was built by; null where the record cannot be read.
        verified: When all of it was last read and found to be sound; null if never, as far as is known here.
        claimed: Files that were linked or copied and have not been read at their place since.
        claimed_bytes: Their bytes, equal content once.
    """

    root: str
    materialization: CachedModel
    files: int
    frees: int
    held_outside: int
    pins: tuple[str, ...]
    rule: str | None
    verified: LastVerify | None
    claimed: int
    claimed_bytes: int


@click.command("ls")
@common_options
def list_models(common: Common) -> None:
    """List what is materialized: generation, size, use, location."""
    from overlay.cache import choose_root
    from overlay.cache.collecting import unreferenced
    from overlay.cache.generations import standings
    from overlay.cache.kept import kept_folders
    from overlay.cache.listing import Files, ls

    root = choose_root(common.cache_root, os.environ)
    trees = ls(root)
    standing = standings(root, trees)
    models = tuple(CachedModel.of(tree, standing) for tree in trees)
    unused = Files(unreferenced(root, trees)).size()
    listing = CacheListing(str(root.path), root.decided_by, models, unused, kept_folders(root))

    def text() -> Iterator[str]:
        yield f"{listing.root}  (from {listing.decided_by})"
        rows = [["MODEL", "GENERATION", "SIZE", "USED", "KEPT", "LOCATION"], *map(_row, models)] if models else []
        if not any(row[4] for row in rows[1:]):
            rows = [[*row[:4], row[5]] for row in rows]
        yield from columns(rows) or ["  nothing is materialized here"]
        if listing.unused:
            yield f"  {format_bytes(listing.unused)} of objects wait for a run that uses them, or for overlay cache gc"
        yield from kept_rows(listing.kept)

    common.output.result(listing, text)


@click.command(short_help="Show one materialization, and what removing it frees.")
@click.argument("target")
@common_options
def info(common: Common, target: str) -> None:
    """Show one materialization: what it was built from, and what removing it really frees.

    TARGET is a location, a tree, a model, or the path of one of the first two.
    """
    from overlay.cache import choose_root
    from overlay.cache.collecting import plan_rm
    from overlay.cache.generations import standings
    from overlay.cache.listing import ls
    from overlay.cache.verified import last_verified

    root = choose_root(common.cache_root, os.environ)
    tree = the_tree(common, root, target, "info")
    removal = plan_rm(root, [tree.name])
    record, verified = _record(tree.path), last_verified(root, tree.path)
    claimed = record.claimed if record and verified is None else ()
    details = CacheDetails(
        root=str(root.path),
        materialization=CachedModel.of(tree, standings(root, ls(root))),
        files=len(tree.files),
        frees=removal.frees,
        held_outside=removal.held_outside,
        pins=tuple(f"{repo.repo}@{repo.revision}" for repo in record.repos) if record else (),
        rule=record.rule if record else None,
        verified=LastVerify(verified.when, verified.level, verified.version) if verified else None,
        claimed=len(claimed),
        claimed_bytes=sum({item.digest: item.size for item in claimed}.values()),
    )
    common.output.result(details, lambda: _details_text(details))


def _record(tree: Path) -> Record | None:
    """The record; None where it cannot be read, which `overlay verify` explains."""
    from overlay.materialization.record import read_record

    try:
        return read_record(tree)
    except BrokenInput:
        return None


def _details_text(found: CacheDetails) -> Iterator[str]:
    model = found.materialization
    yield style(model.model or model.tree, "strong")
    rows = [["directory", model.path]]
    nowhere = "not what the lock expects, so in quarantine" if model.in_quarantine else "a superseded generation"
    rows += [["location", name] for name in model.locations] or [["location", f"none: {nowhere}"]]
    if model.generation:
        rows.append(["generation", model.generation])
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
        ["verified", f"{found.verified.when} ({found.verified.level})" if found.verified else "never"],
    ]
    if found.claimed:
        what = f"{counted(found.claimed, 'file')} ({format_bytes(found.claimed_bytes)})"
        rows.append(["claimed", f"{what} by the digests of their sources; overlay verify reads them"])
    rows += [["leased", _lease_text(lease)] for lease in model.leases]
    if model.pin:
        rows.append(["pinned", " ".join(filter(None, [_by(model.pin), model.pin.since, _quoted(model.pin.reason)]))])
    yield from columns(rows)


def _lease_text(lease: HeldLease) -> str:
    since = f" since {lease.since}" if lease.since else ""
    until = f" until {lease.until}" if lease.until else ""
    return f"{lease.holder or 'an unknown process'}{since}{until}"


def _by(pin: TreePin) -> str:
    return f"by {pin.by}" if pin.by else ""


def _quoted(reason: str) -> str:
    return f"({reason})" if reason else ""


def _kept(model: CachedModel) -> str:
    """Why a collector leaves it alone, short: ``leased 2, pinned``."""
    why = [f"leased {len(model.leases)}"] if model.leases else []
    return ", ".join([*why, *(["pinned"] if model.pin else [])])


def _row(model: CachedModel) -> list[str]:
    age = time.time() - datetime.fromisoformat(model.last_used).timestamp()
    name = model.model or style(f"{model.tree} (record unreadable)", "bad")
    nowhere = style(f"quarantine: {model.tree}", "warn") if model.in_quarantine else style("superseded", "dim")
    where = ", ".join(model.locations) or nowhere
    return [name, model.generation or "", format_bytes(model.size), format_age(age), _kept(model), where]
