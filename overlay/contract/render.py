"""Findings as lines: for people and editors, and as annotations, a summary and outputs of a GitHub workflow."""

from __future__ import annotations

import html
import os
import re
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING

from overlay.contract.finding import SEVERITIES
from overlay.formats.wording import counted

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from overlay.contract.check import Report
    from overlay.contract.finding import Finding, Severity

__all__ = ["annotation_lines", "counts", "finding_lines", "markdown", "one_line", "shown_path", "wrapped"]

ANNOTATIONS = 10
"""Of each severity: GitHub shows no more of one step."""

MARKDOWN_ROWS = 200
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
_COMMANDS: dict[Severity, str] = {"error": "error", "warning": "warning", "note": "notice"}


def shown_path(file: str) -> str:
    """A file as people find it: relative to the working directory where it is inside it."""
    try:
        # Not Path.resolve: before Python 3.13 that raises a bare RuntimeError for a link to itself.
        return str(Path(os.path.realpath(file)).relative_to(Path.cwd().resolve())) if Path(file).is_absolute() else file
    except (ValueError, OSError):
        return file


def place_of(finding: Finding) -> str:
    """``file:line:column`` of a finding."""
    place = finding.place
    return f"{shown_path(place.file)}:{place.line}:{place.column}" if place.line else shown_path(place.file)


def finding_lines(finding: Finding, severity: str, width: int | None = None) -> Iterator[str]:
    """A finding as ``file:line:col: severity[code]: model: message``, with what to do below it.

    Args:
        severity: The word, in its colour.
        width: Columns of the terminal; None for one line each, which programs read.
    """
    head = f"{place_of(finding)}: {severity}[{finding.code}]: "
    room = len(_COLOUR.sub("", head))
    first, *others = wrapped(one_line(_told(finding)), " " * room, width)
    yield head + first[room:]
    yield from others
    if differing := _by_consumer(finding):
        yield f"  severity: {differing}"
    if finding.fix:
        fix = one_line(finding.fix)
        # A command stays on one line, to be copied.
        yield from [f"  fix: {fix}"] if fix.startswith("overlay ") else wrapped(fix, "  fix: ", width)


def _told(finding: Finding) -> str:
    """``model: message``; one that begins with the model itself does not name it again."""
    if not finding.model:
        return finding.message
    rest = finding.message.removeprefix(finding.model)
    return f"{finding.model}: {rest.lstrip() if rest[:1] == ' ' else finding.message}"


def wrapped(text: str, begin: str, width: int | None) -> list[str]:
    """Text as lines of a width, none of it cut in a word; one line where no width is given."""
    if width is None:
        return [begin + text]
    return textwrap.wrap(
        text, width, initial_indent=begin, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False
    ) or [begin]


def one_line(text: str) -> str:
    """Text without line ends: what a repo names could otherwise begin a line, and a workflow would obey it."""
    return " ".join(text.splitlines())


def counts(findings: Iterable[Finding]) -> str:
    """``1 error · 2 warnings``; ``nothing found`` where there is none."""
    severities = [finding.severity for finding in findings]
    parts = [counted(severities.count(name), name) for name in reversed(SEVERITIES) if name in severities]
    return " · ".join(parts) or "nothing found"


def annotation_lines(findings: Sequence[Finding]) -> Iterator[str]:
    """Findings as workflow commands, the first of each severity; of the others, how many there are."""
    for severity in reversed(SEVERITIES):
        those = [finding for finding in findings if finding.severity == severity]
        for finding in those[:ANNOTATIONS]:
            place = finding.place
            facts = {"file": shown_path(place.file)}
            if place.line:
                facts |= {"line": str(place.line), "col": str(place.column)}
            facts["title"] = f"{finding.code}: {finding.model}" if finding.model else finding.code
            properties = ",".join(f"{name}={_property(value)}" for name, value in facts.items())
            text = finding.message + (f"\nfix: {finding.fix}" if finding.fix else "")
            yield f"::{_COMMANDS[severity]} {properties}::{_data(text)}"
        if len(those) > ANNOTATIONS:
            yield f"{len(those) - ANNOTATIONS} more of severity {severity} are in the summary of this job"


def markdown(reports: Sequence[Report], summary: str, notes: Sequence[str] = ()) -> str:
    """The step's summary: what became of each model, why it could not be told where that is so, and the findings."""
    findings = [finding for report in reports for finding in report.findings]
    lines = [f"### overlay check: {_cell(summary)}", "", *(line for note in notes for line in (_cell(note), ""))]
    if reports:
        lines += ["| model | status |", "|---|---|"]
        lines += [f"| {_cell(report.model)} | {report.status} |" for report in reports[:MARKDOWN_ROWS]]
        lines.append("")
    lines += [line for report in reports[:MARKDOWN_ROWS] for line in _trouble(report)]
    if findings:
        lines += ["| severity | code | where | what | fix |", "|---|---|---|---|---|"]
    lines += [
        f"| {finding.severity} | `{finding.code}` | {_cell(place_of(finding))} |"
        f" {_cell(_told(finding))} | {_cell(finding.fix or '')} |"
        for finding in findings[:MARKDOWN_ROWS]
    ]
    if len(findings) > MARKDOWN_ROWS:
        lines += ["", f"{len(findings) - MARKDOWN_ROWS} more: `overlay check` prints all of them."]
    return "\n".join(lines) + "\n\n"


def _trouble(report: Report) -> Iterator[str]:
    """Why something could not be told."""
    if report.trouble is not None:
        hint = f" ({_cell(report.trouble.hint)})" if report.trouble.hint else ""
        yield f"{_cell(report.model)}: not told, `{report.trouble.code}`: {_cell(report.trouble.message)}{hint}"
        yield ""


def _by_consumer(finding: Finding) -> str:
    if len(set(finding.severities.values())) <= 1:
        return ""
    return ", ".join(f"{severity} for {consumer}" for consumer, severity in finding.severities.items())


def _data(text: str) -> str:
    """The message of a workflow command: it ends at the end of the line."""
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    """A property of a workflow command: a comma ends it, and a colon all of them."""
    return _data(text).replace(":", "%3A").replace(",", "%2C")


def _cell(text: str) -> str:
    """Text in a cell of a table: names out of a repo are data, and make no markup."""
    escaped = "".join(f"\\{c}" if c in "\\`*_[]|#~" else c for c in html.escape(text, quote=False))
    return " ".join(escaped.split())
