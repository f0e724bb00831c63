"""The repos of models at any of their commits, and the histories of these commits."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from overlay.formats.overlay_repo import METADATA_PATTERNS
from overlay.hub import Inventory, open_repo
from overlay.registry import Pin

if TYPE_CHECKING:
    from pathlib import Path

    from overlay.fingerprint import DigestMemo
    from overlay.hub import Repo
    from overlay.hub.history import Histories
    from overlay.registry import Resolution
    from overlay.registry.lock import LockedModel

__all__ = ["Repos"]


@dataclass(slots=True)
class Repos:
    """Opens repos at commits, each once, however many pairs it is part of.

    Args:
        histories: Of the same place.
    """

    hub: Path | None
    offline: bool
    memo: DigestMemo
    histories: Histories
    _opened: dict[tuple[str, str | None, bool], Repo] = field(default_factory=dict)

    def inventory(self, resolution: Resolution, _locked: LockedModel | None = None) -> Inventory:
        """The repos of a resolution, as checks have them opened; floating ones at their head.

        Raises:
            OverlayError: As ``open_repo``.
        """
        entry = resolution.entry
        overlay = self._open(entry.overlay, metadata=True) if entry.overlay else None
        needs = {need.pin.repo: self._open(need.pin) for need in entry.needs}
        return Inventory(resolution, self._open(entry.source), overlay, needs)

    def source(self, repo: str, commit: str) -> Repo:
        """A source at a commit.

        Raises:
            OverlayError: As ``open_repo``.
        """
        return self._open(Pin(repo, commit))

    def overlay(self, repo: str, commit: str) -> Repo:
        """What counts of an overlay at a commit.

        Raises:
            OverlayError: As ``open_repo``.
        """
        return self._open(Pin(repo, commit), metadata=True)

    def _open(self, pin: Pin, *, metadata: bool = False) -> Repo:
        key = pin.repo, pin.revision, metadata
        if key not in self._opened:
            self._opened[key] = open_repo(
                pin,
                hub=self.hub,
                offline=self.offline,
                memo=self.memo,
                allow_floating=True,
                only=METADATA_PATTERNS if metadata else None,
                traffic=self.histories.traffic,
            )
        return self._opened[key]
