"""From a name or a path to an entry, as sglang 0.5.23 does it."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from support.registries import VDN, A, B, load_text, registry_text

from overlay.consumers import sglang
from overlay.errors import BrokenInput, InvalidUsage
from overlay.registry import LOCAL, Pin, Registry, ServerSpec, load_registry, resolve

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.no_torch

SOURCE = "6d052b3e9cc6b5d29009ac0ba71bc4ccb1fd4a14"


@pytest.fixture
def registry() -> Registry:
    return load_registry(environ={})


def folder(*parts: Any) -> Path:
    path = parts[0].joinpath(*parts[1:])
    path.mkdir(parents=True)
    return path


def write_overlay(root: Path, **manifest: Any) -> Path:
    (root / "_overlay").mkdir(parents=True)
    (root / "_overlay/overlay_manifest.json").write_text(json.dumps(manifest))
    return root


def test_key(registry: Registry) -> None:
    """A key is its entry, and a pinned one gives nothing to say."""
    resolution = resolve(VDN, registry)
    assert resolution.entry is registry.entries[VDN]
    assert (resolution.model, resolution.notes, resolution.source_folder) == (VDN, (), None)
    assert resolution.registry_path == registry.path


def test_floating_and_python_are_said(registry: Registry) -> None:
    """Every floating pin, with its reason, and a recipe that cannot be built here are in the notes."""
    notes = resolve("Lightricks/LTX-2.3", registry).notes
    assert [note.split(":")[0] for note in notes] == [
        "Lightricks/LTX-2.3 is not pinned",
        "Lightricks/LTX-2 is not pinned",
        "FastVideo/LTX-2.3-Distilled-Diffusers is not pinned",
        "the overlay's own Python builds it, and the entry pins no script that may run",
    ]


def test_local_source_by_its_name(registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder called like the part after the slash is the source of that model."""
    source = folder(tmp_path, "vdn-minimax-h3")
    monkeypatch.chdir(tmp_path)
    for spelling in (str(source), "vdn-minimax-h3", "./vdn-minimax-h3/", "vdn-minimax-h3/../vdn-minimax-h3"):
        resolution = resolve(spelling, registry)
        assert (resolution.model, resolution.source_folder) == (VDN, source)
        assert resolution.notes == (f"the source is the folder {source}, not {VDN}@6d052b3e9cc6",)


def test_local_source_does_not_float(registry: Registry, tmp_path: Path) -> None:
    """A folder in the place of a floating source leaves only the other floating repos to be named."""
    notes = resolve(str(folder(tmp_path, "LTX-2.3")), registry).notes
    assert not any(note.startswith("Lightricks/LTX-2.3 is not pinned") for note in notes)
    assert any(note.startswith("Lightricks/LTX-2 is not pinned") for note in notes)


def test_folder_names_match_whole_and_in_their_case(registry: Registry, tmp_path: Path) -> None:
    """Similar names are other folders."""
    for name in ("vdn-minimax-h3-old", "VDN-minimax-h3", "OpenVDN__vdn-minimax-h3-e541eaf4b41d4e5c"):
        with pytest.raises(InvalidUsage, match="no source of a known model") as caught:
            resolve(str(folder(tmp_path, name)), registry)
        assert caught.value.code == "unknown-folder"


@pytest.mark.parametrize("name", ["models--OpenVDN--vdn-minimax-h3", "models--openvdn--VDN-MiniMax-H3"])
def test_cache_snapshot(registry: Registry, tmp_path: Path, name: str) -> None:
    """A snapshot in the Hub's cache is the source, whatever the case of the folder; a folder in it means it too."""
    snapshot = folder(tmp_path, "hub", name, "snapshots", SOURCE)
    inside = folder(snapshot, "h3-base")
    for path in (snapshot, inside):
        resolution = resolve(str(path), registry)
        assert (resolution.model, resolution.source_folder) == (VDN, snapshot)
        assert resolution.notes == (f"the source is the snapshot {snapshot}",)


def test_cache_snapshot_of_another_commit_is_said(registry: Registry, tmp_path: Path) -> None:
    """A snapshot of another commit than the pinned one is taken, and said."""
    snapshot = folder(tmp_path, "models--OpenVDN--vdn-minimax-h3", "snapshots", B)
    resolution = resolve(str(snapshot), registry)
    assert resolution.source_folder == snapshot
    assert resolution.notes == (f"the source is the snapshot {snapshot}, not {VDN}@6d052b3e9cc6",)


def test_cache_folder_without_a_snapshot(registry: Registry, tmp_path: Path) -> None:
    """The repo's folder of the cache names the model; its commit stays the pinned one."""
    path = folder(tmp_path, "models--OpenVDN--vdn-minimax-h3")
    resolution = resolve(str(path), registry)
    assert (resolution.model, resolution.source_folder) == (VDN, None)
    assert "holds no single commit" in resolution.notes[0]


def test_sibling_repo_in_the_cache_does_not_match(registry: Registry, tmp_path: Path) -> None:
    """Only a whole part of the path counts: a longer repo name is another repo."""
    path = folder(tmp_path, "models--lightricks--ltx-2.3-distilled", "snapshots", A)
    with pytest.raises(InvalidUsage, match="no source of a known model"):
        resolve(str(path), registry)


def test_ambiguous_folder(tmp_path: Path) -> None:
    """A folder that two keys claim is not guessed."""
    text = registry_text(
        f"""\
  acme/vdn-minimax-h3:
    source: {{revision: {A}}}
    overlay: {{repo: acme/overlay, revision: {B}}}
    recipe: {{name: mappings}}
"""
    )
    registry = load_text(tmp_path, text)
    with pytest.raises(InvalidUsage, match="may be the source of") as caught:
        resolve(str(folder(tmp_path, "vdn-minimax-h3")), registry)
    assert caught.value.data["models"] == [VDN, "acme/vdn-minimax-h3"]
    by_cache = folder(tmp_path, "models--acme--vdn-minimax-h3", "snapshots", A)
    assert resolve(str(by_cache), registry).model == "acme/vdn-minimax-h3"


def test_overlay_folder(registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An overlay folder is an entry of its own, keyed as a server keys it: the spelling, and ``local``."""
    root = write_overlay(
        tmp_path / "mine", source_model_id="acme/src", source_revision=A, materializer_version=4, file_mappings=[]
    )
    monkeypatch.chdir(tmp_path)
    resolution = resolve("./mine", registry)
    entry = resolution.entry

    assert (resolution.model, entry.source, entry.overlay) == ("acme/src", Pin("acme/src", A), Pin(str(root), LOCAL))
    assert (entry.recipe.name, entry.needs, entry.materializer_version) == ("mappings", (), "4")
    assert entry.server == ServerSpec("./mine", LOCAL, A)
    assert entry.place.file == str(root / "_overlay/overlay_manifest.json")
    assert "--model-path ./mine" in resolution.notes[-1]
    assert sglang.identity_of(entry, "f" * 64).fields == {
        "source_model_id": "acme/src",
        "overlay_repo_id": "./mine",
        "overlay_revision": "local",
        "materializer_version": "v1",
        "overlay_fingerprint": "f" * 64,
        "source_revision": A,
    }


def test_overlay_folder_of_a_known_source(registry: Registry, tmp_path: Path) -> None:
    """What an overlay folder does not say comes from the registry's entry of its source."""
    root = write_overlay(tmp_path / "o", source_model_id=VDN, custom_materializer="_overlay/materialize.py")
    resolution = resolve(str(root), registry)
    known = registry.entries[VDN]
    assert (resolution.entry.source, resolution.entry.needs) == (known.source, known.needs)
    assert resolution.entry.recipe == known.recipe
    assert resolution.entry.server == ServerSpec(str(root), LOCAL, None)
    assert resolution.notes[0] == f"what the overlay does not say comes from {VDN} in {registry.path}"


@pytest.mark.parametrize(("custom", "recipe"), [("_overlay/materialize.py", "python"), (None, "mappings")])
def test_overlay_folder_with_a_script(registry: Registry, tmp_path: Path, custom: str | None, recipe: str) -> None:
    """An unknown overlay with a script needs its Python; the source of one that pins none floats."""
    manifest = {"source_model_id": "acme/src", **({"custom_materializer": custom} if custom else {})}
    entry = resolve(str(write_overlay(tmp_path / "o", **manifest)), registry).entry
    assert entry.recipe.name == recipe
    assert entry.source == Pin("acme/src", None, "the overlay's manifest names no source_revision")


def test_overlay_folder_with_a_branch_floats(registry: Registry, tmp_path: Path) -> None:
    """A branch in a manifest is no pin; it still enters the server's key as it stands."""
    root = write_overlay(tmp_path / "o", source_model_id="acme/src", source_revision="main")
    entry = resolve(str(root), registry).entry
    assert entry.source.revision is None
    assert "main, which is no commit" in (entry.source.floating or "")
    assert entry.server is not None
    assert entry.server.source_revision == "main"


@pytest.mark.parametrize("name", [None, "../../x", "", "x"])
def test_h16_overlay_folder_must_name_its_source(registry: Registry, tmp_path: Path, name: str | None) -> None:
    """A manifest without a source, or with one that is no repo id, is refused: it would name a directory."""
    root = write_overlay(tmp_path / "o", **({} if name is None else {"source_model_id": name}))
    with pytest.raises(BrokenInput, match=r"overlay_manifest\.json: source_model_id is") as caught:
        resolve(str(root), registry)
    assert caught.value.code == "no-source-model-id"


def test_broken_manifest_is_named(registry: Registry, tmp_path: Path) -> None:
    """A manifest that is no JSON is an error of that file."""
    root = write_overlay(tmp_path / "o")
    (root / "_overlay/overlay_manifest.json").write_text("{")
    with pytest.raises(BrokenInput, match=r"overlay_manifest\.json"):
        resolve(str(root), registry)


@pytest.mark.parametrize(
    ("model", "code", "hint"),
    [
        ("OpenVDN/vdn-minmax-h3", "unknown-model", f"did you mean {VDN}?"),
        ("openvdn/VDN-minimax-h3", "unknown-model", f"did you mean {VDN}?"),
        ("vdn-minimax-h3", "unknown-model", f"did you mean {VDN}?"),
        ("zzz/qqq", "unknown-model", f"known models: {VDN}, "),
        ("", "unknown-model", "known models: "),
        ("kevin-mi/VDN-H3-overlay", "overlay-not-model", f"name the model, {VDN}; or add --for sglang"),
        ("./nowhere/vdn-minimax-h3", "no-such-folder", "ls nowhere"),
        ("/nowhere/x", "no-such-folder", "ls /nowhere"),
        ("a\0b/c", "unknown-model", "known models: "),
    ],
)
def test_unknown_names(registry: Registry, model: str, code: str, hint: str) -> None:
    """An unknown name is a usage error with what is close, or with what there is."""
    with pytest.raises(InvalidUsage) as caught:
        resolve(model, registry)
    assert (caught.value.code, caught.value.exit_status) == (code, 2)
    assert (caught.value.hint or "").startswith(hint)


def test_a_server_takes_an_overlay_for_its_model(registry: Registry) -> None:
    """The pins are the entry's; the server was given the repo id and asks for its main."""
    entry = registry.entries[VDN]
    found = resolve("kevin-mi/VDN-H3-overlay", registry, served=True)
    assert found.entry == replace(entry, server=ServerSpec("kevin-mi/VDN-H3-overlay", "main", None, by="name"))
    assert found.notes[-1].endswith("--model-path kevin-mi/VDN-H3-overlay")


def test_an_overlay_of_several_models_stands_for_none(registry: Registry) -> None:
    """Each of them is named."""
    entries = {**registry.entries, "org/second": replace(registry.entries[VDN], model="org/second")}
    with pytest.raises(InvalidUsage) as caught:
        resolve("kevin-mi/VDN-H3-overlay", replace(registry, entries=entries), served=True)
    assert (caught.value.code, caught.value.data["models"]) == ("overlay-not-model", [VDN, "org/second"])


def test_file_is_no_model(registry: Registry, tmp_path: Path) -> None:
    """A file in the place of a folder is named as such."""
    (tmp_path / "vdn-minimax-h3").write_text("")
    with pytest.raises(InvalidUsage, match="is a file"):
        resolve(str(tmp_path / "vdn-minimax-h3"), registry)


@pytest.mark.with_torch
def test_imports_stay_light() -> None:
    """Importing the package reads no file and needs neither pydantic, a YAML reader, the Hub client nor torch."""
    heavy = "{'pydantic', 'ruamel', 'ruamel.yaml', 'huggingface_hub', 'torch'}"
    program = f"import sys, overlay.registry, overlay.consumers.sglang; print(sorted({heavy} & set(sys.modules)))"
    output = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert output.strip() == "[]"
    loading = "import sys, overlay.registry as r; r.resolve('OpenVDN/vdn-minimax-h3', r.load_registry()); "
    program = loading + "print(sorted({'huggingface_hub', 'torch', 'numpy'} & set(sys.modules)))"
    output = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert output.strip() == "[]"
