"""The job as functions: resolve, plan, materialize, fuse, verify, compare."""

from __future__ import annotations
