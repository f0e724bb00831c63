"""One finished materialization of the tiny checkpoint for all tests of this folder, and no waiting for the disk."""

from __future__ import annotations

import importlib.util
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
from support.checkpoints import tiny_hub
from support.models import VDN, copy_root, options
from support.server_trees import ServerFolder, server_tree

from overlay.materialization.materialize import Materialization, materialize

if TYPE_CHECKING:
    from pathlib import Path

    from overlay.demo.checkpoint import HubFolder
    from overlay.materialization.request import Options


@pytest.fixture(autouse=True)
def _no_sync(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing here is about power cuts, and a build of many small files is mostly waiting for them."""
    monkeypatch.setattr(os, "fsync", lambda _descriptor: None)


_outcomes: dict[tuple[str | None, bool], Any] = {}


@pytest.fixture(autouse=True)
def _one_self_test(monkeypatch: pytest.MonkeyPatch) -> None:
    """The start-up test of the arithmetic, a third of a tiny build, is run once a process; tests/fusion tests it."""
    if importlib.util.find_spec("torch") is None:
        return
    from overlay.fusion import engine

    run_self_test = engine.run_self_test

    def known(library: Any, device: Any, *, compiled: bool = True) -> Any:
        key = library and library.name, compiled
        if device.type != "cpu":
            return run_self_test(library, device, compiled=compiled)
        if key not in _outcomes:
            _outcomes[key] = run_self_test(library, device, compiled=compiled)
        return _outcomes[key]

    monkeypatch.setattr(engine, "run_self_test", known)


@dataclass(frozen=True)
class Built:
    """A finished run.

    Attributes:
        result: What the run said; its paths are those of the first, shared root.
    """

    hub: HubFolder
    root: Path
    result: Materialization

    def options(self, **choices: Any) -> Options:
        """Options of a run on the same root."""
        return options(self.hub, self.root, **choices)

    @property
    def location(self) -> Path:
        """Where a server looks."""
        [location] = (self.root / "materialized_models").iterdir()
        return location

    @property
    def tree(self) -> Path:
        """The tree."""
        [tree] = (self.root / ".overlay/trees").iterdir()
        return tree

    def objects(self) -> dict[Path, int]:
        """Inode of every object."""
        return {path: path.stat().st_ino for path in (self.root / ".overlay/objects").glob("*/*/*")}


@pytest.fixture(scope="session")
def shared_build(tmp_path_factory: pytest.TempPathFactory) -> Built:
    """The tiny checkpoint, materialized once: read it, never write into it."""
    hub, root = tiny_hub(tmp_path_factory), tmp_path_factory.mktemp("shared") / "root"
    return Built(hub, root, materialize(VDN, options(hub, root)))


@pytest.fixture
def built(shared_build: Built, tmp_path: Path) -> Built:
    """The same with a cache root of the test's own."""
    root = copy_root(shared_build.root, tmp_path / "root")
    return Built(shared_build.hub, root, shared_build.result)


@pytest.fixture(scope="session")
def plain_tree(shared_build: Built, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a server builds of the tiny checkpoint: copy it, never write into it."""
    return server_tree(shared_build.hub, tmp_path_factory.mktemp("server") / "tree")


@pytest.fixture
def served(shared_build: Built, plain_tree: Path, tmp_path: Path) -> ServerFolder:
    """A server's folder of the test's own."""
    return ServerFolder(shared_build, plain_tree, tmp_path / "root")
