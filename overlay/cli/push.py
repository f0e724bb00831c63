"""``overlay push``: offer a model to a store."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from overlay.cli._options import Common, common_options, rule_option, server_options, store_option
from overlay.cli._output import format_seconds, style
from overlay.cli._progress import phases
from overlay.formats.wording import counted, format_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Pushed", "PushedModel", "push"]


@dataclass(frozen=True, slots=True)
class PushedModel:
    """One model that a store has now.

    Attributes:
        tree: Name of the materialization.
        num_files: Distinct files of it.
        size: Their bytes.
        bytes_sent: Bytes of files that the store did not have.
    """

    model: str
    store: str
    tree: str
    num_files: int
    size: int
    bytes_sent: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Pushed:
    """What ``overlay push`` prints."""

    models: tuple[PushedModel, ...]


@click.command(short_help="Offer models to a store that other hosts pull from.")
@click.argument("models", metavar="MODEL...", nargs=-1, required=True)
@store_option(required=True)
@click.option("--anew", is_flag=True, help="Send everything, and replace what the store has.")
@rule_option
@server_options
@common_options
def push(common: Common, models: tuple[str, ...], store: str, *, anew: bool, **choices: Any) -> None:
    """Offer models that are in the cache to a store: their files, the actions that gave them, their records.

    What the store has is not sent again, so a push that was cut goes on where it was. A store that has another tree for
    the same pins is left as it is, and the command fails: one of two hosts built something else.
    """
    from overlay.materialization.sharing.push import push as push_model

    done = Pushed(
        tuple(
            PushedModel(
                model=found.model,
                store=found.store,
                tree=found.tree,
                num_files=found.num_files,
                size=found.size,
                bytes_sent=found.sent,
                seconds=round(found.seconds, 3),
            )
            for found in (
                push_model(model, store, common.options(**choices), anew=anew, phase=phases(common.output))
                for model in models
            )
        )
    )
    common.output.result(done, lambda: _text(done))


def _text(done: Pushed) -> Iterator[str]:
    for model in done.models:
        what = (
            f"sent {format_bytes(model.bytes_sent)} of {format_bytes(model.size)} in {counted(model.num_files, 'file')}"
        )
        yield f"{style(model.model, 'strong')}  {what} · {format_seconds(model.seconds)}"
        yield f"  {model.store}  {model.tree}"
