"""``overlay cache repair``: replace what does not verify."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import click

from overlay.cli._options import Common, common_options, lock_option, server_options
from overlay.cli._output import columns, style
from overlay.cli._progress import phases
from overlay.formats.wording import counted

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["CacheRepair", "RepairedTree", "repair"]


@dataclass(frozen=True, slots=True)
class RepairedTree:
    """One materialization that was read.

    Attributes:
        tree: Name of its tree.
        path: The directory in its place; null where it was taken out.
        problems: What was wrong with it, a sentence each.
    """

    model: str | None
    tree: str
    result: Literal["sound", "rebuilt", "removed"]
    path: str | None
    problems: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class CacheRepair:
    """What ``overlay cache repair`` prints."""

    dry_run: bool
    trees: tuple[RepairedTree, ...]


@click.command(short_help="Build again what does not verify.")
@click.argument("targets", metavar="[TARGET]...", nargs=-1)
@click.option("--dry-run", is_flag=True, help="Read everything, say what would be done.")
@server_options
@lock_option
@common_options
def repair(common: Common, targets: tuple[str, ...], dry_run: bool, **choices: Any) -> None:
    """Read every byte of the cache and build again what is not what its record says.

    TARGET is a model, a tree or a location; all by default. Sound files stay, damaged ones are made anew from their
    source. A damaged tree that the registry in force would not build, or that nothing points to, is taken out; what was
    built for a server alone is built again with --for.
    """
    from overlay.materialization.repair import repair as repair_cache

    done = repair_cache(
        targets,
        common.options(**choices),
        dry_run=dry_run,
        phase=phases(common.output),
        on_wait=common.output.remark,
    )
    document = CacheRepair(
        dry_run,
        tuple(
            RepairedTree(
                item.model,
                item.name,
                item.result,
                str(item.path) if item.path else None,
                tuple(f"{problem.path}: {problem.what}" for problem in item.problems),
            )
            for item in done
        ),
    )
    common.output.result(document, lambda: _text(document))


def _text(done: CacheRepair) -> Iterator[str]:
    if not done.trees:
        yield "nothing is materialized here"
    verb = "would be " if done.dry_run else ""
    rows = [
        [
            style(tree.result, "good") if tree.result == "sound" else style(f"{verb}{tree.result}", "warn"),
            tree.model or tree.tree,
            tree.path or tree.tree,
            counted(len(tree.problems), "problem") if tree.problems else "",
        ]
        for tree in done.trees
    ]
    for tree, line in zip(done.trees, columns(rows), strict=True):
        yield line
        yield from columns([["", problem] for problem in tree.problems])
