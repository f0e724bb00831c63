"""What the commands say of the lock in force: resolve, prewarm, verify, cache ls, info, rm and gc."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any

import pytest
from support.demo_hub import MODEL, World, make_built_world
from support.locks import lock_of, write_lock

from overlay.cli._main import run
from overlay.materialization.request import Options

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> World:
    """A world in which the model is materialized. Tests copy what they write to."""
    return make_built_world(tmp_path_factory.mktemp("made"))


@pytest.fixture
def world(made: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    """The made world with a registry and a cache of the test's own."""
    shutil.copytree(made.cache, tmp_path / "cache", symlinks=True)
    shutil.copy(made.root / "registry.yaml", tmp_path / "registry.yaml")
    own = World(tmp_path, made.hub)
    own.put_in_force(monkeypatch)
    return own


@pytest.fixture
def locked(world: World) -> Callable[..., Path]:
    """Writes a lock of what is materialized, after an edit."""
    [tree] = world.cache.glob(".overlay/trees/*")
    options = Options(registry=world.root / "registry.yaml")
    document = lock_of(MODEL, options, world.hub.root, tree)
    return lambda edit=None: write_lock(MODEL, options, document, edit)


def other_commit(document: dict[str, Any]) -> None:
    document["repos"][MODEL]["revision"] = "0" * 40


def other_output(document: dict[str, Any]) -> None:
    files = document["expected"]["files"]
    [path, *_] = [path for path in sorted(files) if path.startswith("transformer/diff") and files[path]["tensors"]]
    tensors = files[path]["tensors"]
    tensors[min(tensors)] = "xxh3_128:" + "0" * 32


def lines(capsys: pytest.CaptureFixture[str], *args: str, status: int = 0) -> list[str]:
    assert run(list(args)) == status
    return [line.strip() for line in capsys.readouterr().out.splitlines()]


def row(found: list[str], name: str) -> list[str]:
    return [line.split(None, 1)[1] for line in found if line.split(" ")[0] == name]


def test_resolve_shows_a_current_lock(
    locked: Callable[..., Path], capsys: pytest.CaptureFixture[str], document: Any
) -> None:
    """One line, and its values in JSON."""
    path = locked()
    assert row(lines(capsys, "resolve", MODEL), "lock") == ["current"]
    assert document("resolve", "resolve", MODEL)["lock"] == {
        "path": str(path),
        "state": "current",
        "differences": [],
    }


def test_resolve_shows_a_stale_lock(
    world: World, locked: Callable[..., Path], capsys: pytest.CaptureFixture[str], document: Any
) -> None:
    """The first difference; of a model that is absent, locking is what comes next."""
    locked(other_commit)
    what = f"{MODEL} is locked at 000000000000, pinned at {world.hub.source[:12]}"
    assert row(lines(capsys, "resolve", MODEL), "lock") == [f"stale: {what}"]
    found = document("resolve", "resolve", MODEL)
    assert (found["state"], found["lock"]["state"], found["lock"]["differences"]) == ("present", "stale", [what])
    assert found["next"] == f"overlay verify {MODEL}"
    absent = document("resolve", "resolve", MODEL, "--cache-root", str(world.root / "empty"))
    assert absent["next"].startswith(f"overlay lock {MODEL}")


def test_resolve_says_nothing_without_a_lock(
    world: World, locked: Callable[..., Path], capsys: pytest.CaptureFixture[str], document: Any
) -> None:
    """Without the file there is no line; a lock that does not name the model is told apart."""
    assert row(lines(capsys, "resolve", MODEL), "lock") == []
    assert document("resolve", "resolve", MODEL)["lock"] is None
    path = locked()
    path.write_text('{"lock_version": 1, "models": {}}')
    assert row(lines(capsys, "resolve", MODEL), "lock") == ["none"]
    assert document("resolve", "resolve", MODEL)["lock"]["state"] == "none"
    path.write_text("[]")
    assert run(["path", MODEL]) == 0  # reads no lock
    assert world.cache.is_dir()


@pytest.mark.parametrize("flags", [(), ("--dry-run",)], ids=["run", "dry-run"])
def test_prewarm_refuses_a_stale_lock(
    world: World, locked: Callable[..., Path], flags: tuple[str, ...], document: Any
) -> None:
    """Status 2, with the command that locks again; a dry run says the same."""
    locked(other_commit)
    root = str(world.root / "empty")
    found = document("error", "prewarm", MODEL, "--cache-root", root, *flags, status=2)["error"]
    assert found["code"] == "lock-stale"
    assert f"overlay lock {MODEL}" in found["hint"]
    assert not (world.root / "empty/.overlay/trees").exists()


def test_a_quarantined_tree_is_listed_compared_and_removed(
    world: World, locked: Callable[..., Path], capsys: pytest.CaptureFixture[str], document: Any
) -> None:
    """From the refusal on: every command that its hint leads to takes the folder."""
    [published] = world.cache.glob(".overlay/trees/*")
    locked(other_output)
    root = ("--cache-root", str(world.root / "other"))
    error = document("error", "prewarm", MODEL, *root, status=1)["error"]
    kept = error["data"]["quarantine"]
    assert error["code"] == "output-differs"
    assert f"look: {kept};" in error["hint"]  # nothing is published there that it could be compared with

    assert run(["compare", kept, str(published)]) == 0
    capsys.readouterr()
    assert {item["kind"] for item in document("verify", "verify", kept, status=1)["problems"]} == {"lock"}
    name = kept.rpartition("/")[2]
    [model] = document("cache-ls", "cache", "ls", *root)["models"]
    assert (model["in_quarantine"], model["path"], model["locations"]) == (True, kept, [])
    assert any(f"quarantine: {name}" in line for line in lines(capsys, "cache", "ls", *root))
    info = lines(capsys, "cache", "info", name, *root)
    assert row(info, "location") == ["none: not what the lock expects, so in quarantine"]
    planned = document("cache-rm", "cache", "rm", name, "--dry-run", *root)
    assert planned["trees"] == [kept]
    assert kept in lines(capsys, "cache", "rm", name, *root)
    assert document("cache-ls", "cache", "ls", *root)["models"] == []


def test_verify_uses_the_lock_at_level_sha256(world: World, locked: Callable[..., Path], document: Any) -> None:
    """A file that was made to pass by its own digest fails by the lock's."""

    def edit(document: dict[str, Any]) -> None:
        files = document["expected"]["files"]
        [path, *_] = [path for path in sorted(files) if files[path]["digest"].startswith("safetensors_")]
        files[path]["sha256"] = "0" * 64

    locked()
    assert document("verify", "verify", MODEL, "--level", "sha256")["ok"]
    locked(edit)
    assert document("verify", "verify", MODEL)["ok"]
    found = document("verify", "verify", MODEL, "--level", "sha256", status=1)
    assert [problem["kind"] for problem in found["problems"]] == ["lock"]
    assert world.cache.is_dir()


@pytest.mark.parametrize("level", ["quick", "full", "sha256"])
def test_verify_says_that_it_is_the_lock_which_expects_something_else(
    world: World, locked: Callable[..., Path], capsys: pytest.CaptureFixture[str], level: str
) -> None:
    """The problem names the lock, and the hint is the command that locks anew: a repair would find nothing to do."""
    lock = locked(other_output)
    [tree] = world.cache.glob(".overlay/trees/*")
    assert run(["verify", MODEL, "--level", level]) == 1
    out, err = capsys.readouterr()
    assert f"{lock} expects other bytes of tensor" in out
    assert f"overlay lock {MODEL} --from-build {tree}" in err
    assert "cache repair" not in err


def test_verify_says_that_it_is_the_file_which_is_damaged(
    world: World, locked: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    """A lock that expects the output does not change what helps."""
    locked()
    [tree] = world.cache.glob(".overlay/trees/*")
    readme = tree / "README.md"
    text = readme.read_bytes()
    readme.unlink()
    readme.write_bytes(text.swapcase())
    assert run(["verify", MODEL, "--level", "sha256"]) == 1
    err = capsys.readouterr().err
    assert "cache repair" in err
    assert "overlay lock" not in err


def test_verify_of_a_folder_needs_no_registry(
    world: World, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One that cannot be used is said; it keeps nobody from holding a folder against its record."""
    broken = world.root / "broken.yaml"
    broken.write_text("models: [\n")
    [tree] = world.cache.glob(".overlay/trees/*")
    monkeypatch.setenv("OVERLAY_REGISTRY", str(broken))
    assert run(["verify", str(tree), "--level", "quick"]) == 0
    assert "not held against a lock: " in capsys.readouterr().err
    assert run(["verify", str(tree), "--level", "sha256"]) == 2
