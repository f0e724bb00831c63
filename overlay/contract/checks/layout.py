"""Whether a server loads the layout that a recipe makes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from overlay.consumers.layouts import H3, INDEX, why_not_loaded
from overlay.contract.finding import found
from overlay.errors import OverlayError
from overlay.formats.strict_json import parse_object
from overlay.planning.compose import placed

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from overlay.consumers.server import Server
    from overlay.contract.finding import Finding
    from overlay.contract.subject import Subject

__all__ = ["check_layout"]


def check_layout(subject: Subject, server: Server) -> Iterator[Finding]:
    """``layout-not-loaded``: what is built here is laid out for another server."""
    entry = subject.entry
    if why := why_not_loaded(server, _made(subject), _transformer(subject)):
        to_other = f"overlay env {entry.model} --for {'vllm-omni' if server.name == 'sglang' else 'sglang'}"
        yield found(
            "layout-not-loaded",
            entry,
            why,
            place=entry.recipe.place,
            fix=f"write a recipe that makes that layout, or serve it otherwise: {to_other}",
            server=str(server),
        )


def _made(subject: Subject) -> Collection[str]:
    """Those files of the tree that tell its layout, as far as the recipe tells."""
    recipe, repos = subject.entry.recipe, subject.inventory.repos
    output = recipe.options.get("output") if recipe.name == "lora" else None
    if output:
        return {f"{output['folder']}/{INDEX}"}
    if recipe.name == "compose":
        return {path for part in recipe.options["parts"] for path in placed(repos[part["repo"]].paths(), part)}
    return {INDEX}


def _transformer(subject: Subject) -> str | None:
    """The class of the transformer that is made in the layout of Diffusers; None where that is not known here."""
    if subject.entry.recipe.name == "vdn-h3":
        return H3
    if subject.entry.recipe.name != "lora" or subject.base is None:
        return None
    repo, folder = subject.base
    path = f"{folder}/config.json" if folder else "config.json"
    try:
        found_class = parse_object(repo.read_bytes(path), repo.where(path)).get("_class_name")
    except OverlayError:
        return None
    return found_class if isinstance(found_class, str) else None
