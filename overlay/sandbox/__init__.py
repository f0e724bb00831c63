"""Run an overlay's own Python script where it can reach nothing: no network, no secrets, one writable folder, limits."""

from __future__ import annotations

from overlay.sandbox.job import Job, Limits, OutputFile, Ran, Sandbox
from overlay.sandbox.run import run

__all__ = ["Job", "Limits", "OutputFile", "Ran", "Sandbox", "run"]
