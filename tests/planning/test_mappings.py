"""Recipe ``mappings``: an overlay manifest's file, glob and tree mappings."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from support.hubs import add_repo, commit, shard
from support.models import write_registry

from overlay.errors import BrokenInput, Untrusted
from overlay.materialization.request import Options
from overlay.planning.outputs import CarriedFile, GeneratedFile
from overlay.planning.plan import finish

if TYPE_CHECKING:
    from pathlib import Path

    from conftest import Planner

pytestmark = pytest.mark.no_torch

MARKER = ".sglang_overlay_materialized.json"
SOURCE = {
    "a.json": "1",
    "LICENSE": "free",
    "unet/config.json": "2",
    "unet/model.safetensors": shard("w"),
    "unet/deep/er/x.json": "3",
    "unet/.hidden.json": "4",
    "unet/.secret/y.json": "5",
    "vae/model.safetensors": shard("v"),
    "vae/odd.bin": b"\x80",
}
# What an overlay has to bring for a server to load anything.
PAPERS = {
    "model_index.json": json.dumps({"_class_name": "P", "_diffusers_version": "0", "scheduler": ["diffusers", "S"]}),
    "scheduler/scheduler_config.json": "{}",
}


def mapped(hub: Path, plan_of: Planner, *mappings: dict[str, Any], own: dict[str, str] | None = None) -> dict[str, str]:
    """Which file of the source each output path is; ``own`` for files of the overlay."""
    manifest = json.dumps({"file_mappings": mappings})
    add_repo(hub, "acme/source", commit("a"), SOURCE)
    overlay = {"_overlay/overlay_manifest.json": manifest, **PAPERS, **(own or {})}
    add_repo(hub, "acme/overlay", commit("b"), overlay)
    plan = plan_of("acme/source", mapping_options(hub))
    found = {}
    for output in plan.outputs:
        if isinstance(output, CarriedFile) and not output.path.startswith("licenses/"):
            found[output.path] = output.input.path
        elif isinstance(output, GeneratedFile) and output.path not in {MARKER, *PAPERS}:
            found[output.path] = "own"
    assert MARKER in {output.path for output in plan.outputs}
    return found


def mapping_options(hub: Path, recipe: str = "mappings") -> Options:
    registry = write_registry(
        hub,
        f"""\
  acme/source:
    source: {{revision: {commit("a")}}}
    overlay: {{repo: acme/overlay, revision: {commit("b")}}}
    recipe: {{name: {recipe}}}
""",
    )
    return Options(registry=registry, hub=hub)


@pytest.mark.parametrize(
    ("mapping", "expected"),
    [
        ({"src": "unet/config.json"}, {"config.json": "unet/config.json"}),
        ({"type": "file", "src": "unet/config.json", "dst": "x/y.json"}, {"x/y.json": "unet/config.json"}),
        ({"type": "glob", "src": "*.json"}, {"a.json": "a.json"}),
        ({"type": "glob", "src": "unet/*"}, {p: p for p in ("unet/config.json", "unet/model.safetensors")}),
        (
            {"type": "glob", "src": "**/*.json"},
            {p: p for p in ("a.json", "unet/config.json", "unet/deep/er/x.json")},
        ),
        ({"type": "glob", "src": "**/er/*"}, {"unet/deep/er/x.json": "unet/deep/er/x.json"}),
        ({"type": "glob", "src": "unet/.h*"}, {}),
        ({"src": "unet/config.json", "dst": ".git/config"}, {}),
        ({"src": "unet/.hidden.json", "dst": "seen.json"}, {"seen.json": "unet/.hidden.json"}),
        ({"type": "glob", "src": "[ab].json"}, {"a.json": "a.json"}),
        (
            {"type": "tree", "src": "unet/deep"},
            {"unet/deep/er/x.json": "unet/deep/er/x.json"},
        ),
        ({"type": "tree", "src": "unet/deep", "dst_dir": "d"}, {"d/er/x.json": "unet/deep/er/x.json"}),
        ({"type": "tree", "src": "unet/deep", "dst_dir": "."}, {"er/x.json": "unet/deep/er/x.json"}),
    ],
)
def test_each_kind_of_mapping(hub: Path, plan_of: Planner, mapping: dict[str, Any], expected: dict[str, str]) -> None:
    """As the server's own: a file keeps its last name, a glob its path, a tree its inner paths."""
    assert mapped(hub, plan_of, mapping) == expected


def test_nothing_hidden_comes_to_a_tree(hub: Path, plan_of: Planner) -> None:
    """Neither of a folder that is taken whole, nor of the overlay's own files: tools run what is there."""
    own = {".vscode/tasks.json": "{}", "deep/.GIT/x.json": "{}", "seen.json": "{}"}
    found = mapped(hub, plan_of, {"type": "tree", "src": "unet", "dst_dir": "t"}, own=own)
    assert sorted(found) == ["seen.json", "t/config.json", "t/deep/er/x.json", "t/model.safetensors"]


@pytest.mark.parametrize(
    "paths",
    [
        ("vae/HEAD", "vae/objects/x", "vae/refs/x"),
        ("HEAD", "OBJECTS/x", "refs/x"),
        ("a/b/head", "a/b/commondir"),
    ],
)
def test_a_tree_is_no_git_repository(paths: tuple[str, ...]) -> None:
    """Under no name: whoever typed ``git status`` there would run what its settings say."""
    with pytest.raises(BrokenInput, match="git repository") as caught:
        finish([GeneratedFile(path, b"") for path in (*paths, "model_index.json")], "acme/x")
    assert caught.value.code == "unsafe-path"


@pytest.mark.parametrize("path", [".git/config", "unet/.GIT/config", ".envrc", "a/.vscode/tasks.json", f"a/{MARKER}"])
def test_a_tree_has_nothing_hidden(path: str) -> None:
    """But the server's marker."""
    with pytest.raises(BrokenInput, match="hidden") as caught:
        finish([GeneratedFile(path, b"")], "acme/x")
    assert caught.value.code == "unsafe-path"
    assert finish([GeneratedFile(MARKER, b""), GeneratedFile("HEAD", b"")], "acme/x")


def test_the_overlays_own_files_go_to_the_root_and_later_mappings_replace_them(hub: Path, plan_of: Planner) -> None:
    """Metadata of the overlay without ``_overlay/``; the last mapping at a path wins."""
    found = mapped(
        hub,
        plan_of,
        {"src": "a.json", "dst": "config.json"},
        {"src": "unet/config.json", "dst": "config.json"},
        own={
            "README.md": "x",
            "config.json": "{}",
            "sub/x.txt": "t",
            "_overlay/notes.md": "no",
            "weights.safetensors": "no",
        },
    )
    assert found == {"README.md": "own", "sub/x.txt": "own", "config.json": "unet/config.json"}


@pytest.mark.parametrize(
    "mapping",
    [
        {"src": "nothing.json"},
        {"type": "glob", "src": "*.gguf"},
        {"type": "tree", "src": "une"},
        {"type": "file", "src": "unet"},
        {"type": "glob", "src": "UNET/*"},
    ],
)
def test_a_mapping_that_finds_nothing_is_an_error(hub: Path, plan_of: Planner, mapping: dict[str, Any]) -> None:
    """Never an empty part of a tree; a prefix of a name is not that name, a folder is no file."""
    with pytest.raises(BrokenInput, match="nothing matches") as caught:
        mapped(hub, plan_of, mapping)
    assert caught.value.code == "mapping-without-match"
    assert repr(mapping["src"]) in caught.value.message


@pytest.mark.parametrize(
    "mapping",
    [
        {"src": "../x.json"},
        {"src": "/etc/passwd"},
        {"src": "a.json", "dst": "../out.json"},
        {"src": "a.json", "dst": "/srv/out.json"},
        {"type": "glob", "src": "../*"},
        {"type": "glob", "src": "unet/../../*"},
        {"type": "tree", "src": ".."},
        {"type": "tree", "src": "unet", "dst_dir": "../../home"},
        {"type": "tree", "src": "unet", "dst_dir": "/"},
        {"src": "a.json", "dst": "x\u0000y"},
    ],
)
def test_h16_a_manifest_cannot_lead_out_of_its_folders(hub: Path, plan_of: Planner, mapping: dict[str, Any]) -> None:
    """Neither to read nor to write."""
    with pytest.raises(BrokenInput) as caught:
        mapped(hub, plan_of, mapping)
    assert caught.value.code == "unsafe-path"


@pytest.mark.parametrize(
    "mapping",
    [
        {"src": "a.json", "dst": "licenses/acme__source/LICENSE"},
        {"src": "a.json", "dst": "LICENSES/x"},
        {"src": "a.json", "dst": "overlay_record.json"},
        {"type": "tree", "src": "unet", "dst_dir": "licenses"},
    ],
)
def test_nothing_is_mapped_to_a_place_of_our_own(hub: Path, plan_of: Planner, mapping: dict[str, Any]) -> None:
    """Nobody speaks for another repo's licence, or for the record."""
    with pytest.raises(BrokenInput) as caught:
        mapped(hub, plan_of, mapping)
    assert caught.value.code == "reserved-path"


def test_pickles_are_not_mapped(hub: Path, plan_of: Planner) -> None:
    """A tree mapping over a folder with one."""
    with pytest.raises(BrokenInput, match=r"odd\.bin"):
        mapped(hub, plan_of, {"type": "tree", "src": "vae"})


def test_two_mappings_that_need_one_path_as_file_and_folder(hub: Path, plan_of: Planner) -> None:
    """Refused before anything is written."""
    with pytest.raises(BrokenInput, match="both a file and a folder") as caught:
        mapped(hub, plan_of, {"src": "a.json", "dst": "x"}, {"src": "LICENSE", "dst": "x/LICENSE"})
    assert caught.value.code == "output-collision"


def test_a_component_that_the_model_index_names_must_be_made(hub: Path, plan_of: Planner) -> None:
    """A server would build the tree anew at every start."""
    index = json.dumps({"_class_name": "P", "_diffusers_version": "0", "unet": ["d", "U"], "vae": ["d", "V"]})
    mapping = {"type": "glob", "src": "unet/*"}
    with pytest.raises(BrokenInput, match="vae"):
        mapped(hub, plan_of, mapping, own={"model_index.json": index})


def test_an_overlay_with_a_script_needs_it_pinned(hub: Path, plan_of: Planner) -> None:
    """Mappings alone would not make what it makes; and an entry that says ``python`` is refused without the overlay."""
    manifest = {"file_mappings": [{"src": "a.json"}], "custom_materializer": "_overlay/m.py"}
    add_repo(hub, "acme/source", commit("a"), SOURCE)
    with pytest.raises(Untrusted) as caught:
        plan_of("acme/source", mapping_options(hub, "python"))
    assert (caught.value.code, caught.value.exit_status) == ("script-not-pinned", 7)
    add_repo(hub, "acme/overlay", commit("b"), {"_overlay/overlay_manifest.json": json.dumps(manifest)})
    with pytest.raises(Untrusted):
        plan_of("acme/source", mapping_options(hub))
