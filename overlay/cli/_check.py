"""What ``overlay check`` prints: the document, its text, and the forms that a GitHub workflow reads."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from overlay.cli._errors import ErrorReport, reported
from overlay.cli._output import Role, columns, format_seconds, say, style, terminal_width
from overlay.contract.cost import Compared, Cost  # noqa: TC001  # the JSON schema is made of them
from overlay.contract.finding import Finding, Severity
from overlay.contract.render import annotation_lines, counts, finding_lines, markdown, one_line, shown_path
from overlay.contract.same import SamePath  # noqa: TC001  # as above
from overlay.formats.wording import counted, format_bytes, some
from overlay.registry import Place

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from overlay.cli._output import Output
    from overlay.contract.check import Report
    from overlay.errors import InvalidRegistry

__all__ = [
    "Checked",
    "CheckedFinding",
    "CheckedModel",
    "Same",
    "checked_model",
    "findings_text",
    "print_checked",
    "print_same",
    "print_unusable",
]

_ROLES: dict[str, Role] = {"error": "bad", "warning": "warn", "note": "dim"}
_STATUS: dict[str, Role] = {"passed": "good", "failed": "bad", "skipped": "warn", "unknown": "warn"}


@dataclass(frozen=True, slots=True)
class CheckedFinding:
    """One finding.

    Attributes:
        code: See docs/reference/findings.
        severity: The worst of ``severities``.
        severities: By consumer.
        file: Of the registry, relative to the working directory where it is inside it.
        line: From 1, as ``column``; 0 where the file has no lines to point at.
        fix: What to do; null where that depends.
    """

    code: str
    severity: Severity
    severities: dict[str, Severity]
    file: str
    line: int
    column: int
    message: str
    fix: str | None
    data: dict[str, Any]


@dataclass(frozen=True, slots=True)
class CheckedModel:
    """One entry of the registry.

    Attributes:
        status: ``failed``: a finding is at or above ``--fail-on``. ``skipped``: a repo may not be read without a token.
            ``unknown``: something could not be told now.
        compared: What the plan is made of; null where there is no plan.
        cost: What a host that has the model as it was moves; null where it was not compared with anything.
        trouble: What kept it from being told; null where nothing did.
    """

    model: str
    status: Literal["passed", "failed", "skipped", "unknown"]
    findings: tuple[CheckedFinding, ...]
    compared: Compared | None
    cost: Cost | None
    trouble: ErrorReport | None


@dataclass(frozen=True, slots=True)
class Checked:
    """What ``overlay check`` prints.

    Attributes:
        registry: The file in force.
        base: What it was compared with; null where every entry was checked.
        models: Those that were checked.
        unchanged: Those that are as they were, and were not checked.
        removed: Those that were there before.
        bytes_fetched: Bodies of everything that came from the Hub.
        notes: What the user should know.
    """

    registry: str
    base: str | None
    models: tuple[CheckedModel, ...]
    unchanged: tuple[str, ...]
    removed: tuple[str, ...]
    bytes_fetched: int
    seconds: float
    notes: tuple[str, ...]

    def summary(self, findings: Sequence[Finding]) -> str:
        """``1 error · 4.1 MB fetched · 1.8 s``."""
        statuses = [model.status for model in self.models]
        others = [f"{statuses.count(s)} {s}" for s in ("skipped", "unknown") if s in statuses]
        found = [counts(findings)] if self.models else []
        fetched = f"{format_bytes(self.bytes_fetched)} fetched"
        return " · ".join([*found, *others, fetched, format_seconds(self.seconds)])

    def text(self, reports: Sequence[Report]) -> Iterator[str]:
        """Findings, what could not be told, and the summary."""
        findings = [finding for report in reports for finding in report.findings]
        yield from findings_text(findings)
        yield from self.ending(reports)

    def ending(self, reports: Sequence[Report]) -> Iterator[str]:
        """What there is to say beside the findings."""
        for report in reports:
            told = any(finding.code == "not-checked" for finding in report.findings)
            if report.trouble is not None and not told:
                yield f"{report.model}: not told[{report.trouble.code}]: {one_line(report.trouble.message)}"
                yield from [f"  hint: {one_line(report.trouble.hint)}"] if report.trouble.hint else []
        if not (self.models or self.unchanged or self.removed):
            yield f"{shown_path(self.registry)}: has no models of its own, so nothing was checked"
        elif self.base is not None and not self.models:
            yield f"nothing to check: {counted(len(self.unchanged), 'entry')} as at {self.base}"
        if self.removed:
            yield f"removed: {some(self.removed)}"
        yield from columns([[m.model, style(m.status, _STATUS[m.status])] for m in self.models], indent="")
        yield self.summary([finding for report in reports for finding in report.findings])


@dataclass(frozen=True, slots=True)
class Same:
    """What ``overlay check --same`` prints.

    Attributes:
        revisions: The two that were compared.
        equal: Whether every path is the same at both.
    """

    repo: str
    revisions: tuple[str, str]
    equal: bool
    paths: tuple[SamePath, ...]
    bytes_fetched: int

    def text(self) -> Iterator[str]:
        """A line a path."""
        roles: dict[str, Role] = {"equal": "good", "differs": "bad", "absent": "bad"}
        yield f"{self.repo}  {self.revisions[0][:12]}  {self.revisions[1][:12]}"
        yield from columns([[p.path or "everything", style(p.result, roles[p.result]), _why(p)] for p in self.paths])
        yield f"{format_bytes(self.bytes_fetched)} fetched"


def _why(path: SamePath) -> str:
    match path.result:
        case "equal":
            return f"{counted(path.files, 'file')}, {format_bytes(path.size)}"
        case "differs":
            return f"{len(path.differing)} of {counted(path.files, 'file')}: {some(path.differing)}"
    return f"nothing there at {' and '.join(revision[:12] for revision in path.absent_at)}"


def checked_model(report: Report) -> CheckedModel:
    """A report as the document has it."""
    return CheckedModel(
        model=report.model,
        status=report.status,
        findings=tuple(
            CheckedFinding(
                code=finding.code,
                severity=finding.severity,
                severities=dict(finding.severities),
                file=shown_path(finding.place.file),
                line=finding.place.line,
                column=finding.place.column,
                message=finding.message,
                fix=finding.fix,
                data=dict(finding.data),
            )
            for finding in report.findings
        ),
        compared=report.compared,
        cost=report.cost,
        trouble=reported(report.trouble) if report.trouble else None,
    )


def print_checked(output: Output, document: Checked, reports: Sequence[Report], form: str) -> None:
    """Print a check in the form that was asked for."""
    for note in document.notes:
        output.remark(note)
    if form == "github":
        _print_github(document, reports)
    else:
        replace(output, json=form == "json").result(document, lambda: document.text(reports))


def print_same(output: Output, document: Same, form: str) -> None:
    """Print a comparison of two revisions; a workflow has no form of its own for it."""
    replace(output, json=form == "json").result(document, document.text)


def print_unusable(error: InvalidRegistry, form: str) -> None:
    """Print the problems of a registry or a lock that cannot be used, as findings are printed."""
    whole = {"file": error.data.get("where", ""), "line": 0, "column": 0}
    whole |= {"code": error.code, "message": error.message, "hint": error.hint}
    findings = [
        Finding(
            code=problem["code"],
            model="",
            message=problem["message"],
            place=Place(problem["file"], problem["line"], problem["column"]),
            severities={"overlay": "error"},
            fix=problem["hint"],
        )
        for problem in error.data.get("problems", [whole])
    ]
    from overlay.contract.check import Report

    summary = f"{counts(findings)} · nothing was checked"
    for line in annotation_lines(findings) if form == "github" else findings_text(findings):
        say(line, command=form == "github")
    say(summary)
    if form == "github":
        whole_file = Report(shown_path(findings[0].place.file), "failed", tuple(findings))
        _append("GITHUB_STEP_SUMMARY", markdown((whole_file,), summary))
        _append_outputs("failed", findings, 0)


def findings_text(findings: Iterable[Finding], indent: str = "") -> Iterator[str]:
    """Findings for people, in colour; on a terminal as wide as that."""
    width = terminal_width()
    room = width - len(indent) if width else None
    for finding in findings:
        for line in finding_lines(finding, style(finding.severity, _ROLES[finding.severity]), room):
            yield indent + line


def _print_github(document: Checked, reports: Sequence[Report]) -> None:
    """Annotations on stdout, and what a workflow reads in the files that it names by variables."""
    findings = [finding for report in reports for finding in report.findings]
    for line in annotation_lines(findings):
        say(line, command=True)
    for line in document.ending(reports):
        say(line)
    statuses = {report.status for report in reports}
    status = next((status for status in ("failed", "unknown", "skipped") if status in statuses), "passed")
    _append("GITHUB_STEP_SUMMARY", markdown(reports, document.summary(findings), document.notes))
    _append_outputs(status, findings, document.bytes_fetched)


def _append_outputs(status: str, findings: Sequence[Finding], bytes_fetched: int) -> None:
    """The outputs of the step."""
    severities = [finding.severity for finding in findings]
    values = {
        "status": status,
        "errors": severities.count("error"),
        "warnings": severities.count("warning"),
        "bytes-fetched": bytes_fetched,
    }
    _append("GITHUB_OUTPUT", "".join(f"{name}={value}\n" for name, value in values.items()))


def _append(variable: str, text: str) -> None:
    if name := os.environ.get(variable):
        try:
            with Path(name).open("a", encoding="utf-8") as file:
                file.write(text)
        except OSError as error:  # the check itself is what counts
            say(f"{variable}: {name} cannot be written: {error.strerror}", err=True)
