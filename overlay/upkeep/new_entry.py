"""The entry for a model that is added: what its overlay says of itself, and what is known of the model already."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from overlay.contract.facts import sha256_of
from overlay.contract.scripts import KNOWN
from overlay.formats.manifest import read_manifest
from overlay.planning.location import overlay_identity
from overlay.planning.vdn_h3 import STAGES
from overlay.registry import Pin
from overlay.registry.merge import VDN_H3_COMPONENTS

if TYPE_CHECKING:
    from overlay.hub import Repo
    from overlay.registry import Entry, Need, Recipe

__all__ = ["Guess", "entry_fields", "guess_recipe"]

VDN_H3_NEEDS = "MiniMaxAI/MiniMax-H3"
"""Where the published script takes the text encoder from, which the recipe repeats."""


@dataclass(frozen=True, slots=True)
class Guess:
    """The recipe of a new entry, and why it is that one.

    Attributes:
        needs: Repos and components that it takes, each without a commit.
    """

    recipe: dict[str, Any]
    needs: tuple[tuple[str, tuple[str, ...]], ...]
    why: str


def guess_recipe(overlay: Repo | None, known: Entry | None, name: str | None, stage: str | None) -> Guess:
    """The recipe that was asked for, else the one that is known for the model, else what the overlay's script tells.

    Args:
        overlay: Its metadata files; None for a ``lora`` without one.
        known: The entry of this model in the registry below.
        name: The recipe that was asked for.
        stage: Stage of a ``vdn-h3``; None for that of the published overlay.

    Raises:
        OverlayError: The manifest cannot be used.
    """
    if known is not None and name in (None, known.recipe.name) and not stage:
        recipe = _as_written(known.recipe)
        needs = tuple((need.pin.repo, need.components) for need in known.needs)
        return Guess(recipe, needs, "as the registry that ships with this program has it")
    why = "as asked for"
    if name is None:
        name, why = _by_script(overlay)
    if name == "vdn-h3":
        recipe = {"name": name, "stage": stage or next(iter(STAGES))}
        return Guess(recipe, ((VDN_H3_NEEDS, VDN_H3_COMPONENTS),), why)
    return Guess({"name": name}, (), why)


def _as_written(recipe: Recipe) -> dict[str, Any]:
    """A recipe as a registry file has it; wheels stand among the needs there."""
    options = {key: value for key, value in recipe.options.items() if key != "wheels"}
    if recipe.name == "python" and "script" in options:
        options["script"] = {"sha256": options["script"]}
    return {"name": recipe.name, **options}


def _by_script(overlay: Repo | None) -> tuple[str, str]:
    if overlay is None:
        return "lora", "there is no overlay"
    script = read_manifest(overlay).custom_materializer
    if script is None:
        return "mappings", "the overlay has a manifest and no script"
    if script in overlay.paths() and (known := KNOWN.get(sha256_of(overlay, script))):
        return known.recipe, f"the overlay's script is {known.said}, which this recipe repeats"
    digest = f"sha256 {sha256_of(overlay, script)}" if script in overlay.paths() else "absent"
    return "python", f"the overlay is built by its own {script} ({digest}), which runs once the recipe pins it"


def entry_fields(
    source: str, overlay: Repo | None, needs: tuple[Need, ...], recipe: dict[str, Any], known: Entry | None
) -> dict[str, Any]:
    """An entry as a registry file has it.

    Without the fingerprint of the overlay's files: it belongs to one commit, and whoever moves only the commit, such as
    a bot, would leave it wrong. The lock knows the location. One that is known for this commit and wrong is replaced.

    Args:
        source: Commit of the source.
        overlay: At its commit.
        needs: Each at its commit.
        recipe: Name and options.
        known: The entry of this model in the registry below, whose values hold where this one has none.
    """
    fields: dict[str, Any] = {"source": {"revision": source}}
    if overlay is not None:
        fields["overlay"] = {"repo": overlay.repo, "revision": overlay.revision}
        if known is not None and known.overlay == Pin(overlay.repo, overlay.revision):
            fingerprint = overlay_identity(known, overlay, read_manifest(overlay)).overlay_fingerprint
            if known.overlay_fingerprint not in (None, fingerprint):
                fields["overlay"]["fingerprint"] = fingerprint
    wheels = known.wheels if known is not None and recipe["name"] == "python" else ()
    if needs or wheels:
        fields["needs"] = [
            {"repo": need.pin.repo, "revision": need.pin.revision}
            | ({"components": list(need.components)} if need.components else {})
            for need in needs
        ]
        fields["needs"] += [
            {"wheel": wheel.name, "sha256": wheel.sha256} | ({"url": wheel.url} if wheel.url else {})
            for wheel in wheels
        ]
    return fields | {"recipe": recipe}
