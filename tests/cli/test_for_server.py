"""`--for` on the commands that look a model up: each means the directory that was built for that server."""

from __future__ import annotations

import json
import os
import shlex
import shutil
from typing import TYPE_CHECKING, Any

import pytest
from support.demo_hub import MODEL, World, make_world

from overlay.cli._main import run
from overlay.formats.materialized import MARKER_NAME

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

FOR = ("--for", "sglang==0.5.23", "--with-override")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> World:
    """A world in which the model is there for one server alone, which is told the pins."""
    world = make_world(tmp_path_factory.mktemp("made"))
    with pytest.MonkeyPatch.context() as patch:
        world.put_in_force(patch)
        assert run(["prewarm", MODEL, *FOR, "-q"]) == 0
    return world


@pytest.fixture
def world(made: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    """A copy of its cache, in force."""
    shutil.copytree(made.cache, tmp_path / "cache", symlinks=True)
    made.put_in_force(monkeypatch, tmp_path / "cache")
    return World(tmp_path, made.hub)


def tree(world: World) -> Path:
    """The one materialization."""
    (found,) = (world.cache / ".overlay/trees").iterdir()
    return found


@pytest.mark.parametrize("command", [("path",), ("resolve", "--path"), ("env",), ("verify",), ("lease", "--for", "1h")])
def test_elsewhere_it_is_absent(world: World, capsys: pytest.CaptureFixture[str], command: tuple[str, ...]) -> None:
    """Where another server looks there is nothing, and the command of the hint names that server."""
    flag = "--server" if command[0] == "lease" else "--for"
    assert run([*command, MODEL, flag, "sglang==0.5.23"]) == 3
    assert f"overlay prewarm {MODEL} --for sglang==0.5.23" in capsys.readouterr().err


def test_verify(world: World, document: Callable[..., Any], capsys: pytest.CaptureFixture[str]) -> None:
    """It verifies that directory; what is bad can be built again with the same flags."""
    assert document("verify", "verify", MODEL, *FOR)["path"] == str(tree(world))
    broken = tree(world) / "model_index.json"
    broken.write_bytes(broken.read_bytes() + b" ")
    assert run(["verify", str(tree(world)), *FOR]) == 1
    assert f"overlay cache repair {' '.join(FOR)}" in capsys.readouterr().err


def test_repair(world: World, document: Callable[..., Any]) -> None:
    """What was built for a server alone is built again for it; without the flag nobody would look there."""
    place = tree(world)
    (place / "model_index.json").unlink()
    dry = document("cache-repair", "cache", "repair", "--dry-run")
    assert [item["result"] for item in dry["trees"]] == ["removed"]
    done = document("cache-repair", "cache", "repair", *FOR)
    assert [(item["result"], item["path"]) for item in done["trees"]] == [("rebuilt", str(place))]
    assert document("path", "path", MODEL, *FOR)["path"] == str(place)


def test_lease(world: World, document: Callable[..., Any]) -> None:
    """Its --for is a time, so the server has an option of its own."""
    leased = document("lease", "lease", MODEL, "--for", "1h", "--server", "sglang==0.5.23", "--with-override")
    assert leased["path"] == str(tree(world))


def test_check_names_both_keys(world: World, document: Callable[..., Any]) -> None:
    """What this server will look for, and what is warmed: found by its marker in the root of the cache."""
    (location,) = (path.parent.name for path in (world.cache / "materialized_models").glob(f"*/{MARKER_NAME}"))
    found = document("check", "check", MODEL, "--for", "sglang==0.5.23")
    (finding,) = (item for item in found["models"][0]["findings"] if item["code"] == "server-not-warmed")
    assert finding["data"]["warmed"] == [location]
    assert finding["data"]["looks_for"] not in ("", location)
    told = document("check", "check", MODEL, *FOR)
    [finds] = [item for item in told["models"][0]["findings"] if item["code"].startswith("server-")]
    assert finds["message"].startswith(f"sglang==0.5.23 finds {location} in {world.cache}; whether the Hub cache has")


def test_check_for_a_release_that_does_not_know_the_model(world: World, document: Callable[..., Any]) -> None:
    """An error for that server, so status 1; an entry that is for this program alone has only a note of it."""
    found = document("check", "check", MODEL, "--for", "sglang==0.5.12", status=1)
    assert "server-unknown" in [item["code"] for item in found["models"][0]["findings"]]


def test_check_of_an_overlay_by_its_own_name(world: World, document: Callable[..., Any]) -> None:
    """A server that is given the overlay looks for another directory, whatever its table has."""
    found = document("check", "check", "kevin-mi/VDN-H3-overlay", "--for", "sglang==0.5.12")
    by_code = {item["code"]: item for item in found["models"][0]["findings"]}
    assert "server-unknown" not in by_code
    fix = "overlay prewarm kevin-mi/VDN-H3-overlay --stage-source --for sglang==0.5.12"
    assert by_code["server-not-warmed"]["fix"] == fix


def test_check_for_a_server_that_loads_another_layout(world: World, document: Callable[..., Any]) -> None:
    """vLLM-Omni looks nothing up; whether it loads what the recipe makes is told."""
    found = document("check", "check", MODEL, "--for", "vllm-omni==0.31", status=1)
    assert "layout-not-loaded" in [item["code"] for item in found["models"][0]["findings"]]
    assert found["notes"] == ["vllm-omni==0.31.0 is newer than what was looked at: it is taken to behave as 0.30.0"]


def test_check_of_a_host_without_a_cache(world: World, document: Callable[..., Any], tmp_path: Path) -> None:
    """It is said that nothing was looked at, and nothing is found."""
    found = document("check", "check", MODEL, *FOR, "--cache-root", str(tmp_path / "none"))
    assert not [item for item in found["models"][0]["findings"] if item["code"].startswith("server-")]
    assert found["notes"][0].startswith(f"{tmp_path / 'none'}: there is no cache root, so what sglang==0.5.23 finds")


def test_a_fix_has_the_places_that_were_given(
    world: World, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A command that is copied must mean the same registry and cache: in text, in JSON, and in a workflow."""
    registry = os.environ["OVERLAY_REGISTRY"]
    monkeypatch.delenv("OVERLAY_REGISTRY")
    places = ["--registry", registry, "--cache-root", str(world.cache)]
    fix = shlex.join(["overlay", "prewarm", MODEL, "--stage-source", "--for", "sglang==0.5.23", *places])
    for form in ("text", "json", "github"):
        assert run(["check", MODEL, "--for", "sglang==0.5.23", *places, "--offline", "--output", form]) == 0
        assert fix in capsys.readouterr().out


def test_check_of_a_repo_looks_at_no_server(world: World) -> None:
    """Status 2: no server looks a repo up."""
    assert run(["check", "--same", "a/b", "--revision", "1" * 40, "2" * 40, *FOR]) == 2


def test_an_override_needs_a_server(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    """The message names the option that the command has for it."""
    assert run(["lease", MODEL, "--for", "1h", "--with-override"]) == 2
    assert "add --server sglang" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["path", "resolve", "env"])
def test_the_directory_of_another_server_is_not_taken_for_its_own(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    """What a server was told is in the marker: who is told a branch looks in another directory than who has the pin."""
    (tmp_path / "empty").mkdir()
    monkeypatch.setenv("OVERLAY_HUB", str(tmp_path / "empty"))
    words = [command, MODEL, *(["--path"] if command == "resolve" else [])]
    assert run([*words, *FOR]) == 0
    told = {MODEL: {"overlay_repo_id": "kevin-mi/VDN-H3-overlay", "overlay_revision": "main"}}
    monkeypatch.setenv("SGLANG_DIFFUSION_MODEL_OVERLAY_REGISTRY", json.dumps(told))
    for flags in (FOR, FOR[:2]):
        capsys.readouterr()
        assert run([*words, *flags]) == 3
        assert "is where a server looks that was told other pins" in capsys.readouterr().err
