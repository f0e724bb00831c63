"""Progress: who sees it, and what it says."""

from __future__ import annotations

import sys
import threading

import pytest

from overlay.cli import _progress
from overlay.cli._output import Output

pytestmark = pytest.mark.no_torch


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_what_has_no_known_end_says_that_it_goes_on(capsys: pytest.CaptureFixture[str]) -> None:
    """That it began, every 30 seconds how long it runs and what it wrote, and at the end how long it took."""
    clock = Clock()
    elapsed = _progress.Elapsed("script", clock)
    for clock.now, nbytes in ((5.0, 10), (29.0, 0), (30.0, 2_000_000_000), (59.0, 0), (60.0, 0)):
        elapsed.update(nbytes)
    elapsed.close()

    assert capsys.readouterr().err.splitlines() == [
        "script: running",
        "script: 30 s, 2.0 GB written",
        "script: 1 min 00 s, 2.0 GB written",
        "script: ran 1 min 00 s",
    ]


def test_a_line_every_half_minute(capsys: pytest.CaptureFixture[str]) -> None:
    """Off a terminal a line comes at most every 30 seconds, with rate and time left, and one at the end."""
    clock = Clock()
    lines = _progress.Lines("download", 4_000_000_000, clock)

    for clock.now in (1.0, 29.0, 30.0, 59.0, 60.0):
        lines.update(400_000_000)
    clock.now = 70.0
    lines.close()

    assert capsys.readouterr().err.splitlines() == [
        "download: 1.2 GB of 4.0 GB, 40.0 MB/s, 1 min 10 s left",
        "download: 2.0 GB of 4.0 GB, 33.3 MB/s, 1 min 00 s left",
        "download: 2.0 GB in 1 min 10 s",
    ]


def test_short_work_prints_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    """What is over before the first line is due leaves no line."""
    with _progress.phases(Output(json=False, quiet=False, verbose=False))("fuse", 10) as done:
        done(10)

    assert capsys.readouterr() == ("", "")


def test_a_bar_on_a_terminal(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """On a terminal a bar counts up to the total, from any number of threads."""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with _progress.phases(Output(json=False, quiet=False, verbose=False))("fuse", 8_000_000) as done:
        threads = [threading.Thread(target=lambda: [done(1000) for _ in range(1000)], daemon=True) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    out, err = capsys.readouterr()
    assert out == ""
    assert "100%  8.0 MB of 8.0 MB" in err


def test_a_bar_is_drawn_seldom(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """However often work reports, a terminal gets few frames; the last one is complete."""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setattr(_progress, "REDRAW_S", 3600.0)
    with _progress.phases(Output(json=False, quiet=False, verbose=False))("fuse", 1000) as done:
        for _ in range(1000):
            done(1)

    frames = capsys.readouterr().err.count(" of 1.0 kB")
    assert 1 <= frames <= 3


@pytest.mark.parametrize(
    "output", [Output(json=True, quiet=False, verbose=False), Output(json=False, quiet=True, verbose=False)]
)
def test_silent_when_asked(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], output: Output) -> None:
    """-q and --json show no progress, not even on a terminal."""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with _progress.phases(output)("fuse", 10) as done:
        done(10)

    assert capsys.readouterr() == ("", "")
