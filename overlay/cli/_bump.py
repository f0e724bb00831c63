"""What ``overlay bump`` does and prints: pins move to newer commits that belong together."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

import click

from overlay.cli._check import CheckedModel, checked_model
from overlay.cli._errors import ErrorReport, reported
from overlay.cli._output import Role, columns, style
from overlay.cli._project import (
    change_registry,
    report_text,
    resolution_of,
    trouble_text,
    upstream,
    usage,
    write_lock,
)
from overlay.contract.check import check_model
from overlay.contract.render import shown_path
from overlay.errors import CheckFailed, OverlayError
from overlay.formats.manifest import read_manifest
from overlay.formats.wording import format_bytes
from overlay.planning.location import overlay_identity
from overlay.registry.edit import NewPin, set_pins
from overlay.registry.load import project_registry
from overlay.upkeep.search import (
    Pair,
    check_pinned,
    moved_to,
    pins_of,
    reason_of,
    right_fingerprint,
    search,
    standing,
    untold,
    without_lock,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from overlay.cli._options import Common
    from overlay.contract.check import Report
    from overlay.registry import Registry, Resolution
    from overlay.upkeep.repos import Repos

__all__ = ["Bumped", "BumpedModel", "MovedPin", "run_bump"]

Result = Literal["bumped", "would-bump", "current", "stays", "broken", "refused", "unknown"]
_ROLES: dict[Result, Role] = {
    "bumped": "good",
    "would-bump": "good",
    "current": "dim",
    "stays": "warn",
    "broken": "bad",
    "refused": "bad",
}


@dataclass(frozen=True, slots=True)
class MovedPin:
    """One pin that moves.

    Attributes:
        before: 40 hex digits; null where it floated.
        after: 40 hex digits.
    """

    repo: str
    role: Literal["source", "overlay"]
    before: str | None
    after: str


@dataclass(frozen=True, slots=True)
class BumpedModel:
    """One model.

    Attributes:
        result: ``current``: at the heads, or at the commits that were named, and those hold. ``stays``: nothing newer
            holds, and the pins do. ``broken``: neither do the pins, nor anything older. ``refused``: the contract is
            broken at the commits that were named. ``unknown``: it could not be told.
        pins: Those that move; none where only the fingerprint is corrected.
        fingerprint: That of the overlay's files, where the registry has another one for the pin; null otherwise.
        reason: Why it stays, or what is wrong with the pins; null otherwise.
        pinned: The check of the pins as they stand; null where it could not be told.
        check: Of the new pins against the old ones, or of the heads where it stays; null where there are none.
        trouble: Why something could not be told.
    """

    model: str
    result: Result
    pins: tuple[MovedPin, ...] = ()
    fingerprint: str | None = None
    reason: str | None = None
    pinned: CheckedModel | None = None
    check: CheckedModel | None = None
    trouble: ErrorReport | None = None


@dataclass(frozen=True, slots=True)
class Bumped:
    """What ``overlay bump`` prints.

    Attributes:
        registry: The file that was changed.
        lock: Its lock, where that was written; null where nothing was.
    """

    registry: str
    lock: str | None
    dry_run: bool
    models: tuple[BumpedModel, ...]
    bytes_fetched: int


@dataclass(frozen=True, slots=True)
class _Outcome:
    """What became of a model; the new pins where there are any: the old ones where only the fingerprint is wrong."""

    resolution: Resolution
    result: Result
    pinned: Report | None = None
    pair: Pair | None = None
    report: Report | None = None
    reason: str | None = None
    error: OverlayError | None = None


def run_bump(
    common: Common,
    models: Sequence[str],
    *,
    every: bool,
    overlay_to: str | None,
    source_to: str | None,
    dry_run: bool,
) -> None:
    """What the command does."""
    if bool(models) == every:
        usage("name models, or all of them with --all", "bump")
    targets = [target for target in (overlay_to, source_to) if target is not None]
    if targets and len(models) != 1:
        usage("--overlay-to and --source-to go with one MODEL", "bump")
    if "" in targets:  # a variable that is not set
        usage("--overlay-to and --source-to need a commit, its first digits, or main", "bump")
    registry, repos = project_registry(common.registry), upstream(common)
    resolutions = [resolution_of(model, registry) for model in models or registry.own]
    outcomes = [_outcome(resolution, repos, source_to, overlay_to) for resolution in resolutions]
    moving = [outcome for outcome in outcomes if outcome.pair is not None and outcome.result == "would-bump"]
    lock = None
    if moving and not dry_run:
        _write(registry, moving, repos)
        lock = write_lock(common, registry, [outcome.resolution.model for outcome in moving])
        outcomes = [replace(outcome, result="bumped") if outcome in moving else outcome for outcome in outcomes]
    document = Bumped(
        registry=registry.path,
        lock=lock,
        dry_run=dry_run,
        models=tuple(_model(outcome) for outcome in outcomes),
        bytes_fetched=repos.histories.traffic.nbytes,
    )
    common.output.result(document, lambda: _text(document, outcomes))
    if error := next((outcome.error for outcome in outcomes if outcome.error), None):
        raise click.exceptions.Exit(error.exit_status)
    if any(outcome.result in ("broken", "refused") for outcome in outcomes):
        raise click.exceptions.Exit(CheckFailed.exit_status)


def _outcome(resolution: Resolution, repos: Repos, source_to: str | None, overlay_to: str | None) -> _Outcome:
    try:
        if source_to or overlay_to:
            return _to_target(resolution, repos, source_to, overlay_to)
        return _to_newest(resolution, repos)
    except OverlayError as error:
        return _Outcome(resolution, "unknown", error=error)


def _to_newest(resolution: Resolution, repos: Repos) -> _Outcome:
    pinned = check_pinned(resolution, repos)
    found = search(resolution, repos, pinned)
    is_broken = standing(pinned) == "failed"
    broken = f"the pins do not hold: {reason_of(pinned)}"
    if found.pair is not None:
        reason = broken if is_broken else None
        return _Outcome(resolution, "would-bump", pinned, found.pair, found.report, reason)
    limit = ", not all there are" if repos.hub is None else "; folders have no history"
    limit = "" if found.is_whole else limit
    looked = f"no {'other' if is_broken else 'newer'} pair of commits holds ({found.pairs} looked at{limit})"
    heads = f"; at the heads: {found.reason}" if found.newest else ""
    if is_broken:
        return _Outcome(resolution, "broken", pinned, report=found.newest, reason=f"{broken}; {looked}{heads}")
    if right_fingerprint(pinned):
        return _Outcome(resolution, "would-bump", pinned, pins_of(resolution.entry))
    if found.newest is None:
        return _Outcome(resolution, "current", pinned)
    return _Outcome(resolution, "stays", pinned, report=found.newest, reason=f"{looked}{heads}")


def _to_target(resolution: Resolution, repos: Repos, source_to: str | None, overlay_to: str | None) -> _Outcome:
    entry, full = resolution.entry, repos.histories.full_commit
    if overlay_to and entry.overlay is None:
        usage(f"--overlay-to: {entry.model} has no overlay", "bump")
    source = full(entry.source.repo, source_to) if source_to else entry.source.revision
    overlay = full(entry.overlay.repo, overlay_to) if overlay_to and entry.overlay else pins_of(entry).overlay
    pair, pinned = Pair(source, overlay), check_pinned(resolution, repos)
    stays = pair == pins_of(entry)
    if stays and standing(pinned) == "passed":
        result: Result = "would-bump" if right_fingerprint(pinned) else "current"
        return _Outcome(resolution, result, pinned, pair)
    before = (resolution, None) if all(pin.revision for pin in entry.pins) and not stays else None
    report = without_lock(check_model(moved_to(resolution, pair), repos.inventory, before=before))
    error = untold(report)
    result = "unknown" if error else "would-bump" if report.status == "passed" else "refused"
    return _Outcome(resolution, result, pinned, pair, report, error=error)


def _write(registry: Registry, moving: Sequence[_Outcome], repos: Repos) -> None:
    """Write the new pins of all models into the registry file, or none of them."""
    pins = {outcome.resolution.model: _new_pins(outcome, repos) for outcome in moving}

    def change(content: bytes, name: str) -> bytes:
        for model, new in pins.items():
            content = set_pins(content, name, model, new)
        return content

    change_registry(registry, change)


def _new_pins(outcome: _Outcome, repos: Repos) -> dict[str, NewPin]:
    """By section, with what the registry says of the overlay's files: a fingerprint only where it has one."""
    pins: dict[str, NewPin] = {moved.role: NewPin(moved.after) for moved in _moved(outcome)}
    if outcome.pair is not None and ("overlay" in pins or _fingerprint(outcome) is not None):
        at = moved_to(outcome.resolution, outcome.pair)
        overlay = repos.inventory(at).overlay
        if overlay is not None:
            known = overlay_identity(at.entry, overlay, read_manifest(overlay))
            has_one = outcome.resolution.entry.overlay_fingerprint is not None
            fingerprint = known.overlay_fingerprint if has_one else None
            pins["overlay"] = NewPin(overlay.revision, fingerprint, known.materializer_version)
    return pins


def _fingerprint(outcome: _Outcome) -> str | None:
    """The right fingerprint of the overlay that is pinned, where the entry has a wrong one and the pin stays."""
    entry, pair = outcome.resolution.entry, outcome.pair
    if outcome.pinned is None or pair is None or pair.overlay != pins_of(entry).overlay:
        return None
    return right_fingerprint(outcome.pinned)


def _moved(outcome: _Outcome) -> tuple[MovedPin, ...]:
    """The pins that move, by what the entry has and the pair says."""
    entry, pair = outcome.resolution.entry, outcome.pair
    if pair is None:
        return ()
    moved = []
    if pair.source is not None and pair.source != entry.source.revision:
        moved.append(MovedPin(entry.source.repo, "source", entry.source.revision, pair.source))
    if entry.overlay is not None and pair.overlay is not None and pair.overlay != entry.overlay.revision:
        moved.append(MovedPin(entry.overlay.repo, "overlay", entry.overlay.revision, pair.overlay))
    return tuple(moved)


def _model(outcome: _Outcome) -> BumpedModel:
    return BumpedModel(
        model=outcome.resolution.model,
        result=outcome.result,
        pins=_moved(outcome),
        fingerprint=_fingerprint(outcome),
        reason=outcome.reason,
        pinned=checked_model(outcome.pinned) if outcome.pinned else None,
        check=checked_model(outcome.report) if outcome.report else None,
        trouble=reported(outcome.error) if outcome.error else None,
    )


def _text(document: Bumped, outcomes: Sequence[_Outcome]) -> Iterator[str]:
    for outcome, model in zip(outcomes, document.models, strict=True):
        yield f"{style(model.model, 'strong')}  {style(model.result, _ROLES.get(model.result, 'warn'))}"
        moves = [(pin, pin.before[:12] if pin.before else "floating") for pin in model.pins]
        yield from columns([[pin.role, pin.repo, f"{before} → {pin.after[:12]}"] for pin, before in moves])
        if model.fingerprint:
            yield f"  the overlay's fingerprint is {model.fingerprint[:12]}, the registry has another one"
        if model.reason:
            yield f"  {model.reason}"
        if outcome.report is not None and model.result not in ("stays", "broken"):
            yield from report_text(outcome.report)
            if outcome.report.cost is not None:
                yield f"  cost  {outcome.report.cost} ({outcome.report.compared} compared)"
        if model.trouble is not None:
            yield from trouble_text(model.trouble)
        if model.result == "refused":
            yield "  not written: the contract is broken there"
    files = " and ".join(shown_path(file) for file in (document.registry, document.lock) if file)
    state = "written" if any(model.result == "bumped" for model in document.models) else "unchanged"
    yield f"{files} {state} · {format_bytes(document.bytes_fetched)} fetched"
