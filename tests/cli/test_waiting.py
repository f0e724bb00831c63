"""What a command says while another process builds the same model: in a pipe, on a terminal, and when it gives up."""

from __future__ import annotations

import json
import os
import pty
import re
import sys
import threading
from typing import TYPE_CHECKING

import pytest
from support.caches import hold_lock
from support.demo_hub import MODEL, World, make_world

from overlay.cache import Cache
from overlay.cli._main import run
from overlay.materialization.materialize import plan
from overlay.materialization.request import Options

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

WAITING = rf"{MODEL}: waiting for pid %d on \S+, since 20\d\d-\d\d-\d\d \d\d:\d\d:\d\d \(\d+ s\)"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> World:
    """A world with nothing in its cache."""
    return make_world(tmp_path_factory.mktemp("made"))


@pytest.fixture
def cache(made: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cache:
    """An empty cache, in force."""
    made.put_in_force(monkeypatch, tmp_path / "cache")
    return Cache.open(tmp_path / "cache", create=True)


@pytest.fixture
def holder(made: World, cache: Cache) -> Iterator[tuple[int, Callable[[], None]]]:
    """The pid of a process that holds the model's lock, and what ends it."""
    location = plan(MODEL, Options(hub=made.hub.root)).plan.location
    pid, release = hold_lock(cache, location)
    yield pid, release
    release()


@pytest.mark.parametrize("timeout", ["0s", "1s"])
def test_h21_a_command_gives_up_in_time(
    holder: tuple[int, Callable[[], None]], capsys: pytest.CaptureFixture[str], timeout: str
) -> None:
    """``--lock-timeout`` ends the waiting with a status that means: later. Who holds the lock is said, and as data."""
    pid, _ = holder

    assert run(["prewarm", MODEL, "--json", "--lock-timeout", timeout]) == 5

    out, err = capsys.readouterr()
    error = json.loads(out)["error"]
    assert error["code"] == "lock-busy"
    assert error["data"]["holder"]["pid"] == pid
    assert f"held by pid {pid} on " in error["message"]
    assert "--lock-timeout" in error["hint"]
    assert bool(re.search(WAITING % pid, err)) == (timeout == "1s")


def test_h21_a_command_that_waits_says_for_whom(
    holder: tuple[int, Callable[[], None]], capsys: pytest.CaptureFixture[str]
) -> None:
    """In a pipe it is one line on stderr; when the holder is done, the command does its work."""
    pid, release = holder
    timer = threading.Timer(0.6, release)
    timer.start()

    assert run(["prewarm", MODEL]) == 0

    timer.join()
    out, err = capsys.readouterr()
    assert re.findall(WAITING % pid, err) == [line for line in err.splitlines() if "waiting" in line]
    assert "waiting" not in out
    assert "built in" in out


def test_h21_a_terminal_shows_a_line_of_its_own(
    holder: tuple[int, Callable[[], None]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a terminal the line stands by itself, and no bar runs into it."""
    pid, release = holder
    master, slave = pty.openpty()
    timer = threading.Timer(0.6, release)
    with open(slave, "w") as terminal:  # noqa: PTH123 - a descriptor
        monkeypatch.setattr(sys, "stderr", terminal)
        timer.start()
        assert run(["prewarm", MODEL]) == 0
        monkeypatch.undo()
    timer.join()
    shown = b""
    try:
        while part := os.read(master, 65536):
            shown += part
    except OSError:  # what a terminal gives in place of an end
        pass
    os.close(master)
    lines = shown.decode().replace("\r\n", "\n").split("\n")
    assert [line for line in lines if "waiting" in line] == [
        line for line in lines if re.fullmatch(WAITING % pid, line)
    ]
    assert any("waiting" in line for line in lines)


def test_h21_quiet_waits_silently(holder: tuple[int, Callable[[], None]], capsys: pytest.CaptureFixture[str]) -> None:
    """``-q`` says nothing but the error."""
    assert run(["prewarm", MODEL, "-q", "--lock-timeout", "1s"]) == 5
    assert [line.split(":")[0] for line in capsys.readouterr().err.splitlines()] == ["error[lock-busy]", "hint"]
