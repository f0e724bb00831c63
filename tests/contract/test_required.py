"""Files that an overlay or a recipe asks for by name, and the source lacks."""

from __future__ import annotations

import hashlib
import json
import shutil
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from hub_server import HubServer
from support.contracts import MODEL, codes, edit_json, make_hub, next_overlay, next_source, subject_of
from support.hubs import client_of
from support.models import vdn_registry

from overlay.contract.checks.required import check_required, requirements
from overlay.contract.subject import Subject
from overlay.demo.checkpoint import LORA_FILE, LORA_REPO, LORA_REVISION, NEEDS_REPO
from overlay.demo.revisions import bump_rename
from overlay.fingerprint import DigestMemo
from overlay.hub import take_inventory
from overlay.registry import load_registry, resolve
from overlay.registry.lock import LockedFile, LockedModel, LockedRepo

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from overlay.contract.finding import Finding
    from overlay.demo.checkpoint import HubFolder
    from overlay.hub import Inventory

pytestmark = pytest.mark.no_torch

STAGE = "stage-dmd-step-250"
DEFAULT, TURBO = f"{STAGE}/adapters/default", f"{STAGE}/adapters/turbo"
SOURCE_PIN, OVERLAY_PIN, RECIPE = (4, 14), (5, 46), (8, 5)
FIX = f"overlay bump {MODEL}"


@pytest.fixture
def hub(tmp_path: Path) -> HubFolder:
    """The made repos."""
    return make_hub(tmp_path)


def only(subject: Subject) -> Finding:
    """The one finding."""
    (finding,) = check_required(subject)
    assert finding.severities == {"overlay": "error", "sglang": "error"}
    return finding


def place(finding: Finding) -> tuple[int, int]:
    """Line and column."""
    return finding.place.line, finding.place.column


def lock_of(hub: HubFolder) -> LockedModel:
    """A lock of the source's JSON files."""
    root = hub.source_folder
    files = {
        path.relative_to(root).as_posix(): LockedFile(
            size=path.stat().st_size, sha256=hashlib.sha256(path.read_bytes()).hexdigest()
        )
        for path in root.rglob("*.json")
    }
    return LockedModel(recipe={}, location="there", repos={MODEL: LockedRepo(revision=hub.source, files=files)})


def test_a_sound_entry_lacks_nothing(hub: HubFolder, tmp_path: Path) -> None:
    """Everything that overlay and recipe ask for is there, under both names of the descriptions."""
    old = make_hub(tmp_path / "old", spec_name="adapter_config.json")

    assert [*check_required(subject_of(hub, tmp_path))] == []
    assert [*check_required(subject_of(old, tmp_path / "old"))] == []


def test_each_file_is_asked_for_once(hub: HubFolder, tmp_path: Path) -> None:
    """The manifest and the recipe want the same configs; the manifest says why."""
    asked = requirements(subject_of(hub, tmp_path))

    assert len({one.path for one in asked}) == len(asked)
    assert {one.by for one in asked if one.path == "h3-base/vae/config.json"} == {"the overlay requires"}
    assert {one.by for one in asked if one.path == f"{STAGE}/metadata.json"} == {"recipe vdn-h3 reads"}


@pytest.mark.parametrize(
    ("history", "evidence"),
    [
        ("before", "same content, 413 bytes; same content, 1367 bytes"),
        ("lock", "same content, 413 bytes; same content, 1367 bytes"),
        ("none", "by its content an adapter's description"),
    ],
)
def test_h01_the_published_rename(tmp_path: Path, history: str, evidence: str) -> None:
    """A bump of the source alone: one finding at the overlay's pin names both files, and how it is known."""
    old = make_hub(tmp_path, spec_name="adapter_config.json")
    naive = replace(bump_rename(old), overlay=old.overlay)
    subject = subject_of(
        naive,
        tmp_path,
        before=subject_of(old, tmp_path) if history == "before" else None,
        locked=lock_of(old) if history == "lock" else None,
    )

    finding = only(subject)

    assert finding.code == "file-renamed"
    assert finding.message == (
        f"the overlay requires {STAGE}/adapters/{{default,turbo}}/adapter_config.json; the source has them as"
        f" adapter_spec.json ({evidence})"
    )
    assert place(finding) == OVERLAY_PIN
    assert finding.fix == FIX
    assert [(one["path"], one["found"]) for one in finding.data["renames"]] == [
        (f"{DEFAULT}/adapter_config.json", f"{DEFAULT}/adapter_spec.json"),
        (f"{TURBO}/adapter_config.json", f"{TURBO}/adapter_spec.json"),
    ]


@pytest.mark.parametrize("history", ["before", "lock"])
def test_h01_the_published_rename_on_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, history: str) -> None:
    """There small files are known by their git blobs and the lock has sha256; no weight is asked for."""
    old = make_hub(tmp_path, spec_name="adapter_config.json")
    naive = replace(bump_rename(old), overlay=old.overlay)

    def opened(hub: HubFolder) -> Inventory:
        resolution = resolve(MODEL, load_registry(vdn_registry(tmp_path, hub), environ={}))
        memo = DigestMemo(None, write=False)
        return take_inventory(resolution, hub=None, offline=False, memo=memo, allow_floating=True)

    with HubServer(old.root) as server, client_of(server, monkeypatch, tmp_path / "hf/hub"):
        subject = Subject(
            opened(naive),
            locked=lock_of(old) if history == "lock" else None,
            before=Subject(opened(old)) if history == "before" else None,
        )
        finding = only(subject)

        assert "the source has them as adapter_spec.json (same content, 413 bytes; " in finding.message
        assert not server.payload()


def test_h01_an_overlay_ahead_of_its_source(tmp_path: Path) -> None:
    """The other way round: the overlay asks for the present name, the pinned source has the former one."""
    old = make_hub(tmp_path, spec_name="adapter_config.json")
    ahead = replace(old, overlay=bump_rename(old).overlay)

    finding = only(subject_of(ahead, tmp_path, before=subject_of(old, tmp_path)))

    assert finding.code == "file-renamed"
    path = f"{STAGE}/adapters/{{default,turbo}}/adapter_spec.json"
    assert f"requires {path}; the source has them as adapter_config.json" in finding.message


def _deeper(folder: Path) -> None:
    inner = folder / "default"
    inner.mkdir()
    (folder / "adapter_spec.json").rename(inner / "adapter_spec.json")


def _neither(folder: Path) -> None:
    (folder / "adapter_spec.json").unlink()


def _no_weights(folder: Path) -> None:
    (folder / "adapter_model.safetensors").unlink()


@pytest.mark.parametrize(
    ("spoil", "at", "code", "said"),
    [
        pytest.param(
            _deeper,
            OVERLAY_PIN,
            "file-renamed",
            "the source has it as stage-dmd-step-250/adapters/default/default/adapter_spec.json"
            " (same name, a folder deeper)",
            id="deeper",
        ),
        pytest.param(
            _neither,
            OVERLAY_PIN,
            "file-missing",
            f"the overlay requires {DEFAULT}/adapter_spec.json; the source lacks it; neither adapter_spec.json nor"
            f" adapter_config.json is there; {DEFAULT} has adapter_model.safetensors",
            id="neither",
        ),
        pytest.param(
            _neither,
            SOURCE_PIN,
            "file-missing",
            f"recipe vdn-h3 reads {DEFAULT}/adapter_spec.json; the source lacks it; neither adapter_spec.json nor",
            id="neither-and-the-manifest-does-not-care",
        ),
        pytest.param(
            _no_weights,
            SOURCE_PIN,
            "file-missing",
            f"recipe vdn-h3 reads {DEFAULT}/adapter_model.safetensors; the source lacks it; {DEFAULT} has"
            " adapter_spec.json",
            id="no-weights",
        ),
        pytest.param(
            shutil.rmtree,
            OVERLAY_PIN,
            "file-missing",
            f"the overlay requires 2 files; the source lacks them:"
            f" {DEFAULT}/{{adapter_spec.json,adapter_model.safetensors}}; there is no folder {DEFAULT}",
            id="no-folder",
        ),
        pytest.param(
            shutil.rmtree, SOURCE_PIN, "file-missing", f"recipe vdn-h3 reads {DEFAULT}; the", id="no-folder-recipe"
        ),
    ],
)
def test_h01_an_adapter_folder_without_its_files(
    hub: HubFolder, tmp_path: Path, spoil: Callable[[Path], None], at: tuple[int, int], code: str, said: str
) -> None:
    """One finding says what was looked for and what is there, at the pin that one would move."""
    spoil(hub.source_folder / DEFAULT)
    if at == SOURCE_PIN:  # the manifest asks for nothing of it
        manifest = hub.overlay_folder / "_overlay" / "overlay_manifest.json"
        edit_json(manifest, lambda it: it.update(required_source_files=["h3-base/vae/config.json"]))

    finding = only(subject_of(hub, tmp_path))

    assert finding.code == code
    assert said in finding.message
    assert place(finding) == at
    assert finding.fix == FIX


def test_a_file_that_went_away_was_there_before(hub: HubFolder, tmp_path: Path) -> None:
    """The message says at which commit, so that staying there is a choice."""
    gone = next_source(hub, "drop the branch")
    (gone.source_folder / STAGE / "linear_branch" / "model.safetensors").unlink()
    path = f"{STAGE}/linear_branch/model.safetensors"

    finding = only(subject_of(gone, tmp_path, before=subject_of(hub, tmp_path)))

    assert finding.code == "file-missing"
    assert finding.message == (
        f"the overlay requires {path}; the source lacks it; {STAGE}/linear_branch has config.json;"
        f" it was there at {hub.source[:12]}"
    )
    assert finding.data["missing"] == [path]


def test_what_the_recipe_reads_by_name(hub: HubFolder, tmp_path: Path) -> None:
    """Files that no manifest lists are named as well, at the source's pin."""
    (hub.source_folder / STAGE / "metadata.json").unlink()

    finding = only(subject_of(hub, tmp_path))

    assert finding.code == "file-missing"
    assert finding.message.startswith(f"recipe vdn-h3 reads {STAGE}/metadata.json; the source lacks it; {STAGE} has")
    assert place(finding) == SOURCE_PIN


@pytest.mark.parametrize(
    ("mapping", "said"),
    [
        ({"type": "file", "src": "h3-base/notes.txt"}, "the overlay's file mapping takes h3-base/notes.txt"),
        ({"type": "tree", "src": "h3-base/audio"}, "the overlay's tree mapping takes h3-base/audio"),
        ({"type": "glob", "src": "h3-base/*.bin"}, "the overlay's glob mapping takes h3-base/*.bin"),
    ],
)
def test_a_mapping_that_takes_nothing(hub: HubFolder, tmp_path: Path, mapping: dict[str, str], said: str) -> None:
    """Mappings ask for files too; a server stops at one that finds none."""
    edit_json(hub.overlay_folder / "_overlay" / "overlay_manifest.json", lambda it: it["file_mappings"].append(mapping))

    finding = only(subject_of(hub, tmp_path))

    assert finding.code == "file-missing"
    assert finding.message.startswith(f"{said}; the source lacks it; h3-base has")
    assert place(finding) == OVERLAY_PIN


def lora_registry(hub: HubFolder, base: str, adapter: str) -> str:
    """An entry that folds a file of another repo into a folder of the source."""
    return f"""\
schema_version: 1
models:
  {MODEL}:
    source: {{revision: {hub.source}}}
    needs:
      - {{repo: {LORA_REPO}, revision: {LORA_REVISION}}}
    recipe:
      name: lora
      base: {{repo: {MODEL}, path: {base}}}
      adapters: [{{repo: {LORA_REPO}, path: {adapter}}}]
"""


@pytest.mark.parametrize(
    ("base", "adapter", "said", "fix"),
    [
        pytest.param("h3-base/transformer", LORA_FILE.format(rank=8), None, None, id="sound"),
        pytest.param(
            "h3-base/transfomer",
            LORA_FILE.format(rank=8),
            "reads h3-base/transfomer; the source",
            "correct the path in the recipe; the nearest is h3-base/transformer",
            id="base",
        ),
        pytest.param(
            "q1/q2",
            LORA_FILE.format(rank=8),
            "; the source lacks it; there is no folder q1",
            "correct the path in the recipe",
            id="nothing-near",
        ),
        pytest.param(
            "h3-base/transformer",
            "h3_watercolor_lora_rank4_bf16.safetensors",
            f"reads h3_watercolor_lora_rank4_bf16.safetensors; {LORA_REPO}@{LORA_REVISION[:12]} lacks it; the repo has",
            f"correct the path in the recipe; the nearest is {LORA_FILE.format(rank=8)}",
            id="adapter",
        ),
    ],
)
def test_what_a_lora_entry_names(tmp_path: Path, base: str, adapter: str, said: str | None, fix: str | None) -> None:
    """Base and adapters are named in the recipe: that is where the finding points, and what one would correct."""
    hub = make_hub(tmp_path)

    findings = [*check_required(subject_of(hub, tmp_path, registry=lora_registry(hub, base, adapter)))]

    assert codes(findings) == ([] if said is None else ["file-missing"])
    for finding in findings:
        assert str(said) in finding.message
        assert place(finding) == (7, 5)
        assert finding.fix == fix


def test_a_path_of_a_recipe_that_was_there_before_is_none_to_correct(tmp_path: Path) -> None:
    """Upstream removed it: another commit may have it."""
    hub = make_hub(tmp_path)
    gone = next_source(hub, "drop the transformer")
    shutil.rmtree(gone.source_folder / "h3-base" / "transformer")
    adapter = LORA_FILE.format(rank=8)
    before = subject_of(hub, tmp_path, registry=lora_registry(hub, "h3-base/transformer", adapter))

    registry = lora_registry(gone, "h3-base/transformer", adapter)
    every = check_required(subject_of(gone, tmp_path, registry=registry, before=before))
    (finding,) = [finding for finding in every if place(finding) == (7, 5)]

    assert finding.fix == FIX
    assert f"it was there at {hub.source[:12]}" in finding.message


def test_an_overlay_that_cannot_be_read_asks_for_nothing(hub: HubFolder, tmp_path: Path) -> None:
    """Its manifest is another finding; what the recipe reads is still checked."""
    (hub.overlay_folder / "_overlay" / "overlay_manifest.json").write_text("{")
    (hub.source_folder / STAGE / "metadata.json").unlink()

    assert only(subject_of(hub, tmp_path)).message.startswith("recipe vdn-h3 reads")


def test_a_hostile_manifest_gives_one_short_finding(hub: HubFolder, tmp_path: Path) -> None:
    """A hundred thousand names with control characters: a few are shown, on one line, the rest is counted."""
    wide = next_overlay(hub, "flood")
    names = [f"a/\x1b[31m\nfile {number}" for number in range(100_000)]
    edit_json(
        wide.overlay_folder / "_overlay" / "overlay_manifest.json",
        lambda it: it.update(required_source_files=names, file_mappings=[]),
    )

    finding = only(subject_of(wide, tmp_path))

    assert finding.message.isprintable()
    assert len(finding.message) < 1000
    assert "requires 100000 files" in finding.message
    assert "and 99995 more" in finding.message
    assert finding.data["count"] == 100_000
    assert len(json.dumps(finding.data)) < 100_000


def test_needs_are_not_asked_for_the_sources_files(hub: HubFolder, tmp_path: Path) -> None:
    """Components of a need are another check's; nothing here asks that repo for anything."""
    assert NEEDS_REPO not in {one.repo.repo for one in requirements(subject_of(hub, tmp_path))}
