"""``overlay check``: whether the contract of the models in a registry holds, told without a weight byte."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

from overlay.cli._options import FILE, Common, common_options, server_options
from overlay.errors import CheckFailed, InvalidRegistry, NotHere, TryAgain

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from overlay.consumers.server import Server
    from overlay.contract.before import Before
    from overlay.contract.check import Report
    from overlay.contract.finding import Severity
    from overlay.contract.subject import Check
    from overlay.hub import Inventory, Repo, Traffic
    from overlay.registry import Pin, Registry, Resolution
    from overlay.registry.lock import LockedModel

__all__ = ["check"]

Form = Literal["text", "json", "github"]

_FAIL_AT: Mapping[str, Severity | None] = {"error": "error", "warning": "warning", "never": None}


@click.command(short_help="Check that pinned repos fit together, without downloading weights.")
@click.argument("models", metavar="[MODEL]...", nargs=-1)
@click.option("--base", metavar="REV", help="Check only what changed since this git revision.")
@click.option("--against", type=FILE, help="Check only what differs from this registry file and the lock beside it.")
@click.option("--same", metavar="REPO", help="Compare MODEL..., here paths of REPO, at two revisions instead.")
@click.option(
    "--revision", "revisions", metavar="A B", nargs=2, help="The two commits for --same: their first digits, or main."
)
@click.option(
    "--fail-on",
    type=click.Choice(list(_FAIL_AT)),
    default="error",
    show_default=True,
    help="Least severity that ends with status 1.",
)
@click.option(
    "--output",
    "form",
    type=click.Choice(["text", "json", "github"]),
    help="Form of the result.  [default: github in a GitHub workflow, else text]",
)
@server_options
@common_options
def check(
    common: Common,
    models: tuple[str, ...],
    base: str | None,
    against: Path | None,
    same: str | None,
    revisions: tuple[str, str] | None,
    *,
    fail_on: str,
    form: Form | None,
    server: Server | None,
) -> None:
    """Check that what the registry pins fits together: required files, adapters, base, overlay, lock.

    All entries of the registry file are checked unless some are named. Only listings, headers and small files are
    read. Those that come from the Hub stay in its cache; nothing else is written. Status 1 when something is found at
    or above --fail-on; 5 or 3 when nothing is, but something could not be told.

    With --for sglang, it is also told what such a server looks for when it is given the name of the model, whether that
    is what is built here, and whether this host has it; with --for vllm-omni, whether it loads the model's layout.

    With --same REPO --revision A B, the arguments are files and folders of REPO (none: all of it), and it is told
    whether they are the same at both commits, by digests alone.
    """
    form = form or ("json" if common.output.json else "github" if _in_workflow() else "text")
    if base is not None and against is not None:
        raise click.UsageError("--base and --against exclude each other")
    if same and not revisions:
        raise click.UsageError("--same needs the two commits as well: --revision A B")
    if revisions and not same:
        raise click.UsageError("--revision needs the repo as well: --same REPO")
    if same and (base is not None or against is not None):
        raise click.UsageError("--same compares a repo and no registry: leave out --base and --against")
    if same and server:
        raise click.UsageError("--same compares a repo, which no server looks up: leave out --for")
    if same and revisions:
        _check_same(common, same, revisions, models, form)
    else:
        _check_models(common, models, base, against, fail_on, form, server)


def _in_workflow() -> bool:
    return os.environ.get("GITHUB_ACTIONS") == "true"


def _check_models(
    common: Common,
    models: Sequence[str],
    base: str | None,
    against: Path | None,
    fail_on: str,
    form: Form,
    server: Server | None,
) -> None:
    from overlay.cli._check import Checked, checked_model, print_checked, print_unusable
    from overlay.contract.before import before_at, before_in, changed_models, fallen_back
    from overlay.contract.check import check_model, judged
    from overlay.hub import Traffic
    from overlay.registry import load_registry
    from overlay.registry.load import is_of_project, require_project
    from overlay.registry.lock import lock_path, read_lock

    started, traffic = time.monotonic(), Traffic()
    try:
        registry = load_registry(common.registry)
        lock = read_lock(lock_path(registry.path))
    except InvalidRegistry as error:
        if form == "json":
            raise  # the error document holds every problem
        print_unusable(error, form)
        raise click.exceptions.Exit(error.exit_status) from error
    notes: list[str] = []
    if base is not None:
        require_project(registry, common.registry, "it is the same at every revision of yours")
    elif not models and not is_of_project(registry, common.registry):
        notes.append("no registry.yaml of a project is here: the one that ships with this program is checked")
    locked = lock.models if lock else {}
    chosen = resolutions = _resolutions(registry, models or registry.own, served=server is not None)
    before: Before | None = None
    removed: tuple[str, ...] = ()
    if base is not None or against is not None:
        before = before_at(registry, base) if base is not None else before_in(registry, Path(against or ""))
        entries = {model: resolution.entry for model, resolution in resolutions.items()}
        changed = changed_models(before, entries, locked)
        fallen = () if models else fallen_back(before, registry)
        gone = f"is not in {registry.path} any more: the entry that ships with this program is in force"
        notes += [*before.notes, *(f"{model} {gone}" for model in fallen)]
        resolutions |= _resolutions(registry, fallen)
        chosen = {model: resolutions[model] for model in (*changed, *fallen)}
        removed = tuple(model for model in before.entries if model not in registry.entries)

    def open_other(pin: Pin) -> Repo:
        return _open(common, pin, traffic)

    of_server, said = _of_server(common, server, open_other) if server else (None, ())
    notes += [*said, *(f"{model}: {note}" for model, resolution in chosen.items() for note in resolution.moved)]
    reports = [
        judged(
            check_model(
                resolution,
                partial(_take, common, traffic),
                locked=locked.get(model),
                before=before.model(model) if before else None,
                open_other=open_other,
                of_server=of_server,
            ),
            _FAIL_AT[fail_on],
        )
        for model, resolution in chosen.items()
    ]
    reports = [_advised(common, report) for report in reports]
    document = Checked(
        registry=registry.path,
        base=before.name if before else None,
        models=tuple(checked_model(report) for report in reports),
        unchanged=tuple(model for model in resolutions if model not in chosen),
        removed=removed,
        bytes_fetched=traffic.nbytes,
        seconds=round(time.monotonic() - started, 3),
        notes=tuple(notes),
    )
    print_checked(common.output, document, reports, form)
    if status := _status(reports):
        raise click.exceptions.Exit(status)


def _resolutions(registry: Registry, models: Sequence[str], *, served: bool = False) -> dict[str, Resolution]:
    """What is to be checked, by model; ``served``: as a server takes the names."""
    from overlay.registry import resolve

    resolutions = (resolve(name, registry, served=served) for name in models)
    return {resolution.model: resolution for resolution in resolutions}


def _take(common: Common, traffic: Traffic, resolution: Resolution, known: LockedModel | None) -> Inventory:
    """Open the repos of a model; offline out of its section of the lock, where that is of these pins and complete."""
    from overlay.fingerprint import DigestMemo
    from overlay.hub import take_inventory
    from overlay.hub.contents import Contents
    from overlay.hub.lock_repo import locked_inventory
    from overlay.materialization.request import open_cache

    root = open_cache(common.options(), create=False).root
    if common.offline and common.hub is None and known is not None:
        with suppress(NotHere):
            return locked_inventory(resolution, known, Contents(root.contents))
    memo = DigestMemo(root.digests, write=False)
    return take_inventory(
        resolution, hub=common.hub, offline=common.offline, memo=memo, allow_floating=True, traffic=traffic
    )


def _advised(common: Common, report: Report) -> Report:
    """A report whose fixes are commands to run as they stand; also those that need the Hub this check is kept from."""
    advice = partial(common.advice, offline=False)
    findings = (replace(item, fix=advice(item.fix)) if item.fix else item for item in report.findings)
    return replace(report, findings=tuple(findings))


def _of_server(common: Common, server: Server, open_other: Callable[[Pin], Repo]) -> tuple[Check, tuple[str, ...]]:
    """The check of a server, with what this host has for it; and what there is to know beside."""
    from overlay.consumers import sglang
    from overlay.consumers.launch import why_not_known
    from overlay.contract.checks.layout import check_layout
    from overlay.contract.checks.look import Warmed
    from overlay.contract.checks.server import check_server
    from overlay.formats.materialized import MARKER_NAME
    from overlay.materialization.request import open_cache

    notes = [note] if (note := why_not_known(server)) else []
    if server.name != "sglang":
        return partial(check_layout, server=server), tuple(notes)
    root = open_cache(common.options(server=server), create=False).root
    names = frozenset(marker.parent.name for marker in root.locations.glob(f"*/{MARKER_NAME}"))
    ignores_xdg = bool(os.environ.get("XDG_CACHE_HOME")) and not sglang.release_of(server.version).honours_xdg
    warmed = Warmed(str(root.path), names, ignores_xdg) if root.path.is_dir() else Warmed()
    if not warmed.root:
        notes.append(f"{root.path}: there is no cache root, so what {server} finds on this host was not looked at")
    return partial(check_server, server=server, warmed=warmed, open_other=open_other), tuple(notes)


def _open(common: Common, pin: Pin, traffic: Traffic) -> Repo:
    """Open a repo that is not of an entry."""
    from overlay.fingerprint import DigestMemo
    from overlay.hub import open_repo

    memo = DigestMemo(None, write=False)
    return open_repo(pin, hub=common.hub, offline=common.offline, memo=memo, allow_floating=True, traffic=traffic)


def _status(reports: Sequence[Report]) -> int:
    if any(report.status == "failed" for report in reports):
        return CheckFailed.exit_status
    troubles = [report.trouble.exit_status for report in reports if report.trouble is not None]
    # What may be otherwise in a minute is said before what needs somebody to do something.
    return TryAgain.exit_status if TryAgain.exit_status in troubles else max(troubles, default=0)


def _check_same(common: Common, repo: str, revisions: tuple[str, str], paths: Sequence[str], form: Form) -> None:
    from overlay.cli._check import Same, print_same
    from overlay.contract.same import compare_paths
    from overlay.hub import Traffic
    from overlay.hub.history import Histories
    from overlay.registry import Pin

    traffic = Traffic()
    histories = Histories(common.hub, common.offline, traffic)
    commits = histories.full_commit(repo, revisions[0]), histories.full_commit(repo, revisions[1])
    one, other = (_open(common, Pin(repo, commit), traffic) for commit in commits)
    found = compare_paths(one, other, paths)
    equal = all(path.result == "equal" for path in found)
    print_same(common.output, Same(repo, commits, equal, found, traffic.nbytes), form)
    if not equal:
        raise click.exceptions.Exit(CheckFailed.exit_status)
