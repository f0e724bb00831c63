"""Every way for a command to end, its message and its status."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import time
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import click
import pytest

from overlay import errors
from overlay.cli import _lazy, _main
from overlay.cli._errors import Terminated, redact
from overlay.cli._options import Common, common_options
from overlay.registry.problems import Problem, refuse

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.no_torch


@pytest.fixture
def run_with(monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    """Run ``overlay resolve`` with a body that does what the test says."""

    def run(body: Callable[[Common], Any], *args: str) -> int:
        @click.command("resolve")
        @common_options
        def resolve(common: Common) -> None:
            body(common)

        monkeypatch.setattr(_lazy, "import_module", lambda _name: SimpleNamespace(resolve=resolve))
        return _main.run(["resolve", *args])

    return run


def raiser(error: BaseException) -> Callable[[Common], None]:
    def body(_common: Common) -> None:
        raise error

    return body


def os_error(number: int) -> OSError:
    return OSError(number, os.strerror(number), "/data/x")


OURS = [
    (errors.BrokenInput, 1),
    (errors.CheckFailed, 1),
    (errors.InvalidUsage, 2),
    (errors.InvalidRegistry, 2),
    (errors.NotHere, 3),
    (errors.CannotWrite, 4),
    (errors.TryAgain, 5),
    (errors.Refused, 6),
    (errors.Untrusted, 7),
]
OTHERS = [
    (os_error(errno.ENOSPC), 4, "no-room"),
    (os_error(errno.EDQUOT), 4, "quota-exceeded"),
    (os_error(errno.EROFS), 4, "read-only"),
    (os_error(errno.EACCES), 4, "not-permitted"),
    (os_error(errno.ENOSYS), 4, "operation-missing"),
    (os_error(errno.ENOENT), 3, "no-such-file"),
    (os_error(errno.EMFILE), 4, "too-many-open-files"),
    (os_error(errno.ENAMETOOLONG), 1, "name-too-long"),
    (os_error(errno.ELOOP), 1, "link-loop"),
    (RuntimeError("Symlink loop from '/some/link'"), 1, "link-loop"),
    (os_error(errno.ETIMEDOUT), 5, "transient"),
    (os_error(errno.ECONNRESET), 5, "transient"),
    (os_error(errno.EBADF), 70, "bug"),
    (MemoryError(), 5, "out-of-memory"),
    (os_error(errno.ENOMEM), 5, "out-of-memory"),
    (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 4 bytes"), 5, "out-of-memory"),
    (RuntimeError("can't start new thread"), 5, "out-of-memory"),
    (RuntimeError("something else"), 70, "bug"),
    (ZeroDivisionError("x"), 70, "bug"),
    (click.UsageError("x"), 2, "usage"),
    (click.FileError("x"), 2, "usage"),
    (KeyboardInterrupt(), 130, "interrupted"),
    (click.Abort(), 130, "interrupted"),
    (Terminated(), 143, "terminated"),
]


@pytest.mark.parametrize(("cls", "status"), OURS)
def test_own_errors_print_code_message_hint(
    run_with: Any, capsys: pytest.CaptureFixture[str], cls: type[errors.OverlayError], status: int
) -> None:
    """An error of the family is printed as code, message and hint on stderr, with the status of its class."""
    error = cls("a/b: found x, expected y", code="some-code", hint="overlay doctor")

    assert status == run_with(raiser(error))
    out, err = capsys.readouterr()
    assert out == ""
    assert err == "error[some-code]: a/b: found x, expected y\nhint: overlay doctor\n"


@pytest.mark.parametrize("break_", ["\n", "\r", "\r\n", "\u2028", "\x85"])
def test_names_in_errors_begin_no_line(run_with: Any, capsys: pytest.CaptureFixture[str], break_: str) -> None:
    """A workflow obeys lines of its log: what a name holds stays within the line of the message."""
    name = f"q{break_}::stop-commands::token"
    error = errors.BrokenInput(f"a/b: has no file {name}", code="some-code", hint=f"rm {name}", where=name)

    assert run_with(raiser(error)) == 1
    lines = capsys.readouterr().err.splitlines()
    assert [line.partition(":")[0] for line in lines] == ["error[some-code]", "hint"]
    assert all("::stop-commands::token" in line for line in lines)


def test_problems_of_a_registry_stand_on_lines_of_their_own(run_with: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """What this program puts into several lines is printed so."""
    problems = [Problem("r.yaml", line, 1, "unknown-key", "a\n::error::b", "look") for line in (1, 2)]

    assert run_with(lambda _common: refuse(problems)) == 2
    assert capsys.readouterr().err.splitlines() == [
        "error[unknown-key]: r.yaml:1:1: a\\n::error::b",
        "  look",
        "r.yaml:2:1: a\\n::error::b",
        "  look",
    ]


@pytest.mark.parametrize(("error", "status", "code"), OTHERS, ids=repr)
def test_foreign_errors_get_a_status(
    run_with: Any, capsys: pytest.CaptureFixture[str], error: BaseException, status: int, code: str
) -> None:
    """Errors from outside the family get one of the documented statuses, never a traceback."""
    assert status == run_with(raiser(error))
    err = capsys.readouterr().err
    assert err.startswith(f"error[{code}]: ")
    assert "Traceback" not in err


@pytest.mark.parametrize(("error", "status", "code"), OTHERS, ids=repr)
def test_errors_as_json(
    run_with: Any, capsys: pytest.CaptureFixture[str], error: BaseException, status: int, code: str
) -> None:
    """With --json stdout holds exactly one document that says the same."""
    assert status == run_with(raiser(error), "--json")
    document = json.loads(capsys.readouterr().out)

    assert document["schema_version"] == 1
    assert document["error"].keys() == {"code", "message", "hint", "status", "data"}
    assert (code, status) == (document["error"]["code"], document["error"]["status"])


def test_error_data_reaches_the_json_document(run_with: Any, capsys: pytest.CaptureFixture[str], tmp_path: Any) -> None:
    """The facts of an error are in the document, paths as text."""
    run_with(raiser(errors.NotHere("x", code="c", path=tmp_path, missing=["a", "b"])), "--json")

    data = json.loads(capsys.readouterr().out)["error"]["data"]

    assert data == {"path": str(tmp_path), "missing": ["a", "b"]}


@pytest.mark.parametrize("args", [["--json", "--no-such"], ["--no-such", "--json"]])
def test_usage_error_as_json(run_with: Any, capsys: pytest.CaptureFixture[str], args: list[str]) -> None:
    """A command line that cannot be parsed is still answered in the form that it asked for."""
    assert run_with(raiser(AssertionError()), *args) == 2
    document = json.loads(capsys.readouterr().out)
    assert document["error"]["code"] == "usage"
    assert document["error"]["hint"] == "overlay resolve --help"


@pytest.mark.parametrize(
    ("args", "hint"),
    [
        (["prewarm", "a/b", "--jobs"], "overlay prewarm --help"),
        (["cache", "gc", "--max-age"], "overlay cache gc --help"),
    ],
)
def test_an_option_without_its_value(capsys: pytest.CaptureFixture[str], args: list[str], hint: str) -> None:
    """The hint is the help of the command at hand."""
    assert _main.run(args) == 2
    assert f"hint: {hint}\n" in capsys.readouterr().err


def test_unknown_command_suggests(capsys: pytest.CaptureFixture[str]) -> None:
    """A misspelt command is answered with the one that was meant."""
    assert _main.run(["prewram"]) == 2
    assert "prewarm" in capsys.readouterr().err


def test_no_arguments_prints_help(capsys: pytest.CaptureFixture[str]) -> None:
    """Without a command the help goes to stderr, with the status of wrong usage."""
    assert _main.run([]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("Usage: overlay")


def test_bug_names_versions_and_command(run_with: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """The report of a bug carries what a maintainer asks for first."""
    assert run_with(raiser(ZeroDivisionError("by zero"))) == 70
    err = capsys.readouterr().err
    assert "ZeroDivisionError: by zero" in err
    assert f"Python {sys.version.split()[0]}" in err
    assert "command: overlay resolve" in err


@pytest.mark.parametrize("how", ["flag", "variable"])
def test_bug_traceback_on_request(
    run_with: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """-v or OVERLAY_DEBUG shows the traceback of a bug."""
    if how == "variable":
        monkeypatch.setenv("OVERLAY_DEBUG", "1")

    run_with(raiser(ZeroDivisionError()), *(["-v"] if how == "flag" else []))

    assert "Traceback (most recent call last)" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("token hf_abcDEF123 here", "token hf_*** here"),
        ("https://me:secret@host/x", "https://***@host/x"),
        ("value s3cr3t", "value ***"),
        ("org/name@main", "org/name@main"),
    ],
)
def test_redact(monkeypatch: pytest.MonkeyPatch, text: str, expected: str) -> None:
    """Tokens and credentials in URLs never reach a report."""
    monkeypatch.setenv("HF_TOKEN", "s3cr3t")

    assert expected == redact(text)


def test_bug_report_holds_no_token(
    run_with: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A token in an exception's text is not printed, not even with the traceback."""
    monkeypatch.setenv("HF_TOKEN", "hf_verysecret")

    run_with(raiser(ZeroDivisionError("Bearer hf_verysecret")), "-v", "--json")

    out, err = capsys.readouterr()
    assert "verysecret" not in out + err


@pytest.mark.parametrize("word", ["--help", "demo"])
def test_reader_that_went_away_is_no_complaint(word: str) -> None:
    """`overlay … | head -1` ends quietly."""
    code = "import overlay.cli; overlay.cli.main()"
    with subprocess.Popen(
        [sys.executable, "-c", code, word], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        process.stdout.close()
        err = process.stderr.read()
        status = process.wait(60)

    assert err == b""
    assert status == 141


SLEEPER = """
import sys, time, types
from pathlib import Path
import click
import overlay.cli._lazy, overlay.cli._main as m
@click.command("resolve")
def resolve():
    try:
        Path("started").touch()
        time.sleep(60)
    finally:
        Path("cleaned").touch()
overlay.cli._lazy.import_module = lambda name: types.SimpleNamespace(resolve=resolve)
sys.argv = ["overlay", "resolve"]
m.main()
"""


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_signals_clean_up(tmp_path: Any, number: signal.Signals, status: int) -> None:
    """SIGTERM and Ctrl-C unwind, so that staging is cleaned, and end with the shell's status."""
    with subprocess.Popen([sys.executable, "-c", SLEEPER], cwd=tmp_path, stderr=subprocess.PIPE) as process:
        deadline = time.monotonic() + 60
        while not (tmp_path / "started").exists() and time.monotonic() < deadline:
            time.sleep(0.01)
        process.send_signal(number)
        err = process.stderr.read().decode()

    assert process.returncode == status
    assert (tmp_path / "cleaned").exists()
    assert "Traceback" not in err


def test_other_systems_are_refused(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Outside Linux one line says so."""
    monkeypatch.setattr(_main.sys, "platform", "darwin")

    with pytest.raises(SystemExit) as caught:
        _main.main()

    assert caught.value.code == 2
    assert "Linux" in capsys.readouterr().err
