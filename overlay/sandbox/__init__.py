"""Run an overlay's own Python script where it can reach nothing: no network, no secrets, one writable folder."""

from __future__ import annotations

from overlay.sandbox.choice import require_sandbox, run, sandboxes
from overlay.sandbox.job import Job, LeftFile, Limits, Ran, Sandbox

__all__ = ["Job", "LeftFile", "Limits", "Ran", "Sandbox", "require_sandbox", "run", "sandboxes"]
