"""What every recipe is given, and what it gives back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from overlay.formats.manifest import Manifest
    from overlay.planning.outputs import Input, OutputFile
    from overlay.planning.plan import AdapterUse, InputBook
    from overlay.planning.scripted import Script

__all__ = ["Outcome", "Sources"]


@dataclass(frozen=True, slots=True)
class Sources:
    """The files that a recipe makes its outputs from.

    Attributes:
        source: The repo or folder that the model's files come from.
        overlay: The overlay's own files; None where the entry has no overlay, and then there is no manifest either.
        needs: Secondary repos, by repo id.
        made_up: Repos whose digests stand for others, because nobody read their files: they tell no content apart.
    """

    source: InputBook
    overlay: InputBook | None
    needs: Mapping[str, InputBook]
    manifest: Manifest | None
    made_up: frozenset[str] = frozenset()

    @property
    def by_repo(self) -> Mapping[str, InputBook]:
        """All of them, by repo id."""
        overlay = [self.overlay] if self.overlay is not None else []
        return {book.repo: book for book in (*self.needs.values(), *overlay, self.source)}


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a recipe makes.

    Attributes:
        reads: Small files whose content shaped it, beyond the inputs of outputs.
        fused_before: Digests of the adapters that the base holds already.
        script: The overlay's own, which makes everything else.
        notes: What a user should know, one sentence each.
    """

    outputs: Sequence[OutputFile]
    adapters: tuple[AdapterUse, ...] = ()
    reads: tuple[Input, ...] = ()
    fused_before: tuple[str, ...] = ()
    script: Script | None = None
    notes: tuple[str, ...] = ()
