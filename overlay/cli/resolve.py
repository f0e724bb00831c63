"""``overlay resolve`` and ``overlay path``: what a name stands for, and whether it is here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import click

import overlay
from overlay.cli._options import Common, common_options, rule_flags, rule_option, server_flags, server_options
from overlay.cli._output import Role, columns, style
from overlay.registry.recipe_words import option_words

if TYPE_CHECKING:
    from collections.abc import Iterator

    from overlay.consumers.server import Server
    from overlay.registry import Pin, Resolution

__all__ = ["ModelLock", "PinnedRepo", "Place", "ResolvedModel", "path", "resolve"]

_ROLES: dict[str, Role] = {"present": "good", "absent": "strong", "stale": "warn", "unknown": "warn", "damaged": "bad"}


@dataclass(frozen=True, slots=True)
class PinnedRepo:
    """One repo of a model.

    Attributes:
        revision: 40-hex commit; ``local`` for a folder; null where it floats.
        floating: Why there is no commit; null exactly where there is one.
        components: Folders that are taken from it; empty where the recipe names the paths.
    """

    repo: str
    revision: str | None
    floating: str | None
    components: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ModelLock:
    """What the lock beside the registry says of a model.

    Attributes:
        state: ``current``: it was made of this entry. ``stale``: of another, and builds are refused. ``none``: it does
            not speak of the model, or not of the overlay that a server was told to use.
        differences: What the entry says otherwise, a sentence each.
    """

    path: str
    state: Literal["current", "stale", "none"]
    differences: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ResolvedModel:
    """What ``overlay resolve`` prints.

    Attributes:
        pinned: Whether every repo has a commit.
        overlay: Null where the recipe needs none.
        location: Where a consumer looks; null where that cannot be known without a request.
        path: The directory that the location leads to; null where there is none.
        why: What is behind a state other than present and absent.
        registry: The registry file in force.
        lock: Null where there is no lock.
        entry: Where the entry was last changed: ``file:line``, or the variable that changed it.
        replaced: What an override replaced, a sentence each.
        next: The command to run next; null where this version cannot build the model.
    """

    model: str
    pinned: bool
    source: PinnedRepo
    overlay: PinnedRepo | None
    needs: tuple[PinnedRepo, ...]
    recipe: str
    recipe_options: dict[str, Any]
    location: str | None
    path: str | None
    state: Literal["present", "stale", "damaged", "absent", "unknown"]
    why: str
    registry: str
    lock: ModelLock | None
    entry: str
    replaced: tuple[str, ...]
    notes: tuple[str, ...]
    next: str | None


@dataclass(frozen=True, slots=True)
class Place:
    """What ``overlay path`` prints."""

    model: str
    path: str


@click.command(short_help="Show a model's pins, recipe, location and state.")
@click.argument("model")
@click.option("--path", "only_path", is_flag=True, help="Print only the directory; status 3 when it is not there.")
@rule_option
@server_options
@common_options
def resolve(common: Common, model: str, only_path: bool, rule: str, server: Server | None) -> None:
    """Show a model's pins, its recipe, where it belongs and whether it is there.

    MODEL is a registry key, a local folder or Hub cache path that maps to one, or an overlay folder. No request is
    made and nothing is written.
    """
    if only_path:
        _print_path(common, model, rule, server)
        return
    options = common.options(rule=rule, server=server)
    found = overlay.resolve(model, options)
    document = _document(common, model, found, options)
    common.output.result(document, lambda: _text(document))


@click.command(short_help="Print the directory of a materialized model.")
@click.argument("model")
@rule_option
@server_options
@common_options
def path(common: Common, model: str, rule: str, server: Server | None) -> None:
    """Print the directory of a materialized model; status 3 when it is not there."""
    _print_path(common, model, rule, server)


def _print_path(common: Common, model: str, rule: str, server: Server | None) -> None:
    from overlay.materialization.resolve import present

    found, tree = present(model, common.options(rule=rule, server=server), wanted_by=("path", model), in_force=True)
    document = Place(model, str(tree))
    common.output.result(document, lambda: [document.path])
    if found.state.rolled_back_from is not None:
        common.output.remark(f"{model}: {found.state.why}")


def _document(common: Common, model: str, found: overlay.Resolved, options: overlay.Options) -> ResolvedModel:
    resolution, state = found.resolution, found.state
    entry = resolution.entry
    folder = resolution.source_folder
    pinned = all(pin.revision is not None for pin in entry.pins)
    lock = _lock(resolution)
    return ResolvedModel(
        model=resolution.model,
        pinned=pinned,
        source=PinnedRepo(str(folder), "local", None) if folder else _repo(entry.source),
        overlay=_repo(entry.overlay) if entry.overlay else None,
        needs=tuple(_repo(need.pin, need.components) for need in entry.needs),
        recipe=entry.recipe.name,
        recipe_options=dict(entry.recipe.options),
        location=str(state.location) if state.location else None,
        path=str(state.tree) if state.tree else None,
        state=state.name,
        why=state.why,
        registry=resolution.registry_path,
        lock=lock,
        entry=f"{entry.place.file}:{entry.place.line}" if entry.place.line else entry.place.file,
        replaced=found.replaced,
        notes=(*(note for note in resolution.notes if note not in resolution.moved), *_hub_notes(common)),
        next=_next(common, model, found, options, lock),
    )


def _lock(resolution: Resolution) -> ModelLock | None:
    from overlay.materialization.locking.in_force import lock_state

    found = lock_state(resolution)
    return ModelLock(str(found.path), found.name, found.differences) if found else None


def _hub_notes(common: Common) -> tuple[str, ...]:
    if common.hub is None or common.hub.is_dir():
        return ()
    return (f"the hub folder {common.hub} does not exist, so nothing can be built from it",)


def _next(
    common: Common,
    model: str,
    found: overlay.Resolved,
    options: overlay.Options,
    lock: ModelLock | None,
) -> str | None:
    from overlay.materialization.resolve import build_words

    if found.state.name == "present":
        return common.command("verify", model, *rule_flags(options.rule), *server_flags(options.server))
    words = build_words(model, found, options)
    if found.state.rolled_back_from is not None:
        return common.command(*words)
    if not found.resolution.entry.is_buildable:
        return common.command(*words)
    if lock is not None and lock.state == "stale":
        return common.command("lock", found.resolution.model)
    return common.command(*words, *(["--dry-run"] if found.state.name == "unknown" else []))


def _repo(pin: Pin, components: tuple[str, ...] = ()) -> PinnedRepo:
    return PinnedRepo(pin.repo, pin.revision, pin.floating, components)


def _text(found: ResolvedModel) -> Iterator[str]:
    yield style(found.model, "strong")
    rows = [["source", _pin(found.source)]]
    if found.overlay:
        rows.append(["overlay", _pin(found.overlay)])
    rows += [["needs", f"{_pin(need)}  {', '.join(need.components)}"] for need in found.needs]
    rows.append(["recipe", "  ".join([found.recipe, *option_words(found.recipe_options)])])
    rows.append(["registry", found.entry])
    if found.lock:
        stale = f"{style('stale', 'warn')}: {', '.join(found.lock.differences[:1])}"
        rows.append(["lock", stale if found.lock.state == "stale" else found.lock.state])
    rows += [["replaced", sentence] for sentence in found.replaced]
    rows += [["note", note] for note in found.notes]
    rows.append(["location", found.location or "not known yet"])
    if found.path:
        rows.append(["directory", found.path])
    pinned = "pinned" if found.pinned else "floating"
    why = f" ({found.why})" if found.why else ""
    rows.append(["state", f"{style(found.state, _ROLES[found.state])}, {pinned}{why}"])
    if found.next:
        rows.append(["next", found.next])
    yield from columns(rows)


def _pin(repo: PinnedRepo) -> str:
    if repo.revision is None:
        return f"{repo.repo}@{style('floating', 'warn')}: {repo.floating}"
    return repo.repo if repo.revision == "local" else f"{repo.repo}@{repo.revision[:12]}"
