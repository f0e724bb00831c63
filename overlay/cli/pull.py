"""``overlay pull``: bring a model from a store, or what that would take."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import click

from overlay.cli._options import Common, common_options, lock_option, rule_option, server_options, store_option
from overlay.cli._output import format_seconds, style
from overlay.cli._progress import phases
from overlay.formats.wording import counted, format_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from overlay.materialization.request import Options

__all__ = ["PlannedPull", "PullPlan", "Pulled", "PulledModel", "pull"]


@dataclass(frozen=True, slots=True)
class PlannedPull:
    """What one model would bring.

    Attributes:
        tree: Name of the materialization; null where nothing is known of it.
        num_files: Files that would come.
        size: Their bytes, all of which need room in the cache.
    """

    model: str
    store: str
    present: bool
    tree: str | None
    num_files: int
    size: int


@dataclass(frozen=True, slots=True)
class PullPlan:
    """What ``overlay pull --dry-run`` prints."""

    models: tuple[PlannedPull, ...]


@dataclass(frozen=True, slots=True)
class PulledModel:
    """One model that is in the cache now.

    Attributes:
        path: Its directory, links resolved.
        location: Where a consumer looks.
    """

    model: str
    path: str
    location: str
    result: Literal["pulled", "present"]
    bytes_downloaded: int
    seconds: float
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Pulled:
    """What ``overlay pull`` prints."""

    models: tuple[PulledModel, ...]


@click.command(short_help="Bring models from a store: no source, no Hub.")
@click.argument("models", metavar="MODEL...", nargs=-1, required=True)
@store_option(required=True)
@click.option("--dry-run", is_flag=True, help="Print what would come. Write nothing.")
@rule_option
@server_options
@lock_option
@common_options
def pull(common: Common, models: tuple[str, ...], store: str, *, dry_run: bool, **choices: Any) -> None:
    """Bring models from a store and publish them, every byte proven on the way in. Neither source nor Hub is asked.

    What is here is not fetched again. A pull that was cut goes on where it was.
    """
    options = common.options(**choices)
    if dry_run:
        plan = PullPlan(tuple(_planned(model, store, options) for model in models))
        common.output.result(plan, lambda: _plan_text(plan))
        return
    done = Pulled(tuple(_pulled(common, model, store, options) for model in models))
    common.output.result(done, lambda: _text(done))
    for model in done.models:
        for note in model.notes:
            common.output.remark(f"{model.model}: {note}")


def _planned(model: str, store: str, options: Options) -> PlannedPull:
    from overlay.materialization.sharing.pull import plan_pull

    found = plan_pull(model, store, options)
    return PlannedPull(found.model, found.store, found.is_present, found.tree, found.num_files, found.size)


def _pulled(common: Common, model: str, store: str, options: Options) -> PulledModel:
    from overlay.materialization.sharing.pull import pull as pull_model

    done = pull_model(
        model,
        store,
        options,
        phase=phases(common.output),
        on_wait=lambda text: common.output.remark(f"{model}: {text}"),
    )
    return PulledModel(
        model=done.model,
        path=str(done.path),
        location=str(done.location),
        result="pulled" if done.result == "pulled" else "present",
        bytes_downloaded=done.counters.downloaded,
        seconds=round(done.seconds, 3),
        notes=done.notes,
    )


def _plan_text(plan: PullPlan) -> Iterator[str]:
    for model in plan.models:
        if model.present:
            yield f"{style(model.model, 'strong')}  {style('present', 'good')}"
        else:
            what = f"download {format_bytes(model.size)} in {counted(model.num_files, 'file')}"
            yield f"{style(model.model, 'strong')}  {what} from {model.store}"
            yield f"  {model.tree}"


def _text(done: Pulled) -> Iterator[str]:
    for model in done.models:
        moved = f"downloaded {format_bytes(model.bytes_downloaded)}"
        yield f"{style(model.model, 'strong')}  {model.result} in {format_seconds(model.seconds)} · {moved}"
        yield f"  {model.path}"
