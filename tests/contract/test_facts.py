"""What a lock says of the repos of a model, held against the files themselves."""

from __future__ import annotations

import hashlib
import json
import struct
from typing import TYPE_CHECKING

import pytest
from hub_server import HubServer
from support.contracts import MODEL, edit_json, make_hub, next_source, subject_of
from support.hubs import client_of

from overlay.contract.facts import lock_model, meaning_of
from overlay.contract.subject import Subject
from overlay.demo.checkpoint import NEEDS_REPO, OVERLAY_REPO, SOURCE_REPO
from overlay.demo.documents import adapter_ranks
from overlay.fingerprint import DigestMemo
from overlay.formats.licenses import is_license
from overlay.hub import take_inventory
from overlay.hub.contents import Contents
from overlay.planning.recipes import make_plan
from overlay.registry.lock import Lock, dump_lock

if TYPE_CHECKING:
    from pathlib import Path

    from overlay.demo.checkpoint import HubFolder
    from overlay.registry.lock import LockedModel

pytestmark = pytest.mark.no_torch

STAGE = "stage-dmd-step-250"


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> HubFolder:
    return make_hub(tmp_path_factory.mktemp("facts"))


@pytest.fixture(scope="module")
def locked(hub: HubFolder, tmp_path_factory: pytest.TempPathFactory) -> LockedModel:
    subject = subject_of(hub, tmp_path_factory.mktemp("registry"))
    return lock_model(subject, make_plan(subject.inventory))


def tensors_of(path: Path) -> dict[str, tuple[str, list[int]]]:
    """Names, dtypes and shapes of a safetensors file, read with the standard library alone."""
    with path.open("rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(length))
    return {name: (info["dtype"], info["shape"]) for name, info in header.items() if name != "__metadata__"}


def test_every_file_is_what_lies_there(hub: HubFolder, locked: LockedModel) -> None:
    """Size and sha256 of each locked file are those of the file; a safetensors file has its number of tensors."""
    folders = {SOURCE_REPO: hub.source_folder, OVERLAY_REPO: hub.overlay_folder, NEEDS_REPO: hub.needs_folder}
    seen = 0
    for name, repo in locked.repos.items():
        assert repo.revision == folders[name].name
        for path, file in repo.files.items():
            data = (folders[name] / path).read_bytes()
            assert (file.size, file.sha256) == (len(data), hashlib.sha256(data).hexdigest()), path
            weights = path.endswith(".safetensors")
            assert file.tensors == (len(tensors_of(folders[name] / path)) if weights else None)
            assert (file.header is not None) == weights
            seen += 1
    assert seen > 30


def test_locks_what_is_needed_and_nothing_else(hub: HubFolder, locked: LockedModel) -> None:
    """Base, stage, overlay and components with their licences and descriptions; no other stage, no README."""
    source = locked.repos[SOURCE_REPO]
    everything = {path.relative_to(hub.source_folder).as_posix() for path in hub.source_folder.rglob("*.*")}

    assert {"LICENSE", f"{STAGE}/model_spec.json", f"{STAGE}/adapters/turbo/adapter_spec.json"} <= source.files.keys()
    assert {path for path in everything if path.startswith("h3-base/") and "scheduler" not in path} <= set(source.files)
    assert not [path for path in source.files if path.startswith("stage-b") or path == "README.md"]
    assert source.licenses == ("LICENSE",)
    assert sorted(locked.repos[OVERLAY_REPO].files) == [
        "README.md",
        "_overlay/materialize.py",
        "_overlay/overlay_manifest.json",
        "model_index.json",
    ]
    needs = locked.repos[NEEDS_REPO]
    assert needs.components == ("text_encoder", "tokenizer", "processor")
    assert {path.partition("/")[0] for path in needs.files} == {"text_encoder", "tokenizer", "processor"}


def test_says_what_the_adapters_mean(hub: HubFolder, locked: LockedModel) -> None:
    """Pairs, ranks and scales are those that the adapters were made with, in the order of fusing."""
    assert [adapter.name for adapter in locked.adapters] == ["default", "turbo"]
    for adapter in locked.adapters:
        ranks = adapter_ranks(hub.preset, adapter.name)
        assert adapter.pairs == len(ranks)
        assert adapter.ranks == tuple(sorted(set(ranks.values())))
        assert adapter.scales == (1.0,)
        assert adapter.meaning == meaning_of((f"{module}.weight", rank, 1.0) for module, rank in ranks.items())
        assert adapter.weights == f"{SOURCE_REPO}/{STAGE}/adapters/{adapter.name}/adapter_model.safetensors"
        assert adapter.spec == f"{SOURCE_REPO}/{STAGE}/adapters/{adapter.name}/adapter_spec.json"


def test_names_the_script_and_the_location(hub: HubFolder, locked: LockedModel, tmp_path: Path) -> None:
    """The overlay's script has its sha256, and the location is the one that the plan has."""
    script = (hub.overlay_folder / "_overlay/materialize.py").read_bytes()

    assert locked.script is not None
    assert (locked.script.path, locked.script.sha256) == ("_overlay/materialize.py", hashlib.sha256(script).hexdigest())
    assert locked.location == make_plan(subject_of(hub, tmp_path).inventory).location


def test_another_alpha_is_another_meaning(tmp_path: Path) -> None:
    """What changes the scale of a pair changes the digest of what the adapter means."""
    hub = make_hub(tmp_path)
    before = lock_model(subject := subject_of(hub, tmp_path), make_plan(subject.inventory))
    bumped = next_source(hub, "alpha")
    edit_json(
        bumped.source_folder / f"{STAGE}/adapters/default/adapter_spec.json",
        lambda document: document["config"].update(alpha=16),
    )
    edit_json(
        bumped.source_folder / f"{STAGE}/model_spec.json",
        lambda document: document["adapters"][0]["config"].update(alpha=16),
    )
    after = lock_model(subject := subject_of(bumped, tmp_path), make_plan(subject.inventory))

    assert after.adapters[0].scales == (2.0,)
    assert after.adapters[0].meaning != before.adapters[0].meaning
    assert after.adapters[1] == before.adapters[1]


def test_the_lock_does_not_tell_where_the_repos_came_from(
    hub: HubFolder, locked: LockedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the Hub, which knows small files by git blobs, and from a folder: the same bytes; no weights are fetched."""
    resolution = subject_of(hub, tmp_path).inventory.resolution
    with HubServer(hub.root) as server, client_of(server, monkeypatch, tmp_path / "hf/hub"):
        inventory = take_inventory(resolution, hub=None, offline=False, memo=DigestMemo(None), allow_floating=False)
        from_hub = lock_model(Subject(inventory), make_plan(inventory), Contents(tmp_path / "contents"))

        assert dump_lock(Lock(models={MODEL: from_hub})) == dump_lock(Lock(models={MODEL: locked}))
        assert server.payload() == 0


@pytest.mark.parametrize(
    ("path", "is_one"),
    [
        ("LICENSE", True),
        ("LICENSE.md", True),
        ("licence.txt", True),
        ("LICENSE-APACHE", True),
        ("sub/folder/NOTICE", True),
        ("COPYING.LESSER", True),
        ("License", True),
        ("LICENSES/readme.txt", False),
        ("licensed.py", False),
        ("README.md", False),
        ("model_license.json", False),
    ],
)
def test_knows_a_licence_by_its_name(path: str, is_one: bool) -> None:  # noqa: FBT001  # a table
    """Licences and what belongs to them, in any folder and spelling, and nothing that merely sounds like one."""
    assert is_license(path) is is_one


def test_meaning_is_free_of_order_and_of_nothing_else() -> None:
    """Pairs in any order mean the same; another target, rank or scale does not."""
    pairs = [("a.weight", 8, 1.0), ("b.weight", 4, 0.5)]

    assert meaning_of(pairs) == meaning_of(reversed(pairs))
    for other in (
        [("a.weight", 8, 1.0), ("c.weight", 4, 0.5)],
        [("a.weight", 8, 1.0), ("b.weight", 8, 0.5)],
        [("a.weight", 8, 1.0), ("b.weight", 4, 0.5000000596046448)],
        pairs[:1],
        [],
    ):
        assert meaning_of(other) != meaning_of(pairs)


def test_an_entry_of_its_own_script_is_locked_without_a_plan(tmp_path: Path) -> None:
    """Recipe python: metadata, script, licence, the files that the manifest requires, and the location."""
    hub = make_hub(tmp_path)
    text = (
        f"schema_version: 1\nmodels:\n  {MODEL}:\n    source: {{revision: {hub.source}}}\n"
        f"    overlay: {{repo: {OVERLAY_REPO}, revision: {hub.overlay}}}\n    recipe: {{name: python}}\n    needs: []\n"
    )
    subject = subject_of(hub, tmp_path, registry=text)
    locked = lock_model(subject, None)
    required = json.loads((hub.overlay_folder / "_overlay/overlay_manifest.json").read_bytes())["required_source_files"]

    assert locked.recipe == {"name": "python"}
    assert set(required) | {"LICENSE"} <= locked.repos[SOURCE_REPO].files.keys()
    assert not [path for path in locked.repos[SOURCE_REPO].files if "transformer/diffusion_pytorch_model-0" in path]
    assert locked.script is not None
    assert locked.location == make_plan(subject_of(hub, tmp_path).inventory).location
    assert locked.adapters == ()
