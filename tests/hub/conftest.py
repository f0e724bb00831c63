"""A hub folder with one repo, a server for it, and the client turned to that server."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
from hub_server import HubServer
from support.hubs import add_repo, client_of, commit, shard

from overlay.fingerprint import DigestMemo
from overlay.hub import HubRepo
from overlay.registry import Pin

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

REPO = "org/base"
INDEX = {"metadata": {}, "weight_map": {"a": "one.safetensors", "b": "two.safetensors"}}
FILES = {
    "README.md": "hello\n",
    "unet/config.json": '{"rank": 8}',
    "unet/model.safetensors.index.json": json.dumps(INDEX),
    "unet/one.safetensors": shard("a"),
    "unet/two.safetensors": shard("b", nbytes=200_000),
}


@dataclass
class World:
    """What a test of the client works with.

    Attributes:
        hub: The folder that the server serves; it holds ``org/base`` at commit aaa….
        cache: The Hub's cache of the client.
    """

    hub: Path
    cache: Path
    server: HubServer

    def open(self, repo: str = REPO, revision: str | None = commit("a"), **options: Any) -> HubRepo:
        """Open a repo as a new run would."""
        floating = None if revision else "tests"
        return HubRepo(Pin(repo, revision, floating), memo=DigestMemo(None), **{"offline": False} | options)

    def fill(self, *paths: str) -> None:
        """Fetch files (all by default), then forget the requests that it took."""
        repo = self.open()
        repo.fetch(paths or repo.paths(), None)
        self.server.forget()


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    """One repo on a server, nothing in the cache."""
    add_repo(tmp_path / "hub", REPO, commit("a"), FILES)
    cache = tmp_path / "hf" / "hub"
    with HubServer(tmp_path / "hub") as server, client_of(server, monkeypatch, cache):
        yield World(tmp_path / "hub", cache, server)
