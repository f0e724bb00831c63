"""The history of a repo: where its branch is, which commits led there, and which one a few digits stand for."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from overlay.errors import InvalidUsage, NotHere
from overlay.fingerprint import DigestMemo
from overlay.hub.answers import parse_page, reading
from overlay.hub.folder import FolderRepo, open_in_hub_folder
from overlay.hub.hub_cache import BRANCH, is_offline
from overlay.hub.traffic import Traffic
from overlay.registry import COMMIT, LOCAL, Pin, repo_id_problem

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


__all__ = ["MOST_COMMITS", "Histories"]

MOST_COMMITS = 1000
"""How far back a commit is looked for."""

_PAGE = 100

_PREFIX = re.compile(r"[0-9a-f]{4,39}")


@dataclass(slots=True)
class Histories:
    """Histories of repos, each asked for once.

    Args:
        hub: Folder that stands for the Hub. It has no order of commits: only its heads are known.
        offline: Make no request.
        traffic: Counts what is received.
    """

    hub: Path | None
    offline: bool
    traffic: Traffic = field(default_factory=Traffic)
    _heads: dict[str, str] = field(default_factory=dict)
    _known: dict[str, list[str]] = field(default_factory=dict)
    _pages: dict[str, Iterator[bytes]] = field(default_factory=dict)

    def head(self, repo: str) -> str:
        """The commit that ``main`` is at; of a hub folder, its only revision, or what ``main`` is a link to.

        Raises:
            NotHere: Offline, or no such folder.
            InvalidUsage: A folder that is no commit, or several of which none is ``main``.
            OverlayError: As ``explain.explained``.
        """
        if repo not in self._heads:
            known = self._known.get(repo)
            self._heads[repo] = known[0] if known else self._head(repo)
        return self._heads[repo]

    def commits(self, repo: str) -> Iterator[str]:
        """The commits that led to the head, newest first, ``MOST_COMMITS`` at most; asked for as one goes through them.

        Of a hub folder, the head alone.

        Raises:
            OverlayError: As :meth:`head`.
            Refused: The answer is no list of commits (``not-a-hub``).
        """
        if self.hub is not None:
            yield self.head(repo)
            return
        known, number = self._known.setdefault(repo, []), 0
        while number < MOST_COMMITS and (number < len(known) or self._learn(repo, known)):
            yield known[number]
            number += 1

    def behind(self, repo: str, commit: str) -> int | None:
        """How many commits a commit is behind the head; None where the history, as far as it is known, lacks it."""
        return next((number for number, found in enumerate(self.commits(repo)) if found == commit), None)

    def full_commit(self, repo: str, text: str) -> str:
        """The 40 digits that ``text`` stands for: all of them (no request), their beginning, or ``main``.

        Raises:
            InvalidUsage: It is none of these, or stands for no commit or for several.
            OverlayError: As :meth:`commits`.
        """
        if COMMIT.fullmatch(text):
            return text
        if text == BRANCH:
            return self.head(repo)
        if not _PREFIX.fullmatch(text):
            raise InvalidUsage(
                f"{repo}@{text[:80]}: no commit; expected 40 hex digits, at least the first 4 of them, or {BRANCH}",
                code="not-a-commit",
                hint=f"see which there are: git ls-remote https://huggingface.co/{repo}",
                repo=repo,
                revision=text,
            )
        known = self._names(repo)
        found = sorted(name for name in known if name.startswith(text))
        if len(found) == 1:
            return found[0]
        if not found:
            raise InvalidUsage(
                f"{repo}@{text}: no commit of {len(known)} known begins so",
                code="unknown-commit",
                hint="give all 40 digits, which need not be looked for",
                repo=repo,
                revision=text,
            )
        raise InvalidUsage(
            f"{repo}@{text}: {len(found)} commits begin so: {', '.join(name[:12] for name in found[:5])}",
            code="ambiguous-commit",
            hint="give more digits",
            repo=repo,
            revision=text,
            commits=found,
        )

    def _head(self, repo: str) -> str:
        self._check(repo)
        if self.hub is not None:
            folder = self._head_folder(self.hub, repo)
            if folder.revision == LOCAL:
                raise InvalidUsage(
                    f"{folder.root}: is not named for a commit, so there is nothing to pin",
                    code="no-commit",
                    hint=f"name the folder for its commit and link to it: ln -s COMMIT {BRANCH}",
                    where=str(folder.root),
                )
            return folder.revision
        from overlay.hub import client  # the network stack, only where a request is made

        return client.resolve_branch(repo, self.traffic)

    def _head_folder(self, hub: Path, repo: str) -> FolderRepo:
        try:
            return open_in_hub_folder(hub, Pin(repo, None, BRANCH), DigestMemo(None, write=False), None)
        except InvalidUsage as error:
            if error.code != "several-revisions":
                raise
            names, where = error.data["revisions"], error.data["where"]
            raise InvalidUsage(
                f"{where}: {len(names)} revisions are there ({', '.join(names)}), and folders have no history:"
                " nothing tells which is the newest",
                code=error.code,
                hint=f"say which: ln -s REVISION {where}/{BRANCH}; or name commits: overlay bump MODEL"
                " --source-to REVISION --overlay-to REVISION",
                **error.data,
            ) from error

    def _names(self, repo: str) -> list[str]:
        """The commits among which a prefix is looked for."""
        if self.hub is None:
            return list(self.commits(repo))
        folder = self.hub / repo
        return [path.name for path in folder.iterdir() if COMMIT.fullmatch(path.name)] if folder.is_dir() else []

    def _learn(self, repo: str, known: list[str]) -> bool:
        """Ask for the next page; False where there is no commit more."""
        self._check(repo)
        from overlay.hub import client  # the network stack, only where a request is made
        from overlay.hub.explain import explained

        target = f"/api/models/{repo}/commits/{BRANCH}?limit={_PAGE}"
        pages = self._pages.setdefault(repo, client.pages(target, repo, self.traffic))
        with explained(repo, BRANCH):
            page = next(pages, None)
        # The branch may have moved since the last page, and then this one begins with commits that were there.
        there = set(known)
        new = [commit for commit in _parsed(page, repo) if commit not in there] if page is not None else []
        known += new
        return bool(new)

    def _check(self, repo: str) -> None:
        if problem := repo_id_problem(repo):
            raise InvalidUsage(problem, code="invalid-repo-id", hint="write it as ORG/NAME", repo=repo)
        if self.hub is None and (self.offline or is_offline()):
            raise NotHere(
                f"{repo}: which commits there are is asked of the Hub, and this run makes no request",
                code="offline",
                hint="run it with a connection (without --offline, HF_HUB_OFFLINE unset), or give all 40 digits",
                repo=repo,
            )


def _parsed(page: bytes, repo: str) -> list[str]:
    with reading("list of commits", repo):
        return [_commit(item) for item in parse_page(page, repo)]


def _commit(item: Any) -> str:
    commit: str = item["id"]
    if not COMMIT.fullmatch(commit):
        raise ValueError(f"commit {commit!r}")
    return commit
