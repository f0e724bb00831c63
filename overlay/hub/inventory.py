"""Opening the repos of a resolution: what can be known of them without a weight byte."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from overlay.errors import InvalidUsage
from overlay.formats.overlay_repo import METADATA_PATTERNS
from overlay.hub.folder import FolderRepo, open_in_hub_folder
from overlay.hub.hub_repo import HubRepo
from overlay.registry import LOCAL, repo_id_problem

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from overlay.fingerprint import DigestMemo
    from overlay.hub.repo import Repo
    from overlay.hub.traffic import Traffic
    from overlay.registry import Pin, Resolution

__all__ = ["Inventory", "open_repo", "take_inventory"]


@dataclass(frozen=True, slots=True)
class Inventory:
    """The repos of a resolution, opened.

    Attributes:
        source: The repo or folder that the model's files come from.
        overlay: Only its files under ``METADATA_PATTERNS``; None where the entry has no overlay.
        needs: Secondary repos, by repo id.
        notes: What the user should know beyond the resolution's own notes, one sentence each.
    """

    resolution: Resolution
    source: Repo
    overlay: Repo | None
    needs: Mapping[str, Repo]
    notes: tuple[str, ...] = ()

    @property
    def repos(self) -> Mapping[str, Repo]:
        """All of them, by repo id."""
        overlay = [self.overlay] if self.overlay is not None else []
        return {repo.repo: repo for repo in (self.source, *overlay, *self.needs.values())}


def open_repo(
    pin: Pin,
    *,
    hub: Path | None,
    offline: bool,
    memo: DigestMemo,
    allow_floating: bool,
    only: Sequence[str] | None = None,
    traffic: Traffic | None = None,
) -> Repo:
    """Open a repo at its pin.

    Args:
        pin: The repo; where its revision is ``local``, a folder, which is used whole.
        hub: Folder that stands for the Hub: ``<org>/<name>/<revision>/…``.
        offline: Make no request.
        memo: Remembers the digests of local files.
        allow_floating: Take a repo without a commit at what its branch is now.
        only: Patterns of the files that count; no other is listed or fetched. None for all.
        traffic: Counts what is fetched.

    Raises:
        InvalidUsage: The pin floats and that is not allowed, or its repo is no repo id.
        OverlayError: As :class:`HubRepo` and ``open_in_hub_folder``.
    """
    if pin.revision == LOCAL:
        return FolderRepo(Path(pin.repo), repo=pin.repo, revision=LOCAL, memo=memo)
    if problem := repo_id_problem(pin.repo):
        raise InvalidUsage(problem, code="invalid-repo-id", hint="write it as ORG/NAME", repo=pin.repo)
    if pin.revision is None and not allow_floating:
        raise InvalidUsage(
            f"{pin.repo}: not pinned to a commit ({pin.floating}), so what is built today may differ tomorrow",
            code="floating-pin",
            hint="pin it in the registry, or say --allow-floating",
            repo=pin.repo,
            reason=pin.floating,
        )
    if hub is not None:
        return open_in_hub_folder(hub, pin, memo, only)
    return HubRepo(pin, offline=offline, memo=memo, only=only, traffic=traffic)


def take_inventory(
    resolution: Resolution,
    *,
    hub: Path | None,
    offline: bool,
    memo: DigestMemo,
    allow_floating: bool,
    traffic: Traffic | None = None,
) -> Inventory:
    """Open the source, the overlay and the needs of a resolution, each at its own revision.

    Args:
        traffic: Counts what is fetched, now and later through the repos. The others are those of :func:`open_repo`.

    Raises:
        OverlayError: As :func:`open_repo`.
    """

    def opened(pin: Pin, only: Sequence[str] | None = None) -> Repo:
        return open_repo(
            pin, hub=hub, offline=offline, memo=memo, allow_floating=allow_floating, only=only, traffic=traffic
        )

    entry = resolution.entry
    source: Repo
    if resolution.source_folder is not None:
        source = FolderRepo(resolution.source_folder, repo=entry.source.repo, revision=LOCAL, memo=memo)
    else:
        source = opened(entry.source)
    overlay = opened(entry.overlay, METADATA_PATTERNS) if entry.overlay else None
    needs = {need.pin.repo: opened(need.pin) for need in entry.needs}
    repos = [source, *([overlay] if overlay else []), *needs.values()]
    lost = [repo.lost for repo in repos if isinstance(repo, HubRepo) and repo.lost]
    return Inventory(resolution, source, overlay, needs, tuple(f"using the cached copy: {why.message}" for why in lost))
