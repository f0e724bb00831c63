"""Numbers, columns and colours."""

from __future__ import annotations

import io
import json
import os
import sys
from dataclasses import replace

import click
import pytest

from overlay.cli import _output
from overlay.cli._project import report_text
from overlay.contract.check import Report
from overlay.contract.finding import Finding
from overlay.formats.wording import format_bytes
from overlay.registry import Place

pytestmark = pytest.mark.no_torch


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("nbytes", "expected"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.0 kB"),
        (999_949, "999.9 kB"),
        (999_950, "1.0 MB"),
        (149_500_000_000, "149.5 GB"),
        (999_999_999_999, "1.0 TB"),
        (5 * 10**18, "5000.0 PB"),
    ],
)
def test_sizes(nbytes: int, expected: str) -> None:
    """A size has one decimal and a unit that is a power of 1000."""
    assert expected == format_bytes(nbytes)


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        (0, "0.0 s"),
        (0.84, "0.8 s"),
        (9.94, "9.9 s"),
        (9.95, "10 s"),
        (59.4, "59 s"),
        (59.6, "1 min 00 s"),
        (125, "2 min 05 s"),
        (3599.6, "1 h 00 min"),
        (3780, "1 h 03 min"),
    ],
)
def test_durations(seconds: float, expected: str) -> None:
    """A duration has two figures that matter."""
    assert expected == _output.format_seconds(seconds)


def test_findings_of_a_model_are_indented_and_fit_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """As ``add`` and ``bump`` print them, below the model's name; the cost is said elsewhere."""
    place, severities = Place("registry.yaml", 4, 7), {"overlay": "error"}
    told = Finding("file-missing", "org/model", "a " * 99, place, severities, fix="b " * 99)
    report = Report("org/model", "failed", (told, replace(told, code="cost")))
    monkeypatch.setattr(sys, "stdout", Terminal())
    monkeypatch.setenv("COLUMNS", "60")
    lines = list(report_text(report))

    assert max(len(click.unstyle(line)) for line in lines) in (59, 60)
    assert all(line.startswith("  ") for line in lines)
    assert sum(line.startswith("  registry.yaml:4:7: ") for line in lines) == 1


def test_columns_align_whatever_the_colour() -> None:
    """Colour codes take no room, and no line ends in spaces."""
    red = "\x1b[31mab\x1b[0m"

    assert _output.columns([["a", "x"], [red, "y", "z"], ["abc"]]) == ["  a   x", f"  {red}  y  z", "  abc"]


@pytest.mark.parametrize(
    ("terminal", "variables", "coloured"),
    [
        (True, {}, True),
        (False, {}, False),
        (True, {"TERM": "dumb"}, False),
        (True, {"NO_COLOR": "1"}, False),
        (False, {"FORCE_COLOR": "1"}, True),
        (True, {"NO_COLOR": "1", "FORCE_COLOR": "1"}, False),
    ],
)
def test_colours(monkeypatch: pytest.MonkeyPatch, terminal: bool, variables: dict[str, str], coloured: bool) -> None:  # noqa: FBT001  # a table
    """Colours show on terminals; NO_COLOR beats FORCE_COLOR."""
    monkeypatch.delenv("NO_COLOR")
    monkeypatch.setenv("TERM", "xterm")
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    stream = Terminal() if terminal else io.StringIO()
    monkeypatch.setattr(sys, "stdout", stream)

    _output.say(_output.style("x", "bad"))

    assert coloured == ("\x1b[" in stream.getvalue())


def test_quiet_drops_remarks(capsys: pytest.CaptureFixture[str]) -> None:
    """-q silences what is only nice to know."""
    for quiet in (True, False):
        _output.Output(json=False, quiet=quiet, verbose=False).remark(f"quiet {quiet}")

    assert capsys.readouterr().err == "quiet False\n"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a\x1b]0;title\x07b", "a\\x1b]0;title\\x07b"),
        ("a\x1b[2Jb\r", "a\\x1b[2Jb\\r"),
        ("\x1b[31mred\x1b[0m", "red"),
        ("tab\tand\nline\r\n", "tab\tand\\nline\\r\\n"),
        ("a\u2028b\u2029c\x85d\x0be\x1cf", "a\\u2028b\\u2029c\\x85d\\x0be\\x1cf"),
        ("\x9bcsi", "\\x9bcsi"),
    ],
)
def test_control_characters_are_shown(capsys: pytest.CaptureFixture[str], text: str, expected: str) -> None:
    """A name from a repo cannot steer the terminal."""
    _output.say(text)

    assert capsys.readouterr().out == f"{expected}\n"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("::stop-commands::x", "\\::stop-commands::x"),
        (" \t::warning title=x::y", " \t\\::warning title=x::y"),
        ("\x1b[31m::error::x\x1b[0m", "\\::error::x"),
        ("a\n::error::x", "a\\n::error::x"),
        ("a\u2028::error::x", "a\\u2028::error::x"),
        ("a ##[add-mask]x ##[group]", "a #\\#[add-mask]x #\\#[group]"),
        ("#\x1b[31m#[error]x", "#\\#[error]x"),
        ("a::b std::vector ## [x]", "a::b std::vector ## [x]"),
    ],
)
def test_no_name_commands_a_workflow(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, text: str, expected: str
) -> None:
    """In a GitHub workflow, a line that would be obeyed is printed otherwise, unless it is meant so."""
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    _output.say(text, err=True)
    _output.say("::notice::meant", command=True)
    monkeypatch.delenv("GITHUB_ACTIONS")
    _output.say("::elsewhere")

    captured = capsys.readouterr()
    assert captured.err == f"{expected}\n"
    assert captured.out == "::notice::meant\n::elsewhere\n"


def test_colour_hides_no_command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Logs of workflows show colours, and who reads them may take these out first."""
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.delenv("NO_COLOR", raising=False)
    _output.say("\x1b[31m::error::x\x1b[0m")

    assert click.unstyle(capsys.readouterr().out) == "\\::error::x\n"


def test_documents_keep_every_name(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """A document is JSON whatever is in it, and no part of it is a command."""
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    name = "a\x7f\n::error::x\u2028##[error]\x1b"
    _output.say_document({"name": name}, str)

    out = capsys.readouterr().out
    assert json.loads(out) == {"schema_version": 1, "name": name}
    assert "##[" not in out
    assert not [line for line in out.splitlines() if line.lstrip().startswith("::")]


def test_paths_that_are_no_text(monkeypatch: pytest.MonkeyPatch) -> None:
    """A path of any bytes is printed as these bytes, for use in a command line."""
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding="utf-8"))

    _output.say(os.fsdecode(b"/data/\xff"))

    assert written.getvalue() == b"/data/\xff\n"
