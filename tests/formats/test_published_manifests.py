"""The manifests of published overlays: every one is read, with what it takes of its source."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from support.manifests import MANIFESTS, OverlayManifest

from overlay.errors import BrokenInput
from overlay.formats.files import Folder
from overlay.formats.manifest import Manifest, read_manifest

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.no_torch


def read(folder: Path, document: Any) -> Manifest:
    """The manifest of an overlay folder."""
    (folder / "_overlay").mkdir()
    (folder / "_overlay/overlay_manifest.json").write_text(json.dumps(document))
    return read_manifest(Folder(folder))


@pytest.mark.parametrize("known", MANIFESTS.values(), ids=MANIFESTS)
def test_a_published_manifest_says_what_its_fields_say(tmp_path: Path, known: OverlayManifest) -> None:
    """Nothing is lost, renamed or added on the way, but defaults."""
    manifest, document = read(tmp_path, known.document), known.document

    for name in ("source_model_id", "custom_materializer"):
        assert getattr(manifest, name) == document.get(name)
    assert manifest.materializer_version == document.get("materializer_version", "v1")
    assert manifest.source_revision is None
    assert manifest.required_source_files == tuple(document.get("required_source_files", ()))
    patterns = document.get("source_allow_patterns")
    assert manifest.source_allow_patterns == (None if patterns is None else tuple(patterns))
    said = [{"type": "file", **mapping} for mapping in document.get("file_mappings", ())]
    assert [mapping.model_dump(exclude_none=True) for mapping in manifest.file_mappings] == said


def test_what_the_published_manifests_ask_for(tmp_path: Path) -> None:
    """As many required files and mappings as were published."""
    counts = {}
    for number, (name, known) in enumerate(MANIFESTS.items()):
        (tmp_path / str(number)).mkdir()
        manifest = read(tmp_path / str(number), known.document)
        counts[name] = (len(manifest.required_source_files), len(manifest.file_mappings))
    assert list(counts.values()) == [(12, 1), (3, 0), (9, 8), (6, 5), (1, 1), (0, 0)]


@pytest.mark.parametrize("name", ["required_source_files", "file_mappings", "source_allow_patterns"])
def test_null_is_as_if_it_were_absent(tmp_path: Path, name: str) -> None:
    """As servers take it: they ask whether there is any."""
    assert read(tmp_path, {name: None}) == Manifest()


@pytest.mark.parametrize(
    ("mapping", "words"),
    [
        ({"src": "a", "dst": None}, "file_mappings.0.file.dst"),
        ({"type": "tree", "src": "a", "dst_dir": None}, "file_mappings.0.tree.dst_dir"),
        ({"type": None, "src": "a"}, "type should be file, glob or tree"),
        ({"type": "copy", "src": "a"}, "type should be file, glob or tree"),
        ({"type": "file"}, "file_mappings.0.file.src"),
        ({"src": None}, "file_mappings.0.file.src"),
        ({"src": ""}, "is empty"),
    ],
)
def test_what_servers_take_for_something_nobody_meant(tmp_path: Path, mapping: dict[str, Any], words: str) -> None:
    """A null destination becomes the name None there, and an unknown type a file: neither is built here."""
    with pytest.raises(BrokenInput, match=words):
        read(tmp_path, {"file_mappings": [mapping]})
