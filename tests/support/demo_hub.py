"""The tiny made-up hub of the demo, with a registry for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from overlay.cli._main import run
from overlay.demo.checkpoint import SOURCE_REPO, HubFolder, write_hub
from overlay.demo.registry import write_registry

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["MODEL", "World", "make_built_world", "make_world"]

MODEL = SOURCE_REPO


@dataclass(frozen=True)
class World:
    """A hub, a registry for it and a cache root, below one folder."""

    root: Path
    hub: HubFolder

    @property
    def cache(self) -> Path:
        return self.root / "cache"

    @property
    def variables(self) -> dict[str, str]:
        """What a user would export."""
        return {
            "OVERLAY_HUB": str(self.hub.root),
            "OVERLAY_CACHE_ROOT": str(self.cache),
            "OVERLAY_REGISTRY": str(self.root / "registry.yaml"),
        }

    def put_in_force(self, patch: pytest.MonkeyPatch, cache: Path | None = None) -> None:
        """Export the variables; with ``cache``, that one as the root."""
        own = {"OVERLAY_CACHE_ROOT": str(cache)} if cache else {}
        for name, value in (self.variables | own).items():
            patch.setenv(name, value)


def make_world(root: Path) -> World:
    """Write the hub and its registry."""
    hub = write_hub(root / "hub", blocks=1)
    write_registry(root / "registry.yaml", hub)
    return World(root, hub)


def make_built_world(root: Path) -> World:
    """The same with the model in the cache."""
    world = make_world(root)
    with pytest.MonkeyPatch.context() as patch:
        world.put_in_force(patch)
        assert run(["prewarm", MODEL, "-q"]) == 0
    return world
