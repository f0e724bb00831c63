"""What ``overlay add`` does and prints: a model comes into the registry, everything pinned at today's commits."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from overlay.cli._check import CheckedModel, checked_model
from overlay.cli._output import columns, style
from overlay.cli._project import change_registry, report_text, trouble_text, upstream, usage, write_lock
from overlay.contract.check import check_model
from overlay.contract.render import shown_path
from overlay.errors import CheckFailed, InvalidUsage
from overlay.formats.wording import format_bytes
from overlay.registry import Need, Pin, Registry, resolve
from overlay.registry.edit import add_entry
from overlay.registry.explain import checked
from overlay.registry.load import own_models, project_registry
from overlay.registry.merge import lay_over
from overlay.registry.strict_yaml import parse
from overlay.upkeep.new_entry import entry_fields, guess_recipe
from overlay.upkeep.search import without_lock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from overlay.cli._options import Common
    from overlay.contract.check import Report
    from overlay.registry import Entry
    from overlay.upkeep.repos import Repos

__all__ = ["Added", "AddedPin", "run_add"]


@dataclass(frozen=True, slots=True)
class AddedPin:
    """One repo of the new entry, at the commit that it is pinned to."""

    repo: str
    role: str
    revision: str


@dataclass(frozen=True, slots=True)
class Added:
    """What ``overlay add`` prints.

    Attributes:
        written: Whether the entry was written; not where its contract is broken.
        why: How the recipe was found.
        lock: The lock, where it was written; null otherwise.
        check: What was found.
        next: The command to run next; null where nothing was written, or this version cannot build the model.
    """

    model: str
    written: bool
    registry: str
    lock: str | None
    pins: tuple[AddedPin, ...]
    recipe: dict[str, Any]
    why: str
    check: CheckedModel
    bytes_fetched: int
    next: str | None


@dataclass(frozen=True, slots=True)
class Wanted:
    """What was said on the command line."""

    overlay_at: str | None
    source_rev: str
    recipe: str | None
    stage: str | None
    base: str | None
    adapters: tuple[str, ...]
    needs: tuple[str, ...]


def run_add(common: Common, model: str, said: Wanted) -> None:
    """What the command does."""
    registry = project_registry(common.registry)
    if model in own_models(registry):
        raise InvalidUsage(
            f"{model}: is in {registry.path} already ({registry.entries[model].place})",
            code="entry-exists",
            hint=common.command("bump", model),
            model=model,
        )
    repos, known = upstream(common), registry.entries.get(model)
    fields, why = _fields(repos, model, known, _completed(said, model, known))

    def change(content: bytes, name: str) -> bytes:
        return add_entry(content, name, model, fields)

    after = _with_entry(registry, model, change)
    report = without_lock(check_model(resolve(model, after), repos.inventory))
    lock = None
    if report.status == "passed":
        change_registry(registry, change)
        lock = write_lock(common, registry, [model])
    document = _document(common, after, model, why, report, lock, repos)
    common.output.result(document, lambda: _text(document, report))
    if report.status == "failed":
        raise click.exceptions.Exit(CheckFailed.exit_status)
    if not document.written:
        raise click.exceptions.Exit(report.trouble.exit_status if report.trouble else CheckFailed.exit_status)


def _completed(wanted: Wanted, model: str, known: Entry | None) -> Wanted:
    """What was said, with what follows from it.

    Raises:
        InvalidUsage: It does not go together, or the overlay is missing.
    """
    recipe, overlay = wanted.recipe, wanted.overlay_at
    if wanted.base or wanted.adapters:
        if recipe not in (None, "lora") or not (wanted.base and wanted.adapters):
            usage("--base and --adapter go together, with --recipe lora", "add")
        recipe = "lora"
    elif recipe == "lora" and (known is None or known.recipe.name != "lora"):
        usage("--recipe lora needs --base and --adapter", "add")
    if not overlay and recipe != "lora":
        if known is None or known.overlay is None:
            usage(f"{model}: no overlay is known for it; name one with --overlay", "add")
        overlay = known.overlay.repo
    return replace(wanted, recipe=recipe, overlay_at=overlay)


def _fields(repos: Repos, model: str, known: Entry | None, wanted: Wanted) -> tuple[dict[str, Any], str]:
    """The entry, and why its recipe is that one."""
    full = repos.histories.full_commit
    source, overlay = full(model, wanted.source_rev), None
    if wanted.overlay_at:
        repo, _, revision = wanted.overlay_at.partition("@")
        overlay = repos.overlay(repo, full(repo, revision or "main"))
    guess = guess_recipe(overlay, None if wanted.base else known, wanted.recipe, wanted.stage)
    needs = [_need(need) for need in wanted.needs] or [(repo, "main", names) for repo, names in guess.needs]
    pinned = tuple(Need(Pin(repo, full(repo, revision)), components) for repo, revision, components in needs)
    options = guess.recipe
    if wanted.base:
        options |= {"base": _place(wanted.base), "adapters": [_place(adapter) for adapter in wanted.adapters]}
    return entry_fields(source, overlay, pinned, options, known), guess.why


def _need(text: str) -> tuple[str, str, tuple[str, ...]]:
    place, _, components = text.partition(":")
    repo, _, revision = place.partition("@")
    return repo, revision or "main", tuple(name for name in components.split(",") if name)


def _place(text: str) -> dict[str, str]:
    repo, colon, path = text.rpartition(":")
    fields = {"repo": repo} if colon else {}
    return fields | ({"path": path} if path not in ("", ".") else {})


def _with_entry(registry: Registry, model: str, change: Callable[[bytes, str], bytes]) -> Registry:
    """The registry as it would be with the new entry."""
    document = parse(change(Path(registry.path).read_bytes(), registry.path), registry.path)
    added = {model: checked(document).models[model]}
    entries, _ = lay_over(registry.entries, added, document, registry.path)
    return Registry(registry.path, entries, {})


def _document(  # everything that the command came to
    common: Common, registry: Registry, model: str, why: str, report: Report, lock: str | None, repos: Repos
) -> Added:
    entry = registry.entries[model]
    written = report.status == "passed"
    roles = ["source", *(["overlay"] if entry.overlay else []), *("need" for _ in entry.needs)]
    return Added(
        model=model,
        written=written,
        registry=registry.path,
        lock=lock,
        pins=tuple(AddedPin(pin.repo, role, pin.revision or "") for pin, role in zip(entry.pins, roles, strict=True)),
        recipe={"name": entry.recipe.name, **entry.recipe.options},
        why=why,
        check=checked_model(report),
        bytes_fetched=repos.histories.traffic.nbytes,
        next=common.command("prewarm", model) if written and entry.recipe.name != "python" else None,
    )


def _text(document: Added, report: Report) -> Iterator[str]:
    yield style(document.model, "strong")
    yield from columns([[pin.role, f"{pin.repo}@{pin.revision[:12]}"] for pin in document.pins])
    yield f"  recipe {_recipe(document.recipe)}: {document.why}"
    yield from (f"  {line}" for line in report_text(report))
    if document.check.trouble is not None:
        yield from trouble_text(document.check.trouble)
    if report.compared is not None:
        yield f"  found {report.compared}"
    files = " and ".join(shown_path(file) for file in (document.registry, document.lock) if file)
    state = f"{files} written" if document.written else f"{files} unchanged: the pins do not fit together"
    yield f"{state} · {format_bytes(document.bytes_fetched)} fetched"
    if document.next:
        yield f"next: {document.next}"


def _recipe(options: Mapping[str, Any]) -> str:
    return " ".join([options["name"], *(str(value) for key, value in options.items() if key == "stage")])
