"""``overlay prewarm`` (also ``materialize``): the whole job, or what it would take."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import click

import overlay
from overlay.cli._options import (
    Common,
    build_options,
    common_options,
    link_option,
    lock_option,
    server_options,
    store_option,
)
from overlay.cli._output import columns, format_seconds, moved_bytes, style
from overlay.cli._progress import phases
from overlay.cli._serving import (
    DroppedSource,
    StagedSource,
    dropped_source,
    dropped_text,
    one_way,
    staged_source,
    staged_text,
)
from overlay.formats.wording import counted, format_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from overlay.cli._output import Output
    from overlay.materialization.survey import Step

__all__ = ["PlannedAdapter", "PlannedFile", "PlannedModel", "PrewarmPlan", "Prewarmed", "PrewarmedModel", "prewarm"]

_VERBS = {
    "generate": "generated",
    "alias": "under a second name",
    "present": "in the cache already",
    "pull": "from the store",
    "reflink": "reflinked",
    "hardlink": "hardlinked",
    "copy": "copied",
    "script": "written by the script",
}


@dataclass(frozen=True, slots=True)
class PlannedFile:
    """One output file of a dry run.

    Attributes:
        how: ``generate`` and ``alias`` are made anew each time, ``present`` is in the cache, the others cost bytes;
            ``pull`` comes from the store.
        fused: Whether adapters are folded into it.
        why: Of a file that is carried over: what keeps it from a cheaper way; empty where nothing does.
    """

    path: str
    how: Literal["generate", "alias", "present", "pull", "build", "script", "reflink", "hardlink", "copy"]
    fused: bool
    size: int
    why: str


@dataclass(frozen=True, slots=True)
class PlannedAdapter:
    """An adapter of a dry run, in the order of fusing."""

    name: str
    kind: str
    pairs: int
    scales: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class PlannedModel:
    """What building one model would take. Counters count tensor payload; ``room`` and sizes count files.

    Attributes:
        room: Bytes needed on the cache root's filesystem.
        free: Bytes free there.
        root: The cache root.
        present: Whether the model is published already, so that a run builds nothing.
        staged: With ``--stage-source``, what a run leaves in the Hub's cache; ``room`` counts it.
        dropped: With ``--drop-source``, what a run takes out of what is in the Hub's cache now.
    """

    model: str
    location: str
    present: bool
    rule: str
    bytes_downloaded: int
    bytes_read: int
    bytes_written: int
    bytes_linked: int
    room: int
    free: int
    root: str
    adapters: tuple[PlannedAdapter, ...]
    files: tuple[PlannedFile, ...]
    missing: tuple[str, ...]
    notes: tuple[str, ...]
    staged: StagedSource | None
    dropped: DroppedSource | None


@dataclass(frozen=True, slots=True)
class PrewarmPlan:
    """What ``overlay prewarm --dry-run`` prints."""

    models: tuple[PlannedModel, ...]


@dataclass(frozen=True, slots=True)
class PrewarmedModel:
    """One model that is in the cache now.

    Attributes:
        path: Its directory, links resolved; null with ``--only``, which publishes nothing.
        location: Where a consumer looks; null likewise.
        staged: With ``--stage-source``, what is in the Hub's cache for a server.
        dropped: With ``--drop-source``, what is there no more.
    """

    model: str
    path: str | None
    location: str | None
    result: Literal["built", "reused", "adopted", "pulled", "present"]
    bytes_downloaded: int
    bytes_read: int
    bytes_written: int
    bytes_linked: int
    seconds: float
    notes: tuple[str, ...]
    staged: StagedSource | None
    dropped: DroppedSource | None


@dataclass(frozen=True, slots=True)
class Prewarmed:
    """What ``overlay prewarm`` prints."""

    models: tuple[PrewarmedModel, ...]


@click.command()
@click.argument("models", metavar="MODEL...", nargs=-1, required=True)
@click.option("--dry-run", is_flag=True, help="Print the plan: files (-v: all), bytes, room needed. Build nothing.")
@click.option("--only", metavar="COMPONENT", multiple=True, help="Build only this component; publish nothing.")
@click.option("--allow-floating", is_flag=True, help="Build from a revision that the registry does not pin.")
@click.option(
    "--allow-script",
    is_flag=True,
    allow_from_autoenv=False,  # to be said each time, by whoever knows where they stand
    help="Run an overlay's script that a found registry.yaml pins.",
)
@click.option("--stage-source", is_flag=True, help="Leave the Hub's cache as the server of --for needs it by name.")
@click.option("--drop-source", is_flag=True, help="Take the source out of the Hub's cache, to serve by path.")
@store_option(required=False)
@server_options
@link_option
@lock_option
@build_options
@common_options
def prewarm(
    common: Common, models: tuple[str, ...], dry_run: bool, stage_source: bool, drop_source: bool, **choices: Any
) -> None:
    """Bring models into the cache: fetch, check, fuse, publish.

    `overlay materialize` is the same command. It does nothing where nothing is to be done. After a killed run the same
    command goes on with the files that were finished. A store is asked first, and offered what was built here.
    """
    one_way(stage_source=stage_source, drop_source=drop_source, only=choices["only"])
    options = common.options(**choices)
    if dry_run:
        planned = PrewarmPlan(
            tuple(_planned(common.output, model, options, stage=stage_source, drop=drop_source) for model in models)
        )
        common.output.result(planned, lambda: _plan_text(planned, verbose=common.output.verbose))
        return
    if drop_source:
        _require_droppable(models, options)
    built = [_prewarmed(common.output, model, options, stage=stage_source) for model in models]
    if drop_source:  # only now: one may be built from the source of another
        built = [_dropped(common.output, model, found, options) for model, found in zip(models, built, strict=True)]
    done = Prewarmed(tuple(built))
    common.output.result(done, lambda: _done_text(done))
    for model in done.models:
        for note in model.notes:
            common.output.remark(f"{model.model}: {note}")


def _waiting(model: str, output: Output) -> Callable[[str], None]:
    """Says who builds the model already."""
    return lambda text: output.remark(f"{model}: {text}")


def _planned(output: Output, model: str, options: overlay.Options, *, stage: bool, drop: bool) -> PlannedModel:
    from overlay.cache.probe import filesystem_of
    from overlay.materialization.request import open_cache
    from overlay.materialization.serving.by_name import plan_by_name
    from overlay.materialization.serving.dropping import plan_drop, require_source_of_hub

    if drop:
        require_source_of_hub(model, options)
    work, staged = plan_by_name(model, options, phase=phases(output)) if stage else (None, None)
    work = work or overlay.plan(model, options, phase=phases(output))
    root = open_cache(options, create=False).root.path
    counters = work.counters
    return PlannedModel(
        model=work.plan.model,
        location=work.plan.location,
        present=work.is_present,
        rule=work.plan.rule,
        bytes_downloaded=counters.downloaded,
        bytes_read=counters.read,
        bytes_written=counters.written,
        bytes_linked=counters.linked,
        room=work.room,
        free=filesystem_of(root).free,
        root=str(root),
        adapters=tuple(PlannedAdapter(use.name, use.kind, use.num_pairs, use.scales) for use in work.plan.adapters),
        files=tuple(_planned_file(step) for step in work.steps),
        missing=tuple(f"{item.repo}@{item.revision}/{item.path}" for item in work.missing),
        notes=(*work.plan.notes, *work.notes),
        staged=staged_source(staged) if staged else None,
        dropped=dropped_source(plan_drop(model, options)) if drop else None,
    )


def _planned_file(step: Step) -> PlannedFile:
    from overlay.planning.outputs import SafetensorsFile

    fused = isinstance(step.output, SafetensorsFile) and step.output.is_fused
    return PlannedFile(step.output.path, step.how, fused, step.size, step.why)


def _require_droppable(models: tuple[str, ...], options: overlay.Options) -> None:
    """Refuse before anything is built."""
    from overlay.materialization.serving.dropping import require_source_of_hub

    for model in models:
        require_source_of_hub(model, options)


def _dropped(output: Output, model: str, built: PrewarmedModel, options: overlay.Options) -> PrewarmedModel:
    from overlay.materialization.serving.dropping import drop_source

    dropped = drop_source(model, options, on_wait=_waiting(model, output))
    return replace(built, dropped=dropped_source(dropped), notes=(*built.notes, *dropped.notes))


def _prewarmed(output: Output, model: str, options: overlay.Options, *, stage: bool) -> PrewarmedModel:
    from overlay.materialization.serving.by_name import materialize_by_name

    on_wait = _waiting(model, output)
    staged = None
    if stage:
        done, staged = materialize_by_name(model, options, phase=phases(output), on_wait=on_wait)
    else:
        done = overlay.materialize(model, options, phase=phases(output), on_wait=on_wait)
    return PrewarmedModel(
        model=done.model,
        path=str(done.path) if done.path else None,
        location=str(done.location) if done.location else None,
        result=done.result,
        bytes_downloaded=done.counters.downloaded,
        bytes_read=done.counters.read,
        bytes_written=done.counters.written,
        bytes_linked=done.counters.linked,
        seconds=round(done.seconds, 3),
        notes=done.notes,
        staged=staged_source(staged) if staged else None,
        dropped=None,
    )


def _plan_text(plan: PrewarmPlan, *, verbose: bool) -> Iterator[str]:
    from overlay.materialization.links import copies

    for model in plan.models:
        present = f"  {style('present', 'good')}" if model.present else ""
        yield f"{style(model.model, 'strong')}{present}"
        short = style("  NOT ENOUGH", "bad") if model.room > model.free else ""
        room = f"room {format_bytes(model.room)} of {format_bytes(model.free)} free in {model.root}{short}"
        yield f"  {moved_bytes(model, done=False)} · {room}"
        yield from staged_text(model.staged, "download another")
        yield from dropped_text(model.dropped, "will drop")
        rows = [[part, ", ".join(_summary(files))] for part, files in _by_component(model.files).items()]
        if model.adapters:
            pairs = ", ".join(f"{adapter.name} {counted(adapter.pairs, 'pair')}" for adapter in model.adapters)
            rows.append(["adapters", f"{pairs}, rule {model.rule}"])
        rows += [
            ["copied", text] for text in copies((file.size, file.why) for file in model.files if file.how == "copy")
        ]
        rows += [["note", note] for note in model.notes]
        yield from columns(rows)
        if verbose:
            yield from columns([[file.how, format_bytes(file.size), file.path, file.why] for file in model.files])
            yield from columns([["download", path] for path in model.missing])


def _by_component(files: tuple[PlannedFile, ...]) -> dict[str, list[PlannedFile]]:
    found: dict[str, list[PlannedFile]] = {}
    for file in files:
        found.setdefault(file.path.split("/")[0] if "/" in file.path else "(top)", []).append(file)
    return found


def _summary(files: list[PlannedFile]) -> list[str]:
    counts: dict[str, int] = {}
    for file in files:
        verb = _VERBS.get(file.how) or ("fused" if file.fused else "laid out anew")
        counts[verb] = counts.get(verb, 0) + 1
    return [f"{count} {verb}" for verb, count in sorted(counts.items(), key=lambda item: -item[1])]


def _done_text(done: Prewarmed) -> Iterator[str]:
    for model in done.models:
        moved = moved_bytes(model, done=True)
        yield f"{style(model.model, 'strong')}  {model.result} in {format_seconds(model.seconds)} · {moved}"
        if model.path:
            yield f"  {model.path}"
        yield from staged_text(model.staged, "downloaded another")
        yield from dropped_text(model.dropped, "dropped")
