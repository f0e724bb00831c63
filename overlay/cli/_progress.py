"""Progress on stderr: a bar on a terminal, a line every half minute elsewhere."""

from __future__ import annotations

import sys
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from overlay.cli._output import format_seconds, say
from overlay.formats.wording import format_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from click._termui_impl import ProgressBar

    from overlay.cli._output import Output

__all__ = ["phases"]

INTERVAL_S = 30.0
REDRAW_S = 0.1  # a terminal behind a slow line takes no more, and nobody sees more


class _Bar:
    """A bar that threads may share, with bytes, rate and time left."""

    def __init__(self, label: str, total: int) -> None:
        self._total = total
        self._waiting = 0
        self._started = self._drawn = time.monotonic()
        self._bar: ProgressBar[int] = click.progressbar(
            length=total,
            label=label,
            file=sys.stderr,
            show_eta=True,
            show_percent=True,
            width=24,
            item_show_func=lambda _item: self._moved(),
        )
        self._lock = threading.Lock()
        self._bar.render_progress()

    def update(self, nbytes: int) -> None:
        with self._lock:
            self._waiting += nbytes
            if time.monotonic() - self._drawn >= REDRAW_S:
                self._draw()

    def close(self) -> None:
        self._draw()
        self._bar.render_finish()

    def _draw(self) -> None:
        self._bar.update(self._waiting)
        self._waiting, self._drawn = 0, time.monotonic()

    def _moved(self) -> str:
        rate = self._bar.pos / max(1e-3, time.monotonic() - self._started)
        return f"{format_bytes(self._bar.pos)} of {format_bytes(self._total)}, {format_bytes(round(rate))}/s"


class Lines:
    """Prints how far it is, how fast and how long it will take, at most once an interval.

    Args:
        label: What is being done.
        total: Bytes that will be done.
        clock: Seconds from any start.
    """

    def __init__(self, label: str, total: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._label = label
        self._total = total
        self._done = 0
        self._clock = clock
        self._started = self._printed = clock()
        self._lock = threading.Lock()

    def update(self, nbytes: int) -> None:
        """Count, and print a line when one is due."""
        with self._lock:
            self._done += nbytes
            now = self._clock()
            if now - self._printed < INTERVAL_S:
                return
            self._printed = now
            say(self._line(now), err=True)

    def close(self) -> None:
        """Say how long it took, if that was long enough for a line before."""
        if self._printed > self._started:
            took = self._clock() - self._started
            say(f"{self._label}: {format_bytes(self._done)} in {format_seconds(took)}", err=True)

    def _line(self, now: float) -> str:
        rate = self._done / (now - self._started)
        parts = [f"{format_bytes(self._done)} of {format_bytes(self._total)}", f"{format_bytes(round(rate))}/s"]
        if rate > 0 and self._done <= self._total:
            parts.append(f"{format_seconds((self._total - self._done) / rate)} left")
        return f"{self._label}: {', '.join(parts)}"


class Elapsed:
    """Prints that something began, and from time to time how long it takes and what it has written.

    Args:
        label: What is being done; nobody knows how much of it there is.
        clock: Seconds from any start.
    """

    def __init__(self, label: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._label = label
        self._clock = clock
        self._started = self._printed = clock()
        self._done = 0
        say(f"{label}: running", err=True)

    def update(self, nbytes: int) -> None:
        """Count, and print a line when one is due; no bytes are told as well, as time goes by."""
        self._done += nbytes
        now = self._clock()
        if now - self._printed >= INTERVAL_S:
            self._printed = now
            say(f"{self._label}: {format_seconds(now - self._started)}, {format_bytes(self._done)} written", err=True)

    def close(self) -> None:
        """Say how long it took."""
        say(f"{self._label}: ran {format_seconds(self._clock() - self._started)}", err=True)


def phases(output: Output) -> Callable[[str, int], AbstractContextManager[Callable[[int], None]]]:
    """What a stage calls with a label and a total in bytes, and then with bytes as they are done, from any thread.

    A total below 0 is one that nobody knows. Silent with ``-q``, with ``--json``, and when there is nothing to do.
    """

    @contextmanager
    def phase(label: str, total: int) -> Iterator[Callable[[int], None]]:
        if output.quiet or output.json or total == 0:
            yield lambda _nbytes: None
            return
        if total < 0:
            meter: _Bar | Lines | Elapsed = Elapsed(label)
        else:
            meter = _Bar(label, total) if sys.stderr.isatty() else Lines(label, total)
        try:
            yield meter.update
        finally:
            meter.close()

    return phase
