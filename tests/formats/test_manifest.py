"""Overlay manifests: typed mappings, contained paths."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from pydantic import ValidationError

from overlay.errors import BrokenInput, NotHere
from overlay.formats.files import Folder
from overlay.formats.manifest import FileMapping, GlobMapping, Manifest, TreeMapping, read_manifest

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.no_torch


def _read(folder: Path, document: Any) -> Manifest:
    (folder / "_overlay").mkdir()
    (folder / "_overlay" / "overlay_manifest.json").write_text(json.dumps(document))
    return read_manifest(Folder(folder))


def test_a_manifest_like_the_published_one(tmp_path: Path) -> None:
    """Every field of the VDN-H3 overlay's manifest is read."""
    manifest = _read(
        tmp_path,
        {
            "source_model_id": "OpenVDN/vdn-minimax-h3",
            "materializer_version": "v1",
            "custom_materializer": "_overlay/materialize.py",
            "source_allow_patterns": ["h3-base/**", "*.json", "LICENSE"],
            "required_source_files": ["h3-base/transformer/config.json"],
            "file_mappings": [{"type": "tree", "src": "h3-base/audio_vae", "dst_dir": "audio_vae"}],
        },
    )

    assert manifest.source_model_id == "OpenVDN/vdn-minimax-h3"
    assert manifest.source_revision is None
    assert manifest.source_allow_patterns == ("h3-base/**", "*.json", "LICENSE")
    assert manifest.required_source_files == ("h3-base/transformer/config.json",)
    assert manifest.custom_materializer == "_overlay/materialize.py"
    (mapping,) = manifest.file_mappings
    assert isinstance(mapping, TreeMapping)
    assert (mapping.src, mapping.destination) == ("h3-base/audio_vae", "audio_vae")


def test_an_empty_manifest_has_the_documented_defaults(tmp_path: Path) -> None:
    """Every field may be absent."""
    manifest = _read(tmp_path, {})

    assert manifest == Manifest()
    assert manifest.materializer_version == "v1"
    assert manifest.source_allow_patterns is None
    assert (manifest.required_source_files, manifest.file_mappings) == ((), ())


@pytest.mark.parametrize(
    ("value", "kind", "src", "destination"),
    [
        ({"src": "a/b/c.json"}, FileMapping, "a/b/c.json", "c.json"),
        ({"type": "file", "src": "./a.json", "dst": "x//y.json"}, FileMapping, "a.json", "x/y.json"),
        ({"type": "tree", "src": "a/b"}, TreeMapping, "a/b", "a/b"),
        ({"type": "tree", "src": "a/b/", "dst_dir": "c"}, TreeMapping, "a/b", "c"),
        ({"type": "tree", "src": ".", "dst_dir": "c"}, TreeMapping, "", "c"),
        ({"type": "tree", "src": "a", "dst_dir": "./"}, TreeMapping, "a", ""),
        ({"type": "glob", "src": "**/*.json"}, GlobMapping, "**/*.json", None),
    ],
)
def test_mappings_are_typed_with_their_defaults(
    tmp_path: Path, value: dict[str, str], kind: type, src: str, destination: str | None
) -> None:
    """``file`` is the default type and drops folders; ``tree`` keeps them; ``glob`` has no destination."""
    (mapping,) = _read(tmp_path, {"file_mappings": [value]}).file_mappings

    assert type(mapping) is kind
    assert mapping.src == src
    assert getattr(mapping, "destination", None) == destination


@pytest.mark.parametrize(("value", "text"), [("v4", "v4"), (4, "4"), (1.5, "1.5"), (True, "True"), (None, "None")])
def test_the_materializer_version_is_text_whatever_its_type(tmp_path: Path, value: Any, text: str) -> None:
    """SGLang puts ``str()`` of it into the key of the folder."""
    assert _read(tmp_path, {"materializer_version": value}).materializer_version == text


def test_unknown_fields_are_kept(tmp_path: Path) -> None:
    """SGLang hands the whole document to the overlay's own code, which may want more than the known fields."""
    manifest = _read(tmp_path, {"vae": {"keep": True}, "file_mappings": [{"src": "a", "comment": "why"}]})

    assert manifest.model_extra == {"vae": {"keep": True}}
    assert manifest.file_mappings[0].model_extra == {"comment": "why"}


@pytest.mark.parametrize("path", ["../x", "/etc/passwd", "a/../../x", "a\\b", "a\0b", ""])
@pytest.mark.parametrize(
    ("place", "build"),
    [
        ("file_mappings.0.file.src", lambda path: {"file_mappings": [{"src": path}]}),
        ("file_mappings.0.file.dst", lambda path: {"file_mappings": [{"src": "a", "dst": path}]}),
        ("file_mappings.0.tree.src", lambda path: {"file_mappings": [{"type": "tree", "src": path}]}),
        (
            "file_mappings.0.tree.dst_dir",
            lambda path: {"file_mappings": [{"type": "tree", "src": "a", "dst_dir": path}]},
        ),
        ("file_mappings.0.glob.src", lambda path: {"file_mappings": [{"type": "glob", "src": path}]}),
        ("required_source_files.1", lambda path: {"required_source_files": ["a", path]}),
        ("custom_materializer", lambda path: {"custom_materializer": path}),
    ],
)
def test_h16_every_path_is_contained(tmp_path: Path, place: str, build: Any, path: str) -> None:
    """SGLang joins these paths as they come; here the error names the file, the field and the path."""
    with pytest.raises(BrokenInput) as caught:
        _read(tmp_path, build(path))

    assert caught.value.code == "unsafe-path"
    assert f"_overlay/overlay_manifest.json: {place}: manifest path: {path!r} " in str(caught.value)


@pytest.mark.parametrize(
    ("document", "text"),
    [
        ([], "document: Input should be a valid dictionary"),
        ({"source_model_id": 3}, "source_model_id: Input should be a valid string"),
        ({"source_allow_patterns": "*.json"}, "source_allow_patterns: Input should be a valid tuple"),
        ({"required_source_files": {"a": 1}}, "required_source_files: Input should be a valid tuple"),
        ({"file_mappings": {}}, "file_mappings: Input should be a valid tuple"),
        ({"file_mappings": [3]}, "file_mappings.0: type should be file, glob or tree"),
        ({"file_mappings": [{"type": "zip", "src": "a"}]}, "file_mappings.0: type should be file, glob or tree"),
        ({"file_mappings": [{"type": ["file"], "src": "a"}]}, "file_mappings.0: type should be file, glob or tree"),
        ({"file_mappings": [{"dst": "a"}]}, "file_mappings.0.file.src: Field required"),
        (
            {"file_mappings": [{"type": "glob", "src": "*", "dst": "a"}]},
            "file_mappings.0.glob.dst: Input should be None",
        ),
        ({"file_mappings": [{"type": "tree", "src": "a", "dst": "b"}]}, "file_mappings.0.tree.dst: Input should be N"),
        ({"file_mappings": [{"src": "a", "dst_dir": "b"}]}, "file_mappings.0.file.dst_dir: Input should be None"),
    ],
)
def test_what_would_silently_do_something_else_is_refused(tmp_path: Path, document: Any, text: str) -> None:
    """Wrong types, unknown mappings, and a destination that this type of mapping would ignore."""
    with pytest.raises(BrokenInput) as caught:
        _read(tmp_path, document)

    assert caught.value.code == "bad-manifest"
    assert str(caught.value).startswith(f"{tmp_path}/_overlay/overlay_manifest.json: ")
    assert text in str(caught.value)


def test_no_manifest(tmp_path: Path) -> None:
    """A repo without one is told apart from a repo with a bad one."""
    with pytest.raises(NotHere, match=r"overlay_manifest\.json: no such file"):
        read_manifest(Folder(tmp_path))


def test_a_manifest_is_a_value(tmp_path: Path) -> None:
    """Nothing changes it once it was checked."""
    manifest = _read(tmp_path, {"custom_materializer": "a.py"})

    with pytest.raises(ValidationError):
        manifest.custom_materializer = "../b.py"
