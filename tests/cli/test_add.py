"""`overlay init` and `overlay add`: from an empty folder to a pinned, locked model."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from support.contracts import MODEL, edit_json
from support.hubs import add_repo
from support.upstream import Upstream, upstream_hub

from overlay.cli._main import run
from overlay.consumers.sglang import location_name, overlay_fingerprint
from overlay.demo.checkpoint import LORA_REPO, LORA_REVISION, NEEDS_REPO, NEEDS_REVISION, OVERLAY_REPO, SOURCE_REPO
from overlay.formats.overlay_repo import MANIFEST_PATH
from overlay.registry import Entry, load_registry
from overlay.registry.lock import read_lock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = pytest.mark.no_torch

STAGE = "stage-dmd-step-250"
OTHER = "acme/other"
"""A model that no registry knows, with the files of the known one."""


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Upstream]:
    """An empty project, on a Hub that also has the files of the source under another name."""
    with upstream_hub(tmp_path, monkeypatch) as upstream:
        monkeypatch.setenv("OVERLAY_CACHE_ROOT", str(tmp_path / "cache"))
        monkeypatch.chdir(upstream.project)
        upstream.registry.unlink()
        (upstream.first.root / OTHER).parent.mkdir()
        (upstream.first.root / OTHER).symlink_to(upstream.first.source_folder.parent)
        yield upstream


def entry_of(world: Upstream, model: str) -> Entry:
    return load_registry(world.registry, environ={}, cwd=world.project).entries[model]


# init


def test_init_makes_a_registry(world: Upstream, document: Callable[..., dict[str, Any]]) -> None:
    """An empty registry that loads, with words for whoever opens it; the next step is said."""
    found = document("init", "init")

    assert found == {
        "schema_version": 1,
        "path": "registry.yaml",
        "dry_run": False,
        "next": "overlay add MODEL --overlay REPO",
    }
    assert world.registry.read_text().startswith("# The models of this project")
    assert MODEL in load_registry(world.registry, environ={}, cwd=world.project).entries


def test_init_dry_run(world: Upstream, capsys: pytest.CaptureFixture[str]) -> None:
    """A dry run says what would be made, makes nothing, and refuses what the run refuses."""
    assert run(["init", "--dry-run"]) == 0
    assert "registry.yaml  would be made" in capsys.readouterr().out
    assert not world.registry.exists()
    world.registry.write_text("mine")
    assert run(["init", "--dry-run"]) == 2


def test_quiet_says_nothing_of_what_is_next(world: Upstream, capsys: pytest.CaptureFixture[str]) -> None:
    """What helps only a reader is left out with -q."""
    assert run(["init", "-q"]) == 0
    assert run(["add", MODEL, "--overlay", OVERLAY_REPO, "-q"]) == 0
    assert "next:" not in capsys.readouterr().out


def test_init_overwrites_nothing(world: Upstream, capsys: pytest.CaptureFixture[str]) -> None:
    """A registry that is there stays, whatever it holds."""
    world.registry.write_text("mine")

    assert run(["init"]) == 2
    assert "error[registry-exists]" in capsys.readouterr().err
    assert world.registry.read_text() == "mine"


def test_init_where_it_is_told(world: Upstream, capsys: pytest.CaptureFixture[str]) -> None:
    """--registry names another place, and the next command names it too; a folder that is not there is refused."""
    assert run(["init", "--registry", "pins.yaml"]) == 0
    assert "overlay add MODEL --overlay REPO --registry pins.yaml" in capsys.readouterr().out
    assert (world.project / "pins.yaml").is_file()
    assert run(["init", "--registry", "none/pins.yaml"]) == 4


def test_init_says_which_file_is_in_force(
    world: Upstream, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A registry further up is replaced from here on, and the variable beats both."""
    (world.project / "below").mkdir()
    assert run(["init"]) == 0
    monkeypatch.chdir(world.project / "below")

    assert run(["init"]) == 0
    assert f"takes the place of {world.registry}" in capsys.readouterr().err
    Path("registry.yaml").unlink()
    monkeypatch.setenv("OVERLAY_REGISTRY", "/elsewhere.yaml")
    assert run(["init"]) == 0
    assert "OVERLAY_REGISTRY=/elsewhere.yaml is in force" in capsys.readouterr().err


# add


def test_add_known_model(world: Upstream, document: Callable[..., dict[str, Any]]) -> None:
    """A model that the shipped registry knows comes with its recipe and needs, pinned at today's heads and locked."""
    world.commit_source("Say more")
    world.commit_overlay("Say more")
    document("init", "init")

    found = document("add", "add", MODEL, "--overlay", OVERLAY_REPO)

    assert [(pin["role"], pin["repo"], pin["revision"]) for pin in found["pins"]] == [
        ("source", SOURCE_REPO, world.now.source),
        ("overlay", OVERLAY_REPO, world.now.overlay),
        ("need", NEEDS_REPO, NEEDS_REVISION),
    ]
    entry = entry_of(world, MODEL)
    assert [pin.revision for pin in entry.pins] == [pin["revision"] for pin in found["pins"]]
    assert "fingerprint" not in world.registry.read_text()
    assert entry.place.file == str(world.registry)
    lock = read_lock(Path(found["lock"]))
    assert lock is not None
    assert lock.models[MODEL].differences(entry) == ()
    assert found["check"]["status"] == "passed"
    assert found["next"] == f"overlay prewarm {MODEL}"
    assert world.server.payload() == 0


def test_add_dry_run(world: Upstream, document: Callable[..., dict[str, Any]]) -> None:
    """A dry run finds the same, and writes neither the entry nor a lock."""
    document("init", "init")
    before = world.registry.read_bytes()

    would = document("add", "add", MODEL, "--overlay", OVERLAY_REPO, "--dry-run")

    assert (would["written"], would["dry_run"], would["lock"], would["next"]) == (False, True, None, None)
    assert would["check"]["status"] == "passed"
    assert world.registry.read_bytes() == before
    assert [world.registry] == list(world.project.iterdir())
    assert document("add", "add", MODEL, "--overlay", OVERLAY_REPO)["pins"] == would["pins"]


def test_add_finds_the_recipe_by_the_script(world: Upstream, capsys: pytest.CaptureFixture[str]) -> None:
    """Of an unknown model the overlay's script tells the recipe, its stage and what it needs."""
    assert run(["init"]) == 0

    assert run(["add", OTHER, "--overlay", OVERLAY_REPO]) == 0

    entry = entry_of(world, OTHER)
    assert (entry.recipe.name, entry.recipe.options) == ("vdn-h3", {"stage": STAGE})
    assert [(need.pin.repo, need.components) for need in entry.needs] == [
        (NEEDS_REPO, ("text_encoder", "tokenizer", "processor"))
    ]
    assert "which this recipe repeats" in capsys.readouterr().out


def test_add_with_an_unknown_script(world: Upstream, document: Callable[..., dict[str, Any]]) -> None:
    """A script that no recipe repeats makes a python entry, and its digest is told: whoever has read it pins it."""
    world.commit_overlay("Change the script")
    script = world.now.overlay_folder / "_overlay" / "materialize.py"
    script.unlink()
    script.write_text("# other\n")
    document("init", "init")

    found = document("add", "add", OTHER, "--overlay", OVERLAY_REPO)

    assert found["recipe"] == {"name": "python"}
    assert hashlib.sha256(script.read_bytes()).hexdigest() in found["why"]
    assert found["next"] is None


def test_add_without_a_script(world: Upstream, document: Callable[..., dict[str, Any]]) -> None:
    """An overlay of mappings alone is that recipe."""
    world.commit_overlay("Drop the script")
    edit_json(world.now.overlay_folder / MANIFEST_PATH, lambda manifest: manifest.pop("custom_materializer"))
    promised = ("text_encoder", "tokenizer", "processor", "video_vae", "transformer")
    edit_json(world.now.overlay_folder / "model_index.json", lambda index: [index.pop(name) for name in promised])
    document("init", "init")

    found = document("add", "add", OTHER, "--overlay", OVERLAY_REPO)

    assert found["recipe"] == {"name": "mappings"}
    assert entry_of(world, OTHER).needs == ()


def test_add_at_named_commits(world: Upstream, document: Callable[..., dict[str, Any]]) -> None:
    """What is named is taken instead of today's heads, by its first digits too."""
    world.commit_source("One")
    world.commit_overlay("One")
    world.server.content.history[OTHER] = world.server.content.history[SOURCE_REPO]
    document("init", "init")

    need = f"{NEEDS_REPO}@{NEEDS_REVISION[:7]}:text_encoder,tokenizer,processor"
    at = ["--overlay", f"{OVERLAY_REPO}@{world.first.overlay}", "--source-rev", world.first.source[:7]]
    document("add", "add", OTHER, *at, "--need", need, "--recipe", "vdn-h3", "--stage", STAGE)

    entry = entry_of(world, OTHER)
    assert [pin.revision for pin in entry.pins] == [world.first.source, world.first.overlay, NEEDS_REVISION]
    assert entry.recipe.options == {"stage": STAGE}


def test_h30_add_pins_base_and_adapter_apart(world: Upstream, document: Callable[..., dict[str, Any]]) -> None:
    """Base and adapters of several repos, each at a commit of its own, without an overlay."""
    document("init", "init")
    [file] = [path.name for path in (world.first.root / LORA_REPO / LORA_REVISION).glob("*.safetensors")]

    found = document(
        "add", "add", OTHER, "--base", "h3-base/transformer", "--adapter", f"{LORA_REPO}:{file}", "--need", LORA_REPO
    )

    entry = entry_of(world, OTHER)
    assert (entry.recipe.name, entry.overlay) == ("lora", None)
    assert entry.recipe.options == {
        "base": {"repo": OTHER, "path": "h3-base/transformer"},
        "adapters": [{"repo": LORA_REPO, "path": file}],
    }
    assert [pin.revision for pin in entry.pins] == [world.first.source, LORA_REVISION]
    assert found["check"]["compared"]["pairs"] > 0


def test_add_what_does_not_fit_together(world: Upstream, capsys: pytest.CaptureFixture[str]) -> None:
    """A broken contract is said before anything is written: of no line of the file, and with a way that there is."""
    world.commit_source("Rename", renamed=True)
    assert run(["init"]) == 0
    before = world.registry.read_bytes()

    assert run(["add", MODEL, "--overlay", OVERLAY_REPO]) == 1

    out = capsys.readouterr().out
    assert "registry.yaml: error[file-renamed]" in out
    assert "overlay bump" not in out
    assert "fix: add it at commits that fit together: --source-rev REV, --overlay REPO@REV" in out
    assert "unchanged: the pins do not fit together" in out
    assert world.registry.read_bytes() == before
    assert [world.registry] == list(world.project.iterdir())


def test_h28_add_at_a_commit_of_another_hub(world: Upstream, capsys: pytest.CaptureFixture[str]) -> None:
    """A commit that this Hub does not have, copied from a mirror that counts its own, is no pin."""
    assert run(["init"]) == 0
    before = world.registry.read_bytes()

    assert run(["add", MODEL, "--overlay", OVERLAY_REPO, "--source-rev", "d" * 40]) == 1

    assert "error[vanished]" in capsys.readouterr().out
    assert world.registry.read_bytes() == before


def test_add_adapter_from_the_root_of_a_need(world: Upstream, document: Callable[..., dict[str, Any]]) -> None:
    """A secondary repo that is given in the place of an adapter's path, and is no path of the source, is its root."""
    document("init", "init")

    found = document("add", "add", OTHER, "--base", "h3-base/transformer", "--adapter", LORA_REPO, "--need", LORA_REPO)

    assert found["recipe"]["adapters"] == [{"repo": LORA_REPO, "path": ""}]
    assert found["check"]["compared"]["pairs"] > 0


def test_add_path_of_the_source_beats_a_need(world: Upstream, capsys: pytest.CaptureFixture[str]) -> None:
    """Where the source has such a path, it is meant."""
    world.commit_source("Add a folder of that name")
    shutil.copytree(world.now.source_folder / f"{STAGE}/adapters/turbo", world.now.source_folder / LORA_REPO)
    world.server.content.history[OTHER] = world.server.content.history[SOURCE_REPO]
    assert run(["init"]) == 0

    run(["add", OTHER, "--base", "h3-base/transformer", "--adapter", LORA_REPO, "--need", LORA_REPO, "--json"])

    recipe = json.loads(capsys.readouterr().out.partition("REPO\n")[2])["recipe"]
    assert recipe["adapters"] == [{"repo": OTHER, "path": LORA_REPO}]


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["--base", "h3-base/transformer", "--adapter", f"{LORA_REPO}:x.safetensors"], f"takes files of {LORA_REPO}"),
        (["--overlay", OVERLAY_REPO, "--need", NEEDS_REPO], "needs the components text_encoder"),
        (["--overlay", OVERLAY_REPO, "--need", f"{NEEDS_REPO}:../x"], "../x"),
    ],
)
def test_add_without_a_need(world: Upstream, args: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    """What the entry lacks is told by the option that says it, not by a line that the file does not have."""
    assert run(["init"]) == 0

    assert run(["add", OTHER, *args]) == 2

    err = capsys.readouterr().err
    assert said in err
    assert "--need REPO[@REV][:COMPONENT,...]" in err
    assert "registry.yaml" not in err


def test_add_from_a_folder_with_several_revisions(world: Upstream, capsys: pytest.CaptureFixture[str]) -> None:
    """Folders have no history, so which commit is meant has to be said, by the option that is named."""
    world.commit_source("One")
    world.commit_overlay("One")
    hub, at = ["--hub", str(world.first.root)], ["--source-rev", world.now.source]
    assert run(["init"]) == 0

    assert run(["add", MODEL, "--overlay", OVERLAY_REPO, *hub]) == 2
    source = capsys.readouterr().err
    assert run(["add", MODEL, "--overlay", OVERLAY_REPO, *at, *hub]) == 2
    overlay = capsys.readouterr().err

    assert "folders have no history" in source
    assert "hint: name one: --source-rev REVISION\n" in source
    assert f"hint: name one: --overlay {OVERLAY_REPO}@REVISION\n" in overlay
    assert run(["add", MODEL, "--overlay", f"{OVERLAY_REPO}@{world.now.overlay}", *at, *hub]) == 0
    assert run(["outdated", *hub]) == 2
    assert "--source-to REVISION" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("args", "status"),
    [
        ([OTHER], 2),
        ([OTHER, "--recipe", "lora"], 2),
        ([OTHER, "--base", "x"], 2),
        ([OTHER, "--base", "x", "--adapter", "y", "--recipe", "vdn-h3"], 2),
        (["no-repo-id", "--overlay", OVERLAY_REPO], 2),
        ([OTHER, "--overlay", "acme/none"], 6),
        ([OTHER, "--overlay", f"{OVERLAY_REPO}@v1"], 2),
        ([OTHER, "--overlay", OVERLAY_REPO, "--need", f"{NEEDS_REPO}:../x"], 2),
        ([OTHER, "--overlay", OVERLAY_REPO, "--offline"], 3),
    ],
)
def test_add_refuses(world: Upstream, args: list[str], status: int) -> None:
    """What makes no sense or is not there changes nothing."""
    assert run(["init"]) == 0
    before = world.registry.read_bytes()

    assert run(["add", *args]) == status
    assert world.registry.read_bytes() == before


def test_add_twice(world: Upstream, capsys: pytest.CaptureFixture[str]) -> None:
    """An entry that is there is bumped, not added."""
    assert run(["init"]) == 0
    assert run(["add", MODEL, "--overlay", OVERLAY_REPO]) == 0

    assert run(["add", MODEL, "--overlay", OVERLAY_REPO]) == 2
    assert f"overlay bump {MODEL}" in capsys.readouterr().err


def test_add_needs_a_registry_of_ones_own(
    world: Upstream, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without a project there is nothing to write to, and the way to one is said."""
    monkeypatch.chdir(world.root)

    assert run(["add", OTHER, "--overlay", OVERLAY_REPO]) == 2
    assert "overlay init" in capsys.readouterr().err


def test_add_from_a_hub_folder(world: Upstream, document: Callable[..., dict[str, Any]]) -> None:
    """A folder in the place of the Hub is pinned at the revisions that it has; no request is made."""
    document("init", "init")
    world.server.forget()
    add_repo(world.root / "mirror", "acme/map", "a" * 40, {"x.json": "{}"})
    manifest = {"source_model_id": "acme/map", "file_mappings": [{"src": "x.json", "dst": "scheduler/x.json"}]}
    index = {"_class_name": "P", "_diffusers_version": "0", "scheduler": ["own", "S"]}
    papers = {MANIFEST_PATH: json.dumps(manifest), "model_index.json": json.dumps(index)}
    add_repo(world.root / "mirror", "acme/map-overlay", "b" * 40, papers)

    document("add", "add", "acme/map", "--overlay", "acme/map-overlay", "--hub", str(world.root / "mirror"))

    assert [pin.revision for pin in entry_of(world, "acme/map").pins] == ["a" * 40, "b" * 40]
    assert world.server.asked() == []


# What the entry leaves to the lock


def test_known_fingerprint_of_other_files_is_replaced(world: Upstream, document: Callable[..., dict[str, Any]]) -> None:
    """The shipped registry's fingerprint of a commit is inherited; where the files are others, theirs is written."""
    document("init", "init")

    document("add", "add", MODEL, "--overlay", OVERLAY_REPO)

    assert entry_of(world, MODEL).overlay_fingerprint == overlay_fingerprint(world.first.overlay_folder)


def test_location_is_that_of_the_lock(world: Upstream, document: Callable[..., dict[str, Any]]) -> None:
    """Where neither the overlay's files nor a fingerprint are at hand, a current lock tells where a server looks."""
    world.commit_overlay("Say more")  # of which no registry has a fingerprint
    document("init", "init")
    document("add", "add", MODEL, "--overlay", OVERLAY_REPO)
    world.server.forget()
    nowhere = ["--hub", str(world.root / "nowhere")]
    fingerprint = overlay_fingerprint(world.now.overlay_folder)
    expected = location_name(entry_of(world, MODEL), fingerprint)

    current = document("resolve", "resolve", MODEL, *nowhere)
    missing = document("error", "path", MODEL, *nowhere, status=3)
    world.registry.write_text(world.registry.read_text().replace(world.now.source, "e" * 40))
    stale = document("resolve", "resolve", MODEL, *nowhere)

    assert (Path(current["location"]).name, current["state"]) == (expected, "absent")
    assert missing["error"]["code"] == "model-absent"
    assert (stale["location"], stale["state"]) == (None, "unknown")
    assert world.server.asked() == []


def test_lock_knows_no_location_of_what_a_server_was_told(
    world: Upstream, document: Callable[..., dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same pins under a server's variable make another name, so the one that is locked is not taken for it."""
    world.commit_overlay("Say more")
    document("init", "init")
    document("add", "add", MODEL, "--overlay", OVERLAY_REPO)
    told = {"overlay_repo_id": OVERLAY_REPO, "overlay_revision": world.now.overlay, "source_revision": world.now.source}
    monkeypatch.setenv("SGLANG_DIFFUSION_MODEL_OVERLAY_REGISTRY", json.dumps({MODEL: told}))

    found = document("resolve", "resolve", MODEL, "--hub", str(world.root / "nowhere"))

    assert (found["lock"]["state"], found["location"], found["state"]) == ("current", None, "unknown")


@pytest.mark.parametrize("lock", ["", "<<<<<<< mine\n"])
def test_path_without_a_lock_that_can_be_read(
    world: Upstream, lock: str, document: Callable[..., dict[str, Any]]
) -> None:
    """A lock that is broken keeps nobody from looking a model up."""
    world.commit_overlay("Say more")
    document("init", "init")
    document("add", "add", MODEL, "--overlay", OVERLAY_REPO)
    world.registry.with_suffix(".lock").write_text(lock)

    missing = document("error", "path", MODEL, "--hub", str(world.root / "nowhere"), status=3)

    assert missing["error"]["code"] == "model-unknown"


def test_a_bot_moves_the_overlay(world: Upstream, capsys: pytest.CaptureFixture[str]) -> None:
    """A commit that is replaced in the text, and locked as the relock of the action does it, passes the check."""
    world.commit_overlay("Say more")
    before = world.now.overlay
    assert run(["init"]) == 0
    assert run(["add", MODEL, "--overlay", OVERLAY_REPO]) == 0
    world.commit_overlay("Say even more")
    world.registry.write_text(world.registry.read_text().replace(before, world.now.overlay))

    assert run(["lock", "--", MODEL]) == 0
    capsys.readouterr()

    assert run(["check"]) == 0
    assert "error" not in capsys.readouterr().out.partition("errors")[0]
