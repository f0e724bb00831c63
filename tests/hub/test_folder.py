"""Folders in the place of repos, and opening what a resolution names."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import pytest
from support.hubs import add_repo, commit, shard

from overlay.errors import InvalidUsage, NotHere
from overlay.fingerprint import DigestMemo
from overlay.hub import FolderRepo, Inventory, open_repo, take_inventory
from overlay.registry import Entry, Need, Pin, Place, Recipe, Resolution

if TYPE_CHECKING:
    from pathlib import Path

    from conftest import World

    from overlay.hub import Repo

pytestmark = pytest.mark.no_torch

PINNED = Pin("org/base", commit("a"))
FLOATING = Pin("org/base", None, "nobody knows")


def opened(pin: Pin, hub: Path | None, *, allow_floating: bool = True) -> Repo:
    return open_repo(pin, hub=hub, offline=True, memo=DigestMemo(None), allow_floating=allow_floating)


def test_a_pinned_repo_is_the_folder_of_its_commit(tmp_path: Path) -> None:
    """Files are used where they lie; digests are computed; nothing may be linked hard."""
    folder = add_repo(tmp_path, "org/base", commit("a"), {"x/w.safetensors": shard("a"), "README.md": "hi"})
    add_repo(tmp_path, "org/base", commit("b"), {"other": ""})

    repo = opened(PINNED, tmp_path)

    assert repo.paths() == ["README.md", "x/w.safetensors"]
    assert (repo.repo, repo.revision, repo.name) == ("org/base", commit("a"), str(folder))
    assert repo.fetch(["README.md"], None) == {"README.md": folder / "README.md"}
    assert repo.local("x/w.safetensors") == folder / "x/w.safetensors"
    assert repo.digest("README.md") == f"sha256:{hashlib.sha256(b'hi').hexdigest()}"
    assert list(repo.header("x/w.safetensors").tensors) == ["a"]
    assert not repo.shared_store


@pytest.mark.parametrize(
    ("revisions", "chosen", "revision"),
    [
        ([commit("c")], commit("c"), commit("c")),
        ([commit("c"), "main"], "main", "local"),
        (["snapshot"], "snapshot", "local"),
    ],
)
def test_a_floating_repo_is_the_only_revision_or_main(
    tmp_path: Path, revisions: list[str], chosen: str, revision: str
) -> None:
    """A folder that is not named for a commit has none."""
    for name in revisions:
        add_repo(tmp_path, "org/base", name, {"which": name})

    repo = opened(FLOATING, tmp_path)

    assert repo.read_bytes("which").decode() == chosen
    assert repo.revision == revision


def test_a_link_main_to_a_commit_has_that_commit(tmp_path: Path) -> None:
    """Which of several revisions to take can be said by a link."""
    for digit in "ab":
        add_repo(tmp_path, "org/base", commit(digit), {"which": digit})
    (tmp_path / "org/base/main").symlink_to(commit("b"))

    assert opened(FLOATING, tmp_path).revision == commit("b")


def test_several_revisions_and_no_main_are_listed(tmp_path: Path) -> None:
    """Nothing is guessed."""
    for digit in "ab":
        add_repo(tmp_path, "org/base", commit(digit), {"x": ""})

    with pytest.raises(InvalidUsage, match=f"{commit('a')}, {commit('b')}"):
        opened(FLOATING, tmp_path)


@pytest.mark.parametrize("pin", [PINNED, FLOATING], ids=["pinned", "floating"])
@pytest.mark.parametrize("there", [(), (commit("b"), commit("c"))])
def test_a_revision_that_is_not_there_lists_what_is(tmp_path: Path, pin: Pin, there: tuple[str, ...]) -> None:
    """Status 3 for the pinned one; what the folder holds is in the message."""
    for name in there:
        add_repo(tmp_path, "org/base", name, {"x": ""})

    with pytest.raises((NotHere, InvalidUsage), match=", ".join(there) or "no revision at all") as caught:
        opened(pin, tmp_path)

    if pin is PINNED:
        assert caught.value.exit_status == 3
        assert commit("a") in (caught.value.hint or "")


@pytest.mark.parametrize("hub", [True, False], ids=["folder", "hub"])
def test_a_floating_repo_needs_to_be_allowed(tmp_path: Path, *, hub: bool) -> None:
    """The reason that the registry gives is said."""
    with pytest.raises(InvalidUsage, match="nobody knows") as caught:
        opened(FLOATING, tmp_path if hub else None, allow_floating=False)

    assert caught.value.code == "floating-pin"
    assert "--allow-floating" in (caught.value.hint or "")


@pytest.mark.parametrize("repo", ["../x", "a/../b", "/etc", "a/b/c", "a--b/c", "", "org/"])
def test_a_repo_id_that_would_lead_elsewhere_is_refused(tmp_path: Path, repo: str) -> None:
    """Repo ids become paths in caches and folders."""
    with pytest.raises(InvalidUsage, match="is no repo id"):
        opened(Pin(repo, commit("a")), tmp_path)


def test_missing_files_are_all_named(tmp_path: Path) -> None:
    """Fetching from a folder moves nothing, and says everything that is not there."""
    add_repo(tmp_path, "org/base", commit("a"), {"x": ""})

    with pytest.raises(NotHere, match="2 files missing: y, z"):
        opened(PINNED, tmp_path).fetch(["z", "x", "y"], None)


def entry(source: Pin, overlay: Pin | None, *needs: Pin) -> Entry:
    recipe = Recipe("lora", {"adapters": []})
    return Entry(
        "org/base", source, overlay, None, tuple(Need(pin) for pin in needs), recipe, Place("registry.yaml", 1, 1)
    )


def inventory(resolution: Resolution, hub: Path | None) -> Inventory:
    return take_inventory(resolution, hub=hub, offline=False, memo=DigestMemo(None), allow_floating=False)


def test_h30_each_repo_is_read_at_its_own_revision(world: World) -> None:
    """Overlay, source and needs of one entry: every request names the commit of its own repo."""
    pins = {"org/base": commit("a"), "org/overlay": commit("b"), "org/encoder": commit("c")}
    for repo, digit in {"org/overlay": "b", "org/encoder": "c"}.items():
        add_repo(world.hub, repo, commit(digit), {"config.json": f'"{digit}"', "LICENSE": "text"})
        add_repo(world.hub, repo, commit("e"), {"config.json": '"newer"'})
    add_repo(world.hub, "org/base", commit("e"), {"README.md": "newer"})
    source, overlay, encoder = (Pin(repo, pins[repo]) for repo in pins)

    found = inventory(Resolution("org/base", entry(source, overlay, encoder), "registry.yaml"), None)
    assert found.overlay is not None
    found.source.read_bytes("README.md")
    found.overlay.read_bytes("config.json")
    found.needs["org/encoder"].read_bytes("config.json")

    asked = {tuple(part for part in r.path.split("/") if part not in {"api", "models"}) for r in world.server.asked()}
    assert {("/".join(parts[1:3]), parts[4]) for parts in asked} == set(pins.items())
    assert found.overlay.read_bytes("config.json") == b'"b"'
    assert [found.source.revision, found.overlay.revision] == [commit("a"), commit("b")]
    assert found.overlay.paths() == ["config.json"]
    assert found.needs["org/encoder"].paths() == ["LICENSE", "config.json"]
    assert found.notes == ()


def test_the_inventory_from_folders_makes_no_request(world: World) -> None:
    """Under --hub the same overlay has the same files as on the Hub."""
    add_repo(world.hub, "org/overlay", commit("b"), {"config.json": "{}", "LICENSE": "text"})

    found = inventory(Resolution("org/base", entry(PINNED, Pin("org/overlay", commit("b"))), "r"), world.hub)

    assert found.overlay is not None
    assert found.overlay.paths() == ["config.json"]
    assert not world.server.asked()


def test_a_local_source_takes_the_place_of_the_pin(tmp_path: Path) -> None:
    """A folder given as the model is read as it is, and has no commit; its repo keeps its name."""
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "README.md").write_text("mine")

    found = inventory(Resolution("org/base", entry(PINNED, None), "r", source_folder=folder), None)

    assert isinstance(found.source, FolderRepo)
    assert (found.source.repo, found.source.revision) == ("org/base", "local")
    assert found.source.read_bytes("README.md") == b"mine"
    assert found.overlay is None


def test_an_overlay_folder_is_used_whole(tmp_path: Path) -> None:
    """A server takes the fingerprint of a local overlay over everything in it, so nothing is left out."""
    (tmp_path / "LICENSE").write_text("text")

    repo = opened(Pin(str(tmp_path), "local"), None)

    assert repo.paths() == ["LICENSE"]
    assert (repo.repo, repo.revision) == (str(tmp_path), "local")


def test_a_commit_that_only_the_cache_has_is_noted(world: World) -> None:
    """The user learns that the Hub has it no more, once for each repo."""
    world.fill()
    (world.hub / "org/base").rename(world.hub / "org/gone")
    (world.cache / "models--org--base" / "trees" / f"{commit('a')}.json").unlink()

    found = inventory(Resolution("org/base", entry(PINNED, PINNED), "r"), None)

    assert [note.partition(":")[0] for note in found.notes] == ["using the cached copy"] * 2
