"""The lock that ships: in form, of the registry beside it, and of facts that can be worked out again."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import pytest
from support.registries import VDN

from overlay.contract.facts import meaning_of
from overlay.demo.checkpoint import NEEDS_REPO, OVERLAY_REPO, SOURCE_REPO
from overlay.demo.documents import (
    DMD_STAGE,
    adapter_ranks,
    adapter_spec,
    branch_config,
    dump_line,
    metadata,
    model_spec,
)
from overlay.demo.presets import make_preset
from overlay.registry import load_registry
from overlay.registry.load import packaged_registry
from overlay.registry.lock import dump_lock, lock_path, read_lock

if TYPE_CHECKING:
    from pathlib import Path

    from overlay.registry.lock import LockedModel

pytestmark = pytest.mark.no_torch

RELEASE = make_preset("release-dims", 50)


@pytest.fixture(scope="module")
def shipped() -> LockedModel:
    lock = read_lock(lock_path(packaged_registry()))
    assert lock is not None
    assert list(lock.models) == [VDN]
    return lock.models[VDN]


def test_is_in_form() -> None:
    """It is exactly what the program would write."""
    path = lock_path(packaged_registry())
    lock = read_lock(path)

    assert lock is not None
    assert dump_lock(lock) == path.read_bytes()


def test_is_of_the_registry_beside_it(shipped: LockedModel, tmp_path: Path) -> None:
    """Its pins, components and recipe are those of the shipped entry."""
    entry = load_registry(environ={}, cwd=tmp_path).entries[VDN]

    assert shipped.differences(entry) == ()


def test_every_fact_has_its_source(shipped: LockedModel) -> None:
    """Each repo, file and adapter says where it is known from; what is not known is not there."""
    for repo in shipped.repos.values():
        assert repo.source
        assert not repo.complete
        assert all(file.source for file in repo.files.values())
    assert all(adapter.source for adapter in shipped.adapters)
    assert shipped.expected is None
    said = (shipped.repos[NEEDS_REPO].source or "").lower()
    assert "939557dc319dd91227e30195a763f272ba7f8765" in said
    assert "public vdn-h3 deployment" in said


def test_the_overlay_makes_the_fingerprint_and_the_location(shipped: LockedModel, tmp_path: Path) -> None:
    """The sha256 of its files are those that a server's fingerprint of the overlay, and so its directory, come from."""
    entry = load_registry(environ={}, cwd=tmp_path).entries[VDN]
    files = shipped.repos[OVERLAY_REPO].files
    fingerprint = hashlib.sha256()
    for path in ("README.md", "model_index.json", "_overlay/materialize.py", "_overlay/overlay_manifest.json"):
        fingerprint.update(path.encode() + bytes.fromhex(files[path].sha256))

    assert len(files) == 4
    assert fingerprint.hexdigest() == entry.overlay_fingerprint
    assert shipped.location == "OpenVDN__vdn-minimax-h3-e541eaf4b41d4e5c"
    assert shipped.script is not None
    assert shipped.script.sha256 == files[shipped.script.path].sha256


def test_the_small_files_can_be_made_again(shipped: LockedModel) -> None:
    """The JSON files of the stage have the size and sha256 of what their documented content gives."""
    made = {
        f"{DMD_STAGE}/adapters/default/adapter_spec.json": dump_line(adapter_spec(RELEASE, "default")),
        f"{DMD_STAGE}/adapters/turbo/adapter_spec.json": dump_line(adapter_spec(RELEASE, "turbo")),
        f"{DMD_STAGE}/linear_branch/config.json": dump_line(branch_config(RELEASE)),
        f"{DMD_STAGE}/model_spec.json": dump_line(model_spec(RELEASE, DMD_STAGE)),
        f"{DMD_STAGE}/metadata.json": metadata(DMD_STAGE),
    }
    files = shipped.repos[SOURCE_REPO].files

    for path, content in made.items():
        assert (files[path].size, files[path].sha256) == (len(content), hashlib.sha256(content).hexdigest()), path
    assert {path.rpartition("/")[2] for path in files.keys() - made.keys()} == {
        "adapter_model.safetensors",
        "model.safetensors",
    }


@pytest.mark.parametrize(("name", "pairs", "ranks"), [("default", 208, (64,)), ("turbo", 363, (16, 64))])
def test_the_adapters_mean_what_their_specs_say(
    shipped: LockedModel, name: str, pairs: int, ranks: tuple[int, ...]
) -> None:
    """Pairs, ranks, scales and the digest of all of them follow from the published spec."""
    (adapter,) = [adapter for adapter in shipped.adapters if adapter.name == name]
    wanted = [(f"{module}.weight", rank, 1.0) for module, rank in adapter_ranks(RELEASE, name).items()]

    assert (adapter.pairs, adapter.ranks, adapter.scales) == (pairs, ranks, (1.0,))
    assert adapter.meaning == meaning_of(wanted)
    assert adapter.weights.removeprefix(f"{SOURCE_REPO}/") in shipped.repos[SOURCE_REPO].files


def test_counts_only_beside_its_own_registry(tmp_path: Path) -> None:
    """A registry of one's own, even an equal one, has no lock until it is locked."""
    from overlay.registry.load import locked_model

    copy = tmp_path / "registry.yaml"
    copy.write_bytes(packaged_registry().read_bytes())

    assert locked_model(packaged_registry(), VDN) is not None
    assert locked_model(copy, VDN) is None
