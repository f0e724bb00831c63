"""``overlay lock``: what it writes, when it writes, and what it says."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shlex
import shutil
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Any

import pytest
from hub_server import HubServer
from support.contracts import next_overlay, next_source
from support.demo_hub import MODEL, World, make_built_world, make_world
from support.hubs import client_of

import overlay
from overlay.cli._main import run
from overlay.demo.checkpoint import LORA_REPO, LORA_REVISION, OVERLAY_REPO
from overlay.demo.registry import write_registry
from overlay.hub import Traffic
from overlay.materialization.locking.lock import lock as lock_models
from overlay.materialization.record import RECORD_NAME, read_record
from overlay.materialization.request import Options
from overlay.registry.load import packaged_registry
from overlay.registry.lock import Lock, dump_lock, read_lock

if TYPE_CHECKING:
    from pathlib import Path

    from overlay.registry.lock import LockedModel

LORA = "lakeside-studio/watercolor"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> World:
    """A hub with its registry, never changed."""
    return make_world(tmp_path_factory.mktemp("made"))


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> World:
    """The same with the model in its cache."""
    return make_built_world(tmp_path_factory.mktemp("built"))


class Project:
    """A registry of a test's own, before the hub of a made world, and a cache."""

    def __init__(self, folder: Path, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder, self.hub = folder, world.hub
        self.registry, self.lock = folder / "registry.yaml", folder / "registry.lock"
        write_registry(self.registry, world.hub)
        variables = world.variables | {"OVERLAY_REGISTRY": str(self.registry)}
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        if "built" not in world.root.name:
            monkeypatch.setenv("OVERLAY_CACHE_ROOT", str(folder / "cache"))

    def add(self, text: str) -> None:
        self.registry.write_text(self.registry.read_text() + text)

    def models(self) -> dict[str, LockedModel]:
        lock = read_lock(self.lock)
        assert lock is not None
        assert dump_lock(lock) == self.lock.read_bytes()
        return dict(lock.models)


@pytest.fixture
def project(tmp_path: Path, made: World, monkeypatch: pytest.MonkeyPatch) -> Project:
    return Project(tmp_path, made, monkeypatch)


@pytest.fixture
def built_project(tmp_path: Path, built: World, monkeypatch: pytest.MonkeyPatch) -> Project:
    return Project(tmp_path, built, monkeypatch)


def told(capsys: pytest.CaptureFixture[str], *words: str, status: int = 0) -> dict[str, Any]:
    """The JSON that a run prints."""
    capsys.readouterr()
    assert run(["lock", *words, "--json"]) == status
    document: dict[str, Any] = json.loads(capsys.readouterr().out)
    return document


def results(document: dict[str, Any]) -> dict[str, str]:
    return {item["model"]: item["result"] for item in document["models"]}


def refused(capsys: pytest.CaptureFixture[str], *words: str, status: int) -> tuple[str, str]:
    """Code and message of an error."""
    error = told(capsys, *words, status=status)["error"]
    return error["code"], f"{error['message']}\n{error['hint']}"


LORA_ENTRY = f"""\
  {LORA}:
    source: {{repo: {OVERLAY_REPO}, revision: OVERLAY}}
    needs: [{{repo: {LORA_REPO}, revision: {LORA_REVISION}}}, {{repo: {MODEL}, revision: SOURCE}}]
    recipe:
      name: lora
      base: {{repo: {MODEL}, path: h3-base/transformer}}
      adapters: [{{repo: {LORA_REPO}, path: FILE}}]
"""


def lora_entry(project: Project) -> str:
    text = LORA_ENTRY.replace("OVERLAY", project.hub.overlay).replace("SOURCE", project.hub.source)
    return text.replace("FILE", project.hub.lora_file.name)


def python_entry(project: Project, model: str = "acme/scripted") -> str:
    return (
        f"  {model}:\n    source: {{repo: {MODEL}, revision: {project.hub.source}}}\n"
        f"    overlay: {{repo: {OVERLAY_REPO}, revision: {project.hub.overlay}}}\n    recipe: {{name: python}}\n"
    )


FLOATING = f"""\
  acme/floats:
    source: {{floating: nobody has looked}}
    overlay: {{repo: {OVERLAY_REPO}, revision: {"a" * 40}}}
    recipe: {{name: mappings}}
"""


def test_writes_beside_the_registry_and_says_what(project: Project, capsys: pytest.CaptureFixture[str]) -> None:
    """The first run locks every model of the file, and names repos, location and adapters."""
    assert run(["lock"]) == 0
    out = capsys.readouterr().out

    assert list(project.models()) == [MODEL]
    assert f"{MODEL}  new" in out
    assert "adapter turbo: 20 pairs" in out
    assert "written · 0 B fetched" in out
    assert sorted(path.name for path in project.folder.iterdir()) == ["cache", "registry.lock", "registry.yaml"]


def test_writes_only_when_the_bytes_change(project: Project, capsys: pytest.CaptureFixture[str]) -> None:
    """A second run leaves the file alone, to the inode; its mode is that of any new file."""
    told(capsys)
    before = project.lock.stat()
    document = told(capsys)

    assert (document["written"], results(document)) == (False, {MODEL: "unchanged"})
    assert project.lock.stat().st_ino == before.st_ino
    assert project.lock.stat().st_mtime_ns == before.st_mtime_ns
    assert before.st_mode & 0o777 == project.registry.stat().st_mode & 0o777


def test_dry_run_writes_nothing_anywhere(project: Project, capsys: pytest.CaptureFixture[str]) -> None:
    """It says what would change, and neither project nor cache is touched."""
    document = told(capsys, "--dry-run")

    assert (document["written"], document["dry_run"], results(document)) == (False, True, {MODEL: "new"})
    assert [path.name for path in project.folder.iterdir()] == ["registry.yaml"]
    assert run(["lock", "--dry-run"]) == 0
    assert "would be written" in capsys.readouterr().out


def test_a_lock_in_another_layout_is_written_in_its_own(project: Project, capsys: pytest.CaptureFixture[str]) -> None:
    """A lock that somebody laid out anew holds the same, and is put back in form."""
    told(capsys)
    sound = project.lock.read_bytes()
    project.lock.write_text(json.dumps(json.loads(sound)))

    assert told(capsys)["written"] is True
    assert project.lock.read_bytes() == sound


def test_a_bump_is_told_line_by_line(project: Project, capsys: pytest.CaptureFixture[str]) -> None:
    """A new commit with one file changed and one added: the pin, the two files, and nothing else."""
    told(capsys)
    bumped = next_source(project.hub, "told")
    (bumped.source_folder / "LICENSE").write_text("Other terms.\n")
    (bumped.source_folder / "NOTICE").write_text("Read this.\n")
    before = project.lock.read_text().splitlines()
    write_registry(project.registry, bumped)
    (item,) = told(capsys)["models"]

    assert item["result"] == "changed"
    assert item["changes"] == [
        f"{MODEL}: {project.hub.source[:12]} -> {bumped.source[:12]}",
        f"{MODEL}: added NOTICE",
        f"{MODEL}: changed LICENSE",
    ]
    after = project.lock.read_text().splitlines()
    assert len(set(after) - set(before)) == 4, "commit, licences, and a line for each file"


def test_locks_the_other_recipes_too(project: Project, capsys: pytest.CaptureFixture[str]) -> None:
    """A lora and an entry that its own script builds are locked; one that floats is skipped, and why is said."""
    project.add(lora_entry(project) + python_entry(project) + FLOATING)
    document = told(capsys)

    assert results(document) == {
        MODEL: "new",
        LORA: "new",
        "acme/scripted": "new",
        "acme/floats": "skipped",
    }
    assert "nobody has looked" in next(i for i in document["models"] if i["result"] == "skipped")["changes"][0]
    (adapter,) = project.models()[LORA].adapters
    assert (adapter.kind, adapter.scales) == ("kohya", (0.125,))
    assert project.models()["acme/scripted"].script is not None
    assert project.models()["acme/scripted"].adapters == ()


def test_only_the_named_model_is_looked_at(project: Project, capsys: pytest.CaptureFixture[str]) -> None:
    """What is not named stays as it was, even where its repos are gone."""
    project.add(python_entry(project))
    told(capsys)
    before = project.models()
    text = project.registry.read_text().replace(
        python_entry(project), python_entry(project).replace(project.hub.source, "c" * 40)
    )
    project.registry.write_text(text)

    assert results(told(capsys, MODEL)) == {MODEL: "unchanged"}
    assert project.models() == before
    assert refused(capsys, status=3)[0] == "revision-not-here"
    assert project.models() == before, "nothing is written where a model fails"


def test_models_that_left_the_registry_go(project: Project, capsys: pytest.CaptureFixture[str]) -> None:
    """An entry that was removed, and one that floats now, leave the lock, and that is said."""
    whole = project.registry.read_text()
    project.add(python_entry(project) + python_entry(project, "acme/second"))
    told(capsys)
    floating = python_entry(project, "acme/second").replace(f"revision: {project.hub.source}", "floating: gone wild")
    project.registry.write_text(whole + floating)
    document = told(capsys)

    assert results(document) == {MODEL: "unchanged", "acme/scripted": "removed", "acme/second": "removed"}
    assert list(project.models()) == [MODEL]


def test_models_that_fall_back_on_the_packaged_registry_go(
    project: Project, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without a model named, the lock is of exactly the file's own models, whatever it held."""
    told(capsys)
    project.registry.write_text("schema_version: 1\nmodels: {}\n")
    document = told(capsys)

    assert results(document) == {MODEL: "removed"}
    [change] = document["models"][0]["changes"]
    assert change.startswith(f"not in {project.registry}: the entry that ships with this program")
    assert project.models() == {}
    assert told(capsys)["written"] is False


def test_what_is_written_does_not_depend_on_what_was_there(
    project: Project, capsys: pytest.CaptureFixture[str]
) -> None:
    """An edited lock, one of more models and none at all come to the same bytes."""
    told(capsys)
    right = project.lock.read_bytes()
    document = json.loads(right)
    section = document["models"][MODEL]
    section["location"] = "elsewhere"
    section["adapters"] = []
    section["repos"][MODEL] |= {"complete": False, "licenses": []}
    document["models"]["acme/more"] = section
    project.lock.write_text(json.dumps(document))
    told(capsys)
    assert project.lock.read_bytes() == right
    project.lock.unlink()
    told(capsys)
    assert project.lock.read_bytes() == right


def test_refuses_a_named_model_that_floats(project: Project, capsys: pytest.CaptureFixture[str]) -> None:
    """What cannot be locked and was asked for by name is an error, not a remark."""
    project.add(FLOATING)
    code, text = refused(capsys, "acme/floats", status=2)

    assert code == "floating-pin"
    assert "nobody has looked" in text
    assert not project.lock.exists()


def test_refuses_an_unknown_model(project: Project, capsys: pytest.CaptureFixture[str]) -> None:
    """A name that the registry does not have gets a suggestion."""
    code, text = refused(capsys, MODEL.replace("minimax", "minmax"), status=2)

    assert code == "unknown-model"
    assert MODEL in text


def test_refuses_a_folder_in_the_place_of_a_model(project: Project, capsys: pytest.CaptureFixture[str]) -> None:
    """A source or overlay folder has no commit that a lock could speak of."""
    assert refused(capsys, str(project.hub.overlay_folder), status=2)[0] == "floating-pin"
    assert not project.lock.exists()


def test_refuses_a_damaged_lock(project: Project, capsys: pytest.CaptureFixture[str]) -> None:
    """A conflict left in the lock is not overwritten silently: it may hold what somebody built."""
    project.lock.write_text("<<<<<<< HEAD\n")
    code, text = refused(capsys, status=2)

    assert code == "lock-invalid"
    assert "line 1" in text
    assert project.lock.read_text() == "<<<<<<< HEAD\n"


def test_the_way_out_of_a_lock_of_a_newer_program(project: Project, capsys: pytest.CaptureFixture[str]) -> None:
    """It is not overwritten; who wants one of this program does what the hint says, and has it."""
    project.lock.write_text('{"lock_version": 2, "models": {}}')
    code, text = refused(capsys, status=2)

    assert code == "lock-invalid"
    assert "a newer lock needs a newer program" in text
    remove = text[text.index("rm ") :].partition(",")[0]
    assert shlex.split(remove) == ["rm", str(project.lock)]
    project.lock.unlink()
    assert run(["lock", "--quiet"]) == 0


def test_needs_a_registry_of_a_project(
    project: Project,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path_factory: pytest.TempPathFactory,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Nothing is ever written beside the registry that ships with the program, unless one works in its checkout."""
    monkeypatch.delenv("OVERLAY_REGISTRY")
    monkeypatch.chdir(tmp_path_factory.mktemp("elsewhere"))
    shipped = packaged_registry().with_suffix(".lock")
    before = shipped.read_bytes()
    code, text = refused(capsys, status=2)

    assert code == "no-project"
    assert "overlay init" in text
    assert "--registry" in text
    assert shipped.read_bytes() == before


def test_a_variable_of_a_server_is_no_property_of_the_project(
    project: Project, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What sglang was told in this shell does not get into the lock that everyone shares."""
    told(capsys)
    before = project.lock.read_bytes()
    other = {MODEL: {"overlay_repo_id": "somebody/else", "overlay_revision": "main"}}
    monkeypatch.setenv("SGLANG_DIFFUSION_MODEL_OVERLAY_REGISTRY", json.dumps(other))

    assert told(capsys)["written"] is False
    assert project.lock.read_bytes() == before


def test_keeps_contents_for_checks_without_a_connection(project: Project, capsys: pytest.CaptureFixture[str]) -> None:
    """The headers and small files of what was locked lie below the cache root, and nothing larger."""
    told(capsys)
    contents = project.folder / "cache/.overlay/contents"
    kept = {path.name for path in contents.rglob("*") if path.is_file()}
    source = project.models()[MODEL].repos[MODEL].files

    for path, file in source.items():
        assert f"{file.sha256}{'.header' if path.endswith('.safetensors') else ''}" in kept, path
    assert sum(path.stat().st_size for path in contents.rglob("*") if path.is_file()) < 500_000


def test_a_cache_that_cannot_be_written_is_done_without(
    project: Project, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The lock is of the project; without a place for contents it is the same lock."""
    (tmp_path / "in-the-way").write_text("")
    monkeypatch.setenv("OVERLAY_CACHE_ROOT", str(tmp_path / "in-the-way"))

    assert results(told(capsys)) == {MODEL: "new"}


def test_from_the_hub_it_is_the_same_file_and_no_weights_move(
    project: Project, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The lock does not tell whether the repos came from the Hub; what was fetched is in the output."""
    told(capsys)
    from_folder = project.lock.read_bytes()
    project.lock.unlink()
    monkeypatch.delenv("OVERLAY_HUB")
    with HubServer(project.hub.root) as server, client_of(server, monkeypatch, tmp_path / "hf/hub"):
        document = told(capsys)

        assert project.lock.read_bytes() == from_folder
        assert server.payload() == 0
        sent = sum(asked.sent for asked in server.requests)
        assert 0 < document["bytes_fetched"] <= sent
        assert document["bytes_fetched"] > sent // 2
        assert told(capsys)["written"] is False
        assert server.payload() == 0


def test_from_build_expects_what_was_built(built_project: Project, capsys: pytest.CaptureFixture[str]) -> None:
    """Every output file with its digests, every written tensor with its own; nothing else changes."""
    told(capsys)
    before = built_project.models()[MODEL]
    tree = overlay.resolve(MODEL).state.tree
    assert tree is not None
    (item,) = told(capsys, MODEL, "--from-build", str(tree))["models"]
    after = built_project.models()[MODEL]
    record = read_record(tree)

    assert item["result"] == "changed"
    assert len(item["changes"]) == 1
    assert "expected output" in item["changes"][0]
    assert after.model_copy(update={"expected": None}) == before
    assert after.expected is not None
    assert record is not None
    assert (after.expected.rule, after.expected.writer_version) == ("fp32-once", 1)
    assert sorted(after.expected.files) == sorted(output.path for output in record.outputs)
    for output in record.outputs:
        file, data = after.expected.files[output.path], (tree / output.path).read_bytes()
        assert (file.size, file.sha256) == (len(data), hashlib.sha256(data).hexdigest())
        assert file.digest == output.digest
        written = {tensor.name: tensor.digest for tensor in output.tensors or () if tensor.digest}
        assert (file.tensors or {}) == written
    assert sum(bool(file.tensors) for file in after.expected.files.values()) >= 4


def test_expected_stays_while_pins_and_recipe_do(built_project: Project, capsys: pytest.CaptureFixture[str]) -> None:
    """A later lock keeps it; a bump drops it, and says so."""
    tree = overlay.resolve(MODEL).state.tree
    told(capsys, MODEL, "--from-build", str(tree))
    expected = built_project.models()[MODEL].expected
    assert expected is not None

    assert told(capsys)["written"] is False
    assert built_project.models()[MODEL].expected == expected
    write_registry(built_project.registry, next_overlay(built_project.hub, "expected"))
    (item,) = told(capsys)["models"]
    assert built_project.models()[MODEL].expected is None
    assert any(line.startswith("expected output dropped") for line in item["changes"])


def test_from_build_refuses_a_build_of_other_pins(built_project: Project, capsys: pytest.CaptureFixture[str]) -> None:
    """What was built before a bump is not what is to be expected after it."""
    tree = overlay.resolve(MODEL).state.tree
    bumped = next_overlay(built_project.hub, "other pins")
    write_registry(built_project.registry, bumped)
    code, text = refused(capsys, MODEL, "--from-build", str(tree), status=1)

    assert code == "build-of-other-pins"
    assert bumped.overlay[:12] in text
    assert built_project.hub.overlay[:12] in text
    assert not built_project.lock.exists()


def test_from_build_refuses_what_is_not_sound(
    built_project: Project, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """A changed byte, or an edited record: nothing is expected of it."""
    tree = overlay.resolve(MODEL).state.tree
    assert tree is not None
    copy = tmp_path / "copy" / tree.name
    shutil.copytree(tree, copy)
    shard = next(copy.glob("transformer/diffusion_pytorch_model-00001*"))
    data = bytearray(shard.read_bytes())
    data[-1] ^= 1
    shard.unlink()
    shard.write_bytes(data)
    code, text = refused(capsys, MODEL, "--from-build", str(copy), status=1)
    assert code == "build-not-sound"
    assert shard.name in text

    shutil.rmtree(copy)
    shutil.copytree(tree, copy)
    record = copy / RECORD_NAME
    document = json.loads(record.read_text())
    document["pins"]["source"]["revision"] = "c" * 40
    record.unlink()
    record.write_text(json.dumps(document))
    assert refused(capsys, MODEL, "--from-build", str(copy), status=1)[0] == "build-not-sound"
    record.unlink()
    assert refused(capsys, MODEL, "--from-build", str(copy), status=3)[0] == "no-record"
    assert not built_project.lock.exists()


@pytest.mark.parametrize("models", [[], [MODEL, "acme/scripted"]])
def test_from_build_is_for_one_model(
    models: list[str], project: Project, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """A build is one model's, so that one is named."""
    assert refused(capsys, *models, "--from-build", str(tmp_path), status=2)[0] == "one-model"


def test_two_at_once_lose_nothing(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs that read the file before either writes: each adds its model, and both are there in the end."""
    names = [f"acme/model-{number}" for number in range(4)]
    project.add("".join(python_entry(project, name) for name in names))
    code = "import sys; from overlay.cli._main import run; sys.exit(run(['lock', sys.argv[1], '-q']))"
    running = [subprocess.Popen([sys.executable, "-c", code, name]) for name in names]

    assert [process.wait(60) for process in running] == [0] * len(names)
    assert sorted(project.models()) == names


def test_a_change_meanwhile_is_merged(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model that another run locked while this one looked at its own stays."""
    project.add(python_entry(project))
    options = Options(hub=project.hub.root, registry=project.registry)
    from overlay.materialization.locking import lock as module

    facts = module.facts_of

    def slow(*arguments: Any, **choices: Any) -> LockedModel:
        found = facts(*arguments, **choices)
        if not project.lock.exists():
            project.lock.write_bytes(dump_lock(Lock(models={"acme/scripted": found})))
        return found

    monkeypatch.setattr(module, "facts_of", slow)
    lock_models([MODEL], options)

    assert sorted(project.models()) == [MODEL, "acme/scripted"]


def test_waits_while_another_run_writes(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between another run's reading and writing of the file nothing is written: both models are there in the end."""
    from overlay.materialization.locking import lock as module

    project.add(python_entry(project))
    options = Options(hub=project.hub.root, registry=project.registry)
    facts, ready = module.facts_of, threading.Event()

    def announced(*arguments: Any, **choices: Any) -> LockedModel:
        found = facts(*arguments, **choices)
        ready.set()
        return found

    other = facts(overlay.resolve("acme/scripted").resolution, options, Traffic(), dry_run=True)
    monkeypatch.setattr(module, "facts_of", announced)
    descriptor = os.open(project.folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        runner = threading.Thread(target=lock_models, args=([MODEL], options))
        runner.start()
        assert ready.wait(60)
        runner.join(0.3)
        assert runner.is_alive()
        assert not project.lock.exists()
        project.lock.write_bytes(dump_lock(Lock(models={"acme/scripted": other})))
    finally:
        os.close(descriptor)
    runner.join(60)

    assert sorted(project.models()) == [MODEL, "acme/scripted"]
