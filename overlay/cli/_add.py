"""What ``overlay add`` does and prints: a model comes into the registry, everything pinned at today's commits."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import click

from overlay.cli._check import CheckedModel, checked_model
from overlay.cli._output import columns, style
from overlay.cli._project import change_registry, report_text, trouble_text, upstream, usage, write_lock
from overlay.contract.check import check_model
from overlay.contract.render import shown_path
from overlay.errors import CheckFailed, InvalidRegistry, InvalidUsage
from overlay.formats.wording import format_bytes
from overlay.registry import Need, Pin, Place, Registry, RepoRole, resolve
from overlay.registry.edit import add_entry
from overlay.registry.explain import checked
from overlay.registry.load import project_registry
from overlay.registry.merge import lay_over
from overlay.registry.strict_yaml import parse
from overlay.upkeep.new_entry import entry_fields, guess_recipe
from overlay.upkeep.search import without_lock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from overlay.cli._options import Common
    from overlay.contract.check import Report
    from overlay.registry import Entry
    from overlay.upkeep.repos import Repos

__all__ = ["Added", "AddedPin", "run_add"]


@dataclass(frozen=True, slots=True)
class AddedPin:
    """One repo of the new entry, at the commit that it is pinned to."""

    repo: str
    role: RepoRole
    revision: str


@dataclass(frozen=True, slots=True)
class Added:
    """What ``overlay add`` prints.

    Attributes:
        written: Whether the entry was written; not where its contract is broken, and not in a dry run.
        why: How the recipe was found.
        lock: The lock, where it was written; null otherwise.
        check: What was found.
        next: The command to run next; null where nothing is written, or this version cannot build the model.
    """

    model: str
    written: bool
    dry_run: bool
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


def run_add(common: Common, model: str, said: Wanted, *, dry_run: bool) -> None:
    """What the command does."""
    registry = project_registry(common.registry)
    if model in registry.own:
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

    after = _with_entry(registry, model, fields, change)
    report = without_lock(check_model(resolve(model, after), repos.inventory))
    fits = report.status == "passed"
    lock = None
    if fits and not dry_run:
        change_registry(registry, change)
        lock = write_lock(common, registry, [model])
    else:
        report = _unwritten(report, after)
    document = _document(common, after, why, report, lock, repos, dry_run=dry_run)
    common.output.result(document, lambda: _text(document, report, quiet=common.output.quiet))
    if report.status == "failed":
        raise click.exceptions.Exit(CheckFailed.exit_status)
    if not fits:
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
    source, overlay = _commit(repos, model, wanted.source_rev, "--source-rev REVISION"), None
    if wanted.overlay_at:
        repo, _, revision = wanted.overlay_at.partition("@")
        overlay = repos.overlay(repo, _commit(repos, repo, revision or "main", f"--overlay {repo}@REVISION"))
    guess = guess_recipe(overlay, None if wanted.base else known, wanted.recipe, wanted.stage)
    needs = [_need(need) for need in wanted.needs] or [(repo, "main", names) for repo, names in guess.needs]
    pinned = tuple(
        Need(Pin(repo, _commit(repos, repo, revision, f"--need {repo}@REVISION")), components)
        for repo, revision, components in needs
    )
    options = guess.recipe
    if wanted.base:
        roots = _roots([wanted.base, *wanted.adapters], pinned, lambda: repos.source(model, source).paths())
        base, *adapters = (_place(roots.get(text, text)) for text in (wanted.base, *wanted.adapters))
        options |= {"base": base, "adapters": adapters}
    return entry_fields(source, overlay, pinned, options, known), guess.why


def _commit(repos: Repos, repo: str, revision: str, option: str) -> str:
    """The 40 digits of what was said, or of the head where nothing was."""
    try:
        return repos.histories.full_commit(repo, revision)
    except InvalidUsage as error:
        if error.code != "several-revisions":
            raise
        raise InvalidUsage(error.message, code=error.code, hint=f"name one: {option}", **error.data) from error


def _need(text: str) -> tuple[str, str, tuple[str, ...]]:
    place, _, components = text.partition(":")
    repo, _, revision = place.partition("@")
    return repo, revision or "main", tuple(name for name in components.split(",") if name)


def _place(text: str) -> dict[str, str]:
    repo, colon, path = text.rpartition(":")
    fields = {"repo": repo} if colon else {}
    return fields | ({"path": path} if path not in ("", ".") else {})


def _roots(said: Sequence[str], needs: Sequence[Need], paths: Callable[[], Sequence[str]]) -> dict[str, str]:
    """Of places that look like a path in the source, those that are a secondary repo: taken as its root.

    Args:
        paths: The files of the source, asked for only where it counts.
    """
    named = {need.pin.repo for need in needs} & {*said}
    there = paths() if named else ()
    return {repo: f"{repo}:" for repo in named if not any(f"{path}/".startswith(f"{repo}/") for path in there)}


def _with_entry(
    registry: Registry, model: str, fields: dict[str, Any], change: Callable[[bytes, str], bytes]
) -> Registry:
    """The registry as it would be with the new entry.

    Raises:
        InvalidUsage: What was said makes no entry; the lines of the file are not to blame.
        InvalidRegistry: The file cannot take one.
    """
    try:
        checked(parse(json.dumps({"schema_version": 1, "models": {model: fields}}).encode(), registry.path))
        document = parse(change(registry.content, registry.path), registry.path)
        added = {model: checked(document).models[model]}
        entries, _ = lay_over(registry.entries, added, document, registry.path)
    except InvalidRegistry as error:
        if error.code == "cannot-edit":
            raise
        problems = "; ".join(problem["message"] for problem in error.data["problems"])
        hint = "secondary repos are named with --need REPO[@REV][:COMPONENT,...]"
        raise InvalidUsage(problems, code=error.code, hint=hint, model=model) from error
    return Registry(registry.path, entries, {})


def _unwritten(report: Report, registry: Registry) -> Report:
    """A report of an entry that stands in no file: without its lines, and fixed by what was said."""
    entry = registry.entries[report.model]

    def fix(said: str | None) -> str | None:
        command, _, options = (said or "").partition(entry.model)
        if command != "overlay bump ":
            return said
        match options.split():
            case ["--source-to", commit]:
                return f"add it with --source-rev {commit}"
            case ["--overlay-to", commit] if entry.overlay is not None:
                return f"add it with --overlay {entry.overlay.repo}@{commit}"
        return "add it at commits that fit together: --source-rev REV, --overlay REPO@REV"

    findings = [
        replace(finding, fix=fix(finding.fix), place=Place(finding.place.file) if finding.place.line else finding.place)
        for finding in report.findings
    ]
    return replace(report, findings=tuple(findings))


def _document(  # everything that the command came to
    common: Common,
    registry: Registry,
    why: str,
    report: Report,
    lock: str | None,
    repos: Repos,
    *,
    dry_run: bool,
) -> Added:
    model = report.model
    entry = registry.entries[model]
    written = report.status == "passed" and not dry_run
    return Added(
        model=model,
        written=written,
        dry_run=dry_run,
        registry=registry.path,
        lock=lock,
        pins=tuple(AddedPin(pin.repo, role, pin.revision or "") for role, pin in entry.roles),
        recipe={"name": entry.recipe.name, **entry.recipe.options},
        why=why,
        check=checked_model(report),
        bytes_fetched=repos.histories.traffic.nbytes,
        next=common.command("prewarm", model) if written and entry.is_buildable else None,
    )


def _text(document: Added, report: Report, *, quiet: bool) -> Iterator[str]:
    yield style(document.model, "strong")
    yield from columns([[pin.role, f"{pin.repo}@{pin.revision[:12]}"] for pin in document.pins])
    yield f"  recipe {_recipe(document.recipe)}: {document.why}"
    yield from report_text(report)
    if document.check.trouble is not None:
        yield from trouble_text(document.check.trouble)
    if report.compared is not None:
        yield f"  found {report.compared}"
    files = " and ".join(shown_path(file) for file in (document.registry, document.lock) if file)
    why = {
        "passed": "a dry run; the entry would be written",
        "failed": "the pins do not fit together",
    }.get(report.status, "whether the pins fit together could not be told")
    state = "written" if document.written else f"unchanged: {why}"
    yield f"{files} {state} · {format_bytes(document.bytes_fetched)} fetched"
    if document.next and not quiet:
        yield f"next: {document.next}"


def _recipe(options: Mapping[str, Any]) -> str:
    return " ".join([options["name"], *(str(value) for key, value in options.items() if key == "stage")])
