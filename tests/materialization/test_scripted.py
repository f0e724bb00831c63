"""Overlays that carry Python: what a script is given, what becomes of what it leaves, and when it runs at all."""

from __future__ import annotations

import hashlib
import json
import shutil
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from hub_server import HubServer
from support.hubs import add_repo, client_of, commit, shard
from support.published_rule import files_of
from support.scripted import (
    ENOUGH,
    MODEL,
    PATH,
    PLAIN,
    SCRIPT,
    StandIn,
    entry_text,
    prepared,
    reused,
    scripted_hub,
    scripted_options,
    sha256,
)

import overlay.sandbox
from overlay.consumers.sglang.fingerprint import overlay_fingerprint
from overlay.errors import BrokenInput, CannotWrite, CheckFailed, InvalidUsage, NotHere, Untrusted
from overlay.formats.materialized import MARKER_NAME
from overlay.materialization.materialize import materialize, plan
from overlay.materialization.record import RECORD_NAME
from overlay.materialization.survey import Counters
from overlay.materialization.verify import verify
from overlay.registry import load_registry
from overlay.sandbox import Sandbox

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> StandIn:
    """In the place of the sandbox."""
    return StandIn(monkeypatch)


# What it is given, and what it gives


def test_the_tree_is_what_the_script_leaves(tmp_path: Path, stand_in: StandIn) -> None:
    """The overlay's own files, with the script's word last; a marker, a record, and nothing else."""
    options = prepared(tmp_path)
    done = materialize(MODEL, options)
    assert done.path is not None
    made = files_of(done.path)
    expected = shard("w")[:-1] + bytes([shard("w")[-1] ^ 1])
    assert made["unet/made.safetensors"] == expected
    assert made["README.md"] == b"of the script"
    assert sorted(made) == sorted([MARKER_NAME, "README.md", "model_index.json", RECORD_NAME, "unet/made.safetensors"])
    assert (done.result, done.counters) == ("built", Counters(written=16))
    assert verify(done.path, level="full").ok
    record = json.loads(made[RECORD_NAME])
    assert record["recipe"] == {"name": "python", "script": sha256(SCRIPT)}
    assert {item["role"] for item in record["inputs"]} == {"given"}
    [weights] = [item for item in record["outputs"] if item["path"] == "unet/made.safetensors"]
    assert weights["digest"].startswith("sha256:")
    assert [tensor["name"] for tensor in weights["tensors"]] == ["w"]
    ran = record["run"]["script"]
    assert (ran["sandbox"], ran["seconds"], ran["peak_memory"], ran["sha256"]) == (
        "bubblewrap",
        0.25,
        2**20,
        sha256(SCRIPT),
    )
    assert ran["environment"]["python"]
    assert len(stand_in.jobs) == 1


def test_a_script_finds_what_a_server_would_give_it(tmp_path: Path, stand_in: StandIn) -> None:
    """The overlay's files, the source by the manifest's patterns, the output folder with mappings applied."""
    seen = (
        "    assert sorted(p.relative_to(overlay_dir).as_posix() for p in Path(overlay_dir).rglob('*') if p.is_file())"
        " == ['README.md', '_overlay/materialize.py', '_overlay/overlay_manifest.json', 'model_index.json']\n"
        "    assert sorted(p.relative_to(source).as_posix() for p in source.rglob('*') if p.is_file())"
        " == ['unet/config.json', 'unet/w.safetensors']\n"
        "    assert sorted(p.relative_to(out).as_posix() for p in out.rglob('*') if p.is_file())"
        " == ['README.md', 'model_index.json', 'unet/config.json']\n"
        "    assert manifest['of_the_script'] == [1, {'a': None}]\n"
    )
    manifest = {
        "of_the_script": [1, {"a": None}],
        "source_allow_patterns": ["unet/*"],
        "file_mappings": [{"src": "unet/config.json", "dst": "unet/config.json"}],
    }
    path = materialize(MODEL, prepared(tmp_path, PLAIN + seen + ENOUGH, manifest=manifest)).path
    assert path is not None
    assert (path / "unet/config.json").read_bytes() == b"{}"
    [job] = stand_in.jobs
    assert job.script == (PLAIN + seen + ENOUGH).encode()
    assert "HF_TOKEN" not in job.environ
    assert job.environ["HF_HUB_OFFLINE"] == "1"
    assert all(not path.is_relative_to(job.output_dir) for path in job.readable)


def test_needs_are_a_hub_cache_without_a_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The client finds a need at its commit without being told one: whole components, or the repo."""
    stand_in = StandIn(monkeypatch)
    add_repo(tmp_path / "hub", "acme/need", commit("c"), {"enc/a.json": "1", "enc/deep/b.txt": "2", "other.txt": "3"})
    need = f"needs: [{{repo: acme/need, revision: {commit('c')}, components: [enc]}}]"
    script = PLAIN + ENOUGH + "    (out / 'unet/config.json').write_text('{}')\n"
    materialize(MODEL, prepared(tmp_path, script, needs=need))
    assert len(stand_in.jobs) == 1
    assert not list((tmp_path / "root/.overlay/staging").iterdir())
    lookup = (
        "    import os\n"
        "    from huggingface_hub import hf_hub_download, snapshot_download\n"
        "    home = os.environ['NEEDS']\n"
        "    found = Path(snapshot_download('acme/need', cache_dir=home, local_files_only=True))\n"
        "    files = sorted(p.relative_to(found).as_posix() for p in found.rglob('*') if p.is_file())\n"
        "    assert files == ['enc/a.json', 'enc/deep/b.txt'], files\n"
        f"    assert found.name == '{commit('c')}'\n"
        "    one = hf_hub_download('acme/need', 'enc/a.json', cache_dir=home, local_files_only=True)\n"
        "    assert Path(one).read_text() == '1'\n"
    )

    class InEnvironment(StandIn):
        def run(self, job: Any, **sandbox: Any) -> Any:
            monkeypatch.setenv("NEEDS", job.environ["HF_HUB_CACHE"])
            return super().run(job, **sandbox)

    assert InEnvironment(monkeypatch).jobs == []
    other = tmp_path / "other"
    shutil.copytree(tmp_path / "hub/acme/need", other / "hub/acme/need")
    materialize(MODEL, prepared(other, PLAIN + lookup + ENOUGH, needs=need))


def test_wheels_come_first_on_the_path(tmp_path: Path, stand_in: StandIn) -> None:
    """From the hub folder, held against their digest, kept as objects: asked for once."""
    data, name = b"PK\x05\x06" + bytes(18), "helper-1.0-py3-none-any.whl"
    need = f"needs: [{{wheel: {name}, sha256: {hashlib.sha256(data).hexdigest()}}}]"
    (tmp_path / "hub/wheels").mkdir(parents=True)
    (tmp_path / "hub/wheels" / name).write_bytes(data)
    options = prepared(tmp_path, needs=need)
    done = materialize(MODEL, options)
    assert done.path is not None
    assert json.loads((done.path / RECORD_NAME).read_bytes())["recipe"]["wheels"] == [
        f"{name}@sha256:{hashlib.sha256(data).hexdigest()}"
    ]
    [job] = stand_in.jobs
    assert job.python_path[0].name == name
    assert job.python_path[0] in job.readable
    (tmp_path / "hub/wheels" / name).unlink()
    (tmp_path / "hub" / MODEL / commit("a") / "unet/config.json").write_text("[]")  # other inputs, so it has to run
    shutil.rmtree(tmp_path / "root/.overlay/trees")
    shutil.rmtree(tmp_path / "root/materialized_models")
    assert materialize(MODEL, options).result == "built"
    assert len(stand_in.jobs) == 2


@pytest.mark.parametrize(
    ("content", "error", "code"), [(None, NotHere, "no-such-file"), (b"other", BrokenInput, "digest-mismatch")]
)
def test_a_wheel_that_is_not_the_pinned_one(
    tmp_path: Path, stand_in: StandIn, content: bytes | None, error: type[Exception], code: str
) -> None:
    """Nothing runs, and the place is named."""
    name = "helper-1.0-py3-none-any.whl"
    options = prepared(tmp_path, needs=f"needs: [{{wheel: {name}, sha256: {'0' * 64}}}]")
    if content is not None:
        (tmp_path / "hub/wheels").mkdir()
        (tmp_path / "hub/wheels" / name).write_bytes(content)
    with pytest.raises(error, match=name) as caught:
        materialize(MODEL, options)
    assert caught.value.code == code  # type: ignore[attr-defined]
    assert stand_in.jobs == []


# When it runs


def test_it_runs_once(tmp_path: Path, stand_in: StandIn) -> None:
    """Not for a model that is there; nor where the objects are; the same tree by the same name."""
    options = prepared(tmp_path)
    first = materialize(MODEL, options)
    assert materialize(MODEL, options).result == "present"
    assert reused(tmp_path, options)
    second = materialize(MODEL, options)
    assert (second.path, second.counters) == (first.path, Counters())
    assert plan(MODEL, options).is_present
    assert len(stand_in.jobs) == 1


def test_limits_are_no_property_of_the_output(tmp_path: Path, stand_in: StandIn) -> None:
    """Another limit: the model is there as it was, and what a script may take reaches the sandbox."""
    options = prepared(tmp_path, limits=", limits: {time: 2m, memory: 1GiB, processes: 7, disk: 300MB}")
    materialize(MODEL, options)
    [job] = stand_in.jobs
    limits = (job.limits.seconds, job.limits.memory, job.limits.processes, job.limits.disk)
    assert limits == (120, 2**30, 7, 300_000_000)
    options = scripted_options(tmp_path, SCRIPT, limits=", limits: {time: 1h}")
    assert materialize(MODEL, options).result == "present"
    assert reused(tmp_path, options)
    assert len(stand_in.jobs) == 1


def edited(path: str) -> Callable[[Path], None]:
    """A change of one file of the hub folder."""
    return lambda hub: (hub / path).write_text("changed")


@pytest.mark.parametrize(
    ("change", "runs"),
    [
        (edited(f"{MODEL}/{commit('a')}/unet/config.json"), 2),
        (edited(f"acme/overlay/{commit('b')}/README.md"), 2),
        (edited(f"{MODEL}/{commit('a')}/x.onnx"), 1),
    ],
    ids=["source", "overlay", "what no server fetches"],
)
def test_other_inputs_are_another_run(
    tmp_path: Path, stand_in: StandIn, change: Callable[[Path], None], runs: int
) -> None:
    """Whatever a script may read decides, and nothing else."""
    options = prepared(tmp_path)
    materialize(MODEL, options)
    change(tmp_path / "hub")
    shutil.rmtree(tmp_path / "root/.overlay/trees")
    shutil.rmtree(tmp_path / "root/materialized_models")
    materialize(MODEL, options)
    assert len(stand_in.jobs) == runs


def test_another_torch_is_another_run(tmp_path: Path, stand_in: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody knows what a script's arithmetic hangs on; a tree that is there is not thrown away for it."""
    import overlay.planning.scripted as planned

    options = prepared(tmp_path)
    materialize(MODEL, options)
    monkeypatch.setattr(planned, "environment", lambda: {"torch": "9"})
    assert materialize(MODEL, options).result == "present"
    assert plan(MODEL, options).notes == ()  # a run would do nothing, so nothing would run
    shutil.rmtree(tmp_path / "root/.overlay/trees")
    shutil.rmtree(tmp_path / "root/materialized_models")
    assert materialize(MODEL, options).result == "built"
    assert len(stand_in.jobs) == 2


@pytest.mark.parametrize("damage", ["object", "entry"])
def test_what_was_left_is_believed_only_whole(tmp_path: Path, stand_in: StandIn, damage: str) -> None:
    """An object that is gone, or an entry that lists nonsense: the script runs once more."""
    options = prepared(tmp_path)
    first = materialize(MODEL, options).path
    assert first is not None
    own = tmp_path / "root/.overlay"
    if damage == "object":
        for path in own.glob("objects/*/*/*"):
            if path.read_bytes() == b"of the script":
                path.unlink()
    else:
        from overlay.cache import Cache
        from overlay.materialization.scripted.run import _left_before

        listed = [[], None, [{}], [{"path": "../x", "digest": "sha256:" + "0" * 64, "size": 0}], [3]]
        cache = Cache.open(tmp_path / "root", create=False)
        made = replace(plan(MODEL, options).plan, given=())
        unsound = [_left_before(files, made, cache) for files in listed]
        assert unsound == [[], None, None, None, None]
        for path in own.glob("actions/*/*"):
            path.write_bytes(b"{}")
    shutil.rmtree(own / "trees")
    shutil.rmtree(tmp_path / "root/materialized_models")
    assert materialize(MODEL, options).path == first
    assert len(stand_in.jobs) == 2


def test_a_script_that_fails_leaves_nothing(tmp_path: Path, stand_in: StandIn) -> None:
    """No object of it, no location, no staging; and what is corrected runs."""

    def fail(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    options = prepared(tmp_path)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(overlay.sandbox, "run", fail)
        with pytest.raises(KeyboardInterrupt):
            materialize(MODEL, options)
    left = [path for path in (tmp_path / "root").rglob("*") if path.is_file()]
    assert not [path for path in left if {"objects", "trees", "staging", "materialized_models"} & {*path.parts}]
    assert materialize(MODEL, options).result == "built"
    assert len(stand_in.jobs) == 1


# Whether it may run


def test_no_script_runs_that_is_not_pinned(tmp_path: Path, stand_in: StandIn) -> None:
    """Without a pin, or with that of another script: status 7, and what to do."""
    options = prepared(tmp_path)
    for script, code in ((None, "script-not-pinned"), ("another", "script-differs")):
        chosen = scripted_options(tmp_path, script)
        for run in (materialize, plan):
            with pytest.raises(Untrusted) as caught:
                run(MODEL, chosen)
            assert (caught.value.code, caught.value.exit_status) == (code, 7)
            assert caught.value.hint
    assert sha256(SCRIPT) in str(caught.value)
    assert stand_in.jobs == []
    assert materialize(MODEL, scripted_options(tmp_path, SCRIPT)).result == "built"
    assert options.registry is not None


def test_a_registry_that_was_found_enables_nothing(
    tmp_path: Path, stand_in: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A checkout that one stands in may pin a script; to run it takes a word, or the file's name."""
    options = prepared(tmp_path)
    (tmp_path / "work/deep").mkdir(parents=True)
    (tmp_path / "work/registry.yaml").write_text(entry_text(SCRIPT))
    monkeypatch.chdir(tmp_path / "work/deep")
    monkeypatch.delenv("OVERLAY_REGISTRY", raising=False)
    found = replace(options, registry=None)
    assert load_registry().is_found
    with pytest.raises(Untrusted, match="found from the working directory") as caught:
        materialize(MODEL, found)
    assert caught.value.code == "script-not-allowed"
    assert "--allow-script" in str(caught.value.hint)
    assert plan(MODEL, found).notes[-1].endswith("not named: the run needs --allow-script")
    assert not any("--allow-script" in note for note in plan(MODEL, replace(found, allow_script=True)).notes)
    assert stand_in.jobs == []
    assert materialize(MODEL, replace(found, allow_script=True)).result == "built"
    assert materialize(MODEL, found).result == "present"  # nothing has to run
    monkeypatch.setenv("OVERLAY_REGISTRY", str(tmp_path / "work/registry.yaml"))
    assert not load_registry().is_found
    shutil.rmtree(tmp_path / "root")
    assert materialize(MODEL, found).result == "built"


@pytest.mark.parametrize("kind", ["folder", "floating"])
def test_an_overlay_at_no_commit_is_pinned_by_its_fingerprint(tmp_path: Path, stand_in: StandIn, kind: str) -> None:
    """The script's digest says nothing of the modules beside it: without a commit they need a pin of their own."""
    options = replace(prepared(tmp_path), allow_floating=True)
    assert options.registry is not None
    overlay = tmp_path / "hub/acme/overlay" / commit("b")
    manifest = overlay / "_overlay/overlay_manifest.json"
    document = {"custom_materializer": PATH, "source_model_id": MODEL, "source_revision": commit("a")}
    manifest.write_text(json.dumps(document))
    (overlay / "_overlay/helper.py").write_text("X = 1")
    text = options.registry.read_text()
    if kind == "floating":
        text = text.replace(f"revision: {commit('b')}", "floating: nobody knows")
        overlay = overlay.rename(overlay.with_name("main"))
    options.registry.write_text(text)
    name = str(overlay) if kind == "folder" else MODEL
    with pytest.raises(Untrusted, match="is at no commit") as caught:
        materialize(name, options)
    assert (caught.value.code, caught.value.data["pinned"]) == ("overlay-not-pinned", None)
    found = caught.value.data["found"]
    assert f"fingerprint: {found}" in str(caught.value.hint)
    options.registry.write_text(text.replace("acme/overlay, ", f"acme/overlay, fingerprint: {found}, "))
    assert materialize(name, options).result == "built"
    (overlay / "_overlay/helper.py").write_text("X = 2")
    with pytest.raises(Untrusted) as caught:
        materialize(name, options)
    assert (caught.value.code, caught.value.data["pinned"]) == ("overlay-not-pinned", found)
    assert len(stand_in.jobs) == 1


def test_a_script_finds_of_a_folder_what_its_fingerprint_covers(tmp_path: Path, stand_in: StandIn) -> None:
    """No compiled leftovers, which Python would prefer to the module that was read."""
    seen = "    assert not [*Path(overlay_dir).rglob('__pycache__')]\n"
    options = prepared(tmp_path, PLAIN + seen + ENOUGH)
    assert options.registry is not None
    overlay = tmp_path / "hub/acme/overlay" / commit("b")
    document = {"custom_materializer": PATH, "source_model_id": MODEL, "source_revision": commit("a")}
    (overlay / "_overlay/overlay_manifest.json").write_text(json.dumps(document))
    found = overlay_fingerprint(overlay)
    (overlay / "_overlay/__pycache__").mkdir()
    (overlay / "_overlay/__pycache__/helper.cpython-312.pyc").write_bytes(b"x")
    text = options.registry.read_text().replace("acme/overlay, ", f"acme/overlay, fingerprint: {found}, ")
    options.registry.write_text(text)
    assert materialize(str(overlay), options).result == "built"
    assert len(stand_in.jobs) == 1


def test_without_a_sandbox_nothing_is_fetched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Status 7 before a weight moves, with what each sandbox lacks and how to build elsewhere."""
    scripted_hub(tmp_path / "hub", SCRIPT)
    none = (Sandbox("bubblewrap", "no bwrap"), Sandbox("landlock", "too old"))
    monkeypatch.setattr("overlay.sandbox.choice.sandboxes", lambda: none)
    with HubServer(tmp_path / "hub") as server, client_of(server, monkeypatch, tmp_path / "hf/hub"):
        options = replace(scripted_options(tmp_path, SCRIPT), hub=None)
        for run in (plan, materialize):
            with pytest.raises(Untrusted, match=r"bubblewrap: no bwrap; landlock: too old") as caught:
                run(MODEL, options)
            assert (caught.value.code, caught.value.exit_status) == ("sandbox-unavailable", 7)
        assert sum(request.payload for request in server.requests) == 0


def test_from_the_hub_inputs_are_fetched_checked_and_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stand_in: StandIn
) -> None:
    """What a dry run counts as downloaded is what the run brings, and the script gets the very files."""
    scripted_hub(tmp_path / "hub", SCRIPT)
    with HubServer(tmp_path / "hub") as server, client_of(server, monkeypatch, tmp_path / "hf/hub"):
        options = replace(scripted_options(tmp_path, SCRIPT), hub=None)
        planned = plan(MODEL, options)
        assert planned.counters == Counters(downloaded=16)
        done = materialize(MODEL, options)
        assert done.counters == Counters(downloaded=16, written=16)
        assert done.path is not None
        [job] = stand_in.jobs
        assert {path.name for path in job.readable if "blobs" in path.parts}
        assert reused(tmp_path, options)
    assert len(stand_in.jobs) == 1


def test_a_dry_run_says_what_would_run(tmp_path: Path, stand_in: StandIn) -> None:
    """The script's digest and the sandbox; its limit on disk counts as room; and nothing runs."""
    work = plan(MODEL, prepared(tmp_path, limits=", limits: {disk: 5GB}"))
    [note] = (*work.plan.notes, *work.notes)
    assert sha256(SCRIPT) in note
    assert "in bubblewrap" in note
    assert "5.0 GB" in note
    assert work.room >= 5_000_000_000
    assert not work.is_done
    assert stand_in.jobs == []
    assert materialize(MODEL, scripted_options(tmp_path, SCRIPT)).notes == ()  # nothing is left to be said


def test_its_disk_limit_must_fit(tmp_path: Path, stand_in: StandIn) -> None:
    """Refused before anything runs."""
    with pytest.raises(CannotWrite) as caught:
        materialize(MODEL, prepared(tmp_path, limits=", limits: {disk: 5000TB}"))
    assert caught.value.code == "no-room"
    assert stand_in.jobs == []


def test_a_script_makes_all_or_nothing(tmp_path: Path, stand_in: StandIn) -> None:
    """There is no part of its tree to ask for."""
    with pytest.raises(InvalidUsage) as caught:
        materialize(MODEL, prepared(tmp_path, only=("unet",)))
    assert caught.value.code == "option-conflict"
    assert stand_in.jobs == []


# The lock


def test_a_lock_holds_inputs_and_output(tmp_path: Path, stand_in: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    """Locked with its output, the same build passes; a script that gives other bytes is refused, and runs again."""
    from overlay.cli._main import run

    options = prepared(
        tmp_path, PLAIN + "    import os\n" + ENOUGH + "    (out / 'n.txt').write_text(os.environ['N'])\n"
    )
    monkeypatch.setenv("N", "1")
    done = materialize(MODEL, options)
    flags = ["--registry", str(options.registry), "--cache-root", str(options.cache_root), "--hub", str(options.hub)]
    assert run(["lock", MODEL, "--from-build", str(done.path), *flags, "-q"]) == 0
    locked = json.loads((tmp_path / "registry.lock").read_bytes())["models"][MODEL]
    assert sorted(locked["repos"][MODEL]["files"]) == ["unet/config.json", "unet/w.safetensors", "x.bin"]
    assert run(["check", MODEL, *flags, "-q"]) == 0
    assert materialize(MODEL, options).result == "present"
    assert reused(tmp_path, options)
    shutil.rmtree(tmp_path / "root")
    assert materialize(MODEL, options).result == "built"
    shutil.rmtree(tmp_path / "root")
    monkeypatch.setenv("N", "2")
    with pytest.raises(CheckFailed, match="n") as caught:
        materialize(MODEL, options)
    assert caught.value.code == "output-differs"
    monkeypatch.setenv("N", "1")
    assert materialize(MODEL, options).result == "built"
    assert len(stand_in.jobs) == 4
    (tmp_path / "hub" / MODEL / commit("a") / "unet/config.json").write_text("[ ]")
    shutil.rmtree(tmp_path / "root")
    with pytest.raises(BrokenInput) as changed:
        materialize(MODEL, options)
    assert changed.value.code == "lock-differs"
    assert PATH.startswith("_overlay/")
