"""File mappings of manifests, against what released servers make of them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from server_child import ask
from support.hubs import add_repo, commit
from support.manifests import MANIFESTS
from support.published_rule import files_of
from support.servers import SGLANG_RELEASES, unpacked

from overlay.errors import BrokenInput
from overlay.formats.files import Folder
from overlay.formats.manifest import read_manifest
from overlay.formats.tree_files import is_hidden
from overlay.planning.mappings import mapped
from overlay.planning.outputs import CarriedFile
from overlay.planning.plan import InputBook
from overlay.planning.sources import Sources

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.slow

FILES = (
    *("a.json", "deep/b.json", "deep/er/c.json", "deep/er/d.txt", "deep/.hidden.json", ".dot/e.json"),
    *("with space/f.json", "deep/b[1].json", "deep/er.json"),
)
# Mappings in the corners of what a manifest may say.
MAPPINGS: dict[str, list[dict[str, Any]]] = {
    "a file": [{"src": "deep/b.json"}],
    "a file to a place": [{"src": "deep/b.json", "dst": "x/y/z"}],
    "a file, spelled otherwise": [{"type": "file", "src": "./deep//b.json"}],
    "a folder as a file": [{"src": "deep"}],
    "an absent file": [{"src": "nothing"}],
    "a tree": [{"type": "tree", "src": "deep"}],
    "a tree to a place": [{"type": "tree", "src": "deep", "dst_dir": "other/place"}],
    "a tree to the root": [{"type": "tree", "src": "deep", "dst_dir": "."}],
    "a tree with a slash": [{"type": "tree", "src": "deep/er/", "dst_dir": "x"}],
    "the whole source": [{"type": "tree", "src": ".", "dst_dir": "all"}],
    "a file as a tree": [{"type": "tree", "src": "a.json"}],
    "a glob": [{"type": "glob", "src": "*.json"}],
    "a glob of folders": [{"type": "glob", "src": "**/*.json"}],
    "a glob below": [{"type": "glob", "src": "deep/**"}],
    "a glob of one character": [{"type": "glob", "src": "deep/?.json"}],
    "a glob of a class": [{"type": "glob", "src": "deep/b[[]1].json"}],
    "a glob of what is hidden": [{"type": "glob", "src": "**/.*"}],
    "a glob of nothing": [{"type": "glob", "src": "*.bin"}],
    "no source": [{"type": "glob"}],
    "the last word": [
        {"type": "tree", "src": "deep", "dst_dir": "."},
        {"src": "a.json", "dst": "b.json"},
        {"type": "glob", "src": "deep/er.json"},
    ],
}


def ours(folder: Path, mappings: list[dict[str, Any]], source: Path) -> dict[str, bytes] | None:
    """What we would bring to each path; None where we refuse."""
    manifest = {"_overlay/overlay_manifest.json": json.dumps({"file_mappings": mappings})}
    overlay = add_repo(folder, "acme/overlay", commit("b"), manifest)

    def book(root: Path) -> InputBook:
        return InputBook(Folder(root), "acme/x", "local", lambda _path: "")

    try:
        outputs = mapped(
            Sources(book(source), book(overlay), {}, read_manifest(Folder(overlay))), Folder(source).paths()
        )
    except BrokenInput:
        return None
    return {item.path: (source / item.input.path).read_bytes() for item in outputs if isinstance(item, CarriedFile)}


def asked(release: str, folder: Path, each: list[tuple[Path, list[dict[str, Any]]]]) -> list[dict[str, bytes] | None]:
    """What a server brings to each path; None where it refuses."""
    for number in range(len(each)):
        (folder / str(number)).mkdir(parents=True)
    job = [["map_files", str(source), str(folder / str(n)), mappings] for n, (source, mappings) in enumerate(each)]
    answers = ask(unpacked("sglang", release), job)
    return [None if "raised" in answer else files_of(folder / str(n)) for n, answer in enumerate(answers)]


@pytest.mark.parametrize("release", [SGLANG_RELEASES[0], SGLANG_RELEASES[-1]])
def test_mappings_do_what_a_server_does(tmp_path: Path, release: str) -> None:
    """The same files at the same paths with the same bytes, but no hidden ones, and refused where it refuses."""
    source = add_repo(tmp_path, "acme/source", commit("a"), {path: path for path in FILES})
    found = asked(release, tmp_path / "theirs", [(source, mappings) for mappings in MAPPINGS.values()])
    made = [ours(tmp_path / str(n), mappings, source) for n, mappings in enumerate(MAPPINGS.values())]

    seen = [{path: files[path] for path in files if not is_hidden(path)} if files else files for files in found]
    assert dict(zip(MAPPINGS, made, strict=True)) == dict(zip(MAPPINGS, seen, strict=True))
    refused = {name for name, files in zip(MAPPINGS, found, strict=True) if files is None}
    assert refused == {"a folder as a file", "an absent file", "a file as a tree", "a glob of nothing", "no source"}


def test_published_manifests_map_what_a_server_maps(tmp_path: Path) -> None:
    """Every manifest, on the files of its source that a server fetches."""
    each = []
    for number, known in enumerate(MANIFESTS.values()):
        files = {path: f"{number} {path}" for path in known.given}
        each.append((add_repo(tmp_path, f"acme/{number}", commit("a"), files), known.document.get("file_mappings", [])))
    found = asked(SGLANG_RELEASES[-1], tmp_path / "theirs", each)
    made = [ours(tmp_path / f"ours-{n}", mappings, source) for n, (source, mappings) in enumerate(each)]

    assert made == found
    assert [sorted(files or ()) for files in made] == [sorted(known.mapped) for known in MANIFESTS.values()]
