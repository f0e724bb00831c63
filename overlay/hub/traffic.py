"""Counting what is fetched."""

from __future__ import annotations

import threading

__all__ = ["Traffic"]


class Traffic:
    """Bytes that came from the Hub: bodies as they were received, not headers of requests. Counts from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._nbytes = 0

    @property
    def nbytes(self) -> int:
        """All bytes so far."""
        return self._nbytes

    def add(self, nbytes: int) -> None:
        """Count what arrived."""
        with self._lock:
            self._nbytes += nbytes
