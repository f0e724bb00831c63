"""Findings as lines and as annotations: nothing that stands in a repo or a registry can break out of its place."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from overlay.contract.check import Report
from overlay.contract.finding import Finding
from overlay.contract.render import ANNOTATIONS, MARKDOWN_ROWS, annotation_lines, counts, finding_lines, markdown
from overlay.registry import Place

if TYPE_CHECKING:
    from pathlib import Path

    from overlay.contract.finding import Severity

pytestmark = pytest.mark.no_torch


def finding(
    message: str = "something", *, severity: Severity = "error", place: Place | None = None, fix: str | None = None
) -> Finding:
    return Finding(
        "file-missing", "org/model", message, place or Place("registry.yaml", 4, 7), {"overlay": severity}, fix
    )


def test_a_line_is_what_editors_read() -> None:
    """file:line:column, severity, code, model, message; the fix below."""
    assert list(finding_lines(finding(fix="overlay bump org/model"), "error")) == [
        "registry.yaml:4:7: error[file-missing]: org/model: something",
        "  fix: overlay bump org/model",
    ]


def test_a_finding_begins_no_line_of_its_own() -> None:
    """What a repo names may hold line ends; a workflow obeys a line that begins with two colons."""
    lines = list(finding_lines(finding("a\n::stop-commands::x\r\u2028y", fix="b\n::error::z"), "error"))
    assert lines == [
        "registry.yaml:4:7: error[file-missing]: org/model: a ::stop-commands::x  y",
        "  fix: b ::error::z",
    ]


def test_on_a_terminal_a_finding_is_wrapped_between_words() -> None:
    """The first line begins as ever, the others are indented; words and commands stay whole, colours take no room."""
    path = "stage-dmd-step-250/adapters/default/adapter_model.safetensors"
    told = finding(f"the overlay requires {path}; the source lacks it", fix=f"overlay bump org/{'m' * 80}")
    red = "\x1b[31merror\x1b[0m"
    assert list(finding_lines(told, red, 80)) == [
        f"registry.yaml:4:7: {red}[file-missing]: org/model: the overlay requires",
        f"  {path}; the source",
        "  lacks it",
        f"  fix: overlay bump org/{'m' * 80}",
    ]
    assert len(list(finding_lines(finding("word " * 100, fix="read " * 100), "error", 40))) > 20


@pytest.mark.parametrize("width", [1, 20])
def test_a_narrow_terminal_loses_nothing(width: int) -> None:
    """Whatever the width, every word is there."""
    lines = finding_lines(finding("a long\tmessage  of words"), "error", width)
    expected = "registry.yaml:4:7: error[file-missing]: org/model: a long message of words"
    assert " ".join(" ".join(lines).split()) == expected


@pytest.mark.parametrize(
    ("message", "text"),
    [
        ("org/model@6d052b3e9cc6/a/b.json: is odd", "org/model: org/model@6d052b3e9cc6/a/b.json: is odd"),
        ("org/model has no commit", "org/model: has no commit"),
        ("org/models@6d052b3e9cc6: is odd", "org/model: org/models@6d052b3e9cc6: is odd"),
        ("org/model-2 has no commit", "org/model: org/model-2 has no commit"),
    ],
)
def test_a_message_about_the_models_own_repo_names_it_once(message: str, text: str) -> None:
    """The model is at the beginning of the line already."""
    assert list(finding_lines(finding(message), "error")) == [f"registry.yaml:4:7: error[file-missing]: {text}"]


def test_severities_are_shown_where_consumers_differ() -> None:
    """Else one word says it for all."""
    differing = Finding("lock-stale", "org/model", "is old", Place("VARIABLE"), {"overlay": "error", "sglang": "note"})
    assert list(finding_lines(differing, "error")) == [
        "VARIABLE: error[lock-stale]: org/model: is old",
        "  severity: error for overlay, note for sglang",
    ]


def test_paths_inside_the_working_directory_are_relative(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As an editor and GitHub look for them; others stay absolute."""
    inside, outside = tmp_path / "project", tmp_path / "other/registry.yaml"
    (inside / "deploy").mkdir(parents=True)
    monkeypatch.chdir(inside)
    [line] = finding_lines(finding(place=Place(str(inside / "deploy/registry.yaml"), 1, 2)), "error")
    assert line.startswith("deploy/registry.yaml:1:2: ")
    [line] = finding_lines(finding(place=Place(str(outside), 1, 2)), "error")
    assert line.startswith(f"{outside}:1:2: ")


def test_an_annotation_is_one_line_whatever_it_says() -> None:
    """Percent signs and line ends are escaped in the message, colons and commas in the properties as well."""
    hostile = Finding(
        code="file-missing",
        model="org/model",
        message="100% gone,\r\n::error::now: what\n::set-output name=x::y",
        place=Place("a,b:c%\nd.yaml", 3, 9),
        severities={"overlay": "warning"},
        fix="x\n::add-mask::y",
    )
    [line] = annotation_lines([hostile])

    assert line == (
        "::warning file=a%2Cb%3Ac%25%0Ad.yaml,line=3,col=9,title=file-missing%3A org/model::"
        "100%25 gone,%0D%0A::error::now: what%0A::set-output name=x::y%0Afix: x%0A::add-mask::y"
    )


def test_a_place_without_lines_has_none() -> None:
    """A variable of the environment is named, and no line of it."""
    [line] = annotation_lines([finding(place=Place("OVERLAY_REGISTRY"), severity="note")])
    assert line.startswith("::notice file=OVERLAY_REGISTRY,title=")


def test_annotations_are_bounded() -> None:
    """GitHub shows ten of a severity; how many more there are is said in a plain line."""
    many = [finding(str(number)) for number in range(37)] + [finding("w", severity="warning")]
    lines = list(annotation_lines(many))

    assert [line for line in lines if not line.startswith("::")] == [
        f"{37 - ANNOTATIONS} more of severity error are in the summary of this job"
    ]
    assert len(lines) == ANNOTATIONS + 1 + 1


def test_the_summary_is_a_table_that_names_do_not_break() -> None:
    """Bars, line ends, tags and links out of a repo stay text in their cell."""
    report = Report("org/model", "failed", (finding("a|b\n<img src=x>[x](http://y) `z` &lt;"),))
    text = markdown([report], "1 error")
    [row] = [line for line in text.splitlines() if line.startswith("| error")]

    assert len(re.split(r"(?<!\\)\|", row)) == 7
    assert "<img" not in text
    assert "[x](" not in text
    assert "&amp;lt;" in row
    assert "### overlay check: 1 error" in text


def test_the_summary_is_bounded() -> None:
    """GitHub takes 1 MiB of a step; the rest is counted."""
    report = Report("org/model", "failed", tuple(finding(str(number)) for number in range(MARKDOWN_ROWS + 5)))
    text = markdown([report], "205 errors")

    assert text.count("| error |") == MARKDOWN_ROWS
    assert "5 more: `overlay check` prints all of them." in text


@pytest.mark.parametrize(
    ("severities", "text"),
    [
        ([], "nothing found"),
        (["error"], "1 error"),
        (["note", "warning", "error", "warning"], "1 error · 2 warnings · 1 note"),
    ],
)
def test_counts(severities: list[Severity], text: str) -> None:
    """The worst first, and nothing of what there is none of."""
    assert counts([finding(severity=severity) for severity in severities]) == text
