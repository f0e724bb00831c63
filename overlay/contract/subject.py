"""What is checked: an entry, the repos at its pins, and what was there before."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from overlay.contract.finding import Finding
from overlay.errors import OverlayError
from overlay.formats.manifest import read_manifest
from overlay.planning.vdn_h3 import BASE, STAGES

if TYPE_CHECKING:
    from overlay.formats.manifest import Manifest
    from overlay.hub import Inventory, Repo
    from overlay.registry import Entry
    from overlay.registry.lock import LockedModel

__all__ = ["AdapterPlace", "Check", "Subject"]


@dataclass(frozen=True, slots=True)
class AdapterPlace:
    """Where an adapter lies: a folder or a file of a repo."""

    name: str | None
    repo: Repo
    path: str


@dataclass(frozen=True, slots=True)
class Subject:
    """One entry and the repos at its pins, opened.

    Attributes:
        locked: What the lock in force says of it; None where it is not locked.
        before: The same model as it was before the change that is checked; None where there is no such thing.
    """

    inventory: Inventory
    locked: LockedModel | None = None
    before: Subject | None = None

    @property
    def entry(self) -> Entry:
        """The entry that is checked."""
        return self.inventory.resolution.entry

    @property
    def source(self) -> Repo:
        """The repo that the model's files come from."""
        return self.inventory.source

    @property
    def manifest(self) -> Manifest | None:
        """The overlay's manifest; None where there is no overlay, or none that can be read."""
        if self.inventory.overlay is None:
            return None
        try:
            return read_manifest(self.inventory.overlay)
        except OverlayError:
            return None

    @property
    def base(self) -> tuple[Repo, str] | None:
        """Repo and folder of the checkpoint that adapters are folded into; None for recipes without one."""
        match self.entry.recipe.name:
            case "vdn-h3":
                return self.source, f"{BASE}/transformer"
            case "lora":
                place = self.entry.recipe.options["base"]
                return self.inventory.repos[place["repo"]], place["path"]
        return None

    @property
    def adapters(self) -> tuple[AdapterPlace, ...]:
        """The adapters of the recipe, in fusing order."""
        options = self.entry.recipe.options
        match self.entry.recipe.name:
            case "vdn-h3":
                stage = options["stage"]
                names = STAGES.get(stage, ())
                return tuple(AdapterPlace(name, self.source, f"{stage}/adapters/{name}") for name in names)
            case "lora":
                repos = self.inventory.repos
                return tuple(AdapterPlace(None, repos[item["repo"]], item["path"]) for item in options["adapters"])
        return ()

    @property
    def branch(self) -> str | None:
        """Path of the linear branch's weights in the source; None for recipes without one."""
        if self.entry.recipe.name != "vdn-h3":
            return None
        return f"{self.entry.recipe.options['stage']}/linear_branch/model.safetensors"


Check = Callable[[Subject], Iterator[Finding]]
"""One check: yields what it found, and raises nothing but what opening a repo raises (no connection, gated)."""
