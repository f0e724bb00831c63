"""What the manifests of published overlays take of a source: files that are given, files that are mapped, the order."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from support.hubs import add_repo, commit
from support.manifests import MANIFESTS, OverlayManifest

from overlay.errors import BrokenInput
from overlay.formats.files import Folder
from overlay.formats.manifest import Manifest
from overlay.planning.mappings import mapped
from overlay.planning.outputs import CarriedFile, GeneratedFile
from overlay.planning.plan import InputBook
from overlay.planning.scripted import source_files
from overlay.planning.sources import Sources

if TYPE_CHECKING:
    from pathlib import Path

    from overlay.planning.outputs import OutputFile

pytestmark = pytest.mark.no_torch


def sources_of(folder: Path, known: OverlayManifest) -> Sources:
    """A source with the manifest's files, each holding its own path, and an overlay with files of its own."""
    source = add_repo(folder, "acme/source", commit("a"), {path: path for path in known.source})
    own = {"_overlay/overlay_manifest.json": json.dumps(known.document), "README.md": "own", "model_index.json": "{}"}
    overlay = add_repo(folder, "acme/overlay", commit("b"), own)

    def book(root: Path) -> InputBook:
        return InputBook(Folder(root), root.parent.name, root.name, lambda _path: "")

    return Sources(book(source), book(overlay), {}, Manifest.model_validate(known.document))


def by_path(outputs: list[OutputFile]) -> dict[str, str]:
    """Source path, or the overlay's own content, by output path."""
    found = {}
    for output in outputs:
        assert isinstance(output, CarriedFile | GeneratedFile)
        found[output.path] = output.input.path if isinstance(output, CarriedFile) else output.data.decode()
    return found


@pytest.mark.parametrize("known", MANIFESTS.values(), ids=MANIFESTS)
def test_what_a_script_is_given(known: OverlayManifest) -> None:
    """The files that a server fetches, and no other."""
    found = source_files(sorted(known.source), Manifest.model_validate(known.document))

    assert found == sorted(known.given)


@pytest.mark.parametrize(
    ("patterns", "given"),
    [
        (["a/"], ["a/x.json", "need.onnx"]),
        (["*.json", "*.onnx"], ["a/x.json", "need.onnx"]),
        ([], ["a/x.json", "b.bin", "need.onnx"]),
    ],
    ids=["a folder", "what is never fetched", "no pattern"],
)
def test_a_script_is_given_what_the_client_fetches(patterns: list[str], given: list[str]) -> None:
    """A folder stands for what is below it, some suffixes never come, no pattern is every file; required ones come."""
    manifest = Manifest(source_allow_patterns=patterns, required_source_files=["need.onnx"])

    assert source_files(["a/x.json", "a/y.onnx", "b.bin", "need.onnx"], manifest) == given


@pytest.mark.parametrize("known", MANIFESTS.values(), ids=MANIFESTS)
def test_what_is_mapped(tmp_path: Path, known: OverlayManifest) -> None:
    """The overlay's own files, and what the mappings take, each to its place."""
    made = by_path(mapped(sources_of(tmp_path, known), sorted(known.given)))

    assert made == {"README.md": "own", "model_index.json": "{}", **known.mapped}


@pytest.mark.parametrize("known", [one for one in MANIFESTS.values() if one.mapped], ids=str)
def test_a_mapping_without_a_file_is_refused(tmp_path: Path, known: OverlayManifest) -> None:
    """Once for the whole manifest: it belongs to another source."""
    left = [path for path in known.given if path not in known.mapped.values()]

    with pytest.raises(BrokenInput) as caught:
        mapped(sources_of(tmp_path, known), left)
    assert caught.value.code == "mapping-without-match"


def test_later_mappings_have_the_last_word(tmp_path: Path) -> None:
    """In the order of the manifest, over the overlay's own files."""
    mappings = [
        {"type": "tree", "src": "a", "dst_dir": "out"},
        {"src": "b/x.json", "dst": "out/x.json"},
        {"src": "b/x.json", "dst": "README.md"},
        {"type": "glob", "src": "**/y.*"},
    ]
    known = OverlayManifest({"file_mappings": mappings}, ("a/x.json", "a/y.json", "b/x.json"), (), {})
    made = by_path(mapped(sources_of(tmp_path, known), known.source))

    expected = {"README.md": "b/x.json", "a/y.json": "a/y.json", "out/x.json": "b/x.json", "out/y.json": "a/y.json"}
    assert made == expected | {"model_index.json": "{}"}
