"""How files that are carried over can come into the cache, found out before any of them does."""

from __future__ import annotations

from typing import TYPE_CHECKING

from overlay.cache.links import ways
from overlay.cache.probe import LinkOutlook, link_outlook

if TYPE_CHECKING:
    from collections.abc import Iterable

    from overlay.cache import Cache, How, LinkMode
    from overlay.hub import Repo

__all__ = ["Links"]


class Links:
    """Tries with a file that is here: once a folder, once for the Hub's store.

    Of a repo nothing may be here yet, but small files of another one are: a plan has read them.
    """

    def __init__(self, cache: Cache, mode: LinkMode, repos: Iterable[Repo]) -> None:
        self._root = cache.root
        self._mode: LinkMode = mode
        self._in_store = [repo for repo in repos if repo.shared_store]
        self._known: dict[str, LinkOutlook] = {}

    def way_from(self, repo: Repo) -> How:
        """How a file of this repo will come in."""
        key = "" if repo.shared_store else repo.repo
        if key not in self._known:
            self._known[key] = self._outlook(self._in_store if repo.shared_store else [repo])
        # Where nothing works, the run says so, at its first write.
        return self._known[key].how or ways(self._mode, shared_store=repo.shared_store)[-1]

    def notes(self) -> tuple[str, ...]:
        """Why files are copied, where nobody asked for that."""
        return tuple(
            f"files of {repo or 'the Hub cache'} are copied ({outlook.why})"
            for repo, outlook in self._known.items()
            if outlook.how == "copy" and self._mode != "copy"
        )

    def _outlook(self, repos: list[Repo]) -> LinkOutlook:
        here = (path for repo in repos for name in repo.paths() if (path := repo.local(name)) is not None)
        sample = next(here, None)
        if sample is None:
            return LinkOutlook(None, "no file is here yet to try with")
        return link_outlook(self._root, sample, self._mode, shared_store=repos[0].shared_store)
