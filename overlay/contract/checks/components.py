"""Components that the overlay's model index promises, held against what the recipe makes."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING

from overlay.contract.checks.manifest import MOST_MAPPINGS
from overlay.contract.finding import found
from overlay.contract.reading import MOST_DATA, folded_paths, named, pin_of, shown, unless_broken
from overlay.formats.files import PICKLES
from overlay.formats.model_index import read_model_index
from overlay.planning.mappings import select
from overlay.planning.recipes import MODEL_INDEX
from overlay.planning.vdn_h3 import COMPONENTS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from overlay.contract.finding import Finding
    from overlay.contract.subject import Subject

__all__ = ["check_components"]

_WITHOUT_WEIGHTS = ("tokenizer", "scheduler", "processor", "feature_extractor")
"""In the name of a component whose folder a server accepts without weights."""


def check_components(subject: Subject) -> Iterator[Finding]:
    """``component-missing``: promised and not made, or to be carried from a repo that does not have it."""
    yield from _carried(subject)
    overlay, pin = subject.inventory.overlay, subject.entry.overlay
    made = _made(subject)
    if overlay is None or pin is None or made is None or MODEL_INDEX not in overlay.paths():
        return
    index = unless_broken(read_model_index, overlay, MODEL_INDEX)
    if index is None:
        return  # said by ``manifest-broken``
    # What the overlay brings itself is there too, such as a scheduler's config.
    missing = sorted(index.components.keys() - made - _folders(overlay.paths()))
    if missing:
        yield found(
            "component-missing",
            subject.entry,
            f"{overlay.where(MODEL_INDEX)} names components that recipe {subject.entry.recipe.name} does not make:"
            f" {named(missing)}; a server refuses a tree without them",
            place=pin.place,
            fix="name the repo that holds them among the entry's needs, or pin an overlay that fits the recipe",
            missing=missing[:MOST_DATA],
        )


def _carried(subject: Subject) -> Iterator[Finding]:
    """Folders that the entry takes from its needs: there, and with weights where a server looks for some."""
    for need in subject.entry.needs:
        repo = subject.inventory.repos[need.pin.repo]
        for component in need.components:
            files = [path for path in repo.paths() if path.startswith(f"{component}/")]
            top = [path for path in files if path.count("/") == 1]
            if not files:
                problem = f"has no folder {shown(component)}; there is {named(sorted(_folders(repo.paths())), 8)}"
            elif not _needs_weights(component) or any(path.endswith((".safetensors", *PICKLES)) for path in top):
                continue
            elif any(path.endswith(".safetensors.index.json") for path in top):
                continue  # said by ``shard-missing``
            else:
                problem = (
                    f"has no weights in {shown(component)}; there is {folded_paths(top, 8) or 'no file but in folders'}"
                )
            yield found(
                "component-missing",
                subject.entry,
                f"{need.pin} {problem}; the entry takes {shown(component)} from it",
                place=pin_of(subject.entry, repo).place,
                fix=f"overlay bump {subject.entry.model}"
                if files
                else _fix(subject, component, _folders(repo.paths())),
                repo=repo.repo,
                missing=[component],
            )


def _fix(subject: Subject, component: str, folders: Iterable[str]) -> str:
    """Where the entry is free in what it takes, a name that nearly is one of the repo's was meant to be that."""
    near = difflib.get_close_matches(component, folders, n=1) if subject.entry.recipe.name != "vdn-h3" else []
    if near:
        return f"correct the name under components; the nearest is {shown(near[0])}"
    return f"overlay bump {subject.entry.model}"


def _needs_weights(component: str) -> bool:
    return not any(word in component.lower() for word in _WITHOUT_WEIGHTS)


def _made(subject: Subject) -> set[str] | None:
    """Folders that the recipe makes; None where only the overlay's own Python knows."""
    entry, manifest = subject.entry, subject.manifest
    match entry.recipe.name:
        case "vdn-h3":
            return {*COMPONENTS, *(component for need in entry.needs for component in need.components)}
        case "lora" if subject.base is not None:
            return _folders(subject.base[0].paths())
        case "mappings" if manifest is not None and manifest.custom_materializer is None:
            paths = subject.source.paths()
            return _folders(
                out for mapping in manifest.file_mappings[:MOST_MAPPINGS] for out in select(mapping, paths).values()
            )
    return None


def _folders(paths: Iterable[str]) -> set[str]:
    return {path.partition("/")[0] for path in paths if "/" in path}
