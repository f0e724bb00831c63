"""`overlay env`: how a server is started on what is in the cache."""

from __future__ import annotations

import shlex
import shutil
from pathlib import Path
from typing import Any

import pytest
from support.demo_hub import MODEL, World, make_built_world, make_world

import overlay
from overlay.cli._main import run
from overlay.consumers.launch import OVERRIDE, ROOT
from overlay.errors import InvalidUsage, NotHere


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> World:
    """A world in which the model is materialized, also for a server that is told the pins."""
    world = make_built_world(tmp_path_factory.mktemp("made"))
    with pytest.MonkeyPatch.context() as patch:
        for name, value in world.variables.items():
            patch.setenv(name, value)
        for version in ("0.5.10", "0.5.12", "0.5.23"):
            assert run(["prewarm", MODEL, "--for", f"sglang=={version}", "--with-override", "-q"]) == 0
    return world


@pytest.fixture
def world(made: World, monkeypatch: pytest.MonkeyPatch) -> World:
    """The made world, in force."""
    for name, value in made.variables.items():
        monkeypatch.setenv(name, value)
    return made


def test_by_path(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    """What it is for, a variable, the command with the directory that `overlay path` prints, and what requests say."""
    assert run(["path", MODEL]) == 0
    tree = capsys.readouterr().out.strip()
    assert run(["env", MODEL, "--for", "sglang"]) == 0
    out, err = capsys.readouterr()
    assert out.splitlines() == [
        f"# {MODEL} for sglang, by path",
        "export HF_HUB_OFFLINE=1",
        f"sglang serve --model-path {tree} --attention-backend hybrid_window_attn_h3",
        "# in each request: num_inference_steps 8 (9 grid points)",
    ]
    assert err == ""


def test_the_library_says_the_same(world: World, document: Any) -> None:
    """`overlay.start` is what is printed: by path unless the server is told the pins, and then by name."""
    for with_override in (False, True):
        options = overlay.Options(server=overlay.parse_server("sglang==0.5.23", with_override=with_override))
        found = overlay.start(MODEL, options)
        printed = document("env", "env", MODEL, *options.server.flags)

        assert (list(found.command), dict(found.env)) == (printed["command"], printed["env"])
        assert (found.by, list(found.folders)) == ("name" if with_override else "path", printed["folders"])


def test_the_library_refuses_likewise(world: World, tmp_path: Path) -> None:
    """No server, a way that it is not started in, or nothing there to start it on."""
    with pytest.raises(InvalidUsage, match="no server is named"):
        overlay.start(MODEL)
    with pytest.raises(InvalidUsage, match="looks nothing up"):
        overlay.start(MODEL, overlay.Options(server=overlay.parse_server("vllm-omni")), by="name")
    with pytest.raises(NotHere, match="absent") as caught:
        overlay.start(MODEL, overlay.Options(server=overlay.parse_server("sglang"), cache_root=tmp_path))
    assert caught.value.hint == f"overlay prewarm {MODEL} --for sglang"


def test_by_path_as_json(world: World, document: Any) -> None:
    """The document has every part by itself, and the state."""
    found = document("env", "env", MODEL, "--for", "sglang==0.5.23", "--format", "k8s")
    assert (found["by"], found["state"], found["server"]) == ("path", "present", "sglang==0.5.23")
    assert found["folders"] == [str(world.cache)]
    assert found["command"][3].startswith(str(world.cache))


def test_absent_by_path(world: World, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Status 3, nothing on stdout that a shell could run, and the command that brings the model."""
    words = ["--for", "sglang==0.5.23", "--cache-root", str(tmp_path)]
    assert run(["env", MODEL, *words]) == 3
    out, err = capsys.readouterr()
    assert out == ""
    assert f"overlay prewarm {shlex.join([MODEL, *words])}" in err


def test_another_rule_is_hinted_at(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    """What was built by one rule is not started as if by the other; the hint keeps what was asked for."""
    assert run(["env", MODEL, "--for", "sglang", "--rule", "openvdn", "--format", "docker"]) == 3
    err = capsys.readouterr().err
    assert f"overlay env {MODEL} --format docker --rule fp32-once --for sglang" in err


@pytest.mark.parametrize("version", ["0.5.10", "0.5.12", "0.5.23"])
def test_a_server_with_the_export_finds_what_was_built(
    world: World, document: Any, monkeypatch: pytest.MonkeyPatch, version: str
) -> None:
    """With the exported variables in force, a server without further options looks where --with-override built."""
    server = f"sglang=={version}"
    start = document("env", "env", MODEL, "--for", server, "--with-override")
    built = document("resolve", "resolve", MODEL, "--for", server, "--with-override")
    monkeypatch.delenv("OVERLAY_CACHE_ROOT")
    for name, value in start["env"].items():
        if name in (ROOT, OVERRIDE):
            monkeypatch.setenv(name, value)
    found = document("resolve", "resolve", start["command"][3], "--for", server)
    assert (start["by"], built["state"], found["state"]) == ("name", "present", "present")
    assert found["location"] == built["location"]


def test_by_name_without_an_override(world: World, document: Any) -> None:
    """The name, the cache root and the Hub's cache; nothing is said of pins."""
    start = document("env", "env", MODEL, "--for", "sglang", "--by", "name")
    assert start["command"][3] == MODEL
    assert start["env"][ROOT] == str(world.cache)
    assert OVERRIDE not in start["env"]


def test_by_name_what_is_not_there(world: World, document: Any, tmp_path: Path) -> None:
    """It is printed, for it may be built later, with a note on what to run before."""
    words = ["--for", "sglang", "--with-override", "--cache-root", str(tmp_path)]
    start = document("env", "env", MODEL, *words)
    assert start["state"] == "absent"
    assert any(
        f"overlay prewarm {MODEL} --stage-source --for sglang --with-override" in note for note in start["notes"]
    )


def test_a_local_source_is_named_as_the_folder(world: World, document: Any, tmp_path: Path) -> None:
    """Whoever names a folder gets a command with that folder, and it is among what the server reads."""
    folder = tmp_path / MODEL.rpartition("/")[2]
    folder.symlink_to(world.hub.source_folder)
    start = document("env", "env", str(folder), "--for", "sglang", "--by", "name")
    assert start["command"][3] == str(folder)
    assert str(folder) in start["folders"]


def test_an_overlay_folder_is_named_as_it_was(
    world: World, document: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its spelling enters the server's key, so a relative one stays; a container would not find it there."""
    monkeypatch.chdir(world.hub.overlay_folder)
    start = document("env", "env", "./", "--for", "sglang", "--by", "name")
    assert start["command"][3] == "./"
    told = document("env", "env", "./", "--for", "sglang", "--with-override")
    assert told["command"][3] == MODEL
    assert str(world.hub.overlay_folder) in told["folders"]
    assert run(["env", "./", "--for", "sglang", "--by", "name", "--format", "docker"]) == 2
    assert "not-nameable" in capsys.readouterr().err


def test_an_overlay_by_its_own_name(world: World, document: Any) -> None:
    """The server is given that name, and needs no table for it."""
    start = document("env", "env", "kevin-mi/VDN-H3-overlay", "--for", "sglang==0.5.12", "--by", "name")
    assert start["command"][3] == "kevin-mi/VDN-H3-overlay"
    assert not any("built in" in note for note in start["notes"])


def test_a_release_that_does_not_know_the_model(world: World, document: Any) -> None:
    """By name and without an override such a server has nothing to look up, and the user is told."""
    start = document("env", "env", MODEL, "--for", "sglang==0.5.12", "--by", "name")
    assert any("no overlay built in" in note for note in start["notes"])


def test_vllm_omni_reads_another_layout(world: World, document: Any) -> None:
    """The command is that server's own; a tree in the Diffusers layout is said to be none that it can load."""
    start = document("env", "env", MODEL, "--for", "vllm-omni")
    assert start["command"][:2] + start["command"][3:] == ["vllm-omni", "serve", "--omni"]
    assert any("native layout" in note for note in start["notes"])


def test_vllm_omni_on_the_native_layout(
    made: World, world: World, document: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is given the first partition; the other one, and Python that comes along, are told."""
    shutil.copytree(made.cache, tmp_path / "cache", symlinks=True)
    monkeypatch.setenv("OVERLAY_CACHE_ROOT", str(tmp_path / "cache"))
    tree = Path(document("path", "path", MODEL)["path"])
    for partition in ("FL2VA", "Ref2VA"):
        (tree / partition).mkdir()
        (tree / partition / "model_index.json").touch()
    (tree / "FL2VA/vae.py").touch()
    monkeypatch.setattr("overlay.materialization.state.quick_problems", lambda *_: [])
    start = document("env", "env", MODEL, "--for", "vllm-omni")
    assert start["command"][2] == str(tree / "FL2VA")
    assert [note.split()[0] for note in start["notes"]] == ["the", "it"]
    assert "--trust-remote-code" not in start["command"]


def test_launch_data_of_a_project_are_said_to_be(
    world: World, document: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is run on this host was said by a file, and that is named."""
    made = make_world(tmp_path)
    registry = tmp_path / "registry.yaml"
    registry.write_text(registry.read_text().rstrip() + "\n    serve:\n      sglang: {flags: [--x, a b]}\n")
    monkeypatch.setenv("OVERLAY_REGISTRY", str(registry))
    monkeypatch.setenv("OVERLAY_HUB", str(made.hub.root))
    start = document("env", "env", MODEL, "--for", "sglang", "--by", "name")
    assert start["command"][-2:] == ["--x", "a b"]
    assert any(note.startswith(f"flags, variables and requests are those of {registry}:") for note in start["notes"])


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["--for", "sglang", "--with-override", "--by", "path"],
        ["--for", "vllm-omni", "--by", "name"],
        ["--for", "vllm-omni", "--with-override"],
        ["--for", "tgi"],
    ],
)
def test_what_does_not_go_together(world: World, capsys: pytest.CaptureFixture[str], words: list[str]) -> None:
    """Status 2 and nothing on stdout."""
    assert run(["env", MODEL, *words]) == 2
    assert capsys.readouterr().out == ""
