"""Running every check on a model: one report, in which "could not tell" is never "bad"."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Literal

from overlay.contract.checks.adapters import check_adapters
from overlay.contract.checks.bases import check_bases
from overlay.contract.checks.branch import check_branch
from overlay.contract.checks.components import check_components
from overlay.contract.checks.location import check_location
from overlay.contract.checks.lock_facts import check_facts
from overlay.contract.checks.locked import check_lock, staleness
from overlay.contract.checks.manifest import check_manifest
from overlay.contract.checks.pins import check_pins
from overlay.contract.checks.reach import check_reach
from overlay.contract.checks.required import check_required
from overlay.contract.checks.shards import check_shards
from overlay.contract.checks.specs import check_specs
from overlay.contract.cost import Cost, compared, cost
from overlay.contract.finding import OF_THE_LOCK, SEVERITIES, Finding, found, worst
from overlay.contract.prefetch import prefetch
from overlay.contract.reading import OF_THIS_HOST
from overlay.contract.subject import Subject
from overlay.errors import BrokenInput, CannotWrite, NotHere, OverlayError, Refused, TryAgain, Untrusted
from overlay.hub import HubRepo
from overlay.planning.recipes import make_plan, stand_in_digest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from overlay.contract.cost import Compared
    from overlay.contract.finding import Severity
    from overlay.contract.subject import Check
    from overlay.hub import Inventory, Repo
    from overlay.planning.outputs import Input
    from overlay.planning.plan import Plan
    from overlay.registry import Entry, Pin, Resolution
    from overlay.registry.lock import LockedModel

__all__ = ["CHECKS", "Report", "Status", "check", "check_model", "judged"]

Status = Literal["passed", "failed", "skipped", "unknown"]

CHECKS: tuple[Check, ...] = (
    check_pins,
    check_manifest,
    check_required,
    check_reach,
    check_components,
    check_shards,
    check_specs,
    check_adapters,
    check_branch,
    check_location,
    check_lock,
)
"""Every check that needs nothing but its subject; :func:`check_bases` is run beside them, and
:func:`check_facts` once there is a plan."""

_MAY_NOT_SEE = {"gated", "token-needed", "forbidden"}
_GONE = {"vanished-commit", "repo-not-found", "repo-disabled"}
_OF_A_REPO = {"skipped", "vanished", "not-checked"}
# What the others say explains why a plan cannot be made as well; these are about something else.
_OF_A_SERVER = {"server-unknown", "server-looks-elsewhere", "snapshot-extras", "layout-not-loaded"}
_NO_REASON = {*OF_THE_LOCK, *_OF_A_SERVER, "fingerprint-differs", "not-fetched", "script-changed"}


@dataclass(frozen=True, slots=True)
class Report:
    """What checking one model came to.

    Attributes:
        status: ``failed``: a finding is an error, or what else :func:`judged` was told to fail at. ``unknown``: none
            is, but something could not be told now. ``skipped``: likewise, for lack of a token.
        findings: By place, the worst first.
        compared: What a plan was made of; None where none could be made.
        cost: What a host that has the model as it was moves; None where nothing is known of before.
        trouble: Why something could not be told, where trying again may help.
    """

    model: str
    status: Status
    findings: tuple[Finding, ...]
    compared: Compared | None = None
    cost: Cost | None = None
    trouble: OverlayError | None = None


def check_model(
    resolution: Resolution,
    take: Callable[[Resolution, LockedModel | None], Inventory],
    *,
    locked: LockedModel | None = None,
    before: tuple[Resolution, LockedModel | None] | None = None,
    open_other: Callable[[Pin], Repo] | None = None,
    of_server: Check | None = None,
) -> Report:
    """Open the repos of an entry and run every check; what cannot be opened is part of the report.

    Args:
        resolution: What to check.
        take: Opens the repos, given what the lock says of them: ``take_inventory`` with its options.
        locked: What the lock in force says of it.
        before: The same model before the change, and what the lock said of it; where its repos cannot be opened, it is
            as if there was none.
        open_other: Opens a repo that an adapter names and the entry does not; without it, its name alone is looked at.
        of_server: What is to be checked beside, of a server: ``check_server`` with all but the subject.
    """
    entry = resolution.entry
    try:
        inventory = take(resolution, locked)
    except OverlayError as error:
        told, trouble = _told(error, entry)
        unread = told or ([] if trouble else [_plan_refused(error, entry)])
        return _report(entry, [*unread, *staleness(resolution, locked)], trouble=trouble)
    former = None
    if before is not None:
        try:
            former = Subject(take(*before), before[1])
        except (Refused, NotHere) as error:
            if error.code == "not-a-hub":
                return _report(entry, [], trouble=error)
            former = None  # gone, or never here: then there is nothing to compare with
        except OverlayError as error:
            return _report(entry, [], trouble=error)
    return check(Subject(inventory, locked, former), open_other, of_server)


def check(subject: Subject, open_other: Callable[[Pin], Repo] | None = None, of_server: Check | None = None) -> Report:
    """Run every check on a model whose repos are open. Raises nothing that a repo can cause.

    Args:
        open_other: As of :func:`check_model`, like ``of_server``.
    """
    beside = [of_server] if of_server else []
    checks: tuple[Check, ...] = (*CHECKS, partial(check_bases, open_other=open_other), *beside)
    try:
        return _check(subject, checks)
    except _FormerUnreadableError:
        return _check(replace(subject, before=None), checks)


def judged(report: Report, fail_on: Severity | None = "error") -> Report:
    """A report whose status follows the severity at which a finding fails it; None: at none."""
    found_worst = worst(report.findings)
    status: Status = "passed"
    if found_worst and fail_on and SEVERITIES.index(found_worst) >= SEVERITIES.index(fail_on):
        status = "failed"
    elif report.trouble is not None:
        status = "unknown"
    elif any(finding.code == "skipped" for finding in report.findings):
        status = "skipped"
    return replace(report, status=status)


class _FormerUnreadableError(Exception):
    """What the model was before cannot be read any more: then it is checked as if it was new."""


def _check(subject: Subject, checks: Sequence[Check]) -> Report:
    entry, findings = subject.entry, list(_lost(subject))
    plan = the_cost = None
    trouble: OverlayError | None = None
    try:
        prefetch(subject)
        for run in checks:
            trouble = _run(run, subject, findings) or trouble
        refused: OverlayError | None = None
        try:
            plan = _plan(subject)
        except (BrokenInput, NotHere, Refused, Untrusted) as error:
            refused = error  # what cannot be built is held against its lock, too
        trouble = _run(partial(check_facts, plan=plan), subject, findings) or trouble
        if refused is not None:
            raise refused
        the_cost = _cost(subject, plan)
    except (TryAgain, CannotWrite) as error:
        trouble = error
    except OverlayError as error:
        told, of_plan = _told(error, entry)
        is_said = error.code == "script-differs" and any(finding.code == "script-changed" for finding in findings)
        findings += told or ([] if of_plan or is_said or _is_explained(findings) else [_plan_refused(error, entry)])
        trouble = of_plan or trouble
    if _is_of_lock_alone(subject) and worst(findings) == "error":
        the_cost = None  # "0 bytes" is no clean bill
    if the_cost is not None and plan is not None:
        findings.append(_cost_finding(the_cost, compared(plan), entry))
    return _report(entry, findings, compared(plan) if plan else None, the_cost, trouble)


def _run(run: Check, subject: Subject, findings: list[Finding]) -> OverlayError | None:
    """Add what one check finds; what keeps it from going on is told, and returned if trying again may help."""
    try:
        findings.extend(run(subject))  # what was found before it fails is kept
    except (TryAgain, CannotWrite):
        raise
    except OverlayError as error:
        if _is_of_former(error, subject):
            raise _FormerUnreadableError from error
        told, trouble = _told(error, subject.entry)
        findings += told or ([] if trouble or _is_explained(findings) else [_plan_refused(error, subject.entry)])
        return trouble
    return None


def _lost(subject: Subject) -> Iterator[Finding]:
    """Commits that the Hub has no more, of which a copy is cached."""
    for repo in subject.inventory.repos.values():
        if isinstance(repo, HubRepo) and repo.lost is not None:
            yield from _told(repo.lost, subject.entry)[0]


def _is_of_former(error: OverlayError, subject: Subject) -> bool:
    """Whether a repo cannot be read at the commit that it was pinned at before."""
    if subject.before is None or not isinstance(error, Refused | NotHere):
        return False
    now, former = (
        {(repo.repo, repo.revision) for repo in inventory.repos.values()}
        for inventory in (subject.inventory, subject.before.inventory)
    )
    return (error.data.get("repo"), error.data.get("revision")) in former - now


def _is_of_lock_alone(subject: Subject) -> bool:
    """Whether the change that is checked is one of the lock, under the same entry."""
    return subject.before is not None and subject.before.entry == subject.entry


def _told(error: OverlayError, entry: Entry) -> tuple[list[Finding], OverlayError | None]:
    """A repo that cannot be read, as a finding; and the error itself where it may be otherwise another time."""
    pin = next((pin for pin in entry.pins if pin.repo == error.data.get("repo")), None)
    place, facts = pin.place if pin else None, {"repo": pin.repo if pin else None, "reason": error.code}
    may_be_private = error.code == "repo-not-found" and not error.data.get("authorized")
    match error:
        case Refused() if error.code in _MAY_NOT_SEE or may_be_private:
            code, trouble = "skipped", None
        case Refused() if error.code in _GONE:
            code, trouble = "vanished", None
        case NotHere() if error.code in OF_THIS_HOST:
            code, trouble = "not-checked", error
        case BrokenInput() | NotHere() | Untrusted():
            return [], None
        case _:
            return [], error
    return [found(code, entry, error.message, place=place, fix=error.hint, **facts)], trouble


def _plan(subject: Subject) -> Plan | None:
    """The plan of a model; None where only the overlay's own Python knows it, and none is pinned."""
    inventory = subject.inventory
    if not subject.entry.is_buildable:
        return None
    return make_plan(inventory) if subject.before is not None else make_plan(inventory, digest=stand_in_digest)


def _cost(subject: Subject, plan: Plan | None) -> Cost | None:
    """What the change costs; None where there was nothing before that could be built."""
    if plan is None or subject.before is None or plan.script is not None:
        return None
    repos = subject.inventory.repos

    def payload(source: Input) -> int:
        if not source.path.endswith(".safetensors"):
            return 0
        return source.size - repos[source.repo].header(source.path).data_start

    try:
        former = make_plan(subject.before.inventory)
    except (BrokenInput, NotHere, Refused, Untrusted):
        return None
    return cost(former, plan, payload)


def _plan_refused(error: OverlayError, entry: Entry) -> Finding:
    facts = {"code": error.code, "where": error.data.get("where")}
    return found("plan-refused", entry, error.message, place=entry.recipe.place, fix=error.hint, error=facts)


def _is_explained(findings: Iterable[Finding]) -> bool:
    return any(finding.severity == "error" and finding.code not in _NO_REASON for finding in findings)


def _cost_finding(the_cost: Cost, what: Compared, entry: Entry) -> Finding:
    return found("cost", entry, f"the change costs {the_cost} ({what} compared)", **asdict(the_cost))


def _report(
    entry: Entry,
    findings: Iterable[Finding],
    what: Compared | None = None,
    the_cost: Cost | None = None,
    trouble: OverlayError | None = None,
) -> Report:
    ordered = tuple(sorted(_distinct(findings), key=_order))
    return judged(Report(entry.model, "passed", ordered, what, the_cost, trouble))


def _distinct(findings: Iterable[Finding]) -> Iterator[Finding]:
    """Each cause once: several checks meet the same repo that may not be read, or the same broken file."""
    seen: set[tuple[object, ...]] = set()
    for finding in findings:
        said = finding.data["repo"] if finding.code in _OF_A_REPO else finding.message
        key = finding.code, finding.place, said
        if key not in seen:
            seen.add(key)
            yield finding


def _order(finding: Finding) -> tuple[object, ...]:
    place = finding.place
    return place.file, place.line, place.column, -SEVERITIES.index(finding.severity), finding.code, finding.message
