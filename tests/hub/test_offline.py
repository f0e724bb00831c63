"""Without a connection, or without the commit: what is cached works, and what is missing is named."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from huggingface_hub import constants
from support.hubs import commit

from overlay.errors import NotHere, Refused
from overlay.formats.checkpoint import read_checkpoint
from overlay.formats.overlay_repo import METADATA_PATTERNS

if TYPE_CHECKING:
    from collections.abc import Callable

    from conftest import World

    from overlay.hub import HubRepo

pytestmark = pytest.mark.no_torch

CONFIG = "unet/config.json"
INDEX = "unet/model.safetensors.index.json"
ONE = "unet/one.safetensors"
TWO = "unet/two.safetensors"
READS: dict[str, Callable[[HubRepo], object]] = {
    "header": lambda repo: repo.header(TWO),
    "range": lambda repo: repo.read_range(TWO, 0, 8),
    "fetch": lambda repo: repo.fetch([ONE, TWO], None),
    "checkpoint": lambda repo: read_checkpoint(repo, "unet"),
}


def forget_listing(world: World) -> None:
    """Leave the cache as an older client left it: files, but no listing."""
    shutil.rmtree(world.cache / "models--org--base" / "trees")


def lose_commit(world: World) -> None:
    """Rewrite the history of the repo: the commit is gone from the Hub."""
    (world.hub / "org/base" / commit("a")).rename(world.hub / "org/base" / commit("b"))


@pytest.mark.parametrize("listed", [True, False], ids=["with listing", "without listing"])
@pytest.mark.parametrize("way", READS)
def test_h25_an_interrupted_download_names_every_missing_file(world: World, way: str, *, listed: bool) -> None:
    """Config, index and one of three shards: both missing shards are named, whatever the client would say."""
    shards = ["one.safetensors", "two.safetensors", "three.safetensors"]
    folder = world.hub / "org/base" / commit("a") / "unet"
    (folder / "three.safetensors").write_bytes((folder / "one.safetensors").read_bytes() + b" ")
    (folder / "model.safetensors.index.json").write_text(
        json.dumps({"weight_map": dict(zip("abc", shards, strict=True))})
    )
    world.fill(CONFIG, INDEX, ONE)
    if not listed:
        forget_listing(world)
    repo = world.open(offline=True)

    with pytest.raises(NotHere) as caught:
        READS[way](repo)

    assert caught.value.exit_status == 3
    assert caught.value.data["missing"] == ["unet/three.safetensors", TWO]
    assert "unet/three.safetensors, unet/two.safetensors" in caught.value.message
    assert not world.server.asked()


@pytest.mark.parametrize("listed", [True, False], ids=["with listing", "without listing"])
def test_offline_reads_what_is_complete(world: World, *, listed: bool) -> None:
    """A whole snapshot works without a request, and its digests are right with or without a listing."""
    expected = {path: world.open().digest(path) for path in (ONE, TWO)}
    world.fill()
    if not listed:
        forget_listing(world)

    repo = world.open(offline=True)

    assert set(read_checkpoint(repo, "unet").weight_map) == {"a", "b"}
    assert len(repo.fetch(repo.paths(), None)) == 5
    assert {path: repo.digest(path) for path in expected} == expected
    assert not world.server.asked()


def test_offline_with_an_empty_cache_says_where_it_looked(world: World) -> None:
    """Nothing of the commit is cached."""
    with pytest.raises(NotHere, match=str(world.cache)) as caught:
        world.open(offline=True)

    assert "--hub DIR" in (caught.value.hint or "")
    for ref in (None, "", "main"):
        if ref is not None:
            (world.cache / "models--org--base/refs").mkdir(parents=True, exist_ok=True)
            (world.cache / "models--org--base/refs/main").write_text(ref)
        with pytest.raises(NotHere, match="no commit of main"):
            world.open(revision=None, offline=True)
    assert not world.server.asked()


def test_offline_of_one_call_leaves_the_process_online(world: World) -> None:
    """``offline`` is no global state."""
    with pytest.raises(NotHere):
        world.open(offline=True)

    assert not constants.HF_HUB_OFFLINE
    assert len(world.open().paths()) == 5


def test_hf_hub_offline_is_honoured(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The client's variable works as the flag does."""
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)

    with pytest.raises(NotHere):
        world.open()

    assert not world.server.asked()


def test_hf_hub_offline_set_later_is_honoured(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The client refuses the request, and that is status 3 too."""
    repo = world.open()
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)

    with pytest.raises(NotHere, match="HF_HUB_OFFLINE is set"):
        repo.fetch([ONE], None)


def test_h29_a_vanished_commit_is_reported_as_such(world: World) -> None:
    """The repo is there, the commit is not: not a missing file, not a missing repo."""
    lose_commit(world)

    with pytest.raises(Refused, match=f"the commit {commit('a')} has vanished") as caught:
        world.open()

    assert caught.value.code == "vanished-commit"
    assert "/org/base/commits/main" in (caught.value.hint or "")


def test_h29_a_cached_copy_of_a_vanished_commit_still_works(world: World) -> None:
    """Cached whole, it is used without a request."""
    world.fill()
    lose_commit(world)

    repo = world.open()
    repo.fetch(repo.paths(), None)

    assert not world.server.asked()


def test_h29_a_cached_copy_without_a_listing_still_works(world: World) -> None:
    """The Hub is asked, the commit is gone, and the snapshot is taken as it is, which is said."""
    world.fill()
    forget_listing(world)
    lose_commit(world)

    repo = world.open()

    assert set(read_checkpoint(repo, "unet").weight_map) == {"a", "b"}
    assert repo.lost is not None
    assert repo.lost.code == "vanished-commit"


@pytest.mark.parametrize("listed", [True, False], ids=["with listing", "without listing"])
def test_h29_what_a_vanished_commit_lacks_is_gone_for_good(world: World, *, listed: bool) -> None:
    """A file that was not cached in time is status 6, and the message says why."""
    world.fill(INDEX, ONE)
    if not listed:
        forget_listing(world)
    lose_commit(world)

    with pytest.raises(Refused, match="vanished") as caught:
        world.open().fetch([ONE, TWO], None)

    assert caught.value.code == "vanished-commit"
    assert TWO in caught.value.message


def test_files_beyond_the_patterns_are_noticed(world: World) -> None:
    """A snapshot that another program fetched whole holds files that change a server's fingerprint."""
    assert world.open(only=METADATA_PATTERNS).in_snapshot() == ()

    world.fill()

    repo = world.open(only=METADATA_PATTERNS)
    assert sorted({*repo.in_snapshot()} - {*repo.paths()}) == [ONE, TWO]


@pytest.mark.with_torch
def test_neither_importing_nor_reading_the_cache_loads_the_network_stack(world: World) -> None:
    """The package, and a repo that is cached and pinned, need nothing of the client but its constants."""
    world.fill()
    program = f"""
import sys
import overlay.hub
assert "huggingface_hub.file_download" not in sys.modules
from overlay.fingerprint import DigestMemo
from overlay.registry import Pin
pin = Pin("org/base", {commit("a")!r})
repo = overlay.hub.open_repo(pin, hub=None, offline=False, memo=DigestMemo(None), allow_floating=False)
assert len(repo.fetch(repo.paths())) == 5
repo.header({ONE!r})
heavy = {{"httpx2", "httpx", "requests", "torch", "huggingface_hub.file_download", "huggingface_hub.hf_api"}}
print(sorted(heavy & set(sys.modules)))
"""
    environ = {"HF_HUB_CACHE": str(world.cache), "HF_ENDPOINT": world.server.url}

    said = subprocess.run([sys.executable, "-c", program], env=environ, capture_output=True, text=True, check=False)

    assert (said.stdout, said.stderr) == ("[]\n", "")
    assert not world.server.asked()
