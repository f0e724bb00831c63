"""The Hub's cache as a program needs it that asks by name: whole snapshots, and branches that lead to them."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from overlay.errors import NotHere
from overlay.formats.files import safe_path
from overlay.formats.os_errors import cannot_write
from overlay.hub.hub_cache import storage_folder
from overlay.hub.trees import read_cached_tree

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from overlay.hub.hub_repo import HubRepo
    from overlay.hub.repo import Progress

__all__ = ["Branch", "complete_snapshot", "not_in_snapshot", "require_listing", "require_unchanged"]

_LONGEST = 200
"""Characters that are read of what a branch says; a commit has 40."""


@dataclass(frozen=True, slots=True)
class Branch:
    """What the Hub's cache says that a branch of a repo is at."""

    repo: str
    name: str

    @property
    def file(self) -> Path:
        """Where it says so.

        Raises:
            BrokenInput: The name leads out of the cache.
        """
        return storage_folder(self.repo) / "refs" / safe_path(self.name, f"revision of {self.repo}")

    def commit(self) -> str | None:
        """What it says, as the client takes it: white space counts. None where it says nothing."""
        try:
            with self.file.open(encoding="utf-8", errors="replace") as file:
                return file.read(_LONGEST)
        except OSError:
            return None

    def create(self, commit: str) -> bool:
        """Let it lead to a commit, if it leads nowhere; what is there is never replaced, also if it just appeared.

        Returns:
            Whether it leads there now.

        Raises:
            CannotWrite: The system refuses.
        """
        if self.commit() == commit:
            return True
        # Not in the folder of branches, where the client would take what a killed run leaves for one of them.
        staged = storage_folder(self.repo) / f".overlay-{os.urandom(8).hex()}.tmp"
        try:
            self.file.parent.mkdir(parents=True, exist_ok=True)
            staged.write_text(commit, encoding="ascii")
            try:
                self.file.hardlink_to(staged)
            except FileExistsError:
                pass
            except OSError:  # a filesystem without hard links; the look before it is all that can be done there
                if not self.file.exists():
                    staged.replace(self.file)
        except OSError as error:
            place = str(self.file)
            raise cannot_write(
                error, place, "write the branch", elsewhere="move the Hub's cache with HF_HUB_CACHE"
            ) from error
        finally:
            with suppress(OSError):
                staged.unlink(missing_ok=True)
        return self.commit() == commit


def not_in_snapshot(repo: HubRepo, paths: Sequence[str]) -> list[str]:
    """Those of a commit's files that its snapshot lacks, whether another commit's has them or not.

    Raises:
        NotHere: One has another size there than it should (``damaged-in-hub-cache``).
    """
    return [path for path in paths if repo.local(path) is None or not (repo.snapshot / path).is_file()]


def complete_snapshot(repo: HubRepo, paths: Sequence[str], progress: Progress | None) -> None:
    """Bring files into the snapshot of their commit.

    Raises:
        OverlayError: As :meth:`HubRepo.fetch`.
    """
    for path in not_in_snapshot(repo, paths):
        repo.link_known(path)
    repo.fetch(paths, progress)


def require_unchanged(repo: HubRepo, paths: Iterable[str]) -> None:
    """Hold small files that are here against the commit's digests; a changed one is fetched once more, if it can be.

    Raises:
        NotHere: One is changed, and there is no connection (``damaged-in-hub-cache``).
        OverlayError: As :meth:`HubRepo.read_bytes`.
    """
    for path in paths:
        if _is_there(repo, path):
            repo.read_bytes(path)


def _is_there(repo: HubRepo, path: str) -> bool:
    try:
        return repo.local(path) is not None
    except NotHere:  # with another size
        return True


def require_listing(repo: HubRepo) -> None:
    """Refuse a commit that is not listed in the Hub's cache: nobody could tell whether its snapshot is whole.

    Raises:
        NotHere: It is not.
    """
    storage = storage_folder(repo.repo)
    if read_cached_tree(storage, repo.revision) is None:
        place = storage / "trees" / f"{repo.revision}.json"
        raise NotHere(
            f"{place}: is not there, so whether the snapshot of {repo.name} is whole cannot be told",
            code="not-cached",
            hint="run it once with a connection (without --offline, HF_HUB_OFFLINE unset)",
            repo=repo.repo,
            revision=repo.revision,
            where=str(place),
        )
