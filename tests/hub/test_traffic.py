"""What is counted as fetched is what the Hub sent."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from support.hubs import add_repo, commit, shard

from overlay.errors import TryAgain
from overlay.hub import Traffic

if TYPE_CHECKING:
    from conftest import World

pytestmark = pytest.mark.no_torch


def sent(world: World) -> int:
    return sum(request.sent for request in world.server.asked())


@pytest.mark.parametrize("page_size", [None, 2])
def test_listings_count(world: World, page_size: int | None) -> None:
    """Every page of them, and the look-up of a floating branch."""
    world.server.page_size = page_size
    traffic = Traffic()
    world.open(traffic=traffic)
    assert traffic.nbytes == sent(world) > 0
    world.open(revision=None, traffic=traffic)
    assert traffic.nbytes == sent(world)


def test_files_and_headers_count(world: World) -> None:
    """Small files whole, of weights the ranges; what is cached is not counted again."""
    traffic = Traffic()
    repo = world.open(traffic=traffic)
    repo.read_bytes("README.md")
    repo.fetch_headers(["unet/one.safetensors", "unet/two.safetensors"])
    assert traffic.nbytes == sent(world)
    assert {request.range for request in world.server.asked("GET", "*.safetensors")} == {
        f"bytes=0-{repo.size('unet/one.safetensors') - 1}",
        "bytes=0-99999",
    }
    before = traffic.nbytes
    repo.read_bytes("README.md")
    repo.header("unet/one.safetensors")
    assert traffic.nbytes == before


def test_whole_files_count(world: World) -> None:
    """A download of weights counts as it arrives, one that was lost and is resumed as well."""
    world.server.fault(method="GET", path="*/two.safetensors", drop_after=70_000, times=1)
    traffic = Traffic()
    repo = world.open(traffic=traffic)
    repo.fetch(["unet/two.safetensors"])
    assert len(world.server.asked("GET", "*/two.safetensors")) == 2
    assert repo.size("unet/two.safetensors") <= traffic.nbytes <= sent(world)


def test_a_hub_that_ignores_ranges_is_counted_as_it_sends(world: World) -> None:
    """What comes beside the range is fetched, too: at least the range, at most the file."""
    world.server.fault(path="*/two.safetensors", ignore_range=True)
    traffic = Traffic()
    repo = world.open(traffic=traffic)
    listed = traffic.nbytes
    repo.read_range("unet/two.safetensors", 150_000, 10)
    assert 150_010 <= traffic.nbytes - listed <= repo.size("unet/two.safetensors")


def test_headers_stop_at_the_first_failure(world: World) -> None:
    """A Hub in trouble is not asked for every other header as well."""
    files = {f"unet/{number:03}.safetensors": shard(f"t{number}") for number in range(60)}
    add_repo(world.hub, "org/many", commit("c"), files)
    repo = world.open("org/many", commit("c"))
    world.server.fault(path="*.safetensors", status=503)
    with pytest.raises(TryAgain):
        repo.fetch_headers(list(files))
    assert len({request.path for request in world.server.asked("GET", "*.safetensors")}) < len(files)


def test_headers_are_taken_over_by_content(world: World) -> None:
    """Of files that are the same at another commit nothing is asked for; of others it is."""
    folder = world.hub / "org/base" / commit("a")
    add_repo(
        world.hub,
        "org/base",
        commit("b"),
        {
            "moved/one.safetensors": (folder / "unet/one.safetensors").read_bytes(),
            "unet/two.safetensors": shard("c", nbytes=200_000),
        },
    )
    old, new = world.open(), world.open(revision=commit("b"))
    old.fetch_headers(["unet/one.safetensors", "unet/two.safetensors"])
    new.take_headers(old)
    world.server.forget()
    assert new.header("moved/one.safetensors").tensors.keys() == {"a"}
    assert world.server.asked() == []
    assert new.header("unet/two.safetensors").tensors.keys() == {"c"}
    assert len(world.server.asked()) == 1
