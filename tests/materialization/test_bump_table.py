"""The table of bumps, row by row: what is downloaded, read and written, and that nothing else can have been."""

from __future__ import annotations

import json
import os
import shutil
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hub_server import HubServer
from support.bumps import (
    QUIET,
    RESHARD,
    TURBO,
    Cost,
    blobs,
    cost_of,
    linked_copy,
    put_stand_in,
    remember_digest,
    remembered_digest,
    sha256_of,
    weights_of,
)
from support.checkpoints import wide_hub
from support.hubs import client_of
from support.models import VDN, options, vdn_registry

from overlay.cache.layout import CacheRoot
from overlay.demo.checkpoint import write_hub
from overlay.demo.revisions import BUMPS, move_overlay, reshard_base
from overlay.materialization.compare import compare
from overlay.materialization.materialize import Materialization, materialize, plan
from overlay.materialization.record import RECORD_NAME
from overlay.materialization.request import Options
from overlay.materialization.survey import Counters

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from overlay.demo.checkpoint import HubFolder

# Blocks, and a shard limit that spreads a block over shards of which the default adapter has no pair in the last: so
# that each row leaves something as it is.
PRESETS = {"tiny": (3, 1_250_000), "wide": (1, 51_000_000)}
LARGEST_HEADER_RANGE = 100_000
ALIAS = "video_vae/model.safetensors"


@dataclass
class Start:
    """A checkpoint and all its bumps behind a server, and what the first run left: read it, never write into it.

    Attributes:
        store: The Hub's cache after the first run.
        root: The cache root after the first run.
        first: What the first run gave.
    """

    folder: Path
    hub: HubFolder
    bumped: dict[str, HubFolder]
    server: HubServer
    first: Materialization
    _fresh: dict[str, tuple[str, dict[str, str]]] = field(default_factory=dict)

    @property
    def store(self) -> Path:
        return self.folder / "hf/hub"

    @property
    def root(self) -> Path:
        return self.folder / "root"

    def fresh(self, bump: str) -> tuple[str, dict[str, str]]:
        """Name and contents of the tree after a bump, built from the hub folder where nothing was before."""
        if bump not in self._fresh:
            hub, root = self.bumped[bump], self.folder / "fresh/root"
            for path in [*weights_of(hub.source_folder), *weights_of(hub.needs_folder)]:
                remember_digest(root, path, sha256_of(path))
            # Nobody edits this folder; a link saves a copy.
            tree = path_of(materialize(VDN, options(hub, root, link="hardlink")))
            self._fresh[bump] = tree.name, contents(tree)
            shutil.rmtree(self.folder / "fresh")
        return self._fresh[bump]


@pytest.fixture(
    scope="module",
    params=["tiny", pytest.param("wide", marks=[pytest.mark.slow, pytest.mark.timeout(900)])],
)
def start(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Start]:
    """The first run, with the Hub's client."""
    blocks, limit = PRESETS[request.param]
    folder = tmp_path_factory.mktemp("bumps")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda _descriptor: None)
        try:
            write = wide_hub if request.param == "wide" else write_hub
            whole = write(folder / "hub", blocks=blocks, spec_name="adapter_config.json")
            hub = reshard_base(whole, limit)
            shutil.rmtree(whole.source_folder)
            bumps = {**BUMPS, RESHARD: lambda hub: reshard_base(hub, 2 * limit)}
            bumped = {name: bump(hub) for name, bump in bumps.items()}
            with HubServer(hub.root) as server:
                with client_of(server, patch, folder / "hf/hub"):
                    first = materialize(VDN, online(hub, folder / "root"))
                yield Start(folder, hub, bumped, server, first)
        finally:
            shutil.rmtree(folder)


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    """A folder of the test's own, gone afterwards: it may hold much."""
    yield tmp_path
    shutil.rmtree(tmp_path)


def online(hub: HubFolder, root: Path) -> Options:
    """Options that go to the server."""
    return Options(registry=vdn_registry(root.parent, hub), cache_root=root)


def path_of(done: Materialization) -> Path:
    assert done.path is not None
    return done.path


def record(tree: Path) -> Any:
    return json.loads((tree / RECORD_NAME).read_bytes())


def objects(root: Path) -> dict[Path, int]:
    """Inode of every object, by its path below the root."""
    return {path.relative_to(root): path.stat().st_ino for path in (root / ".overlay/objects").glob("*/*/*")}


def weight_objects(tree: Path) -> dict[str, Path]:
    """Object of each weight file of a tree, by its path below the root."""
    outputs = {item["path"]: item["digest"] for item in record(tree)["outputs"]}
    return {path: CacheRoot(Path()).object(digest) for path, digest in outputs.items() if path.endswith(".safetensors")}


def contents(tree: Path) -> dict[str, str]:
    """Digest of each file but the record."""
    files = {path.relative_to(tree).as_posix(): path for path in tree.rglob("*") if path.is_file()}
    return {name: sha256_of(path) for name, path in files.items() if name != RECORD_NAME}


def run(bump: str, chosen: Options) -> Materialization:
    """Materialize, after a look at the plan: it counts the same, or at most that much while a new adapter is unread."""
    planned = plan(VDN, chosen)
    done = materialize(VDN, chosen)
    assert planned.is_most == (bump == TURBO)
    if planned.is_most:
        assert all(count <= getattr(planned.counters, name) for name, count in asdict(done.counters).items())
    else:
        assert done.counters == planned.counters
    return done


def check(start: Start, bump: str, done: Materialization, root: Path, cost: Cost, counters: Counters) -> None:
    """A run after a bump: its counters, its tree, what it wrote, and what the record says of all that."""
    assert done.counters == counters
    assert done.result == ("built" if cost.rebuilt else "reused")
    tree, former = path_of(done), root / path_of(start.first).relative_to(start.root)
    assert former.is_dir()
    if bump == RESHARD:
        assert not compare(former, tree).identical
        assert compare(former, tree).tensors_equal
    assert (tree.name, contents(tree)) == start.fresh(bump)
    assert done.location is not None
    assert done.location.resolve() == tree

    rebuilt, before, after = set(cost.rebuilt_outputs), objects(start.root), objects(root)
    held = weight_objects(tree)
    assert before.items() <= after.items()
    assert after.keys() - before.keys() == {held[path] for path in rebuilt}
    assert all((tree / path).samefile(root / place) for path, place in held.items())

    report = record(tree)["run"]
    assert report["counters"] == asdict(counters)
    reused = {item["path"]: item for item in report["reused"] if item["path"] in held}
    assert reused.keys() == held.keys() - rebuilt - {ALIAS}
    for path, item in reused.items():
        assert CacheRoot(Path()).object(item["digest"]) == held[path]
        assert item["why"] == cost.why(path)


@pytest.mark.parametrize("bump", BUMPS)
def test_what_a_bump_costs_with_the_hubs_client(
    start: Start, bump: str, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Counters are the row's, the server's log agrees, the tree is a fresh build's, and nothing else was there."""
    hub, cost = start.bumped[bump], cost_of(bump, start.bumped[bump])
    store, root = linked_copy(start.store, place / "hf/hub"), linked_copy(start.root, place / "root")
    for blob in blobs(store) - blobs(store, cost.read):
        put_stand_in(blob)
    start.server.forget()
    with client_of(start.server, monkeypatch, store):
        done = run(bump, online(hub, root))
    assert start.server.payload() == sum((hub.source_folder / path).stat().st_size for path in cost.fetched)
    check(start, bump, done, root, cost, cost.counters)


@pytest.mark.parametrize("bump", BUMPS)
def test_what_a_bump_costs_with_a_folder(start: Start, bump: str, place: Path) -> None:
    """As with the Hub, but nothing is downloaded; what is remembered of a file's content is not looked up in it."""
    cost, root = cost_of(bump, start.bumped[bump]), linked_copy(start.root, place / "root")
    hub = replace(start.bumped[bump], root=linked_copy(start.hub.root, place / "hub"))
    for path in [*weights_of(hub.source_folder), *weights_of(hub.needs_folder)]:
        digest = sha256_of(path)
        if not any(path == hub.source_folder / needed for needed in cost.read):
            put_stand_in(path)
        remember_digest(root, path, digest)
    done = run(bump, options(hub, root))
    check(start, bump, done, root, cost, replace(cost.counters, downloaded=0))


@pytest.mark.parametrize("bump", QUIET)
def test_a_bump_of_no_weight_needs_no_source(
    start: Start, bump: str, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the Hub's cache has lost its weights since, only headers are asked for."""
    hub, cost = start.bumped[bump], cost_of(bump, start.bumped[bump])
    store, root = linked_copy(start.store, place / "hf/hub"), linked_copy(start.root, place / "root")
    for blob in blobs(store):
        blob.unlink()
    start.server.forget()
    with client_of(start.server, monkeypatch, store):
        done = run(bump, online(hub, root))
    asked = start.server.asked("GET", "*.safetensors")
    assert start.server.payload() == 0
    assert all(request.range and request.sent <= LARGEST_HEADER_RANGE for request in asked)
    assert not [path for path in store.glob("models--*/snapshots/**/*.safetensors") if path.exists()]
    check(start, bump, done, root, cost, Counters())


def test_a_bump_of_no_weight_reads_no_object_either(start: Start, place: Path) -> None:
    """An object is checked by its stat; its bytes could be anything, and the tree is linked from it all the same."""
    hub = replace(start.bumped[QUIET[0]], root=linked_copy(start.hub.root, place / "hub"))
    root = linked_copy(start.root, place / "root")
    for path in [*weights_of(hub.source_folder), *weights_of(hub.needs_folder)]:
        remember_digest(root, path, sha256_of(path))
    held = weight_objects(path_of(start.first))
    for path in held.values():
        put_stand_in(root / path)
    done = materialize(VDN, options(hub, root))
    assert (done.result, done.counters) == ("reused", Counters())
    assert weight_objects(path_of(done)) == held
    assert path_of(done).name == start.fresh(QUIET[0])[0]
    assert all((path_of(done) / path).samefile(root / place) for path, place in held.items())


def test_a_copied_folder_is_read_once(start: Start, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """New inodes say nothing of their content: it is hashed, and nothing is written; the next run reads nothing."""
    monkeypatch.setattr("overlay.fingerprint.memo._SETTLED_NS", 0)  # however young the copy is
    hub, root = replace(start.bumped[QUIET[0]], root=place / "hub"), linked_copy(start.root, place / "root")
    for folder in (hub.source_folder, hub.overlay_folder, hub.needs_folder):
        shutil.copytree(start.hub.root / folder.relative_to(hub.root), folder)
    weights = [path for path in [*weights_of(hub.source_folder), *weights_of(hub.needs_folder)] if needed(path)]
    total = sum(path.stat().st_size for path in weights)

    shown, before = Hashing(), bytes_read()
    done = materialize(VDN, options(hub, root), phase=shown)
    assert total <= bytes_read() - before < 1.5 * total
    assert total <= sum(shown.totals) < 1.1 * total
    check(start, QUIET[0], done, root, cost_of(QUIET[0], hub), Counters())

    for path in weights:
        digest = remembered_digest(root, path)
        assert digest == sha256_of(path)
        put_stand_in(path)
        remember_digest(root, path, digest)
    again, shown = move_overlay(hub), Hashing()
    done = materialize(VDN, options(again, root), phase=shown)
    assert (done.result, done.counters) == ("reused", Counters())
    assert shown.totals == []
    assert weight_objects(path_of(done)) == weight_objects(path_of(start.first))


class Hashing:
    """A phase that keeps the totals of what is hashed."""

    def __init__(self) -> None:
        self.totals: list[int] = []

    @contextmanager
    def __call__(self, label: str, total: int) -> Iterator[Callable[[int], None]]:
        if label == "hash":
            self.totals.append(total)
        yield lambda _count: None


def needed(weights: Path) -> bool:
    """Whether the stage that is built takes this file."""
    return "stage-b-step-2000" not in weights.parts


def bytes_read() -> int:
    """Bytes that this process has asked the kernel for so far, by any call but mapping."""
    lines = Path("/proc/self/io").read_text().splitlines()
    return int(dict(line.split(": ") for line in lines)["rchar"])
