"""Where a file went that is not under its name any more."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from overlay.fingerprint import DigestMemo, bytes_digest, git_blob_digest
from overlay.hub import FolderRepo
from overlay.planning import former as former_module
from overlay.planning.renames import Former, Rename, find_renames

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

pytestmark = pytest.mark.no_torch

SPEC = {"type": "lora", "version": 1, "config": {"rank": 4, "alpha": 4, "targets": ["to_q"]}}
TEXT = json.dumps(SPEC)


def repo_of(root: Path, files: Mapping[str, str]) -> FolderRepo:
    """A folder in the place of a repo, with these files."""
    root.mkdir()
    for path, text in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    return FolderRepo(root, repo="org/name", revision="0" * 40, memo=DigestMemo(None, write=False))


def test_nothing_is_missing(tmp_path: Path) -> None:
    """What is there was not renamed, whatever else looks like it."""
    repo = repo_of(tmp_path / "now", {"a/config.json": "{}", "b/config.json": "{}"})

    assert find_renames(repo, ["a/config.json"]) == {}


@pytest.mark.parametrize(
    ("files", "path", "found", "evidence"),
    [
        pytest.param(
            {"d/adapter_spec.json": TEXT},
            "d/adapter_config.json",
            "d/adapter_spec.json",
            "by its content an adapter's description",
            id="the-present-name-of-a-description",
        ),
        pytest.param(
            {"d/adapter_config.json": TEXT},
            "d/adapter_spec.json",
            "d/adapter_config.json",
            "by its content an adapter's description",
            id="the-former-name-of-a-description",
        ),
        pytest.param(
            {"d/d/adapter_spec.json": TEXT},
            "d/adapter_config.json",
            "d/d/adapter_spec.json",
            "by its content an adapter's description",
            id="another-name-and-a-folder-deeper",
        ),
        pytest.param(
            {"d/d/adapter_spec.json": TEXT},
            "d/adapter_spec.json",
            "d/d/adapter_spec.json",
            "same name, a folder deeper",
            id="a-folder-deeper",
        ),
        pytest.param(
            {"model.safetensors": "x"}, "d/model.safetensors", "model.safetensors", "same name, a folder up", id="up"
        ),
        pytest.param(
            {"d/vae_config.json": "{}", "d/other.json": "{}"},
            "d/vae_configs.json",
            "d/vae_config.json",
            "a similar name; nothing tells what the old file held",
            id="a-similar-name",
        ),
    ],
)
def test_h01_without_a_history(tmp_path: Path, files: dict[str, str], path: str, found: str, evidence: str) -> None:
    """The names and the content of what is there have to do."""
    repo = repo_of(tmp_path / "now", files)

    assert find_renames(repo, [path]) == {path: Rename(path, found, evidence)}


@pytest.mark.parametrize(
    ("files", "path"),
    [
        pytest.param({"d/adapter_spec.json": '{"rank": 4}'}, "d/adapter_config.json", id="not-a-description"),
        pytest.param({"d/adapter_spec.json": "{"}, "e/adapter_config.json", id="another-folder"),
        pytest.param({"d/m-00001-of-00002.safetensors": "x"}, "d/m-00002-of-00002.safetensors", id="another-shard"),
        pytest.param({"d/e/f/adapter_spec.json": TEXT}, "d/adapter_spec.json", id="two-folders-deeper"),
        pytest.param({"d/config.txt": "x"}, "d/config.json", id="another-kind-of-file"),
        pytest.param({}, "d/config.json", id="nothing-there"),
    ],
)
def test_what_is_no_rename(tmp_path: Path, files: dict[str, str], path: str) -> None:
    """A guess that would mislead is not made; a file that is no description still has a similar name."""
    found = find_renames(repo_of(tmp_path / "now", files), [path])

    assert [rename for rename in found.values() if "similar" not in rename.evidence] == []
    if path != "d/adapter_config.json":
        assert found == {}


def test_equal_content_beats_every_name(tmp_path: Path) -> None:
    """The file of a lock's size and sha256 is it, though another has a better name."""
    repo = repo_of(tmp_path / "now", {"d/vae_config.json": '{"b": 2}', "e/settings.json": '{"a": 1}'})
    former = {"d/vae_configs.json": Former(8, bytes_digest(b'{"a": 1}', "sha256"))}

    assert find_renames(repo, ["d/vae_configs.json"], former) == {
        "d/vae_configs.json": Rename("d/vae_configs.json", "e/settings.json", "same content, 8 bytes")
    }


def test_the_nearest_of_equal_files_is_taken(tmp_path: Path) -> None:
    """Two stages hold the same description; the one in the folder itself is the renamed one."""
    files = {"a/d/adapter_spec.json": TEXT, "b/d/adapter_spec.json": TEXT, "c/d/adapter_spec.json": TEXT}
    then = repo_of(tmp_path / "then", {path.replace("spec", "config"): text for path, text in files.items()})
    former = {path: Former(then.size(path), repo=then) for path in then.paths()}

    found = find_renames(repo_of(tmp_path / "now", files), then.paths(), former)

    assert {path: path.replace("config", "spec") for path in then.paths()} == {
        path: rename.found for path, rename in found.items()
    }
    assert {rename.evidence for rename in found.values()} == {f"same content, {len(TEXT)} bytes"}


def test_a_copy_that_was_there_before_is_not_the_new_name(tmp_path: Path) -> None:
    """The file was deleted; that another folder holds an equal one since ever says nothing."""
    then = repo_of(tmp_path / "then", {"a/d/settings.json": "{}", "b/d/copy.json": "{}"})
    former = {path: Former(then.size(path), repo=then) for path in then.paths()}

    assert find_renames(repo_of(tmp_path / "now", {"b/d/copy.json": "{}"}), ["a/d/settings.json"], former) == {}


@pytest.mark.parametrize(
    ("now", "evidence"),
    [
        ('{"b": [1],\n "a": 1}', "same JSON, written otherwise"),
        ('{"b": [1], "a": 2}', "a similar name; nothing tells what the old file held"),
    ],
)
def test_equal_json_in_other_bytes(tmp_path: Path, now: str, evidence: str) -> None:
    """Spelling does not count where the former file can still be read."""
    then = repo_of(tmp_path / "then", {"d/vae_config.json": '{"a": 1, "b": [1]}'})
    repo = repo_of(tmp_path / "now", {"d/vae_configs.json": now})

    found = find_renames(repo, ["d/vae_config.json"], {"d/vae_config.json": Former(18, repo=then)})

    assert found["d/vae_config.json"].evidence == evidence


def test_a_description_that_changed_with_its_name(tmp_path: Path) -> None:
    """It is found, and the message does not claim that it is the same."""
    repo = repo_of(tmp_path / "now", {"d/adapter_spec.json": TEXT})

    found = find_renames(repo, ["d/adapter_config.json"], {"d/adapter_config.json": Former(9, "sha256:" + "0" * 64)})

    assert found["d/adapter_config.json"].evidence == "by its content an adapter's description, but not the former one"


def test_weights_of_a_folder_are_told_by_size_and_tensors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody hashes weights for a name: a large file of a folder is compared by size and header."""
    monkeypatch.setattr(former_module, "MAX_SMALL_FILE", 64)
    header = b'{"w":{"dtype":"U8","shape":[64],"data_offsets":[0,64]}}'
    content = len(header).to_bytes(8, "little") + header
    then, now = repo_of(tmp_path / "then", {}), repo_of(tmp_path / "now", {})
    (then.root / "old.safetensors").write_bytes(content + bytes(64))
    (now.root / "new.safetensors").write_bytes(content + bytes([1] * 64))
    monkeypatch.setattr(FolderRepo, "digest", lambda *_: pytest.fail("weights were hashed"))

    found = find_renames(now, ["old.safetensors"], {"old.safetensors": Former(len(content) + 64, repo=then)})

    assert found["old.safetensors"].found == "new.safetensors"
    assert found["old.safetensors"].evidence == f"same size and tensors, {len(content) + 64} bytes"


class HubFolder(FolderRepo):
    """A folder that says of its files what a listing of the Hub says of small ones."""

    shared_store = True

    def digest(self, path: str) -> str:
        """As a git blob."""
        return git_blob_digest(self.read_bytes(path))


def test_a_git_blob_is_read_to_be_held_against_a_sha256(tmp_path: Path) -> None:
    """The lock has the sha256 of small files, the Hub's listing their git blob: the same content all the same."""
    root = repo_of(tmp_path / "now", {"d/new.json": TEXT, "d/some.json": TEXT.replace("4", "5")}).root
    repo = HubFolder(root, repo="org/name", revision="0" * 40, memo=DigestMemo(None, write=False))
    former = {"d/old.json": Former(len(TEXT), bytes_digest(TEXT.encode(), "sha256"))}

    found = find_renames(repo, ["d/old.json"], former)

    assert found["d/old.json"] == Rename("d/old.json", "d/new.json", f"same content, {len(TEXT)} bytes")


def test_one_file_is_the_new_name_of_one_only(tmp_path: Path) -> None:
    """Two missing files cannot both be the file that is there."""
    repo = repo_of(tmp_path / "now", {"d/vae_config.json": "{}"})

    assert [*find_renames(repo, ["d/vae_configs.json", "d/vae_config_.json"])] == ["d/vae_config_.json"]


def test_a_hundred_thousand_missing_files_take_no_time(tmp_path: Path) -> None:
    """A hostile list costs what a long one costs: the first hundred are looked for."""
    repo = repo_of(tmp_path / "now", {f"d/file_{number}.json": "{}" for number in range(300)})
    wanted = [f"d/fi1e_{number}_x.json" for number in range(100_000)]
    former = {path: Former(2, repo=repo) for path in wanted[:10]}

    assert len(find_renames(repo, wanted, former)) <= 100


@pytest.mark.parametrize("broken", ["dangling", "pointer"])
def test_what_cannot_be_read_is_no_evidence(tmp_path: Path, broken: str) -> None:
    """A dangling link or an LFS pointer beside it is passed over."""
    repo = repo_of(tmp_path / "now", {"d/x.txt": ""})
    spec = repo.root / "d" / "adapter_spec.json"
    if broken == "dangling":
        spec.symlink_to(tmp_path / "nowhere")
    else:
        spec.write_text(f"version https://git-lfs.github.com/spec/v1\noid sha256:{'0' * 64}\nsize 12345\n")

    found = find_renames(repo, ["d/adapter_config.json"], {"d/adapter_config.json": Former(5, "sha256:" + "0" * 64)})

    assert [rename.evidence for rename in found.values()] == ["a similar name; nothing tells what the old file held"]
