"""Every command on a tiny checkpoint: what it prints, its status, and that --json keeps its schema."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import generate_docs
import pytest
from support.demo_hub import MODEL, World, make_built_world

from overlay.cli._main import run
from overlay.sandbox import Sandbox

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> World:
    """A world in which the model is materialized. Tests that write copy it."""
    return make_built_world(tmp_path_factory.mktemp("made"))


@pytest.fixture
def world(made: World, monkeypatch: pytest.MonkeyPatch) -> World:
    """The made world, in force."""
    made.put_in_force(monkeypatch)
    return made


@pytest.fixture
def own_world(made: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    """A copy of the made world's cache, to write into."""
    shutil.copytree(made.cache, tmp_path / "cache", symlinks=True)
    made.put_in_force(monkeypatch, tmp_path / "cache")
    return World(tmp_path, made.hub)


def tree(cache: Path) -> Path:
    """The one materialization of a cache."""
    (found,) = (cache / ".overlay/trees").iterdir()
    return found


def base(world: World) -> str:
    return str(world.hub.source_folder / "h3-base/transformer")


def adapter(world: World, name: str) -> str:
    return str(world.hub.source_folder / "stage-dmd-step-250/adapters" / name)


def test_resolve(world: World, document: Any) -> None:
    """A built model is present, with its pins, its directory and the next command."""
    found = document("resolve", "resolve", MODEL)

    assert found["state"] == "present"
    assert found["pinned"] is True
    assert found["source"]["revision"] == world.hub.source
    assert found["path"] == str(tree(world.cache))
    assert Path(found["location"]).resolve() == tree(world.cache)
    assert found["next"] == f"overlay verify {MODEL}"


def test_resolve_absent(world: World, document: Any, tmp_path: Path) -> None:
    """In another root it is absent, and the command to run keeps the flag that was given."""
    found = document("resolve", "resolve", MODEL, "--cache-root", str(tmp_path))

    assert found["state"] == "absent"
    assert found["next"] == f"overlay prewarm {MODEL} --cache-root {tmp_path}"


def test_resolve_as_text(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    """The text shows pins in short, the state and what to do next."""
    assert run(["resolve", MODEL]) == 0
    out, err = capsys.readouterr()
    lines = out.splitlines()
    assert lines[0] == MODEL
    assert f"  source     {MODEL}@{world.hub.source[:12]}" in lines
    assert "  state      present, pinned" in lines
    assert err == ""


def test_unknown_model(world: World, document: Any) -> None:
    """A name that the registry lacks is wrong usage."""
    found = document("error", "resolve", "Open/vdn", status=2)

    assert found["error"]["hint"]


@pytest.mark.parametrize("args", [["path", MODEL], ["resolve", MODEL, "--path"]])
def test_path(world: World, capsys: pytest.CaptureFixture[str], args: list[str]) -> None:
    """The directory alone is printed, for use in a command line."""
    assert run(args) == 0
    assert capsys.readouterr() == (f"{tree(world.cache)}\n", "")


def test_path_as_json(world: World, document: Any) -> None:
    """The same as a document."""
    assert document("path", "path", MODEL)["path"] == str(tree(world.cache))


@pytest.mark.parametrize("args", [["path", MODEL], ["resolve", MODEL, "--path"]])
def test_path_of_what_is_not_there(
    world: World, capsys: pytest.CaptureFixture[str], tmp_path: Path, args: list[str]
) -> None:
    """Status 3 when it is not there, nothing on stdout, and the command that helps."""
    assert run([*args, "--cache-root", str(tmp_path)]) == 3
    out, err = capsys.readouterr()
    assert out == ""
    assert f"hint: overlay prewarm {MODEL}" in err


def test_dry_run_equals_run(world: World, document: Any, tmp_path: Path) -> None:
    """A dry run writes nothing, and its counters are those of the run that follows."""
    root = tmp_path / "root"
    (planned,) = document("prewarm-dry-run", "prewarm", MODEL, "--dry-run", "--cache-root", str(root))["models"]
    assert not root.exists()
    (done,) = document("prewarm", "prewarm", MODEL, "--cache-root", str(root))["models"]

    counters = ("bytes_downloaded", "bytes_read", "bytes_written", "bytes_linked")
    assert [planned[name] for name in counters] == [done[name] for name in counters]
    assert done["result"] == "built"
    assert done["bytes_written"] > 0
    assert Path(done["location"]).name == planned["location"]


def test_dry_run_as_text(world: World, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """The plan shows bytes, room, files by component, and pairs by adapter."""
    assert run(["prewarm", MODEL, "--dry-run", "--cache-root", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert f"free in {tmp_path}" in out
    assert "fused" in out
    assert "default 12 pairs" in out


def test_push_and_pull(world: World, document: Any, tmp_path: Path) -> None:
    """What one host offers, another one takes."""
    store, root = str(tmp_path / "store"), str(tmp_path / "root")
    (pushed,) = document("push", "push", MODEL, "--store", store)["models"]
    (planned,) = document("pull-dry-run", "pull", MODEL, "--store", store, "--dry-run", "--cache-root", root)["models"]
    (pulled,) = document("pull", "pull", MODEL, "--store", store, "--cache-root", root)["models"]
    assert pushed["size"] == pushed["bytes_sent"] == planned["size"]
    assert pulled["result"] == "pulled"
    assert Path(pulled["path"]).name == pushed["tree"] == planned["tree"]


def test_prewarm_again(world: World, document: Any) -> None:
    """Doing it again does nothing."""
    (done,) = document("prewarm", "prewarm", MODEL)["models"]

    assert done["result"] == "present"
    assert done["path"] == str(tree(world.cache))
    assert done["bytes_read"] == done["bytes_written"] == done["bytes_linked"] == 0


def test_prewarm_several(world: World, document: Any) -> None:
    """Several models are answered in their order; materialize is the same command."""
    found = document("prewarm", "materialize", MODEL, MODEL)

    assert [model["model"] for model in found["models"]] == [MODEL, MODEL]


@pytest.mark.parametrize("level", ["quick", "full", "sha256"])
def test_verify(world: World, document: Any, level: str) -> None:
    """A sound materialization passes, by model and by directory."""
    by_model = document("verify", "verify", MODEL, "--level", level)
    by_folder = document("verify", "verify", str(tree(world.cache)), "--level", level)

    assert by_model == by_folder
    assert by_model["ok"] is True
    assert (by_model["bytes_read"] > 0) == (level != "quick")


def test_verify_finds_damage(own_world: World, document: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """A changed byte is found, with the tensor that it belongs to, and the status is 1."""
    shard = next((tree(own_world.cache) / "transformer").glob("diffusion*-00001-*.safetensors"))
    data = bytearray(shard.read_bytes())
    data[-1] ^= 1
    shard.unlink()
    shard.write_bytes(data)

    found = document("verify", "verify", MODEL, status=1)
    assert run(["verify", MODEL]) == 1

    (problem,) = found["problems"]
    assert (problem["kind"], Path(problem["path"]).name) == ("content", shard.name)
    assert len(problem["tensors"]) == 1
    assert "overlay cache repair" in capsys.readouterr().err


def test_verify_of_a_stale_model_says_so(own_world: World, capsys: pytest.CaptureFixture[str]) -> None:
    """It is what its record says, and that is not what is asked for."""
    assert run(["verify", MODEL, "--rule", "openvdn", "--level", "quick"]) == 0
    assert f"{MODEL} is stale: built by rule fp32-once, asked for openvdn\n" in capsys.readouterr().err


def test_verify_what_is_not_there(world: World, document: Any, tmp_path: Path) -> None:
    """Nothing to verify is not the same as a failed check."""
    assert (
        document("error", "verify", MODEL, "--cache-root", str(tmp_path), status=3)["error"]["code"] == "model-absent"
    )


def test_verify_a_folder_without_record(world: World, document: Any, tmp_path: Path) -> None:
    """A folder that no record describes cannot be verified, and is told so."""
    found = document("error", "verify", str(tmp_path), status=3)

    assert "record" in found["error"]["message"]


def test_compare_with_itself(world: World, document: Any) -> None:
    """A directory equals itself."""
    found = document("compare", "compare", str(tree(world.cache)), str(tree(world.cache)))

    assert found["identical"] is True
    assert found["tensors"] > 0


def test_compare_finds_a_difference(
    world: World, document: Any, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """A changed value is found in its tensor; the text says so too."""
    other = tmp_path / "other"
    shutil.copytree(tree(world.cache), other)
    shard = next((other / "transformer").glob("diffusion*-00001-*.safetensors"))
    data = bytearray(shard.read_bytes())
    data[-2] ^= 1
    shard.write_bytes(data)

    found = document("compare", "compare", str(tree(world.cache)), str(other), status=1)
    assert run(["compare", str(tree(world.cache)), str(other)]) == 1

    assert [item["kind"] for item in found["different_files"]] == ["content"]
    (tensor,) = found["different_tensors"]
    assert (tensor["kind"], tensor["differing"], tensor["max_ulp"]) == ("values", 1, 1)
    assert capsys.readouterr().out.startswith("different: 1 of ")


def test_fuse(world: World, document: Any, tmp_path: Path) -> None:
    """Adapters are folded in the order given, and the new folder verifies."""
    args = [
        "--adapter",
        adapter(world, "default"),
        "--adapter",
        adapter(world, "turbo"),
        "--out",
        str(tmp_path / "out"),
    ]
    planned = document("fuse", "fuse", base(world), *args, "--dry-run")
    assert not (tmp_path / "out").exists()
    found = document("fuse", "fuse", base(world), *args)

    assert [item["name"] for item in found["adapters"]] == ["default", "turbo"]
    assert [planned[name] for name in ("bytes_read", "bytes_written", "bytes_linked")] == [
        found[name] for name in ("bytes_read", "bytes_written", "bytes_linked")
    ]
    assert document("verify", "verify", str(tmp_path / "out"))["ok"] is True


def test_fuse_never_overwrites(world: World, document: Any, tmp_path: Path) -> None:
    """A folder that exists is refused."""
    found = document(
        "error", "fuse", base(world), "--adapter", adapter(world, "default"), "--out", str(tmp_path), status=2
    )

    assert found["error"]["code"] == "out-exists"


def test_cache_ls(world: World, document: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """The cache lists what it holds."""
    (model,) = document("cache-ls", "cache", "ls")["models"]
    assert run(["cache", "ls"]) == 0

    assert model["model"] == MODEL
    assert model["path"] == str(tree(world.cache))
    assert MODEL in capsys.readouterr().out


def test_cache_ls_of_nothing(world: World, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """An empty root is said to be one, and which variable chose it."""
    assert run(["cache", "ls", "--cache-root", str(tmp_path)]) == 0
    assert capsys.readouterr().out.splitlines() == [
        f"{tmp_path}  (from --cache-root)",
        "  nothing is materialized here",
    ]


def test_cache_info(world: World, document: Any) -> None:
    """One materialization is shown with its pins and what removing it frees."""
    found = document("cache-info", "cache", "info", MODEL)

    assert found["rule"] == "fp32-once"
    assert f"{MODEL}@{world.hub.source}" in found["pins"]
    assert 0 < found["frees"] <= found["materialization"]["size"] * 1.1


def test_cache_info_tells_what_is_only_claimed_until_it_was_verified(
    own_world: World, document: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """Carried files count as claimed; a verify reads them, and the day after it is told when."""
    found = document("cache-info", "cache", "info", MODEL)
    claimed = json.loads((tree(own_world.cache) / "overlay_record.json").read_bytes())["run"]["claimed"]
    assert found["verified"] is None
    assert found["claimed"] == len(claimed) > 0
    assert 0 < found["claimed_bytes"] < found["materialization"]["size"]
    assert run(["cache", "info", MODEL]) == 0
    assert "overlay verify reads them" in capsys.readouterr().out

    assert run(["verify", MODEL, "-q"]) == 0
    capsys.readouterr()

    found = document("cache-info", "cache", "info", MODEL)
    assert (found["verified"]["level"], found["claimed"], found["claimed_bytes"]) == ("full", 0, 0)
    assert run(["cache", "info", MODEL]) == 0
    assert f"{found['verified']['when']} (full)" in capsys.readouterr().out


def test_cache_rm(own_world: World, document: Any) -> None:
    """Removing says first, and frees then, the same number of bytes; nothing is left for gc, not of a verify either."""
    document("verify", "verify", MODEL)
    planned = document("cache-rm", "cache", "rm", MODEL, "--dry-run")
    done = document("cache-rm", "cache", "rm", MODEL)

    assert planned | {"dry_run": False} == done
    assert done["frees"] > 0
    assert list((own_world.cache / ".overlay/trees").iterdir()) == []
    assert document("cache-gc", "cache", "gc", "--dry-run")["unfinished"] == 0


def test_cache_rm_of_nothing(world: World, document: Any) -> None:
    """What is not there cannot be removed: status 3."""
    document("error", "cache", "rm", "no/such", status=3)


def test_cache_repair(own_world: World, document: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """What verify finds, and names the repair for, is repaired; a sound cache stays as it is."""
    [tree] = (own_world.cache / ".overlay/trees").iterdir()
    config = tree / "transformer/config.json"
    config.write_bytes(config.read_bytes().replace(b"{", b"["))
    assert run(["verify", MODEL]) == 1
    assert "overlay cache repair" in capsys.readouterr().err

    assert document("cache-repair", "cache", "repair", "--dry-run")["trees"][0]["result"] == "rebuilt"
    [done] = document("cache-repair", "cache", "repair", MODEL)["trees"]

    assert (done["result"], len(done["problems"])) == ("rebuilt", 1)
    assert run(["verify", MODEL, "-q"]) == 0
    capsys.readouterr()
    assert run(["cache", "repair"]) == 0
    assert "sound" in capsys.readouterr().out


def test_cache_gc(own_world: World, document: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """With nothing abandoned there is nothing to collect."""
    assert document("cache-gc", "cache", "gc", "--dry-run")["frees"] == 0
    assert run(["cache", "gc"]) == 0
    assert capsys.readouterr().out == "nothing to remove\n"


def test_lease_for_a_time(own_world: World, document: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """The directory is printed; the lease is listed, spares the model, and is refused to rm, but not to rm --leased."""
    taken = document("lease", "lease", MODEL, "--for", "12h")
    [held] = document("cache-ls", "cache", "ls")["models"][0]["leases"]

    assert taken["path"] == str(tree(own_world.cache))
    assert (held["file"], held["until"]) == (taken["file"], taken["until"])
    assert run(["cache", "ls"]) == 0
    assert "KEPT      LOCATION\n" in (out := capsys.readouterr().out)
    assert "leased 1" in out
    error = document("error", "cache", "rm", MODEL, "--dry-run", status=5)["error"]
    assert (error["code"], error["data"]["leases"]) == ("tree-leased", [held["file"]])
    assert error["hint"].startswith(f"end that lease with rm {held['file']}, or ")
    assert len(document("cache-rm", "cache", "rm", MODEL, "--leased")["trees"]) == 1


def test_lease_without_end(world: World, document: Any) -> None:
    """Neither a time nor a command: usage."""
    assert document("error", "lease", MODEL, status=2)["error"]["code"] == "lease-without-end"


def test_lease_of_what_is_not_there(world: World, document: Any, tmp_path: Path) -> None:
    """A model that is absent has status 3 and the command that brings it; nothing is written."""
    root = tmp_path / "empty"

    error = document("error", "lease", MODEL, "--for", "1h", "--cache-root", str(root), status=3)["error"]

    assert (error["code"], error["hint"]) == ("model-absent", f"overlay prewarm {MODEL} --cache-root {root}")
    assert not root.exists()


def test_cache_pin_and_unpin(own_world: World, document: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """A pin is shown with who and why, stays when taken again, and is refused to rm; unpinning lets go, once."""
    pinned = document("cache-pin", "cache", "pin", MODEL, "--reason", "Friday's demo")

    assert pinned["trees"] == [tree(own_world.cache).name]
    assert run(["cache", "info", MODEL]) == 0
    assert "(Friday's demo)" in capsys.readouterr().out
    assert document("cache-pin", "cache", "pin", MODEL)["reason"] == "Friday's demo"  # what was said stays said
    assert document("cache-info", "cache", "info", MODEL)["materialization"]["pin"]["reason"] == "Friday's demo"
    error = document("error", "cache", "rm", MODEL, "--leased", status=4)["error"]
    assert (error["code"], error["hint"]) == ("tree-pinned", f"overlay cache unpin {pinned['trees'][0]}")
    assert document("cache-unpin", "cache", "unpin", MODEL)["trees"] == pinned["trees"]
    assert document("cache-unpin", "cache", "unpin", MODEL)["trees"] == []
    assert len(document("cache-rm", "cache", "rm", MODEL)["trees"]) == 1


def test_doctor(world: World, document: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The diagnosis names the root, what decided it, and that the device passed; secrets are only said to be set."""
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    found = document("doctor", "doctor")

    assert found["root"] == str(world.cache)
    assert found["decided_by"] == "OVERLAY_CACHE_ROOT"
    assert found["environment"]["HF_TOKEN"] == "set, not shown"  # noqa: S105  # the opposite of a secret
    assert "hf_secret" not in json.dumps(found)
    assert found["devices"][0]["name"] == "cpu"


def test_doctor_tries_the_sandboxes(world: World, document: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which of them works here, and why another does not."""
    found = (Sandbox("bubblewrap", "is not installed"), Sandbox("landlock", None))
    monkeypatch.setattr("overlay.sandbox.sandboxes", lambda: found)

    assert document("doctor", "doctor")["sandboxes"] == [
        {"name": "bubblewrap", "works": False, "why": "is not installed"},
        {"name": "landlock", "works": True, "why": ""},
    ]


def test_doctor_as_text(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    """It can be pasted into a report."""
    assert run(["doctor"]) == 0
    out = capsys.readouterr().out
    for heading in ("cache root", "registry", "environment", "versions", "devices", "sandboxes"):
        assert f"\n{heading}\n" in out


def test_doctor_with_a_broken_registry(world: World, document: Any, tmp_path: Path) -> None:
    """What is broken is part of the diagnosis, not the end of it."""
    (tmp_path / "registry.yaml").write_text("nonsense: [")

    assert document("doctor", "doctor", "--registry", str(tmp_path / "registry.yaml"))["registry"].startswith(
        "unusable"
    )


@pytest.mark.slow
def test_demo(document: Any) -> None:
    """The demo runs its story to the end and leaves nothing behind."""
    found = document("demo", "demo")

    assert [step["command"].split()[1] for step in found["steps"]] == [
        "resolve",
        "prewarm",
        "prewarm",
        "verify",
        "resolve",
        "prewarm",
        "compare",
    ]
    assert not Path(found["folder"]).exists()


def test_rollback(
    own_world: World, document: Callable[..., dict[str, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    """Without a generation before it fails; with one it goes there, and says from where, to where, and how back."""
    assert run(["rollback", MODEL]) == 3
    assert run(["prewarm", MODEL, "--rule", "openvdn", "-q"]) == 0
    capsys.readouterr()

    back = document("rollback", "rollback", MODEL, "--rule", "openvdn")

    assert (back["result"], back["came_from"]["rule"], back["to"]["rule"]) == ("rolled-back", "openvdn", "fp32-once")
    assert run(["path", MODEL, "--rule", "openvdn"]) == 0
    said = capsys.readouterr()
    assert said.out.strip() == back["to"]["path"]
    assert "rolled back from" in said.err
    assert document("rollback", "rollback", MODEL, "--rule", "openvdn", "--undo")["result"] == "undone"


def test_every_schema_was_tried() -> None:
    """No document goes without a test of commands."""
    source = "".join(path.read_text() for path in Path(__file__).parent.glob("test_*.py"))

    assert [name for name in generate_docs.DOCUMENTS if f'"{name}"' not in source] == []


def test_a_model_of_another_rule_is_found_by_its_rule(own_world: World, capsys: pytest.CaptureFixture[str]) -> None:
    """path, resolve and verify take --rule; without it, the hint is the command that has it."""
    assert run(["prewarm", MODEL, "--rule", "openvdn", "-q"]) == 0
    capsys.readouterr()
    assert run(["path", MODEL]) == 3
    assert f"overlay path {MODEL} --rule openvdn" in capsys.readouterr().err
    assert run(["path", MODEL, "--rule", "openvdn"]) == 0
    found = Path(capsys.readouterr().out.strip())
    assert json.loads((found / "overlay_record.json").read_bytes())["rule"] == "openvdn"
    assert run(["resolve", MODEL, "--rule", "openvdn"]) == 0
    assert f"overlay verify {MODEL} --rule openvdn" in capsys.readouterr().out
    assert run(["verify", MODEL, "--rule", "openvdn", "--level", "quick"]) == 0
    assert run(["resolve", MODEL]) == 0
    assert f"overlay prewarm {MODEL}" in capsys.readouterr().out


def test_a_dry_run_of_what_is_here_says_present(world: World, document: Callable[..., dict[str, Any]]) -> None:
    """And the run of another rule would build."""
    assert [model["present"] for model in document("prewarm-dry-run", "prewarm", MODEL, "--dry-run")["models"]] == [
        True
    ]
    other = document("prewarm-dry-run", "prewarm", MODEL, "--dry-run", "--rule", "openvdn")
    assert [model["present"] for model in other["models"]] == [False]
