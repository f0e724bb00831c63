"""``overlay rollback``: back to the generation before, and forward again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Self

import click

from overlay.cli._options import (
    Common,
    common_options,
    lock_option,
    rule_flags,
    rule_option,
    server_flags,
    server_options,
)
from overlay.cli._output import columns, style
from overlay.formats.wording import iso_time

if TYPE_CHECKING:
    from collections.abc import Iterator

    from overlay.cache.listing import TreeInfo

__all__ = ["Generation", "RolledBackModel", "rollback"]


@dataclass(frozen=True, slots=True)
class Generation:
    """One materialization of the model.

    Attributes:
        tree: Name of its tree.
        path: Its directory.
        created: When it was published, ISO 8601.
        pins: Repos and commits that it was built from, by its record.
        rule: Numeric rule that it was built by; null where the record cannot be read.
    """

    tree: str
    path: str
    created: str
    pins: tuple[str, ...]
    rule: str | None

    @classmethod
    def of(cls, tree: TreeInfo) -> Self:
        """A tree as it is printed."""
        from overlay.errors import BrokenInput
        from overlay.materialization.record import read_record

        try:
            record = read_record(tree.path)
        except BrokenInput:  # of a damaged one, from which one goes away
            record = None
        pins = tuple(f"{repo.repo}@{repo.revision}" for repo in record.repos) if record else ()
        return cls(tree.name, str(tree.path), iso_time(tree.created), pins, record.rule if record else None)


@dataclass(frozen=True, slots=True)
class RolledBackModel:
    """What ``overlay rollback`` did, or would do.

    Attributes:
        location: The name under which consumers look.
        result: ``rolled-back``: it leads to another generation than the registry pins. ``undone``: it leads again to
            what it was rolled back from. ``unchanged``: it led there already.
        came_from: Where the location led.
        to: Where it leads now, or would.
    """

    model: str
    location: str
    dry_run: bool
    result: Literal["rolled-back", "undone", "unchanged"]
    came_from: Generation
    to: Generation


@click.command(short_help="Go back to the generation before, or forward again.")
@click.argument("model")
@click.option("--to", metavar="TREE", help="Go to this tree of the model (overlay cache ls).")
@click.option("--undo", is_flag=True, help="Go forward to what was rolled back.")
@click.option("--dry-run", is_flag=True, help="Only say from where to where.")
@rule_option
@server_options
@lock_option
@common_options
def rollback(common: Common, model: str, to: str | None, *, undo: bool, dry_run: bool, **choices: Any) -> None:
    """Lead a model's location to the generation before, in one step; nothing is built or downloaded.

    From then on `overlay path`, `lease` and `env` give that one, and `prewarm` leaves it so, until --undo, or until the
    registry pins something else than what was rolled back. A second rollback goes further back. Servers that run keep
    what they have open: start them again.
    """
    from overlay.materialization.rollback import rollback

    def waiting(text: str) -> None:
        common.output.remark(f"{model}: {text}")

    done = rollback(model, common.options(**choices), to=to, undo=undo, dry_run=dry_run, on_wait=waiting)
    document = RolledBackModel(
        model=done.model,
        location=str(done.location),
        dry_run=dry_run,
        result="unchanged" if done.to.path == done.came_from.path else "undone" if done.is_undo else "rolled-back",
        came_from=Generation.of(done.came_from),
        to=Generation.of(done.to),
    )
    common.output.result(document, lambda: _text(document))
    if document.result == "rolled-back" and not dry_run:
        flags = (*rule_flags(choices["rule"]), *server_flags(choices["server"]))
        common.output.remark(f"to go forward again: {common.command('rollback', model, '--undo', *flags)}")


def _text(done: RolledBackModel) -> Iterator[str]:
    verb = {"rolled-back": "rolled back", "undone": "forward again", "unchanged": "leads there already"}[done.result]
    yield f"{style(done.model, 'strong')}  {'would be ' if done.dry_run and done.result != 'unchanged' else ''}{verb}"
    rows = [["location", done.location], *_rows("from", done.came_from)]
    yield from columns([*rows, *_rows("to", done.to)] if done.result != "unchanged" else rows)


def _rows(label: str, generation: Generation) -> Iterator[list[str]]:
    yield [label, f"{generation.tree}, built {generation.created}"]
    for pin in generation.pins:
        repo, _, revision = pin.rpartition("@")
        yield ["", f"{repo}@{revision[:12]}"]
