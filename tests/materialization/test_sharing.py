"""A model that one host built, on hosts that have neither source nor Hub."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from support.models import VDN, options, vdn_registry
from support.published_rule import files_of

from overlay.cli._main import run
from overlay.consumers.sglang import overlay_fingerprint
from overlay.errors import BrokenInput, CheckFailed, InvalidUsage, NotHere, OverlayError
from overlay.fingerprint.entries import entry_bytes
from overlay.materialization.content import Problem
from overlay.materialization.materialize import materialize
from overlay.materialization.record import RECORD_NAME, record_bytes, tree_name
from overlay.materialization.sharing.pull import plan_pull, pull
from overlay.materialization.sharing.push import push
from overlay.materialization.verify import verify

if TYPE_CHECKING:
    from collections.abc import Callable

    from conftest import Built

    from overlay.materialization.request import Options


@pytest.fixture
def store(tmp_path: Path) -> str:
    """Nothing in it yet."""
    return str(tmp_path / "store")


@pytest.fixture
def pushed(shared_build: Built, store: str) -> str:
    """A store that has the tiny checkpoint."""
    push(VDN, store, builder(shared_build))
    return store


def builder(shared_build: Built) -> Options:
    """The host that built it."""
    return _host(shared_build, shared_build.root)


def elsewhere(shared_build: Built, tmp_path: Path) -> Options:
    """A host with a root of its own, and no hub."""
    return replace(_host(shared_build, tmp_path / "other"), hub=None, offline=True)


def _host(shared_build: Built, root: Path) -> Options:
    fingerprint = f"      fingerprint: {overlay_fingerprint(shared_build.hub.overlay_folder)}"
    registry = vdn_registry(root.parent, shared_build.hub, overlay=fingerprint)
    return options(shared_build.hub, root, registry=registry)


def test_the_same_tree_arrives(
    shared_build: Built, store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Byte for byte, under the same name, with no request; a second push and a second pull move nothing."""
    first = push(VDN, store, builder(shared_build))
    again = push(VDN, store, builder(shared_build))
    assert (first.sent, again.sent) == (first.size, 0)
    monkeypatch.setattr("overlay.hub.take_inventory", lambda *_, **__: pytest.fail("a repo was opened"))
    host = elsewhere(shared_build, tmp_path)
    planned = plan_pull(VDN, store, host)
    assert (planned.tree, planned.size, planned.is_present) == (shared_build.tree.name, first.size, False)
    assert not (tmp_path / "other").exists()

    done = pull(VDN, store, host)
    assert done.result == "pulled"
    assert done.path is not None
    assert done.path.name == shared_build.tree.name
    assert files_of(done.path) == files_of(shared_build.tree)
    assert verify(done.path).ok
    assert done.counters.downloaded == done.counters.written > 0
    second = pull(VDN, store, host)
    assert (second.result, second.path, second.counters.downloaded) == ("present", done.path, 0)
    assert plan_pull(VDN, store, host).is_present
    assert not list((tmp_path / "other/.overlay/incoming").iterdir())


def test_what_was_pulled_can_be_offered_again(shared_build: Built, pushed: str, tmp_path: Path) -> None:
    """With the actions that gave it, so that a build of the next revision finds the files."""
    host = elsewhere(shared_build, tmp_path)
    pull(VDN, pushed, host)
    push(VDN, str(tmp_path / "second"), host)
    assert sorted(files_of(tmp_path / "second")) == sorted(files_of(tmp_path / "store"))
    assert any(path.startswith("v1/actions/") for path in files_of(tmp_path / "store"))


def test_a_pull_takes_what_is_here(shared_build: Built, pushed: str, tmp_path: Path) -> None:
    """Objects of the cache are not fetched again."""
    host = elsewhere(shared_build, tmp_path)
    first = pull(VDN, pushed, host)
    assert first.path is not None
    assert first.location is not None
    first.location.unlink()
    again = pull(VDN, pushed, host)
    assert (again.result, again.path, again.counters.downloaded) == ("pulled", first.path, 0)


def test_a_store_without_the_model(shared_build: Built, store: str, tmp_path: Path) -> None:
    """Status 3, and the command that a host which can build it runs."""
    with pytest.raises(NotHere) as caught:
        pull(VDN, store, elsewhere(shared_build, tmp_path))
    assert caught.value.code == "not-in-store"
    assert caught.value.hint is not None
    assert f"--store {store}" in caught.value.hint


def test_a_model_that_is_not_here_is_not_offered(shared_build: Built, store: str, tmp_path: Path) -> None:
    """Status 3, with the command that builds it."""
    with pytest.raises(NotHere):
        push(VDN, store, elsewhere(shared_build, tmp_path))


def test_a_local_source_is_not_offered(shared_build: Built, store: str, tmp_path: Path) -> None:
    """Nobody else could ask for it."""
    host = options(shared_build.hub, tmp_path / "root")
    source = str(shutil.copytree(shared_build.hub.source_folder, tmp_path / "vdn-minimax-h3"))
    materialize(source, host)
    with pytest.raises(InvalidUsage) as caught:
        push(source, store, host)
    assert caught.value.code == "not-shareable"


def edit(store: str, folder: str, change: Callable[[bytes], bytes | None]) -> Path:
    """Change the first file of a folder of the store."""
    path = next(path for path in sorted(Path(store, "v1", folder).rglob("*")) if path.is_file())
    data = change(path.read_bytes())
    path.unlink()
    if data is not None:
        path.write_bytes(data)
    return path


@pytest.mark.parametrize("folder", ["chunks", "objects", "trees", "models"])
@pytest.mark.parametrize("damage", ["flipped", "cut", "gone"])
def test_damage_is_named_and_nothing_is_published(
    shared_build: Built, pushed: str, tmp_path: Path, folder: str, damage: str
) -> None:
    """Wherever in the store it is; `push --anew` heals it."""
    changes = {
        "flipped": lambda d: d[:-9] + bytes([d[-9] ^ 1]) + d[-8:],
        "cut": lambda d: d[:-1],
        "gone": lambda _: None,
    }
    edit(pushed, folder, changes[damage])
    host = elsewhere(shared_build, tmp_path)
    with pytest.raises((BrokenInput, NotHere)) as caught:
        pull(VDN, pushed, host)
    assert caught.value.code in ("store-damaged", "store-incomplete", "not-in-store")
    assert not list((tmp_path / "other").glob("materialized_models/*"))
    push(VDN, pushed, builder(shared_build), anew=True)
    assert pull(VDN, pushed, host).result == "pulled"


def test_another_tree_for_the_same_pins(shared_build: Built, pushed: str) -> None:
    """One of two hosts built something else: neither is believed silently."""
    edit(pushed, "models", lambda data: data)
    host = builder(shared_build)
    path = edit(pushed, "models", lambda data: data)
    key = str(path.relative_to(pushed))
    path.write_bytes(entry_bytes(1, key, "another-tree"))
    with pytest.raises(BrokenInput) as caught:
        push(VDN, pushed, host)
    assert caught.value.code == "store-differs"


def test_a_record_of_other_pins_is_refused(shared_build: Built, pushed: str, tmp_path: Path) -> None:
    """Though it is well formed and named by its content."""
    record = json.loads((shared_build.tree / RECORD_NAME).read_bytes())
    record["pins"]["source"]["revision"] = "0" * 40
    identity = {key: value for key, value in record.items() if key not in ("tree", "location", "outputs", "run")}
    name = record["tree"] = tree_name(record["model"], identity, record["outputs"])
    tree = {"record": record_bytes(record).decode(), "actions": []}
    (tmp_path / "store/v1/trees" / f"{name}.json").write_bytes(entry_bytes(1, name, tree))
    path = edit(pushed, "models", lambda data: data)
    path.write_bytes(entry_bytes(1, str(path.relative_to(pushed)), name))
    with pytest.raises(BrokenInput, match="offered for today's pins") as caught:
        pull(VDN, pushed, elsewhere(shared_build, tmp_path))
    assert caught.value.code == "store-damaged"


def test_the_lock_in_force_decides(
    shared_build: Built, pushed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A store may hold what it likes: what the lock does not expect is not published."""

    class Expected:
        def problems(self, _record: object) -> list[Problem]:
            return [Problem("transformer/x.safetensors", "lock", "the lock expects another")]

    monkeypatch.setattr("overlay.materialization.sharing.stored.expected_tree", lambda *_: Expected())
    with pytest.raises(CheckFailed) as caught:
        pull(VDN, pushed, elsewhere(shared_build, tmp_path))
    assert caught.value.code == "output-differs"


def test_a_pull_that_was_cut_goes_on(
    shared_build: Built, pushed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What had arrived is proven again and kept, of the file that was on its way too."""
    from overlay.store import Store

    monkeypatch.setattr("overlay.materialization.sharing.bringing.FILES_AT_A_TIME", 1)
    get_chunk, asked = Store._get_chunk, []

    def cut(self: Store, chunk: str, size: int) -> bytes:
        if len(asked) == 3:
            raise OverlayError("cut", code="cut")
        asked.append(chunk)
        return get_chunk(self, chunk, size)

    host = elsewhere(shared_build, tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(Store, "_get_chunk", cut)
        with pytest.raises(OverlayError, match="cut"):
            pull(VDN, pushed, host)
    again: list[str] = []
    monkeypatch.setattr(
        Store, "_get_chunk", lambda self, chunk, size: again.append(chunk) or get_chunk(self, chunk, size)
    )
    assert pull(VDN, pushed, host).result == "pulled"
    assert not set(asked) & set(again)


def test_a_reader_that_may_not_write(shared_build: Built, pushed: str, tmp_path: Path) -> None:
    """Pulls; its push says what it may not do, unless there is nothing to send."""
    host = elsewhere(shared_build, tmp_path)
    for folder, _, _ in os.walk(pushed):
        Path(folder).chmod(0o555)
    try:
        assert pull(VDN, pushed, host).result == "pulled"
        assert push(VDN, pushed, host).sent == 0
    finally:
        for folder, _, _ in os.walk(pushed):
            Path(folder).chmod(0o755)


def test_the_commands(
    shared_build: Built, store: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Text and JSON of both, and the variable that names the store."""
    host = builder(shared_build)
    flags = ["--registry", str(host.registry), "-q"]
    monkeypatch.setenv("OVERLAY_STORE", store)
    assert run(["push", VDN, *flags, "--cache-root", str(shared_build.root)]) == 0
    assert "sent " in capsys.readouterr().out
    assert run(["pull", VDN, "--dry-run", *flags, "--cache-root", str(tmp_path / "r")]) == 0
    assert "download " in capsys.readouterr().out
    assert run(["pull", VDN, "--json", *flags, "--cache-root", str(tmp_path / "r")]) == 0
    (model,) = json.loads(capsys.readouterr().out)["models"]
    assert model["result"] == "pulled"
    assert model["path"].endswith(shared_build.tree.name)
    assert run(["pull", VDN, *flags, "--cache-root", str(tmp_path / "r")]) == 0
    assert "present" in capsys.readouterr().out
