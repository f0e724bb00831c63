"""The whole job with the Hub's real client, against a server on this machine."""

from __future__ import annotations

import errno
import json
import os
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pytest
from hub_server import HubServer
from support.checkpoints import copy_hub
from support.hubs import client_of
from support.models import VDN, vdn_registry
from support.published_rule import files_of, published_tree

import overlay.cache.links
from overlay.cache.probe import LAYERED, filesystem_of
from overlay.demo.revisions import bump_rename
from overlay.errors import BrokenInput, CannotWrite
from overlay.materialization import inputs as inputs_module
from overlay.materialization import room as room_module
from overlay.materialization.materialize import materialize, plan
from overlay.materialization.record import RECORD_NAME
from overlay.materialization.request import Options
from overlay.materialization.verify import verify

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from conftest import Built

    from overlay.demo.checkpoint import HubFolder

BRANCH = "stage-dmd-step-250/linear_branch/model.safetensors"


@dataclass
class Online:
    """A hub folder behind a server, and a client with an empty cache."""

    hub: HubFolder
    server: HubServer
    folder: Path

    def options(self, pinned: HubFolder | None = None, /, **choices: Any) -> Options:
        """Options that go to the server."""
        chosen = {"registry": vdn_registry(self.folder, pinned or self.hub), "cache_root": self.folder / "root"}
        return Options(**(chosen | choices))


@pytest.fixture
def online(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Online]:
    """The tiny checkpoint with its former spec names, so that a test can bump it; its larger weights count as large."""
    monkeypatch.setattr(overlay.cache.links, "SMALL_FILE", 500_000)
    hub = copy_hub(tmp_path_factory, "adapter_config.json")
    bumped = bump_rename(hub)
    with HubServer(hub.root) as server, client_of(server, monkeypatch, tmp_path / "hf/hub"):
        yield Online(bumped, server, tmp_path)


def payload_of(hub: HubFolder, *, without: tuple[str, ...] = ()) -> int:
    """Bytes of every safetensors file that the job needs."""
    source = [path for path in hub.source_folder.rglob("*.safetensors") if "stage-b-step-2000" not in path.parts]
    needed = [*source, *hub.needs_folder.rglob("*.safetensors")]
    return sum(path.stat().st_size for path in needed if path.name not in without)


def test_the_tree_from_the_hub_is_the_tree_from_a_folder(online: Online, tmp_path: Path) -> None:
    """Every byte, provenance included; and tree name and record do not tell where the bytes came from."""
    from_hub = materialize(VDN, online.options())
    from_folder = materialize(VDN, online.options(hub=online.hub.root, cache_root=tmp_path / "other"))
    assert from_hub.path is not None
    assert from_folder.path is not None
    published_tree(online.hub, tmp_path / "expected")
    expected, made = files_of(tmp_path / "expected"), files_of(from_hub.path)
    record = json.loads(made.pop(RECORD_NAME))
    licence = made.pop("licenses/OpenVDN__vdn-minimax-h3/LICENSE")  # which the published script leaves behind
    assert licence == (online.hub.source_folder / "LICENSE").read_bytes()
    assert sorted(made) == sorted(expected)
    assert [path for path in expected if made[path] != expected[path]] == []
    assert from_hub.path.name == from_folder.path.name
    other = json.loads((from_folder.path / RECORD_NAME).read_bytes())
    assert {key: record[key] for key in record if key != "run"} == {key: other[key] for key in other if key != "run"}
    assert all(item["digest"].startswith("sha256:") for item in record["inputs"])


def test_a_cold_run_downloads_what_the_plan_counts_and_nothing_twice(online: Online) -> None:
    """The plan makes no download; the run downloads the payload of the needed files once; the weights are links."""
    work = plan(VDN, online.options())
    assert online.server.payload() == 0
    assert not (online.folder / "root").exists()
    done = materialize(VDN, online.options())
    assert done.counters == work.counters
    assert online.server.payload() == payload_of(online.hub)
    assert 0 < done.counters.downloaded < online.server.payload()  # headers do not count
    assert done.counters.linked > 0
    assert not any("stage-b-step-2000" in r.path and r.payload for r in online.server.requests)
    assert done.path is not None
    in_store = {path.stat().st_ino for path in (online.folder / "hf/hub").rglob("*") if path.is_file()}
    branch = done.path / "transformer/sglang_vdn_linear_branch.safetensors"
    assert (done.path / "text_encoder/config.json").stat().st_ino not in in_store
    links = json.loads((done.path / RECORD_NAME).read_bytes())["run"]["links"]
    how = links["transformer/sglang_vdn_linear_branch.safetensors"]
    assert how in ("hardlink", "reflink")
    assert (branch.stat().st_ino in in_store) == (how == "hardlink")


def test_inputs_are_checked_in_the_order_in_which_they_are_waited_for(
    online: Online, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the builds read comes before what is only carried, or the first shard would wait for the text encoder."""
    checked: list[str] = []
    check = inputs_module.check_digests
    monkeypatch.setattr(
        inputs_module, "check_digests", lambda repo, files, memo: (checked.extend(files), check(repo, files, memo))
    )
    materialize(VDN, online.options())
    shards = [number for number, path in enumerate(checked) if path.startswith("h3-base/transformer/")]
    carried = [
        number for number, path in enumerate(checked) if path.startswith(("model-", "text_encoder/", "tokenizer/"))
    ]
    assert shards
    assert carried
    assert max(shards) < min(carried)


@pytest.mark.parametrize("run", [plan, materialize])
def test_links_that_are_impossible_are_refused_before_anything_is_fetched(
    online: Online, monkeypatch: pytest.MonkeyPatch, run: Any
) -> None:
    """Of what is to be downloaded nothing is here: a file that the plan has read tells of the store."""

    def link(*_: Any, **__: Any) -> None:
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))

    monkeypatch.setattr(os, "link", link)
    with pytest.raises(CannotWrite) as caught:
        run(VDN, online.options(link="hardlink"))
    assert caught.value.code == "link-impossible"
    assert online.server.payload() == 0


def test_copies_instead_of_links_where_asked_for(online: Online) -> None:
    """``--link copy``: nothing shares an inode with the Hub's cache, and the plan has counted the room."""
    linked, copied = (plan(VDN, online.options(link=link)) for link in ("auto", "copy"))
    assert copied.counters.linked == 0
    assert copied.counters.written == linked.counters.written + linked.counters.linked
    on_layers = filesystem_of(online.folder).kind in LAYERED  # where hardlinks may copy
    assert copied.room > linked.room or on_layers
    done = materialize(VDN, online.options(link="copy"))
    assert done.counters == copied.counters
    assert done.path is not None
    in_store = {path.stat().st_ino for path in (online.folder / "hf/hub").rglob("*") if path.is_file()}
    assert not in_store & {path.stat().st_ino for path in done.path.rglob("*") if path.is_file()}


def test_h22_room_for_downloads_on_another_disk_is_looked_for_before_the_first(
    online: Online, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the Hub's cache has a disk of its own, the message names it and the variable that moves it."""
    needed = sum(source.size for source in plan(VDN, online.options()).missing)
    monkeypatch.setattr(room_module, "_same_filesystem", lambda *_: False)
    monkeypatch.setattr(room_module, "free_room", lambda _path: needed - 1)
    online.server.forget()
    with pytest.raises(CannotWrite, match="to download") as caught:
        materialize(VDN, online.options())
    assert (caught.value.code, caught.value.data["needed"]) == ("no-room", needed)
    assert "HF_HOME" in str(caught.value.hint)
    assert online.server.payload() == 0


def test_a_hit_makes_no_request(online: Online) -> None:
    """Pinned and present: neither the run nor the look at it asks anything, offline or not."""
    materialize(VDN, online.options())
    online.server.forget()
    assert materialize(VDN, online.options()).result == "present"
    assert materialize(VDN, online.options(offline=True)).result == "present"
    assert online.server.requests == []


def test_everything_cached_and_pinned_builds_offline_without_a_request(online: Online) -> None:
    """Another root, the same cache of the Hub."""
    materialize(VDN, online.options())
    online.server.forget()
    done = materialize(VDN, online.options(cache_root=online.folder / "other", offline=True))
    assert done.result == "built"
    assert done.counters.downloaded == 0
    assert online.server.requests == []


@pytest.mark.parametrize("path", [BRANCH, "h3-base/transformer/diffusion_pytorch_model-00002-of-00003.safetensors"])
def test_bytes_that_are_not_what_the_hub_says_are_never_published(online: Online, path: str) -> None:
    """A blob that was changed in the Hub's cache, its size kept: the file is named and no tree is made of it."""
    materialize(VDN, online.options(cache_root=online.folder / "first"))
    snapshot = next((online.folder / "hf/hub").glob(f"models--OpenVDN--*/snapshots/{online.hub.source}"))
    blob = (snapshot / path).resolve()
    data = bytearray(blob.read_bytes())
    data[-1] ^= 1
    blob.unlink()  # the first root shares the inode
    blob.write_bytes(data)
    with pytest.raises(BrokenInput) as caught:
        materialize(VDN, online.options())
    assert path in caught.value.message
    assert caught.value.code == "digest-mismatch"
    assert not list((online.folder / "root").glob("materialized_models/*"))
    assert not list((online.folder / "root/.overlay/staging").glob("*"))

    blob.unlink()
    (snapshot / path).unlink()
    done = materialize(VDN, online.options())
    assert done.location is not None
    assert verify(done.location).ok


def test_a_location_under_the_registrys_fingerprint_is_known_before_any_request(
    online: Online, shared_build: Built
) -> None:
    """With the fingerprint in the registry, ``resolve`` names the directory without the overlay's files."""
    from support.published_rule import fingerprint

    from overlay.materialization.resolve import resolve

    known = fingerprint(files_of(online.hub.overlay_folder))
    registry = vdn_registry(online.folder, online.hub, overlay=f"      fingerprint: {known}")
    state = resolve(VDN, replace(online.options(), registry=registry)).state
    assert online.server.requests == []
    assert state.name == "absent"
    assert state.location is not None
    done = materialize(VDN, replace(online.options(), registry=registry))
    assert done.location == state.location
    assert done.location.name != shared_build.location.name  # a bumped overlay
