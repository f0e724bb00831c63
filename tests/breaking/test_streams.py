"""Standard streams that are closed, full or gone, and signals that a library swallows."""

from __future__ import annotations

import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.no_torch

PROGRAM = f"{sys.executable} -c 'import overlay.cli; overlay.cli.main()'"


def shell(command: str) -> tuple[int, str, str]:
    done = subprocess.run(["/bin/sh", "-c", command], capture_output=True, check=False, timeout=60)
    return done.returncode, done.stdout.decode(), done.stderr.decode()


@pytest.mark.parametrize(
    ("command", "status"),
    [
        pytest.param("cache ls >&-", 0, id="stdout-closed"),
        pytest.param("cache ls --json >&-", 0, id="stdout-closed-json"),
        pytest.param("cache ls <&- >&- 2>&-", 0, id="all-closed"),
        pytest.param("cache ls >/dev/full", 4, id="stdout-full"),
        pytest.param("cache ls --json >/dev/full", 4, id="stdout-full-json"),
        pytest.param("--help >/dev/full", 4, id="help-full"),
        pytest.param("resolve no/no 2>&-", 2, id="error-stderr-closed"),
        pytest.param("resolve no/no 2>/dev/full", 2, id="error-stderr-full"),
        pytest.param("resolve no/no --json >/dev/full", 2, id="error-stdout-full"),
        pytest.param("resolve no/no --json >&-", 2, id="error-stdout-closed"),
    ],
)
def test_streams_that_cannot_be_written(command: str, status: int) -> None:
    """The status tells how the command went, or that its output was lost; nothing is said twice, nothing is a bug."""
    found, out, err = shell(f"{PROGRAM} {command}")
    assert (found, out) == (status, "")
    assert "Traceback" not in err
    assert "Exception ignored" not in err
    assert err.count("error[") == (status != 0 and "2>" not in command)


def test_a_closed_stream_is_no_file_that_is_opened_later(tmp_path: Path) -> None:
    """What a library prints to descriptor 2 does not end up in a file of ours that happens to have got this number."""
    code = f"""
import os, sys, types
import click, overlay.cli._lazy, overlay.cli._main as m
@click.command("resolve")
def resolve():
    with open({str(tmp_path / "weights")!r}, "wb") as file:
        os.write(1, b"noise"); os.write(2, b"noise")
overlay.cli._lazy.import_module = lambda name: types.SimpleNamespace(resolve=resolve)
sys.argv = ["overlay", "resolve"]
m.main()
"""
    (tmp_path / "code.py").write_text(code)
    assert shell(f"{sys.executable} {tmp_path}/code.py <&- >&- 2>&-")[0] == 0
    assert (tmp_path / "weights").read_bytes() == b""


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_that_a_library_turns_into_another_error(tmp_path: Path, number: signal.Signals, status: int) -> None:
    """An import that catches everything and then fails: the signal is reported, not a bug."""
    code = f"""
import os, sys, types
import click, overlay.cli._lazy, overlay.cli._main as m
@click.command("resolve")
def resolve():
    try:
        os.kill(os.getpid(), {int(number)})
    except:
        pass
    raise ImportError("cannot load module more than once per process")
overlay.cli._lazy.import_module = lambda name: types.SimpleNamespace(resolve=resolve)
sys.argv = ["overlay", "resolve"]
m.main()
"""
    (tmp_path / "code.py").write_text(code)
    found, _, err = shell(f"{sys.executable} {tmp_path}/code.py")
    assert found == status
    assert "bug" not in err
