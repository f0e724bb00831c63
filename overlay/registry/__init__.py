"""Pins: which repos, at which commits, by which recipe make a model."""

from __future__ import annotations

from overlay.registry.entries import LOCAL, Entry, Need, Pin, Recipe, Registry, Resolution, ServerSpec

__all__ = ["LOCAL", "Entry", "Need", "Pin", "Recipe", "Registry", "Resolution", "ServerSpec"]
