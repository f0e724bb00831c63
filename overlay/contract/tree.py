"""The tree that a recipe makes, as far as listings tell it: for checks, which need no plan that can be made."""

from __future__ import annotations

from typing import TYPE_CHECKING

from overlay.contract.checks.manifest import MOST_MAPPINGS
from overlay.contract.reading import is_below
from overlay.formats.checkpoint import WEIGHTS_SUFFIX
from overlay.formats.overlay_repo import comes_to_tree
from overlay.formats.tree_files import is_hidden
from overlay.planning.compose import placed
from overlay.planning.mappings import select
from overlay.planning.native import sibling_paths
from overlay.planning.tree import Carried
from overlay.planning.vdn_h3 import BASE, COMPONENTS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from overlay.contract.subject import Subject
    from overlay.hub import Repo
    from overlay.planning.tree import Tree

__all__ = ["carried_needs", "made_by", "tree_of"]


def made_by(subject: Subject) -> tuple[str, ...]:
    """Components that the recipe makes with weights."""
    return COMPONENTS if subject.entry.recipe.name == "vdn-h3" else ()


def tree_of(subject: Subject) -> Tree | None:
    """What comes to each path; None where only the overlay's own Python knows."""
    entry, manifest, overlay = subject.entry, subject.manifest, subject.inventory.overlay
    tree: dict[str, Carried | None] = {}
    if overlay is not None and entry.recipe.name not in ("lora", "compose"):
        own = filter(comes_to_tree, overlay.paths())
        tree.update(_carried(overlay, {path: path for path in own}))
    match entry.recipe.name:
        case "vdn-h3":
            audio = f"{BASE}/audio_vae/"
            taken = {path: path.removeprefix(f"{BASE}/") for path in subject.source.paths() if path.startswith(audio)}
            tree.update(carried_needs(subject) | _carried(subject.source, taken))
            # Their configs are made, and what they have for weights is held against its index where it is read.
            tree.update({f"{name}/{file}": None for name in COMPONENTS for file in ("config.json", "made.safetensors")})
        case "lora" if output := entry.recipe.options.get("output"):
            beside, folder = output["siblings"], output["folder"]
            repo = subject.inventory.repos[beside["repo"]]
            files = {f"{folder}/{inside}": path for inside, path in sibling_paths(repo.paths(), beside["path"]).items()}
            tree.update({out: Carried(repo, path) for out, path in files.items()})
            # The weights of the base are held against their index where they are read.
            tree.update({f"{folder}/transformer/{file}": None for file in ("config.json", "made.safetensors")})
        case "compose":
            for part in entry.recipe.options["parts"]:
                repo = subject.inventory.repos[part["repo"]]
                tree.update({out: Carried(repo, path) for out, path in placed(repo.paths(), part).items()})
        case "lora" if subject.base is not None:
            base, folder = subject.base
            paths = [path for path in base.paths() if not is_hidden(path)]
            tree.update(_carried(base, {path: path for path in paths}))
            # The base's own weights are held against their index where they are read.
            tree.update({path: None for path in paths if path.endswith(WEIGHTS_SUFFIX) and is_below(path, folder)})
        case "mappings" if manifest is not None and manifest.custom_materializer is None:
            for mapping in manifest.file_mappings[:MOST_MAPPINGS]:
                tree.update(_carried(subject.source, select(mapping, subject.source.paths())))
        case _:
            return None
    return tree


def carried_needs(subject: Subject) -> dict[str, Carried | None]:
    """The components that an entry takes from its needs."""
    tree: dict[str, Carried | None] = {}
    for need in subject.entry.needs:
        repo, folders = subject.inventory.repos[need.pin.repo], tuple(f"{component}/" for component in need.components)
        paths = [path for path in repo.paths() if path.startswith(folders) and not is_hidden(path)]
        tree.update(_carried(repo, {path: path for path in paths}))
    return tree


def _carried(repo: Repo, moved: Mapping[str, str]) -> dict[str, Carried | None]:
    return {out: Carried(repo, path) for path, out in moved.items()}
