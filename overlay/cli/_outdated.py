"""What ``overlay outdated`` does and prints: what moved upstream, and what to do about it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import click

from overlay.cli._check import CheckedModel, checked_model
from overlay.cli._errors import ErrorReport, reported
from overlay.cli._output import Role, columns, style, terminal_width
from overlay.cli._project import resolution_of, trouble_text, upstream
from overlay.contract.render import one_line, wrapped
from overlay.formats.wording import counted, format_bytes
from overlay.registry import RepoRole, load_registry
from overlay.upkeep.outlook import outdated as look
from overlay.upkeep.search import Pair, standing

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from overlay.cli._options import Common
    from overlay.upkeep.outlook import Outlook, RepoState

__all__ = ["MovedRepo", "Outdated", "OutdatedModel", "run_outdated"]

_ADVICE: dict[str, tuple[str, Role]] = {
    "current": ("at the heads", "good"),
    "bump": ("bump", "warn"),
    "stay": ("stay on the pins: safe", "warn"),
    "repair": ("repair: the pins do not hold", "bad"),
    "unknown": ("not told", "warn"),
}
_SHOWN = 20
"""Files of a kind that the text names."""


@dataclass(frozen=True, slots=True)
class MovedRepo:
    """One repo of a model.

    Attributes:
        pinned: 40 hex digits; null where it floats.
        head: Commit of its branch; null where that could not be told.
        behind: Commits between pin and head; null where the history, as far as it is known, lacks the pin.
        added: Files that are new and needed at the head.
        removed: Files that are needed at the pin, and gone.
        renamed: Needed files, from the old path to the new one.
        changed: Needed files with other content.
        why: What could not be told, and why; null where everything was.
    """

    repo: str
    role: RepoRole
    pinned: str | None
    head: str | None
    behind: int | None
    added: tuple[str, ...]
    removed: tuple[str, ...]
    renamed: dict[str, str]
    changed: tuple[str, ...]
    why: str | None


@dataclass(frozen=True, slots=True)
class OutdatedModel:
    """One model.

    Attributes:
        advice: ``current``: source and overlay are at their heads. ``bump``: by ``command``. ``stay``: nothing newer
            holds, and the pins do. ``repair``: the pins do not hold, or the fingerprint beside them is wrong: by
            ``command``, where there is a way. ``unknown``: it could not be told.
        attention: Whether somebody should do or decide something, which ``--exit-code`` makes status 1: ``bump``,
            ``repair``, and ``stay`` where the heads are broken.
        reason: Why the heads do not hold; null where they do or are not known.
        pair: The newest commits that hold; null where none were found. Null in it: there is no overlay.
        command: The command that follows the advice, with all digits; null where there is none.
        pinned: The check of the pins.
        heads: The check of the heads of source and overlay, against the pins; null where those are the pins.
        pairs: Pairs of commits that were looked at for a newer one.
        trouble: Why something could not be told.
    """

    model: str
    advice: Literal["current", "bump", "stay", "repair", "unknown"]
    attention: bool
    reason: str | None
    pair: Pair | None
    command: str | None
    repos: tuple[MovedRepo, ...]
    pinned: CheckedModel
    heads: CheckedModel | None
    pairs: int
    trouble: ErrorReport | None


@dataclass(frozen=True, slots=True)
class Outdated:
    """What ``overlay outdated`` prints."""

    registry: str
    models: tuple[OutdatedModel, ...]
    bytes_fetched: int


def run_outdated(common: Common, models: Sequence[str], *, exit_code: bool) -> None:
    """What the command does."""
    registry, repos = load_registry(common.registry), upstream(common)
    outlooks = [look(resolution_of(model, registry), repos) for model in models or registry.own]
    short = {outlook.model: common.command("bump", outlook.model) for outlook in outlooks}
    document = Outdated(
        registry=registry.path,
        models=tuple(_model(common, outlook) for outlook in outlooks),
        bytes_fetched=repos.histories.traffic.nbytes,
    )
    common.output.result(document, lambda: _text(document, short))
    if trouble := next((outlook.trouble for outlook in outlooks if outlook.trouble), None):
        raise click.exceptions.Exit(trouble.exit_status)
    if exit_code and any(model.attention for model in document.models):
        raise click.exceptions.Exit(1)


def _model(common: Common, outlook: Outlook) -> OutdatedModel:
    found, pinned = outlook.search, outlook.pinned
    pair, command = found.pair if found else None, None
    if pair is not None:
        command = common.command("bump", outlook.model, *_targets(outlook.repos, pair.source, pair.overlay))
    elif outlook.advice == "repair" and standing(pinned) == "passed":  # but for the fingerprint
        command = common.command("bump", outlook.model)
    reason = found.reason if found and found.newest and found.newest.status != "passed" else None
    is_broken_ahead = bool(found and found.newest and found.newest.status == "failed")
    return OutdatedModel(
        model=outlook.model,
        advice=outlook.advice,
        attention=outlook.advice in ("bump", "repair") or (outlook.advice == "stay" and is_broken_ahead),
        reason=reason,
        pair=pair,
        command=command,
        repos=tuple(_repo(state) for state in outlook.repos),
        pinned=checked_model(pinned),
        heads=checked_model(found.newest) if found and found.newest else None,
        pairs=found.pairs if found else 0,
        trouble=reported(outlook.trouble) if outlook.trouble else None,
    )


def _targets(states: Sequence[RepoState], source: str | None, overlay: str | None) -> Iterator[str]:
    """The options that name a pair, of each repo that moves."""
    pinned: dict[str, str | None] = {state.role: state.pinned for state in states}
    for role, commit in (("source", source), ("overlay", overlay)):
        if commit is not None and commit != pinned.get(role):
            yield from (f"--{role}-to", commit)


def _repo(state: RepoState) -> MovedRepo:
    return MovedRepo(
        repo=state.repo,
        role=state.role,
        pinned=state.pinned,
        head=state.head,
        behind=state.behind,
        added=state.changes.added,
        removed=state.changes.removed,
        renamed=dict(state.changes.renamed),
        changed=state.changes.changed,
        why=state.why,
    )


def _text(document: Outdated, short: Mapping[str, str]) -> Iterator[str]:
    """What people read; the short commands do the same as those of the document, as long as nothing moves again."""
    for model in document.models:
        yield from _model_text(model, short[model.model])
    if not document.models:
        yield f"{document.registry}: has no models of its own"
    yield f"{format_bytes(document.bytes_fetched)} fetched"


def _model_text(model: OutdatedModel, short: str) -> Iterator[str]:
    words, role = _ADVICE[model.advice]
    if {finding.code for finding in model.pinned.findings if finding.severity == "error"} == {"fingerprint-differs"}:
        words = "repair: the fingerprint is of other files"
    yield f"{style(model.model, 'strong')}  {style(words, role)}"
    yield from columns([[repo.role, repo.repo, _moved(repo, model)] for repo in model.repos])
    for repo in model.repos:
        yield from (f"    {line}" for line in _files(repo))
    for where, check in (("pins", model.pinned), ("heads", model.heads)):
        errors = [finding for finding in check.findings if finding.severity == "error"] if check else []
        for finding in errors:
            said = one_line(f"{finding.code}: {finding.message}")
            yield from wrapped(said, f"  at the {where}: ", terminal_width())
    if model.trouble is not None:
        yield from trouble_text(model.trouble)
    if model.pair is not None:
        overlay = f", overlay {_short(model.pair.overlay)}" if model.pair.overlay else ""
        yield f"  newest that hold: source {_short(model.pair.source)}{overlay}"
    if model.command:
        yield f"  advice: {short}"
    elif model.advice == "stay":
        yield f"  advice: stay; no newer pair of commits holds ({model.pairs} looked at), but the pins do"
    elif model.advice == "repair":
        yield f"  advice: none; no other pair of commits holds ({model.pairs} looked at)"


def _moved(repo: MovedRepo, model: OutdatedModel) -> str:
    if repo.head is None:
        why = f": {repo.why}" if model.trouble is None else ""  # else the trouble is said for all of them
        return f"{_short(repo.pinned)}, head not told{why}"
    if any(finding.code == "vanished" and finding.data.get("repo") == repo.repo for finding in model.pinned.findings):
        return f"{_short(repo.pinned)}, vanished → {_short(repo.head)}"
    if repo.pinned == repo.head:
        return f"{_short(repo.head)}, the head"
    # A forced push, a folder without a history, or a pin from long ago.
    behind = f"{counted(repo.behind, 'commit')} behind" if repo.behind else "how far behind is not known"
    where = behind if repo.pinned else "not pinned"
    untouched = not (repo.added or repo.removed or repo.renamed or repo.changed)
    return f"{_short(repo.pinned)} → {_short(repo.head)}, {where}{', no needed file touched' if untouched else ''}"


def _files(repo: MovedRepo) -> Iterator[str]:
    renamed = [f"{old} → {new}" for old, new in repo.renamed.items()]
    for word, files in {
        "renamed": renamed,
        "removed": repo.removed,
        "changed": repo.changed,
        "added": repo.added,
    }.items():
        yield from (f"{word}  {file}" for file in files[:_SHOWN])
        if len(files) > _SHOWN:
            yield f"{word}  {len(files) - _SHOWN} more"


def _short(commit: str | None) -> str:
    return commit[:12] if commit else "floating"
