"""Overlay scripts that a native recipe repeats. Whoever teaches a recipe another script adds it here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["KNOWN", "KnownScript", "known_for"]


@dataclass(frozen=True, slots=True)
class KnownScript:
    """A script, and what it does that no manifest says.

    Attributes:
        recipe: The native recipe that gives the same bytes.
        said: Where it is from, for messages.
        revision: Commit of the overlay that has it; None for one that was never published.
        floating: Repos that it takes from ``main``, whatever an entry pins.
    """

    recipe: str
    said: str
    revision: str | None = None
    floating: tuple[str, ...] = ()


KNOWN: Mapping[str, KnownScript] = {
    "8481fc322973c309ab78961d4dfd2b4450ea97f393ad4fe2b54de62312979c0b": KnownScript(
        "vdn-h3",
        "kevin-mi/VDN-H3-overlay@7de18275dddf",
        "7de18275dddfe59da36a234e222bcdd274963bc3",
        floating=("MiniMaxAI/MiniMax-H3",),
    ),
    "eb329cc2e4ba220e1ae1987ddf5dde7a6e1f8e1d3ab0d6866d84c4afb3935da2": KnownScript(
        "vdn-h3", "the stand-in of made-up checkpoints"
    ),
}
"""By sha256 of the script (hex)."""


def known_for(recipe: str) -> dict[str, KnownScript]:
    """The scripts that a recipe repeats, by sha256; empty for recipes that repeat none."""
    return {sha256: script for sha256, script in KNOWN.items() if script.recipe == recipe}
