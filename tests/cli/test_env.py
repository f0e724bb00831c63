"""`overlay env`: how a server is started on what is in the cache."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.demo_hub import MODEL, World, make_built_world, make_world

import overlay
from overlay.cli._main import run
from overlay.errors import InvalidUsage, NotHere
from overlay.registry.variables import SGLANG_CACHE_ROOT, SGLANG_REGISTRY


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> World:
    """A world in which the model is materialized, also for a server that is told the pins."""
    world = make_built_world(tmp_path_factory.mktemp("made"))
    with pytest.MonkeyPatch.context() as patch:
        world.put_in_force(patch)
        for version in ("0.5.10", "0.5.12", "0.5.23"):
            assert run(["prewarm", MODEL, "--for", f"sglang=={version}", "--with-override", "-q"]) == 0
    return world


@pytest.fixture
def world(made: World, monkeypatch: pytest.MonkeyPatch) -> World:
    """The made world, in force."""
    made.put_in_force(monkeypatch)
    return made


@pytest.fixture
def copied(world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    """The made world with a cache of its own, to build more in."""
    shutil.copytree(world.cache, tmp_path / "cache", symlinks=True)
    monkeypatch.setenv("OVERLAY_CACHE_ROOT", str(tmp_path / "cache"))
    return World(tmp_path, world.hub)


def test_by_path(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    """What it is for, what requests say, and last one command: a variable, and what `overlay path` prints."""
    assert run(["path", MODEL]) == 0
    tree = capsys.readouterr().out.strip()
    assert run(["env", MODEL, "--for", "sglang"]) == 0
    out, err = capsys.readouterr()
    assert out.splitlines() == [
        f"# {MODEL} for sglang, by path",
        "# in each request: num_inference_steps 8 (9 grid points)",
        f"env HF_HUB_OFFLINE=1 sglang serve --model-path {tree} --attention-backend hybrid_window_attn_h3",
    ]
    assert err == ""


def test_the_library_says_the_same(world: World, document: Any) -> None:
    """`overlay.start` is what is printed: by path unless the server is told the pins, and then by name."""
    for with_override in (False, True):
        server = overlay.parse_server("sglang==0.5.23", with_override=with_override)
        options = overlay.Options(server=server, hub=Path(os.environ["OVERLAY_HUB"]))
        found = overlay.start(MODEL, options)
        printed = document("env", "env", MODEL, *server.flags)
        assert overlay.start(MODEL, options, flags=["--port", "1"]).command == (*found.command, "--port", "1")

        assert (list(found.command), dict(found.env)) == (printed["command"], printed["env"])
        assert (found.by, list(found.folders)) == ("name" if with_override else "path", printed["folders"])


def test_the_library_refuses_likewise(world: World, tmp_path: Path) -> None:
    """No server, a way that it is not started in, or nothing there to start it on."""
    with pytest.raises(InvalidUsage, match="no server is named"):
        overlay.start(MODEL)
    with pytest.raises(InvalidUsage, match="is given a folder"):
        overlay.start(MODEL, overlay.Options(server=overlay.parse_server("vllm-omni")), by="name")
    absent = overlay.Options(server=overlay.parse_server("sglang"), cache_root=tmp_path)
    for by, flag in (("path", ""), ("name", " --stage-source")):
        with pytest.raises(NotHere, match="absent") as caught:
            overlay.start(MODEL, absent, by=by)
        assert caught.value.hint == f"overlay prewarm {MODEL}{flag} --for sglang"


def test_by_path_as_json(world: World, document: Any) -> None:
    """The document has every part by itself, and numbers as numbers."""
    found = document("env", "env", MODEL, "--for", "sglang==0.5.23", "--format", "k8s")
    assert (found["by"], found["server"]) == ("path", "sglang==0.5.23")
    assert (found["request"], found["grid_points"]) == ({"num_inference_steps": 8}, 9)
    assert found["folders"] == [str(world.cache)]
    assert found["command"][3].startswith(str(world.cache))


def test_absent_by_path(world: World, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Status 3, nothing on stdout that a shell could run, and the command that brings the model, by either way."""
    words = ["--for", "sglang==0.5.23", "--cache-root", str(tmp_path)]
    told = ["--for", "sglang==0.5.12", "--with-override", "--cache-root", str(tmp_path)]
    for flags, prewarm in ((words, words), (["--by", "name", *words], ["--stage-source", *words]), (told, None)):
        assert run(["env", MODEL, *flags]) == 3
        out, err = capsys.readouterr()
        assert out == ""
        assert f"overlay prewarm {shlex.join([MODEL, *(prewarm or ['--stage-source', *told])])}\n" in err


def test_absent_and_floating(world: World, document: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command that brings a model of which a repo has no commit says that it may, by path and by name."""
    registry = tmp_path / "registry.yaml"
    given = Path(os.environ["OVERLAY_REGISTRY"]).read_text()
    registry.write_text(given.replace(f"revision: {world.hub.source}", "floating: nobody has looked"))
    assert registry.read_text() != given
    monkeypatch.setenv("OVERLAY_REGISTRY", str(registry))
    monkeypatch.setenv("OVERLAY_CACHE_ROOT", str(tmp_path / "cache"))
    for words, staged in (([], ""), (["--by", "name"], "--stage-source ")):
        error = document("error", "env", MODEL, "--for", "sglang", *words, status=3)["error"]
        assert error["hint"] == f"overlay prewarm {MODEL} {staged}--allow-floating --for sglang"
    assert document("resolve", "resolve", MODEL)["next"] == f"overlay prewarm {MODEL} --allow-floating"
    registry.write_text(given.replace(f"revision: {world.hub.overlay}", "floating: nobody has looked"))
    error = document("error", "env", MODEL, "--for", "sglang", "--by", "name", status=1)["error"]
    assert error["code"] == "server-looks-elsewhere"  # by its table, which has a commit


def test_flags_behind_the_command(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    """What stands behind -- is part of the command in every form; what is not a flag is a mistake."""
    more = ["--port", "30000", "--served-model-name", "a b"]
    assert run(["env", MODEL, "--for", "sglang", "--json", "--", *more]) == 0
    assert json.loads(capsys.readouterr().out)["command"][-4:] == more
    for form in ("shell", "docker"):
        assert run(["env", MODEL, "--for", "sglang", "--format", form, "--", *more]) == 0
        assert shlex.split(capsys.readouterr().out.splitlines()[-1])[-4:] == more
    assert run(["env", MODEL, "--for", "sglang", "--format", "k8s", "--", *more]) == 0
    assert '      - "a b"\n    env:' in capsys.readouterr().out
    assert run(["env", MODEL, MODEL, "--for", "sglang"]) == 2


def test_under_a_lease(world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the page shows: the server takes the place of the shell that was started, and has its lease and its flags."""
    (tmp_path / "sglang").write_text('#!/bin/sh\necho "$$ $#"; readlink /proc/$$/fd/* | grep -c "/leases/"\n')
    (tmp_path / "overlay").write_text(f'#!/bin/sh\nexec {sys.executable} -m overlay "$@"\n')
    for program in ("sglang", "overlay"):
        (tmp_path / program).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    page = Path(__file__).parents[2] / "docs/how-to/serve-with-sglang.md"
    [line] = [text for text in page.read_text().splitlines() if "overlay lease" in text and "launch=" in text]
    script = line.replace("overlay lease", "exec overlay lease")
    process = subprocess.Popen(["/bin/sh", "-c", script], stdout=subprocess.PIPE, text=True)
    assert process.communicate()[0].split() == [str(process.pid), "5", "1"]
    assert process.returncode == 0


def test_nothing_is_left_in_a_shell(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    """Status 3 stops a shell that runs the text; and a shell that ran it has no other variables than before."""
    assert run(["env", MODEL, "--for", "sglang==0.5.23", "--with-override"]) == 0
    text = capsys.readouterr().out
    stub = "sglang() { :; }; env() { :; }; "
    script = f'{stub}before=$(export -p); eval "$TEXT"; test "$before" = "$(export -p)"'
    assert subprocess.run(["/bin/sh", "-c", script], env={"TEXT": text}, check=False).returncode == 0
    launch = 'launch=$(exit 3) && eval "$launch"'
    assert subprocess.run(["/bin/sh", "-c", launch], check=False).returncode == 3


def test_another_rule_is_hinted_at(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    """What was built by one rule is not started as if by the other; the hint keeps the form that was asked for."""
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
        if name in (SGLANG_CACHE_ROOT, SGLANG_REGISTRY):
            monkeypatch.setenv(name, value)
    found = document("resolve", "resolve", start["command"][3], "--for", server)
    assert (start["by"], built["state"], found["state"]) == ("name", "present", "present")
    assert found["location"] == built["location"]


def test_by_name_without_an_override(world: World, document: Any) -> None:
    """The name, the cache root and the Hub's cache; nothing is said of pins."""
    start = document("env", "env", MODEL, "--for", "sglang", "--by", "name")
    assert start["command"][3] == MODEL
    assert start["env"][SGLANG_CACHE_ROOT] == str(world.cache)
    assert SGLANG_REGISTRY not in start["env"]


def test_a_local_source_is_named_as_the_folder(copied: World, document: Any) -> None:
    """Whoever names a folder gets a command with that folder, and it is among what the server reads."""
    folder = copied.root / MODEL.rpartition("/")[2]
    folder.symlink_to(copied.hub.source_folder)
    assert run(["prewarm", str(folder), "--for", "sglang", "-q"]) == 0
    start = document("env", "env", str(folder), "--for", "sglang", "--by", "name")
    assert start["command"][3] == str(folder)
    assert str(folder) in start["folders"]


def test_an_overlay_folder_is_named_as_it_was(
    copied: World, document: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its spelling enters the server's key, so a relative one stays; a container would not find it there."""
    monkeypatch.chdir(copied.hub.overlay_folder)
    for flags in ([], ["--with-override"]):
        assert run(["prewarm", "./", "--for", "sglang", *flags, "-q"]) == 0
    capsys.readouterr()
    start = document("env", "env", "./", "--for", "sglang", "--by", "name")
    assert start["command"][3] == "./"
    told = document("env", "env", "./", "--for", "sglang", "--with-override")
    assert told["command"][3] == MODEL
    assert str(copied.hub.overlay_folder) in told["folders"]
    assert run(["env", "./", "--for", "sglang", "--by", "name", "--format", "docker"]) == 2
    assert "not-nameable" in capsys.readouterr().err


def test_an_overlay_by_its_own_name(copied: World, document: Any) -> None:
    """The server is given that name, and needs no table for it."""
    words = ["kevin-mi/VDN-H3-overlay", "--for", "sglang==0.5.12"]
    assert run(["prewarm", *words, "-q"]) == 0
    assert document("env", "env", *words, "--by", "name")["command"][3] == words[0]


def test_a_release_that_does_not_know_the_model(world: World, document: Any) -> None:
    """By name and without an override such a server has nothing to look up: status 1, and the command with one."""
    error = document("error", "env", MODEL, "--for", "sglang==0.5.12", "--by", "name", status=1)["error"]
    assert error["code"] == "server-unknown"
    assert error["hint"] == f"overlay prewarm {MODEL} --stage-source --for sglang==0.5.12 --with-override"


def test_newer_releases_and_other_stages_are_told(
    copied: World, document: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That nobody looked at a release, and that no known one takes requests for the steps of the other stage."""
    notes = document("env", "env", MODEL, "--for", "sglang==0.5.99")["notes"]
    assert "sglang==0.5.99 is newer than what was looked at: it is taken to behave as 0.5.23" in notes
    registry = copied.root / "registry.yaml"
    given = Path(os.environ["OVERLAY_REGISTRY"]).read_text()
    registry.write_text(given.replace("stage-dmd-step-250", "stage-b-step-2000"))
    monkeypatch.setenv("OVERLAY_REGISTRY", str(registry))
    assert run(["prewarm", MODEL, "--for", "sglang", "-q"]) == 0
    [note] = (note for note in document("env", "env", MODEL, "--for", "sglang")["notes"] if "grid points" in note)
    assert note.startswith("sglang refuses requests for another number of grid points than the 9 of stage-dmd-step-250")


def test_what_a_variable_moves_is_told(
    copied: World, document: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A pin of the registry that a server's variable replaces, by each command that goes by it."""
    told = {MODEL: {"overlay_repo_id": "kevin-mi/VDN-H3-overlay", "source_revision": "5" * 40}}
    registry, variable = os.environ["OVERLAY_REGISTRY"], f"source {MODEL}@555555555555 replaces {MODEL}@6d052b3e9cc6"
    monkeypatch.setenv(SGLANG_REGISTRY, json.dumps(told))
    hub = Path(shutil.copytree(copied.hub.root, copied.root / "hub"))
    monkeypatch.setenv("OVERLAY_HUB", str(hub))
    shutil.copytree(copied.hub.source_folder, hub / MODEL / ("5" * 40))
    found = document("check", "check", MODEL, "--registry", registry, status=0)
    assert [note for note in found["notes"] if f"{MODEL}: {variable}" in note]
    [planned] = document("prewarm-dry-run", "prewarm", MODEL, "--dry-run")["models"]
    assert [note for note in planned["notes"] if variable in note]
    resolved = document("resolve", "resolve", MODEL)
    assert [note for note in resolved["replaced"] if variable in note]
    assert not [note for note in resolved["notes"] if variable in note]
    assert run(["prewarm", MODEL, "--for", "sglang==0.5.21", "-q"]) == 0
    assert run(["env", MODEL, "--for", "sglang==0.5.21", "--by", "name"]) == 0
    assert variable in capsys.readouterr().err


@pytest.mark.parametrize(("server", "other"), [("vllm-omni", "sglang"), ("vllm-omni==0.30", "sglang")])
def test_vllm_omni_reads_another_layout(world: World, document: Any, server: str, other: str) -> None:
    """A tree of VDN-H3 in the layout of Diffusers is refused, and the hint is the server that loads it."""
    error = document("error", "env", MODEL, "--for", server, status=1)["error"]
    assert (error["code"], error["hint"]) == ("layout-not-loaded", f"overlay env {MODEL} --for {other}")


def test_vllm_omni_on_the_native_layout(
    copied: World, document: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is given the first partition; the other one, and Python that comes along, are told; sglang is refused."""
    tree = Path(document("path", "path", MODEL)["path"])
    for partition in ("FL2VA", "Ref2VA"):
        (tree / partition).mkdir()
        (tree / partition / "model_index.json").touch()
    (tree / "FL2VA/vae.py").touch()
    monkeypatch.setattr("overlay.materialization.state.quick_problems", lambda *_: [])
    start = document("env", "env", MODEL, "--for", "vllm-omni")
    assert start["command"][2] == str(tree / "FL2VA")
    assert [note.split()[0] for note in start["notes"]] == ["the", "it"]
    again = f"overlay env {MODEL} --for vllm-omni -- --trust-remote-code"
    assert start["notes"][-1].endswith(again)
    capsys.readouterr()
    assert run(["env", "--json", *shlex.split(again)[2:]]) == 0
    trusted = json.loads(capsys.readouterr().out)
    assert trusted["command"] == [*start["command"], "--trust-remote-code"]
    assert len(trusted["notes"]) == 1
    (tree / "model_index.json").unlink()
    error = document("error", "env", MODEL, "--for", "sglang", status=1)["error"]
    assert (error["code"], error["hint"]) == ("layout-not-loaded", f"overlay env {MODEL} --for vllm-omni")


def test_launch_data_of_a_project_are_said_to_be(
    world: World, document: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is run on this host was said by a file, and that is named."""
    made = make_world(tmp_path)
    registry = tmp_path / "registry.yaml"
    registry.write_text(registry.read_text().rstrip() + "\n    serve:\n      sglang: {flags: [--tp-size, 2]}\n")
    monkeypatch.setenv("OVERLAY_REGISTRY", str(registry))
    monkeypatch.setenv("OVERLAY_HUB", str(made.hub.root))
    start = document("env", "env", MODEL, "--for", "sglang", "--by", "name")
    assert start["command"][-2:] == ["--tp-size", "2"]
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
