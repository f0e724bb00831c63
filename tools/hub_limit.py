"""The local hub server with the Hub's rate limit, for simulations in which time runs faster."""

from __future__ import annotations

import math
import threading
import time
from typing import TYPE_CHECKING, Any

from hub_faults import Fault
from hub_server import HubServer

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["LimitedHubServer"]

_BACKLOG = 1024  # hosts that start together connect together


class LimitedHubServer(HubServer):
    """Answers so many requests in a window, as the Hub counts them, and 429 with ``Retry-After`` to the others.

    Args:
        folder: As of :class:`HubServer`, like the other options.
        most: Requests in a window.
        window: Seconds of it, before ``second`` is applied.
        second: What one of these seconds takes. ``Retry-After`` tells them, whole, as they are.
    """

    def __init__(self, folder: Path, *, most: int, window: float = 300.0, second: float = 1.0, **options: Any) -> None:
        super().__init__(folder, **options)
        self._http.socket.listen(_BACKLOG)
        self._most, self._window, self._second = most, window, second
        self._counting = threading.Lock()
        self._since = -math.inf
        self._answered = 0
        self.windows = 0

    def strike(self, method: str, path: str) -> Fault:
        """The refusal that a request meets; else as any other server."""
        with self._counting:
            now = time.monotonic()
            if now >= self._since + self._window * self._second:
                self._since, self._answered = now, 0
                self.windows += 1
            if self._answered >= self._most:
                left = self._window - (now - self._since) / self._second
                return Fault(status=429, retry_after=max(1, math.ceil(left)))
            self._answered += 1
        return super().strike(method, path)
