"""Repos of the Hub through the real client: what is asked for, what arrives, and where it lies."""

from __future__ import annotations

import hashlib
import json
import threading
from typing import TYPE_CHECKING

import hub_server
import pytest
from hub_server import HubServer
from huggingface_hub import get_cached_repo_tree
from support.hubs import add_repo, client_of, commit, shard
from support.tensors import entry, raw_file

from overlay.errors import BrokenInput, NotHere, Refused, TryAgain
from overlay.fingerprint import git_blob_digest
from overlay.formats.checkpoint import read_checkpoint
from overlay.hub import client
from overlay.hub.trees import tree_from_listing

if TYPE_CHECKING:
    from pathlib import Path

    from conftest import World

pytestmark = pytest.mark.no_torch

ONE = "unet/one.safetensors"
TWO = "unet/two.safetensors"
CONFIG = "unet/config.json"
TOKEN = "hf_right"  # noqa: S105  # of a server of this test


def content(world: World, path: str) -> bytes:
    return (world.hub / "org/base" / commit("a") / path).read_bytes()


def test_opening_lists_the_repo_with_one_request(world: World) -> None:
    """Names, sizes and digests come from one listing, without a byte of content."""
    repo = world.open()

    assert repo.paths() == ["README.md", CONFIG, "unet/model.safetensors.index.json", ONE, TWO]
    assert repo.size(TWO) == len(content(world, TWO))
    assert repo.digest(TWO) == f"sha256:{hashlib.sha256(content(world, TWO)).hexdigest()}"
    assert repo.digest(CONFIG) == git_blob_digest(content(world, CONFIG))
    assert repo.name == "org/base@aaaaaaaaaaaa"
    assert repo.where(CONFIG) == "org/base@aaaaaaaaaaaa/unet/config.json"
    assert [r.path for r in world.server.asked()] == [f"/api/models/org/base/tree/{commit('a')}"]


@pytest.mark.parametrize("page_size", [1, 2, 7])
def test_follows_the_pages_of_a_listing(world: World, page_size: int) -> None:
    """A listing in pages gives the same files as one in a piece."""
    world.server.page_size = page_size

    assert len(world.open().paths()) == 5


def test_reads_a_header_by_range_and_no_payload(world: World) -> None:
    """The header of a file that is not here takes one bounded request; nothing of the file is kept."""
    repo = world.open()

    header = repo.header(TWO)

    assert list(header.tensors) == ["b"]
    assert [r.range for r in world.server.asked("GET", f"*{TWO}")] == ["bytes=0-99999"]
    assert world.server.payload() == 0
    assert repo.local(TWO) is None
    assert repo.header(TWO) is header


def test_reads_a_header_longer_than_the_first_guess(world: World) -> None:
    """A header of more than 100 kB takes a second request for just the rest of it."""
    entries = {f"tensor-{i:05}-{'x' * 60}": entry("U8", [1], i, i + 1) for i in range(1000)}
    data = raw_file(json.dumps(entries), bytes(1000))
    add_repo(world.hub, "org/base", commit("a"), {"long.safetensors": data})

    header = world.open().header("long.safetensors")

    assert len(header.tensors) == 1000
    assert [r.range for r in world.server.asked("GET", "*long*")] == [
        "bytes=0-99999",
        f"bytes=100000-{len(data) - 1000 - 1}",
    ]


def test_range_reads_survive_an_endpoint_that_ignores_ranges(world: World) -> None:
    """Where the whole file is sent instead, reading stops at the end of what was asked for."""
    world.server.fault(method="GET", path=f"*{TWO}", ignore_range=True)
    repo = world.open()

    assert repo.read_range(TWO, 150_000, 5) == content(world, TWO)[150_000:150_005]
    assert list(repo.header(TWO).tensors) == ["b"]


def test_range_beyond_the_file_is_refused_without_a_request(world: World) -> None:
    """The listing knows the size."""
    repo = world.open()
    world.server.forget()

    with pytest.raises(BrokenInput, match=f"{repo.size(ONE)} bytes, expected at least"):
        repo.read_range(ONE, repo.size(ONE) - 1, 2)

    assert not world.server.asked()


def test_reads_from_the_cache_what_is_there(world: World) -> None:
    """Headers, ranges and small files of fetched files ask for nothing."""
    world.fill()
    repo = world.open()

    assert list(repo.header(ONE).tensors) == ["a"]
    assert repo.read_range(ONE, 0, 8) == content(world, ONE)[:8]
    assert repo.read_bytes(CONFIG) == content(world, CONFIG)
    assert set(read_checkpoint(repo, "unet").weight_map) == {"a", "b"}
    assert not world.server.asked()


def test_fetches_exactly_the_files_asked_for(world: World) -> None:
    """Other files are not touched; what was fetched lies in the client's own cache, where others find it."""
    repo = world.open()

    found = repo.fetch([ONE, CONFIG], None)

    snapshot = world.cache / "models--org--base" / "snapshots" / commit("a")
    assert found[ONE] == (snapshot / ONE).resolve()
    assert found[ONE].read_bytes() == content(world, ONE)
    assert {p.relative_to(snapshot).as_posix() for p in snapshot.rglob("*") if p.is_file()} == {ONE, CONFIG}
    assert {r.path.rpartition("a/")[2] for r in world.server.asked("GET", "*/resolve/*")} == {ONE, CONFIG}
    assert world.server.payload() == repo.size(ONE)


def test_everything_cached_and_pinned_makes_no_request(world: World) -> None:
    """A second run lists, reads and fetches without a server."""
    world.fill()
    world.server.fault(status=500)

    repo = world.open()
    repo.fetch(repo.paths(), None)
    repo.header(TWO)
    repo.read_bytes(CONFIG)

    assert not world.server.asked()


def test_a_file_that_another_commit_brought_is_not_downloaded_again(world: World) -> None:
    """A bump that leaves a file alone moves none of its bytes."""
    world.fill()
    add_repo(world.hub, "org/base", commit("b"), {ONE: content(world, ONE), "new.json": "{}"})
    repo = world.open(revision=commit("b"))

    repo.fetch(repo.paths(), None)

    assert world.server.payload() == 0
    assert [r.path for r in world.server.asked("GET", "*/resolve/*")] == [f"/org/base/resolve/{commit('b')}/new.json"]


def test_a_file_that_another_commit_brought_is_here(world: World) -> None:
    """It is found by the Hub's digest of it, offline too, and its header without a request; a stump of it is not."""
    add_repo(world.hub, "org/base", commit("b"), {ONE: content(world, ONE)})
    repo, moved = world.open(), world.open(revision=commit("b"))
    place = repo.fetch([ONE])[ONE]
    world.server.forget()

    assert moved.local(ONE) == place
    assert world.open(revision=commit("b"), offline=True).fetch([ONE]) == {ONE: place}
    assert moved.header(ONE) == repo.header(ONE)
    assert world.server.asked() == []
    place.write_bytes(b"stump")
    assert moved.local(ONE) is None


def test_progress_counts_the_bytes_of_the_files(world: World) -> None:
    """What is called back adds up to the sizes of what was fetched, and nothing is counted for cached files."""
    repo = world.open()
    seen: list[int] = []

    repo.fetch([ONE, TWO], seen.append)
    assert sum(seen) == repo.size(ONE) + repo.size(TWO)

    seen.clear()
    repo.fetch([ONE, TWO], seen.append)
    assert not seen


def test_progress_is_right_after_a_dropped_connection(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A body that ends early is resumed, and its bytes are counted once."""
    monkeypatch.setattr("huggingface_hub.constants.DOWNLOAD_CHUNK_SIZE", 10_000)
    world.server.fault(method="GET", path=f"*{TWO}", drop_after=50_000, times=1)
    repo = world.open()
    seen: list[int] = []

    found = repo.fetch([TWO], seen.append)

    assert found[TWO].read_bytes() == content(world, TWO)
    assert sum(seen) == repo.size(TWO)
    assert [r.range for r in world.server.asked("GET", f"*{TWO}")] == [None, "bytes=50000-"]


def test_prints_nothing(world: World, capfd: pytest.CaptureFixture[str]) -> None:
    """The client's own progress bars stay away."""
    world.open().fetch([ONE, TWO], None)

    assert capfd.readouterr() == ("", "")


def test_downloads_several_files_at_once(world: World) -> None:
    """All of a few slow files are in flight together."""
    add_repo(world.hub, "org/many", commit("a"), {f"{i}.safetensors": shard(str(i)) for i in range(6)})
    repo = world.open("org/many")
    all_here = threading.Barrier(6, timeout=2)
    send = type(world.server).strike

    def strike(server: HubServer, method: str, path: str) -> object:
        if method == "GET" and path.endswith(".safetensors"):
            all_here.wait()
        return send(server, method, path)

    world.server.strike = strike.__get__(world.server)  # type: ignore[method-assign]  # waits for the other five
    repo.fetch(repo.paths(), None)

    assert not all_here.broken


def test_the_first_failure_stops_the_other_downloads(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files that wait for their turn are not begun, and those under way end at their next chunk."""
    monkeypatch.setattr("huggingface_hub.constants.DOWNLOAD_CHUNK_SIZE", 100_000)
    files = {f"{i:02}.safetensors": shard("a", nbytes=1_000_000 - i) for i in range(20)}
    add_repo(world.hub, "org/many", commit("a"), files)
    world.server.fault(method="GET", path="*/00.safetensors", status=403)
    world.server.fault(method="GET", path="*/resolve/*", chunk_delay=0.05)
    repo = world.open("org/many")

    with pytest.raises(PermissionError, match=r"00\.safetensors"):
        repo.fetch(repo.paths(), None)

    assert len(world.server.asked("GET", "*/resolve/*")) < 20
    assert not list((world.cache / "models--org--many").rglob("*.safetensors"))
    assert not list(world.cache.rglob("*.incomplete"))


def test_a_small_file_is_held_against_its_digest(world: World) -> None:
    """A config whose bytes are not those of the commit, each time it comes, is refused, though its size is right."""
    world.server.fault(method="GET", path=f"*{CONFIG}", flip=3)

    with pytest.raises(NotHere, match="not the file of this commit") as caught:
        world.open().read_bytes(CONFIG)

    assert caught.value.code == "damaged-in-hub-cache"
    assert git_blob_digest(content(world, CONFIG)) in str(caught.value)
    assert len(world.server.asked("GET", f"*{CONFIG}")) == 2


@pytest.mark.parametrize("path", [CONFIG, "small.lfs"])
def test_a_small_file_that_came_damaged_is_fetched_again(world: World, path: str) -> None:
    """In the same run, or in the next one, which finds it in the cache; nobody has to remove anything."""
    world.server.content.lfs = ("*.lfs",)
    (world.hub / "org/base" / commit("a") / "small.lfs").write_text("small")
    expected = content(world, path)
    fault = world.server.fault(method="GET", path=f"*/{path}", flip=3, times=1)

    assert world.open().read_bytes(path) == expected

    fault.times = 2
    blob = world.open().fetch([path])[path]
    blob.chmod(0o644)
    blob.write_bytes(expected[:-1] + b"~")
    with pytest.raises(NotHere, match="not the file of this commit"):
        world.open().read_bytes(path)
    with pytest.raises(NotHere, match="not the file of this commit"):
        world.open(offline=True).read_bytes(path)
    fault.times = 0
    kept = blob.open("rb")

    assert world.open().read_bytes(path) == expected
    assert blob.read_bytes() == expected
    with kept:  # replaced in one step: whoever has the old one open goes on reading that
        assert kept.read() != expected


def test_a_small_file_of_the_wrong_size_is_fetched_again(world: World) -> None:
    """A truncated one, too."""
    world.fill(CONFIG)
    expected = content(world, CONFIG)
    blob = world.open().fetch([CONFIG])[CONFIG]
    blob.write_bytes(expected[:-1])

    assert world.open().read_bytes(CONFIG) == expected


def test_a_blob_of_the_wrong_size_is_refused_with_the_fix(world: World) -> None:
    """A truncated blob of weights is named, with both sizes and the command that removes it; it stays."""
    world.fill(TWO)
    blob = world.open().fetch([TWO], None)[TWO]
    blob.write_bytes(blob.read_bytes()[:-5])

    with pytest.raises(NotHere, match="bytes, expected") as caught:
        world.open().fetch([TWO], None)

    assert str(blob) in (caught.value.hint or "")
    assert blob.exists()


def test_a_link_to_a_pruned_blob_is_fetched_again(world: World) -> None:
    """A dangling link counts as absent and is repaired by the client."""
    world.fill(ONE)
    blob = world.open().fetch([ONE], None)[ONE]
    blob.unlink()
    repo = world.open()

    assert repo.local(ONE) is None
    assert repo.fetch([ONE], None)[ONE].read_bytes() == content(world, ONE)


def test_a_file_that_the_client_did_not_leave_there_is_an_error(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Success of the client is not believed: every file is looked for."""
    monkeypatch.setattr(client, "hf_hub_download", lambda *_args, **_options: "somewhere")

    with pytest.raises(TryAgain, match=r"README\.md") as caught:
        world.open().fetch(["README.md", CONFIG], None)

    assert caught.value.data["missing"] == ["README.md", CONFIG]


def test_an_unknown_file_suggests_the_one_that_was_meant(world: World) -> None:
    """A path that the commit does not have names the repo and the nearest names, without a request."""
    repo = world.open()
    world.server.forget()

    with pytest.raises(NotHere, match=r"org/base@aaaaaaaaaaaa: has no file unet/confg\.json") as caught:
        repo.read_bytes("unet/confg.json")

    assert caught.value.hint == "did you mean unet/config.json?"
    assert not world.server.asked()


def test_only_the_patterns_are_listed_and_fetched(world: World) -> None:
    """An overlay repo is seen as a server sees it."""
    repo = world.open(only=("*.json", "*.md"))

    assert repo.paths() == ["README.md", "unet/config.json", "unet/model.safetensors.index.json"]
    with pytest.raises(NotHere):
        repo.fetch([ONE], None)


def test_a_floating_pin_is_resolved_once(world: World) -> None:
    """The repo carries the commit, every later request names it, and the next offline run finds it."""
    repo = world.open(revision=None)
    repo.fetch([CONFIG], None)

    assert repo.revision == commit("a")
    assert [r.path for r in world.server.asked("*", "*main*")] == ["/api/models/org/base/revision/main"]
    assert all(commit("a") in r.path for r in world.server.asked()[1:])
    assert world.open(revision=None, offline=True).revision == commit("a")


def test_a_branch_that_leads_to_no_commit_is_refused(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A login page in place of the Hub, or a made-up commit, is not followed."""
    monkeypatch.setattr(hub_server, "_json", lambda _document: hub_server._Answer(200, body=b"<html>log in</html>"))

    with pytest.raises(Refused, match="no description of a repo") as caught:
        world.open(revision=None)

    assert caught.value.code == "not-a-hub"


def test_the_token_goes_to_the_endpoint_and_nowhere_else(
    world: World, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Files that the Hub keeps on another host are read there without the token."""
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    cache = tmp_path / "other" / "hub"
    with HubServer(world.hub, token=TOKEN, cdn=True) as server, client_of(server, monkeypatch, cache):
        repo = world.open()
        header = repo.header(TWO)
        repo.fetch([ONE, CONFIG], None)

    assert list(header.tensors) == ["b"]
    elsewhere = server.asked("*", "/cdn/*")
    assert {r.path.rpartition("/")[2] for r in elsewhere} == {"one.safetensors", "two.safetensors"}
    assert not any(r.authorized for r in elsewhere)
    assert all(r.authorized for r in server.asked() if r not in elsewhere)


@pytest.mark.parametrize(
    "page",
    [
        b"<html>log in</html>",
        b'{"error": "x"}',
        b'[{"type": "file"}]',
        b'[{"type": "file", "path": "a", "size": -1, "oid": "0"}]',
        b'[{"type": "file", "path": "a", "size": 1, "oid": "zz"}]',
        b"[1]",
    ],
)
def test_a_page_that_is_no_listing_names_the_endpoint(page: bytes) -> None:
    """A login page, or JSON of another form, is not taken for an empty repo."""
    with pytest.raises(Refused, match="no listing of files") as caught:
        tree_from_listing([page], "org/base")

    assert "HF_ENDPOINT" in (caught.value.hint or "")


@pytest.mark.parametrize("path", ["../x", "/etc/passwd", "a/../../x", "a\\b", ""])
def test_a_listing_with_a_path_that_leads_out_is_refused(path: str) -> None:
    """Paths from the Hub are contained."""
    item = {"type": "file", "path": path, "size": 1, "oid": "0" * 40}

    with pytest.raises(BrokenInput, match="expected a relative POSIX path"):
        tree_from_listing([json.dumps([item]).encode()], "org/base")


@pytest.mark.parametrize(
    "text", ["", "{}", '{"format_version": 2, "files": {}}', '{"format_version": 1, "files": [1]}']
)
def test_a_cached_listing_that_cannot_be_used_is_asked_for_again(world: World, text: str) -> None:
    """A damaged listing, or one of an unknown version, counts as absent."""
    world.fill(CONFIG)
    (world.cache / "models--org--base" / "trees" / f"{commit('a')}.json").write_text(text)

    assert len(world.open().paths()) == 5
    assert len(world.server.asked("GET", "*/tree/*")) == 1


def test_the_client_reads_the_listing_that_is_left_for_it(world: World) -> None:
    """The cached listing is in the client's own format."""
    repo = world.open()

    found = get_cached_repo_tree("org/base", revision=commit("a"), cache_dir=world.cache)
    assert {file.path: file.size for file in found} == {path: repo.size(path) for path in repo.paths()}
