"""Pins: which repos, at which commits, by which recipe make a model."""

from __future__ import annotations

from overlay.registry.entries import (
    COMMIT,
    CONSUMERS,
    LOCAL,
    Entry,
    Launch,
    Need,
    Pin,
    Place,
    Recipe,
    Registry,
    RepoRole,
    Resolution,
    ScriptLimits,
    ServerSpec,
    Wheel,
    repo_id_problem,
)
from overlay.registry.load import load_registry
from overlay.registry.resolve import resolve

__all__ = [
    "COMMIT",
    "CONSUMERS",
    "LOCAL",
    "Entry",
    "Launch",
    "Need",
    "Pin",
    "Place",
    "Recipe",
    "Registry",
    "RepoRole",
    "Resolution",
    "ScriptLimits",
    "ServerSpec",
    "Wheel",
    "load_registry",
    "repo_id_problem",
    "resolve",
]
