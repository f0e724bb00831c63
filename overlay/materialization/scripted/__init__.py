"""Overlays that carry Python: what a script is given, its run, and what it left."""

from __future__ import annotations
