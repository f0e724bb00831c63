"""The command line: one file a command, each of which parses, calls one function and prints."""

from __future__ import annotations

from overlay.cli._main import main

__all__ = ["main"]
