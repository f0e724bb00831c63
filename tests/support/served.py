"""A built model, the Hub's cache that it was built from, and a server in the Hub's place."""

from __future__ import annotations

import subprocess
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
from hub_server import HubServer
from support.checkpoints import tiny_hub
from support.hubs import client_of
from support.models import VDN, vdn_registry

from overlay.consumers.server import parse_server
from overlay.materialization.materialize import materialize
from overlay.materialization.request import Options

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from overlay.demo.checkpoint import HubFolder

__all__ = ["SGLANG", "Served", "built_from_hub", "contents", "served"]

SGLANG = parse_server("sglang")


@dataclass
class Served:
    """A hub folder behind a server, a cache root and a Hub cache below one folder."""

    hub: HubFolder
    server: HubServer
    folder: Path

    @property
    def cache(self) -> Path:
        """The Hub's cache."""
        return self.folder / "hf/hub"

    def options(self, **choices: Any) -> Options:
        """Options that go to the server, for the newest sglang."""
        chosen = {"registry": vdn_registry(self.folder, self.hub), "cache_root": self.folder / "root", "server": SGLANG}
        return Options(**(chosen | choices))

    def storage(self, repo: str) -> Path:
        """The repo's folder in the Hub's cache."""
        return self.cache / f"models--{repo.replace('/', '--')}"

    def main(self, repo: str) -> Path:
        """The file that says what main of a repo is at."""
        return self.storage(repo) / "refs/main"

    def set_main(self, repo: str, content: str) -> Path:
        """Let it say something."""
        self.main(repo).parent.mkdir(parents=True, exist_ok=True)
        self.main(repo).write_text(content)
        return self.main(repo)


@contextmanager
def served(hub: HubFolder, folder: Path) -> Iterator[Served]:
    """A server for a hub folder, and the client turned to it."""
    with (
        pytest.MonkeyPatch.context() as patch,
        HubServer(hub.root) as server,
        client_of(server, patch, folder / "hf/hub"),
    ):
        yield Served(hub, server, folder)


_built: dict[Path, Path] = {}


@contextmanager
def built_from_hub(factory: pytest.TempPathFactory, folder: Path) -> Iterator[Served]:
    """The tiny checkpoint, built once a run through the Hub's client for no server in particular, and copied."""
    hub, base = tiny_hub(factory), factory.getbasetemp()
    if base not in _built:
        original = factory.mktemp("built-from-hub")
        with served(hub, original) as world:
            materialize(VDN, world.options(server=None, link="hardlink"))
        _built[base] = original
    # In one go, so that what shares an inode still does.
    subprocess.run(["/bin/cp", "-a", *_built[base].iterdir(), folder], check=True)
    with served(hub, folder) as world:
        yield world


def contents(folder: Path) -> dict[str, tuple[int, int, str]]:
    """Inode, time of change and target of everything below a folder: equal where nothing was touched."""
    found = {}
    for path in sorted(folder.rglob("*")):
        status = path.lstat()
        target = str(path.readlink()) if path.is_symlink() else ""
        found[str(path.relative_to(folder))] = (status.st_ino, status.st_mtime_ns, target)
    return found
