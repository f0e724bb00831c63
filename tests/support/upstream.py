"""A Hub with the tiny VDN-H3 repos whose ``main`` moves, and a project that pins them."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hub_server import HubServer
from support.contracts import MODEL, edit_json, make_hub, next_overlay, next_source
from support.hubs import client_of

from overlay.demo.checkpoint import NEEDS_REPO, NEEDS_REVISION, OVERLAY_REPO, SOURCE_REPO, HubFolder
from overlay.demo.registry import write_registry
from overlay.fingerprint import DigestMemo
from overlay.formats.overlay_repo import MANIFEST_PATH
from overlay.hub.history import Histories
from overlay.registry import Resolution, load_registry, resolve
from overlay.upkeep.repos import Repos

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import pytest

__all__ = ["CONFIG", "SPEC", "Upstream", "upstream_hub"]

CONFIG, SPEC = "adapter_config.json", "adapter_spec.json"


@dataclass
class Upstream:
    """What a test works with.

    Attributes:
        first: The revisions that the project pins.
        now: Those that ``main`` is at.
    """

    root: Path
    server: HubServer
    first: HubFolder
    now: HubFolder

    @property
    def project(self) -> Path:
        """A folder with a registry.yaml that pins ``first``."""
        return self.root / "project"

    @property
    def registry(self) -> Path:
        """The registry of the project."""
        return self.project / "registry.yaml"

    def commit_source(self, change: str, *, renamed: bool = False) -> HubFolder:
        """A new commit of the source becomes ``main``; with its descriptions renamed, or with a README changed."""
        self.now = next_source(self.now, change)
        if renamed:
            for path in sorted(self.now.source_folder.rglob(CONFIG)):
                path.rename(path.with_name(SPEC))
        else:
            self._write(self.now.source_folder / "README.md", change)
        self._push(SOURCE_REPO, self.now.source, change)
        return self.now

    def commit_overlay(self, change: str, *, spec: str | None = None) -> HubFolder:
        """A new commit of the overlay becomes ``main``; it may require another name of the descriptions."""
        self.now = next_overlay(self.now, change)
        if spec is None:
            self._write(self.now.overlay_folder / "README.md", change)
        else:
            edit_json(self.now.overlay_folder / MANIFEST_PATH, lambda manifest: _require(manifest, spec))
        self._push(OVERLAY_REPO, self.now.overlay, change)
        return self.now

    def resolution(self) -> Resolution:
        """What the project pins."""
        return resolve(MODEL, load_registry(self.registry, environ={}, cwd=self.project))

    def repos(self) -> Repos:
        """As a new run would open them."""
        histories = Histories(None, offline=False)
        return Repos(None, offline=False, memo=DigestMemo(None, write=False), histories=histories)

    def _push(self, repo: str, commit: str, title: str) -> None:
        self.server.content.history[repo] = {commit: title, **self.server.content.history[repo]}

    def _write(self, path: Path, text: str) -> None:
        path.unlink(missing_ok=True)  # revisions may share files
        path.write_text(text)


@contextmanager
def upstream_hub(root: Path, monkeypatch: pytest.MonkeyPatch, spec: str = CONFIG) -> Iterator[Upstream]:
    """Serve the repos with one commit each, turn the client to them, and pin them in a project."""
    hub = make_hub(root, spec_name=spec)
    project = root / "project"
    project.mkdir()
    write_registry(project / "registry.yaml", hub)
    with HubServer(hub.root) as server, client_of(server, monkeypatch, root / "hf" / "hub"):
        commits = {SOURCE_REPO: hub.source, OVERLAY_REPO: hub.overlay, NEEDS_REPO: NEEDS_REVISION}
        server.content.history.update({repo: {commit: "First"} for repo, commit in commits.items()})
        yield Upstream(root, server, hub, hub)


def _require(manifest: dict[str, list[str]], spec: str) -> None:
    names = manifest["required_source_files"]
    manifest["required_source_files"] = [name.replace(CONFIG, spec).replace(SPEC, spec) for name in names]
