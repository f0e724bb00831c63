"""Weights held against the index that lists them."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING

import pytest
from support.contracts import MODEL, edit_json, make_hub, subject_of

from overlay.contract.checks.shards import check_shards
from overlay.hub import FolderRepo

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from overlay.contract.finding import Finding
    from overlay.demo.checkpoint import HubFolder

pytestmark = pytest.mark.no_torch

TRANSFORMER, VAE, AUDIO = "h3-base/transformer", "h3-base/vae", "h3-base/audio_vae"
SOURCE_PIN, NEED_PIN = (4, 14), (7, 38)
STEM = "diffusion_pytorch_model"
INDEX = f"{STEM}.safetensors.index.json"


def shard(number: int, total: int) -> str:
    """Name of a shard."""
    return f"{STEM}-{number:05d}-of-{total:05d}.safetensors"


def gone(name: str) -> Callable[[Path], object]:
    """The file is not there."""
    return lambda folder: (folder / name).unlink()


def cut(name: str) -> Callable[[Path], object]:
    """H13: the file lacks its last five bytes."""
    return lambda folder: (folder / name).write_bytes((folder / name).read_bytes()[:-5])


def indexed(tensor: str, place: str) -> Callable[[Path], object]:
    """The index says that a tensor is somewhere."""
    return lambda folder: edit_json(folder / INDEX, lambda it: it["weight_map"].update({tensor: place}))


def copied(name: str, target: str) -> Callable[[Path], object]:
    """A file lies there twice."""
    return lambda folder: shutil.copyfile(folder / name, folder / target)


def without_index(*names: str) -> Callable[[Path], object]:
    """The index is gone, and shards with it."""

    def change(folder: Path) -> None:
        for name in (INDEX, *names):
            (folder / name).unlink()

    return change


def check_one(hub: HubFolder, tmp_path: Path) -> Finding:
    """The one finding."""
    (finding,) = check_shards(subject_of(hub, tmp_path))
    assert finding.severities == {"overlay": "error", "sglang": "error"}
    assert finding.fix == f"overlay bump {MODEL}"
    return finding


def test_whole_checkpoints(tmp_path: Path) -> None:
    """As published: nothing to say."""
    assert [*check_shards(subject_of(make_hub(tmp_path), tmp_path))] == []


@pytest.mark.parametrize(
    ("folder", "change", "code", "said"),
    [
        pytest.param(
            TRANSFORMER,
            gone(shard(2, 2)),
            "shard-missing",
            f"{TRANSFORMER}: 1 shard listed and not there: {shard(2, 2)}",
            id="h15-listed-and-absent",
        ),
        pytest.param(
            VAE,
            lambda folder: [gone(shard(number, 3))(folder) for number in (1, 3)],
            "shard-missing",
            f"2 shards listed and not there: {shard(1, 3)}, {shard(3, 3)}",
            id="h15-two-of-the-vae",
        ),
        pytest.param(
            TRANSFORMER,
            without_index(shard(1, 2)),
            "shard-missing",
            f"1 shard listed and not there: {shard(1, 2)}",
            id="numbered-without-index",
        ),
        pytest.param(AUDIO, gone(f"{STEM}.safetensors"), "shard-missing", "no .safetensors file", id="single-file"),
        pytest.param(
            TRANSFORMER,
            indexed("w", "../../other/x.safetensors"),
            "checkpoint-broken",
            "weight_map['w']: '../../other/x.safetensors' leads out of its folder",
            id="h16-outside",
        ),
        pytest.param(
            TRANSFORMER,
            indexed("w", "/etc/x.safetensors"),
            "checkpoint-broken",
            "weight_map['w']: '/etc/x.safetensors' is absolute",
            id="h16-absolute",
        ),
        pytest.param(
            TRANSFORMER,
            copied(shard(1, 2), "extra.safetensors"),
            "checkpoint-broken",
            "does not list 1 safetensors file beside its shards: extra.safetensors",
            id="extra-shard",
        ),
        pytest.param(
            TRANSFORMER,
            lambda folder: (copied(shard(1, 2), shard(2, 2))(folder), without_index()(folder)),
            "checkpoint-broken",
            "is in two shards",
            id="tensor-in-two-shards",
        ),
        pytest.param(
            VAE, indexed("no.such", shard(1, 3)), "checkpoint-broken", "tensor 'no.such' is in no shard", id="tensor"
        ),
        pytest.param(TRANSFORMER, cut(shard(1, 2)), "checkpoint-broken", shard(1, 2), id="h13-truncated"),
        pytest.param(
            TRANSFORMER, lambda folder: (folder / INDEX).write_text("{"), "checkpoint-broken", INDEX, id="bad-index"
        ),
    ],
)
def test_a_folder_of_the_source(
    tmp_path: Path, folder: str, change: Callable[[Path], object], code: str, said: str
) -> None:
    """What is fused or re-laid is read by its headers; the finding is at the source's pin."""
    hub = make_hub(tmp_path)
    change(hub.source_folder / folder)

    finding = check_one(hub, tmp_path)

    assert finding.code == code
    assert said in finding.message
    assert str(hub.source_folder / folder) in finding.message
    assert finding.data["folder"] == folder
    assert (finding.place.line, finding.place.column) == SOURCE_PIN


def test_a_carried_folder_is_held_against_its_listing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where its files are not on this host no header is asked for; a shard that is absent is found all the same."""
    hub = make_hub(tmp_path)
    asked: list[str] = []
    header = FolderRepo.header

    def watched(repo: FolderRepo, path: str) -> object:
        asked.append(path)
        return header(repo, path)

    monkeypatch.setattr(FolderRepo, "header", watched)
    monkeypatch.setattr(FolderRepo, "local", lambda *_: None)
    assert [*check_shards(subject_of(hub, tmp_path))] == []
    assert asked
    assert not [path for path in asked if path.startswith("text_encoder/")]

    (hub.needs_folder / "text_encoder" / "model-00002-of-00002.safetensors").unlink()
    finding = check_one(hub, tmp_path)
    assert finding.code == "shard-missing"
    assert "model-00002-of-00002.safetensors" in finding.message
    assert (finding.place.line, finding.place.column) == NEED_PIN


def test_a_carried_folder_on_this_host_is_read(tmp_path: Path) -> None:
    """Headers cost nothing there, and a truncated shard shows."""
    hub = make_hub(tmp_path)
    cut("model-00001-of-00002.safetensors")(hub.needs_folder / "text_encoder")

    finding = check_one(hub, tmp_path)

    assert finding.code == "checkpoint-broken"
    assert (finding.place.line, finding.place.column) == NEED_PIN


def test_a_folder_that_is_absent_is_said_once(tmp_path: Path) -> None:
    """Its config is required by name, and that is the finding."""
    hub = make_hub(tmp_path)
    shutil.rmtree(hub.source_folder / VAE)

    assert [*check_shards(subject_of(hub, tmp_path))] == []


def test_other_folders_of_a_lora_base(tmp_path: Path) -> None:
    """Folders that are taken along are held against their index; a second precision beside it is no fault."""
    hub = make_hub(tmp_path)
    text = f"""\
schema_version: 1
models:
  {MODEL}:
    source: {{revision: {hub.source}}}
    recipe:
      name: lora
      base: {{repo: {MODEL}, path: {TRANSFORMER}}}
      adapters: [{{repo: {MODEL}, path: stage-b-step-2000/adapters/default}}]
"""
    copied(shard(1, 3), "fp16.safetensors")(hub.source_folder / VAE)
    assert [*check_shards(subject_of(hub, tmp_path, registry=text))] == []

    gone(shard(1, 3))(hub.source_folder / VAE)
    (finding,) = check_shards(subject_of(hub, tmp_path, registry=text))
    assert finding.code == "shard-missing"
    assert finding.data["missing"] == [shard(1, 3)]


def test_a_hostile_index_gives_one_short_finding(tmp_path: Path) -> None:
    """A hundred thousand shards that are not there: a few are shown, the rest is counted."""
    hub = make_hub(tmp_path)
    weight_map = {f"t{number}": f"\x1b{number:06d}.safetensors" for number in range(100_000)}
    (hub.source_folder / TRANSFORMER / INDEX).write_text(json.dumps({"weight_map": weight_map}))

    finding = check_one(hub, tmp_path)

    assert finding.message.isprintable()
    assert len(finding.message) < 1000
    assert "100000 shards listed and not there" in finding.message
    assert len(finding.data["missing"]) == 1000


def test_names_out_of_a_repo_are_made_printable(tmp_path: Path) -> None:
    """A thousand left-over shards with control characters in their names make one message of one line."""
    hub = make_hub(tmp_path)
    for number in range(1000):
        (hub.source_folder / TRANSFORMER / f"left\x1b[2J\nover {number}.safetensors").touch()

    finding = check_one(hub, tmp_path)

    assert finding.code == "checkpoint-broken"
    assert finding.message.isprintable()
    assert "left\\x1b[2J\\nover 0.safetensors" in finding.message
    assert len(finding.message) < 5000
