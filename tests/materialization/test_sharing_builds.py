"""Builds that ask a store first, and offer it what they built."""

from __future__ import annotations

import json
import shutil
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hub_server import HubServer
from support.checkpoints import copy_hub
from support.hubs import client_of
from support.locks import lock_of, write_lock
from support.models import VDN, options
from support.published_rule import files_of

from overlay.cli._main import run
from overlay.demo.revisions import bump_readme, bump_turbo_block
from overlay.errors import InvalidUsage, Refused, TryAgain
from overlay.fingerprint import bytes_digest, file_digest
from overlay.fingerprint.entries import entry_bytes, entry_in
from overlay.formats.header import read_header
from overlay.materialization.content import Problem
from overlay.materialization.materialize import materialize, plan
from overlay.materialization.record import RECORD_NAME, read_record
from overlay.materialization.sharing.push import push
from overlay.materialization.survey import Counters
from overlay.materialization.verify import verify
from overlay.store import Store, open_store

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from conftest import Built

    from overlay.demo.checkpoint import HubFolder
    from overlay.materialization.materialize import Materialization
    from overlay.materialization.survey import Work

SHARDS = [f"transformer/diffusion_pytorch_model-0000{number}-of-00003.safetensors" for number in (1, 2, 3)]
ROPE = "transformer/sglang_rope_inv_freq.safetensors"
WRITTEN = [*SHARDS, ROPE, "video_vae/source/model.safetensors"]


@pytest.fixture
def store(tmp_path: Path, shared_build: Built) -> str:
    """A store that has the tiny checkpoint."""
    url = str(tmp_path / "store")
    push(VDN, url, options(shared_build.hub, shared_build.root))
    return url


@pytest.fixture
def hub(tmp_path_factory: pytest.TempPathFactory) -> HubFolder:
    """A hub folder to bump, equal to the one that the store's tree was made of."""
    return copy_hub(tmp_path_factory)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Digests of the files that were brought from a store."""
    found: list[str] = []
    get = Store.get_object

    def noting(self: Store, stored: Any, *arguments: Any) -> None:
        found.append(stored.digest)
        get(self, stored, *arguments)

    monkeypatch.setattr(Store, "get_object", noting)
    return found


def tree(done: Materialization) -> dict[str, bytes]:
    assert done.path is not None
    assert verify(done.path).ok
    return {path: data for path, data in files_of(done.path).items() if path != RECORD_NAME}


def pulled(work: Work) -> list[str]:
    return [step.output.path for step in work.steps if step.how == "pull"]


def edit(store: str, folder: str, change: Callable[[bytes], bytes]) -> None:
    """Change every file of a folder of the store."""
    for path in Path(store, "v1", folder).rglob("*"):
        if path.is_file():
            path.write_bytes(change(path.read_bytes()))


def flipped(data: bytes) -> bytes:
    return data[:-9] + bytes([data[-9] ^ 1]) + data[-8:]


def test_what_is_present_asks_no_store(built: Built, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor is anything written, there or here."""
    monkeypatch.setattr(
        "overlay.materialization.sharing.filling.open_store", lambda _: pytest.fail("a store was asked")
    )
    host = built.options(store=str(tmp_path / "store"))
    assert plan(VDN, host).is_present
    assert materialize(VDN, host).result == "present"
    assert not (tmp_path / "store").exists()


def test_a_tree_of_the_store_needs_no_hub(
    shared_build: Built, store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is pulled; the plan says how many bytes, opens no repo either, and writes nothing."""
    monkeypatch.setattr("overlay.hub.take_inventory", lambda *_, **__: pytest.fail("a repo was opened"))
    host = options(shared_build.hub, tmp_path / "other/root", store=store)
    work = plan(VDN, host)
    assert not (tmp_path / "other/root").exists()
    assert work.counters.downloaded == work.counters.written > 0
    assert work.missing == ()
    assert work.room >= sum(step.size for step in work.steps if step.how == "pull")
    done = materialize(VDN, host)
    assert (done.result, done.counters, done.notes) == ("pulled", work.counters, ())
    assert done.counters.downloaded == payload_of_distinct(shared_build.tree)
    assert done.path is not None
    assert files_of(done.path) == files_of(shared_build.tree)
    assert materialize(VDN, host).result == "present"


def payload_of_distinct(folder: Path) -> int:
    files = {path.read_bytes(): path for path in folder.rglob("*.safetensors")}
    return sum(len(data) - read_header(path).data_start for data, path in files.items())


def test_two_hosts_with_one_store(shared_build: Built, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first one builds and offers, the second one builds nothing."""
    url = str(tmp_path / "empty/store")
    first = materialize(VDN, options(shared_build.hub, tmp_path / "first/root", store=url))
    assert first.result == "built"
    assert [note for note in first.notes if url in note] == [first.notes[-1]]
    assert "has no" in first.notes[-1]
    monkeypatch.setattr("overlay.materialization.job.Job.make", lambda *_: pytest.fail("a file was built"))
    second = materialize(VDN, options(shared_build.hub, tmp_path / "second/root", store=url))
    assert (second.result, second.notes) == ("pulled", ())
    assert tree(second) == tree(first)


def test_a_first_build_costs_what_the_plan_says(
    hub: HubFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a store that has nothing yet, to the byte: each shard is as large as what it is made of."""
    with online(hub, tmp_path, monkeypatch):
        host = options(hub, tmp_path / "root", store=str(tmp_path / "empty"), hub=None)
        work = plan(VDN, host)
        assert materialize(VDN, host).counters == work.counters


def test_an_unchanged_shard_is_brought_instead_of_built(
    hub: HubFolder, store: str, tmp_path: Path, asked: list[str]
) -> None:
    """Of another revision of the source, whose tree the store lacks; plan and run agree to the byte."""
    bumped = bump_readme(hub)
    host = options(bumped, tmp_path / "other/root", store=store)
    work = plan(VDN, host)
    assert not work.is_most
    assert pulled(work) == WRITTEN  # the other files are here already, and cost a link
    assert any("has no" in note for note in work.notes)
    done = materialize(VDN, host)
    assert done.counters == work.counters
    assert len(asked) == len(WRITTEN)
    assert done.counters.downloaded == sum(step.payload for step in work.steps if step.how == "pull") > 0
    assert tree(done) == tree(materialize(VDN, options(bumped, tmp_path / "fresh/root")))
    record = json.loads((done.path / RECORD_NAME).read_bytes()) if done.path else {}
    assert {item["path"]: item["why"] for item in record["run"]["reused"]} == dict.fromkeys(
        WRITTEN, "same inputs, in the store"
    )
    again = materialize(VDN, options(bumped, tmp_path / "third/root", store=store))
    assert again.result == "pulled"  # it was offered


@contextmanager
def online(hub: HubFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HubServer]:
    """A server with the hub folder, and a client with an empty cache."""
    with HubServer(hub.root) as server, client_of(server, monkeypatch, tmp_path / "hf/hub"):
        yield server


def weights(server: HubServer) -> list[str]:
    """Names of the safetensors files that were downloaded."""
    paths = [r.path for r in server.requests if r.payload and "/resolve/" in r.path]
    return [Path(path).name for path in paths if path.endswith(".safetensors")]


def test_what_the_store_has_is_not_downloaded(
    hub: HubFolder, store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor what it is made of: of another revision no weight comes from the Hub, and the tree is the same."""
    bumped = bump_readme(hub)
    with online(hub, tmp_path, monkeypatch) as server:
        host = options(bumped, tmp_path / "other/root", store=store, hub=None)
        work = plan(VDN, host)
        assert {*SHARDS} < {*pulled(work)}
        assert not [source.path for source in work.missing if source.path.endswith(".safetensors")]
        server.forget()
        done = materialize(VDN, host)
        assert weights(server) == []
    assert done.counters == work.counters
    assert done.counters.downloaded > 0
    assert tree(done) == tree(materialize(VDN, options(bumped, tmp_path / "fresh/root")))


def test_a_bump_of_one_adapter_block_brings_the_other_shards(
    hub: HubFolder, store: str, tmp_path: Path, asked: list[str]
) -> None:
    """By the action of their factors, on a host that never saw the model; the plan says at most what that costs."""
    bumped = bump_turbo_block(hub, 0)
    host = options(bumped, tmp_path / "other/root", store=store)
    work = plan(VDN, host)
    assert work.is_most
    done = materialize(VDN, host)
    fresh = materialize(VDN, options(bumped, tmp_path / "fresh/root"))
    assert tree(done) == tree(fresh)
    record = json.loads((done.path / RECORD_NAME).read_bytes()) if done.path else {}
    reused = {item["path"]: item["why"] for item in record["run"]["reused"]}
    assert 0 < len(reused.keys() & {*SHARDS}) < len(SHARDS)
    assert {reused[path] for path in reused.keys() & {*SHARDS}} == {"same base and factors, in the store"}
    assert len(asked) == len(reused)
    assert 0 < done.counters.written - done.counters.downloaded < fresh.counters.written
    assert done.counters.read < work.counters.read
    spared = asdict(work.counters - done.counters)
    assert min(spared.values()) >= 0


@pytest.mark.parametrize("folder", ["chunks", "objects", "actions", "trees", "models"])
def test_damage_in_the_store_costs_a_build(shared_build: Built, store: str, tmp_path: Path, folder: str) -> None:
    """And a note, wherever it is; what is published is what a build without the store gives."""
    edit(store, folder, flipped)
    done = materialize(VDN, options(shared_build.hub, tmp_path / "other/root", store=store))
    assert tree(done) == tree(shared_build.result)
    assert (done.result, bool(done.notes)) == (("pulled", False) if folder == "actions" else ("built", True))


def test_damaged_actions_cost_a_build(hub: HubFolder, store: str, tmp_path: Path) -> None:
    """Where they alone could tell."""
    edit(store, "actions", flipped)
    bumped = bump_readme(hub)
    done = materialize(VDN, options(bumped, tmp_path / "other/root", store=store))
    assert (done.result, done.counters.downloaded) == ("built", 0)
    assert any("damaged" in note for note in done.notes)


def test_an_action_of_another_file_is_not_believed(hub: HubFolder, store: str, tmp_path: Path) -> None:
    """The bytes come as they were announced, but they are not of this output, so it is built."""
    paths = [path for path in Path(store, "v1/actions").iterdir() if entry_in(path.read_bytes(), 1, path.stem)]
    entries = {path: entry_in(path.read_bytes(), 1, path.stem) for path in paths}
    other = next(Path(store, "v1/objects/sha256").iterdir())
    digest = f"sha256:{other.stem}"
    size = entry_in(other.read_bytes(), 1, digest)["size"]
    for path, entry in entries.items():
        path.write_bytes(entry_bytes(1, path.stem, {**entry, "digest": digest, "size": size}))
    bumped = bump_readme(hub)
    done = materialize(VDN, options(bumped, tmp_path / "other/root", store=store))
    assert done.counters.downloaded == 0
    assert tree(done) == tree(materialize(VDN, options(bumped, tmp_path / "fresh/root")))


def test_a_header_that_is_another_is_not_believed(hub: HubFolder, store: str, tmp_path: Path) -> None:
    """Of a file with the right size and digest: whoever wrote the entry lied of the rest."""
    sample = tmp_path / "sample"
    for path in Path(store, "v1/actions").iterdir():
        entry = entry_in(path.read_bytes(), 1, path.stem)
        if "tensors" not in entry:
            continue
        data = b"\x02" + bytes(7) + b"{}" + bytes(entry["size"] - 10)
        sample.write_bytes(data)
        digest = bytes_digest(data, "sha256")
        with open_store(store) as opened:
            opened.put_object(sample, digest, len(data), lambda _: None)
        path.write_bytes(entry_bytes(1, path.stem, {**entry, "digest": digest}))
    bumped = bump_readme(hub)
    done = materialize(VDN, options(bumped, tmp_path / "other/root", store=store))
    assert tree(done) == tree(materialize(VDN, options(bumped, tmp_path / "fresh/root")))
    assert done.notes


@pytest.mark.parametrize("wanted", ["the tree", "another revision"])
@pytest.mark.parametrize("after", [0, 1, 3])
def test_a_store_that_goes_half_way(
    hub: HubFolder, store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: int, wanted: str
) -> None:
    """What had come is kept and counted, the rest is built, and the store is not asked again."""
    hub = hub if wanted == "the tree" else bump_readme(hub)
    get_chunk, came, refused = Store._get_chunk, [], []

    def get(self: Store, chunk: str, size: int) -> bytes:
        if len(came) == after:
            refused.append(chunk)
            raise TryAgain("store: gone", code="gone")
        came.append(chunk)
        return get_chunk(self, chunk, size)

    monkeypatch.setattr("overlay.materialization.sharing.bringing.FILES_AT_A_TIME", 1)
    monkeypatch.setattr(Store, "_get_chunk", get)
    monkeypatch.setattr(Store, "put_object", lambda *_, **__: pytest.fail("a store that is gone was offered a file"))
    done = materialize(VDN, options(hub, tmp_path / "other/root", store=store))
    assert done.result == "built"
    assert "store: gone: built without the store" in done.notes
    assert (done.counters.downloaded > 0) == (after > 0)
    assert refused
    assert tree(done) == tree(materialize(VDN, options(hub, tmp_path / "fresh/root")))


@pytest.mark.parametrize("error", [Refused("no", code="refused"), TryAgain("later", code="gone")])
def test_what_cannot_be_asked_or_offered_is_a_note(
    shared_build: Built, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """A store that may not be read is not offered anything either; one that may not be written was asked before."""

    def fail(*_: object, **__: object) -> None:
        raise error

    url = str(tmp_path / "store")
    with monkeypatch.context() as patch:
        patch.setattr(Store, "find_model", fail)
        done = materialize(VDN, options(shared_build.hub, tmp_path / "one/root", store=url))
    assert (done.result, done.notes[-1]) == ("built", f"{error}: built without the store")
    assert not Path(url).exists()
    monkeypatch.setattr(Store, "put_object", fail)
    done = materialize(VDN, options(shared_build.hub, tmp_path / "two/root", store=url))
    assert done.result == "built"
    assert done.notes[-1] == f"not offered to the store: {error}"


def test_a_store_that_differs_is_a_note(shared_build: Built, store: str, tmp_path: Path) -> None:
    """That says which tree it has; it keeps it."""
    [path] = [path for path in Path(store, "v1/models").rglob("*") if path.is_file()]
    before = entry_bytes(1, str(path.relative_to(store)), "another-tree")
    path.write_bytes(before)
    done = materialize(VDN, options(shared_build.hub, tmp_path / "other/root", store=store))
    assert any("the store has another-tree" in note for note in done.notes)
    assert path.read_bytes() == before


def test_the_lock_in_force_decides(
    shared_build: Built, store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tree that it does not expect is not taken: the build is what it judges."""

    class Expected:
        def problems(self, _record: object) -> list[Problem]:
            return [Problem("transformer/x.safetensors", "lock", "the lock expects another")]

    with monkeypatch.context() as patch:
        patch.setattr("overlay.materialization.sharing.stored.expected_tree", lambda *_: Expected())
        done = materialize(VDN, options(shared_build.hub, tmp_path / "other/root", store=store))
    assert done.result == "built"
    assert any("the lock expects another" in note for note in done.notes)


@pytest.mark.parametrize("judge", ["lock", "nobody"])
def test_a_shard_of_other_values_is_built_where_the_lock_knows_better(
    shared_build: Built, store: str, tmp_path: Path, judge: str
) -> None:
    """Whoever may write to a store is trusted with what no lock says; a lock has it built again."""
    is_locked, chosen = judge == "lock", options(shared_build.hub, tmp_path / "other/root", store=store)
    document = lock_of(VDN, shared_build.options(), shared_build.hub.root, shared_build.tree)
    if is_locked:
        write_lock(VDN, chosen, document)
    shutil.rmtree(Path(store, "v1/models"))
    sample = tmp_path / "sample"
    data = (shared_build.tree / SHARDS[0]).read_bytes()
    sample.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    wrong = file_digest(sample, "sha256")
    right = {item.path: item.digest for item in read_record(shared_build.tree).outputs}[SHARDS[0]]
    with open_store(store) as opened:
        opened.put_object(sample, wrong, len(data), lambda _: None)
    for path in Path(store, "v1/actions").iterdir():
        entry = entry_in(path.read_bytes(), 1, path.stem)
        if entry["digest"] == right:
            path.write_bytes(entry_bytes(1, path.stem, {**entry, "digest": wrong}))
    work, done = plan(VDN, chosen), materialize(VDN, chosen)
    assert SHARDS[0] in pulled(work)
    assert done.path is not None
    assert (done.path / SHARDS[0]).read_bytes() == (data if is_locked else sample.read_bytes())
    assert any("only when built again" in note for note in done.notes) == is_locked


def test_a_local_source_has_no_name_in_a_store(hub: HubFolder, store: str, tmp_path: Path) -> None:
    """A note; its files are found there all the same, by what they are made of."""
    source = str(shutil.copytree(hub.source_folder, tmp_path / "vdn-minimax-h3"))
    before = files_of(Path(store))
    host = options(hub, tmp_path / "other/root", store=store)
    work = plan(source, host)
    done = materialize(source, host)
    assert done.counters == work.counters
    assert pulled(work) == WRITTEN
    assert any("single files only" in note for note in done.notes)
    assert files_of(Path(store)) == before


def test_only_a_component_is_filled_and_nothing_is_offered(
    hub: HubFolder, store: str, tmp_path: Path, asked: list[str]
) -> None:
    """The objects wait in the cache."""
    before = files_of(Path(store))
    host = options(hub, tmp_path / "other/root", store=store, only=("transformer",))
    done = materialize(VDN, host)
    assert (done.path, len(asked)) == (None, len([*SHARDS, ROPE]))
    assert done.counters == plan(VDN, replace(host, cache_root=tmp_path / "third/root")).counters
    assert done.counters != Counters()
    assert files_of(Path(store)) == before


def test_the_command_and_its_variable(
    shared_build: Built,
    store: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What comes from the store is in the plan, and `pulled` in the text."""
    host = options(shared_build.hub, tmp_path / "r/root")
    flags = ["--registry", str(host.registry), "-q", "--cache-root", str(host.cache_root), "--hub", str(host.hub)]
    assert run(["prewarm", VDN, "--dry-run", "--json", "--store", store, *flags]) == 0
    [model] = json.loads(capsys.readouterr().out)["models"]
    assert model["bytes_downloaded"] == model["bytes_written"] > 0
    assert {file["how"] for file in model["files"]} == {"pull", "present"}
    monkeypatch.setenv("OVERLAY_STORE", store)
    assert run(["prewarm", VDN, "--dry-run", *flags]) == 0
    assert "from the store" in capsys.readouterr().out
    assert run(["prewarm", VDN, *flags]) == 0
    assert "pulled in" in capsys.readouterr().out


def test_a_url_that_nothing_knows_is_refused(shared_build: Built, tmp_path: Path) -> None:
    """Before anything is built: that is no store that is gone, but one that is not there."""
    with pytest.raises(InvalidUsage):
        materialize(VDN, options(shared_build.hub, tmp_path / "other/root", store="nothing://bucket"))
    assert not (tmp_path / "other/root").exists()
