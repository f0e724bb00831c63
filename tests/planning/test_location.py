"""Where a consumer looks for a model, by the overlay's own files."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from support.hubs import add_repo, commit

from overlay.consumers import sglang
from overlay.fingerprint import DigestMemo
from overlay.formats.manifest import read_manifest
from overlay.formats.overlay_repo import METADATA_PATTERNS
from overlay.hub import HubRepo, open_repo
from overlay.planning.location import fingerprint_notes, overlay_identity
from overlay.registry import Entry, Pin, Place, Recipe

if TYPE_CHECKING:
    from pathlib import Path

    from overlay.consumers.sglang import Identity
    from overlay.hub import Repo

pytestmark = pytest.mark.no_torch

FILES = {"_overlay/overlay_manifest.json": b'{"source_model_id": "org/model"}', "README.md": b"hi\n"}
PINNED = Pin("org/overlay", commit("b"))


def entry(overlay: Pin, fingerprint: str | None = None) -> Entry:
    recipe = Recipe("mappings", {})
    return Entry("org/model", Pin("org/model", commit("a")), overlay, fingerprint, (), recipe, Place("r", 1, 1))


def opened(pin: Pin, hub: Path | None) -> Repo:
    memo = DigestMemo(None)
    return open_repo(pin, hub=hub, offline=True, memo=memo, allow_floating=True, only=METADATA_PATTERNS)


def identified(entry: Entry, overlay: Repo) -> Identity:
    return overlay_identity(entry, overlay, read_manifest(overlay))


def test_of_a_repo_what_a_server_downloads_counts(tmp_path: Path) -> None:
    """A licence or a picture in the folder of a repo leaves the location alone."""
    add_repo(tmp_path, PINNED.repo, commit("b"), {**FILES, "LICENSE": b"MIT"})

    identity = identified(entry(PINNED), opened(PINNED, tmp_path))

    assert identity.overlay_fingerprint == sglang.overlay_fingerprint(FILES.items())


@pytest.mark.parametrize("left", [".cache/huggingface/download/README.md", ".git/config.json"])
def test_what_a_download_leaves_behind_does_not_change_the_location(tmp_path: Path, left: str) -> None:
    """``hf download --local-dir`` and git keep books of their own in the folder."""
    add_repo(tmp_path, PINNED.repo, commit("b"), {**FILES, left: b"{}"})

    identity = identified(entry(PINNED), opened(PINNED, tmp_path))

    assert identity.overlay_fingerprint == sglang.overlay_fingerprint(FILES.items())


def test_a_folder_in_place_of_an_unpinned_repo_is_that_repo(tmp_path: Path) -> None:
    """A revision without a commit, such as ``main``, is still a repo, of which a server downloads only some files."""
    floating = Pin(PINNED.repo, None, "nobody knows")
    add_repo(tmp_path, PINNED.repo, "main", {**FILES, "LICENSE": b"MIT"})

    identity = identified(entry(floating), opened(floating, tmp_path))

    assert identity.overlay_fingerprint == sglang.overlay_fingerprint(FILES.items())


def test_of_an_overlay_folder_everything_counts_that_the_server_walks(tmp_path: Path) -> None:
    """A server hashes a licence in a folder that it uses in place, and does not follow links to folders."""
    folder = add_repo(tmp_path, "org", "mine", {**FILES, "LICENSE": b"MIT"})
    add_repo(tmp_path, "org", "elsewhere", {"notes.md": b"no part of it"})
    (folder / "linked").symlink_to(tmp_path / "org/elsewhere")
    pin = Pin(str(folder), "local")

    identity = identified(entry(pin), opened(pin, None))

    assert identity.overlay_fingerprint == sglang.overlay_fingerprint([*FILES.items(), ("LICENSE", b"MIT")])


@pytest.mark.parametrize(
    ("known", "extras", "notes"),
    [
        (None, (), []),
        ("same", ("unet/one.safetensors",), []),
        ("other", (), ["have the fingerprint"]),
        (None, (".gitattributes", "unet/one.safetensors"), ["holds more than a server fetches (.gitattributes):"]),
        (None, ("notes.py",), ["holds more than a server fetches (notes.py):"]),
    ],
    ids=["unknown", "weights do not count", "other files", "more files", "notes"],
)
def test_why_a_server_may_look_elsewhere_is_noted(known: str | None, extras: Any, notes: list[str]) -> None:
    """Files that differ from the registry's, or that only a snapshot fetched whole has, change a server's directory."""
    fingerprint = sglang.overlay_fingerprint(FILES.items())
    overlay = object.__new__(HubRepo)
    overlay.__dict__.update(snapshot="/hub/snapshot", in_snapshot=lambda: (*FILES, *extras), paths=lambda: [*FILES])
    known_by = {"same": fingerprint, "other": "0" * 64}.get(known or "")
    identity: Any = SimpleNamespace(overlay_fingerprint=fingerprint)

    found = fingerprint_notes(entry(PINNED, known_by), overlay, identity)

    assert len(found) == len(notes)
    assert all(part in note for part, note in zip(notes, found, strict=True))
