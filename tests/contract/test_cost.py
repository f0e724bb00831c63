"""What a change is said to cost, held against the very runs of both revisions."""

from __future__ import annotations

import os
from dataclasses import asdict
from typing import TYPE_CHECKING

import pytest
from hub_server import HubServer
from support.bumps import TURBO, cost_of
from support.contracts import codes, next_source
from support.hubs import client_of
from support.models import VDN, vdn_registry

from overlay.contract.check import check
from overlay.contract.cost import Cost
from overlay.contract.subject import Subject
from overlay.demo.checkpoint import write_hub
from overlay.demo.revisions import BUMPS, bump_readme, bump_turbo_block, reshard_base
from overlay.fingerprint import DigestMemo
from overlay.hub import take_inventory
from overlay.registry import load_registry, resolve

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from overlay.demo.checkpoint import HubFolder

NOTHING = Cost((), 0, 0, 0, 0, 0)


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> HubFolder:
    """Three blocks over shards of which the default adapter has no pair in the last, and every bump of it."""
    whole = write_hub(tmp_path_factory.mktemp("cost") / "hub", spec_name="adapter_config.json")
    return reshard_base(whole, 1_250_000)


@pytest.fixture(scope="module")
def bumped(hub: HubFolder) -> dict[str, HubFolder]:
    """The checkpoint after each bump, by its name."""
    bumps = {**BUMPS, "base re-sharded, same tensors": lambda hub: reshard_base(hub, 2_500_000)}
    return {name: bump(hub) for name, bump in bumps.items()}


@pytest.fixture
def online(
    hub: HubFolder, bumped: dict[str, HubFolder], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[None]:
    """The client turned to a server that has all revisions."""
    assert bumped
    with HubServer(hub.root) as server, client_of(server, monkeypatch, tmp_path / "hf/hub"):
        yield


def subject(hub: HubFolder, folder: Path, before: Subject | None = None) -> Subject:
    """What a check is given online."""
    resolution = resolve(VDN, load_registry(vdn_registry(folder, hub), environ={}))
    memo = DigestMemo(None, write=False)
    inventory = take_inventory(resolution, hub=None, offline=False, memo=memo, allow_floating=False)
    return Subject(inventory, None, before)


def cost(before: HubFolder, after: HubFolder, folder: Path) -> Cost:
    """What the report of a change says."""
    found = check(subject(after, folder, subject(before, folder))).cost
    assert found is not None
    return found


@pytest.mark.parametrize("bump", BUMPS)
def test_the_cost_of_a_bump_is_that_of_the_table(
    hub: HubFolder, bumped: dict[str, HubFolder], online: None, tmp_path: Path, bump: str
) -> None:
    """Counted from headers alone, it is what the table of bumps says; of a new adapter at most, and never less."""
    found, expected = cost(hub, bumped[bump], tmp_path), cost_of(bump, bumped[bump])

    assert found.is_most == (bump == TURBO)
    said = {name: getattr(found, name) for name in asdict(expected.counters)}
    if found.is_most:
        assert set(found.rebuilt) > set(expected.rebuilt_outputs)
        assert all(count <= said[name] for name, count in asdict(expected.counters).items())
        assert said["downloaded"] == expected.counters.downloaded
    else:
        assert found.rebuilt == expected.rebuilt_outputs
        assert said == asdict(expected.counters)


@pytest.mark.slow
@pytest.mark.parametrize("bump", BUMPS)
def test_the_cost_of_a_bump_is_what_a_run_counts(
    hub: HubFolder,
    bumped: dict[str, HubFolder],
    online: None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    bump: str,
) -> None:
    """Building one revision and then the other moves what was said, or at most that where it says so."""
    from overlay.materialization.materialize import materialize
    from overlay.materialization.request import Options

    monkeypatch.setattr(os, "fsync", lambda _descriptor: None)
    found = cost(hub, bumped[bump], tmp_path)
    first, then = (
        materialize(VDN, Options(registry=vdn_registry(tmp_path, pins), cache_root=tmp_path / "root"))
        for pins in (hub, bumped[bump])
    )
    assert first.counters.downloaded > 0
    for name, count in asdict(then.counters).items():
        assert count <= getattr(found, name) if found.is_most else count == getattr(found, name), name


def test_a_changed_component_is_downloaded_and_linked(hub: HubFolder, online: None, tmp_path: Path) -> None:
    """A carried file of other bytes is fetched and linked, and nothing is rebuilt for it."""
    after = bump_readme(hub)
    branch = after.source_folder / "stage-dmd-step-250/linear_branch/model.safetensors"
    data = bytearray(branch.read_bytes())
    data[-1] ^= 1
    branch.unlink()
    branch.write_bytes(data)
    found = cost(hub, after, tmp_path)

    assert found.rebuilt == ()
    assert found.downloaded == found.linked > 0
    assert (found.read, found.written) == (0, 0)
    assert found.room > found.downloaded


def test_a_large_file_without_tensors_is_told(hub: HubFolder, online: None, tmp_path: Path) -> None:
    """No counter counts it, but nobody would call it nothing."""
    after = next_source(hub, "a vocabulary")
    path = after.source_folder / "h3-base/audio_vae/vocabulary.json"
    path.write_text("[" + "0," * 1_500_000 + "0]")
    found = cost(hub, after, tmp_path)

    assert (found.rebuilt, found.downloaded, found.written, found.linked) == ((), 0, 0, 0)
    assert found.others == path.stat().st_size
    assert str(found) == "0 bytes of weights, 3.0 MB of other files"


def test_a_new_adapter_on_a_new_base_is_no_at_most(hub: HubFolder, online: None, tmp_path: Path) -> None:
    """Where the base is other bytes too, every shard is rebuilt for certain."""
    found = cost(hub, bump_turbo_block(reshard_base(hub, 5_000_000), 1), tmp_path)

    assert not found.is_most
    assert found.downloaded > 0


@pytest.mark.parametrize(
    ("found", "text"),
    [
        (NOTHING, "0 bytes"),
        (Cost((), 0, 0, 0, 0, 2000, others=2000), "0 bytes"),
        (Cost((), 0, 0, 0, 0, 30_000_000, others=30_000_000), "0 bytes of weights, 30.0 MB of other files"),
        (Cost(("a", "b"), 1000, 5, 2000, 0, 3000), "download 1.0 kB · write 2.0 kB · room 3.0 kB, 2 files to rebuild"),
        (Cost((), 1000, 0, 0, 1000, 1000), "download 1.0 kB · link 1.0 kB · room 1.0 kB"),
        (Cost(("a",), 0, 5, 2000, 0, 3000, is_most=True), "at most write 2.0 kB · room 3.0 kB, 1 file to rebuild"),
    ],
)
def test_words(found: Cost, text: str) -> None:
    """Nothing is 0 bytes; else what is moved, and the room that it takes."""
    assert str(found) == text


def test_where_nothing_was_there_is_no_cost(hub: HubFolder, online: None, tmp_path: Path) -> None:
    """A first check compares with nothing, and one whose former revision cannot be built has no host to think of."""
    assert check(subject(hub, tmp_path)).cost is None

    broken = bump_turbo_block(hub, 2)
    (broken.source_folder / "stage-dmd-step-250/adapters/default/adapter_config.json").unlink()
    report = check(subject(hub, tmp_path, subject(broken, tmp_path)))
    assert report.cost is None
    assert "cost" not in codes(report.findings)
