"""Checkpoints: index against shards."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from support.tensors import f32, lfs_pointer, tensors_file, u8, write_checkpoint, write_tensors

from overlay.errors import BrokenInput, NotHere
from overlay.formats.checkpoint import read_checkpoint
from overlay.formats.files import Folder

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.no_torch

SHARDS = {
    "model-00001-of-00002.safetensors": {"a": u8(1), "b": f32([2], [1, 2])},
    "model-00002-of-00002.safetensors": {"c": u8(3)},
}
WEIGHT_MAP = {name: shard for shard, tensors in SHARDS.items() for name in tensors}


def _refused(folder: Path, code: str) -> BrokenInput:
    with pytest.raises(BrokenInput) as caught:
        read_checkpoint(Folder(folder))
    assert code == caught.value.code
    assert str(caught.value).startswith(str(folder))
    assert caught.value.hint
    return caught.value


def test_a_sharded_checkpoint(tmp_path: Path) -> None:
    """Shards, index and every tensor's place come out, relative to the folder."""
    write_checkpoint(tmp_path / "h3-base" / "transformer", SHARDS)

    checkpoint = read_checkpoint(Folder(tmp_path), "h3-base/transformer/")

    assert checkpoint.folder == "h3-base/transformer"
    assert checkpoint.index == "h3-base/transformer/model.safetensors.index.json"
    assert checkpoint.index_json["metadata"] == {"total_size": 10}
    assert list(SHARDS) == list(checkpoint.shards)
    assert checkpoint.weight_map == WEIGHT_MAP
    shard, info = checkpoint.tensor("b")
    assert (shard, info.dtype, info.shape) == ("model-00001-of-00002.safetensors", "F32", (2,))


def test_a_single_file_without_an_index(tmp_path: Path) -> None:
    """One file is a checkpoint; files in sub-folders are not its business."""
    write_tensors(tmp_path / "diffusion_pytorch_model.safetensors", {"a": u8(1)})
    write_tensors(tmp_path / "other" / "model.safetensors", {"a": u8(1)})

    checkpoint = read_checkpoint(Folder(tmp_path))

    assert (checkpoint.index, checkpoint.index_json, checkpoint.folder) == (None, None, "")
    assert checkpoint.weight_map == {"a": "diffusion_pytorch_model.safetensors"}


def test_a_file_without_a_tensor(tmp_path: Path) -> None:
    """Odd, and valid."""
    write_tensors(tmp_path / "model.safetensors", {}, {"format": "pt"})

    assert read_checkpoint(Folder(tmp_path)).weight_map == {}


def test_several_files_without_an_index(tmp_path: Path) -> None:
    """Files that share no tensor are one checkpoint."""
    write_tensors(tmp_path / "b.safetensors", {"b": u8(1)})
    write_tensors(tmp_path / "a.safetensors", {"a": u8(1)})

    checkpoint = read_checkpoint(Folder(tmp_path))

    assert list(checkpoint.shards) == ["a.safetensors", "b.safetensors"]
    assert checkpoint.weight_map == {"a": "a.safetensors", "b": "b.safetensors"}


def test_shards_in_sub_folders_and_plain_spelling(tmp_path: Path) -> None:
    """An index may point into sub-folders, and may spell a path with ``./``."""
    write_checkpoint(
        tmp_path,
        {"parts/x.safetensors": {"a": u8(1)}, "y.safetensors": {"b": u8(2)}},
        weight_map={"a": "./parts//x.safetensors", "b": "y.safetensors"},
    )
    write_tensors(tmp_path / "unrelated" / "z.safetensors", {"a": u8(9)})

    checkpoint = read_checkpoint(Folder(tmp_path))

    assert checkpoint.weight_map == {"a": "parts/x.safetensors", "b": "y.safetensors"}


def test_h15_missing_shards_are_all_listed(tmp_path: Path) -> None:
    """An index that lists shards that are absent stops everything, with each of them named."""
    shards = {f"model-{n:05d}-of-00005.safetensors": {f"t{n}": u8(n)} for n in range(1, 6)}
    write_checkpoint(tmp_path, shards)
    for gone in (2, 5):
        (tmp_path / f"model-{gone:05d}-of-00005.safetensors").unlink()

    error = _refused(tmp_path, "missing-shards")

    missing = ["model-00002-of-00005.safetensors", "model-00005-of-00005.safetensors"]
    assert missing == error.data["missing"]
    assert f"model.safetensors.index.json: 2 of 5 shards missing: {', '.join(missing)}" in str(error)
    assert "incomplete download?" in error.hint


def test_missing_numbered_shards_without_an_index_are_all_listed(tmp_path: Path) -> None:
    """The numbers in the names say how many shards there must be, even where the index did not arrive."""
    write_tensors(tmp_path / "model-00002-of-00004.safetensors", {"a": u8(1)})

    error = _refused(tmp_path, "missing-shards")

    assert [f"model-0000{n}-of-00004.safetensors" for n in (1, 3, 4)] == error.data["missing"]


def test_extra_shards_are_all_listed(tmp_path: Path) -> None:
    """Weights beside the shards that the index does not know are left over from something."""
    write_checkpoint(tmp_path, {**SHARDS, "parts/p.safetensors": {"d": u8(4)}})
    for extra in ("model-00003-of-00003.safetensors", "parts/old.safetensors"):
        write_tensors(tmp_path / extra, {"z": u8(0)})

    error = _refused(tmp_path, "extra-shards")

    assert error.data["extra"] == ["model-00003-of-00003.safetensors", "parts/old.safetensors"]
    assert "parts/old.safetensors" in str(error)


@pytest.mark.parametrize(
    "shard", ["../../other/x.safetensors", "/etc/x.safetensors", "a/../../x.safetensors", "a\\x.safetensors"]
)
def test_h16_an_index_that_points_outside_is_refused_by_entry(tmp_path: Path, shard: str) -> None:
    """The error names the index and the entry; the file outside is never opened."""
    write_tensors(tmp_path / "other" / "x.safetensors", {"w": u8(1)})
    folder = write_checkpoint(tmp_path / "deep" / "model", SHARDS, weight_map={**WEIGHT_MAP, "w": shard})

    error = _refused(folder, "unsafe-path")

    assert "model.safetensors.index.json: weight_map['w']: " in str(error)
    assert repr(shard) in str(error)


def test_h16_a_folder_outside_is_refused(tmp_path: Path) -> None:
    """The folder that a recipe names is contained as well."""
    write_checkpoint(tmp_path / "x", SHARDS)
    (tmp_path / "y").mkdir()

    with pytest.raises(BrokenInput, match="leads out of its folder"):
        read_checkpoint(Folder(tmp_path / "y"), "../x")


def test_a_tensor_in_another_shard_than_the_index_says(tmp_path: Path) -> None:
    """Both places are named."""
    first, second = SHARDS
    write_checkpoint(tmp_path, SHARDS, weight_map={"a": first, "b": second, "c": second})

    error = _refused(tmp_path, "tensor-not-in-shard")

    assert f"tensor 'b' is in {first}, expected in {second}" in str(error)
    assert error.data["tensors"] == ["b"]


def test_tensors_in_no_shard(tmp_path: Path) -> None:
    """An index may not promise what no shard holds."""
    first, _ = SHARDS
    write_checkpoint(tmp_path, SHARDS, weight_map={**WEIGHT_MAP, "x": first, "y": first})

    error = _refused(tmp_path, "tensor-not-in-shard")

    assert "tensor 'x' is in no shard, expected in model-00001" in str(error)
    assert error.data["tensors"] == ["x", "y"]


def test_tensors_that_the_index_does_not_list(tmp_path: Path) -> None:
    """A shard may not hold more than the index says."""
    write_checkpoint(tmp_path, SHARDS, weight_map={k: v for k, v in WEIGHT_MAP.items() if k != "b"})

    assert _refused(tmp_path, "tensor-not-in-index").data["tensors"] == ["b"]


@pytest.mark.parametrize("indexed", [True, False])
def test_a_tensor_in_two_shards(tmp_path: Path, indexed: bool) -> None:  # noqa: FBT001  # a parameter of the table
    """With or without an index, a name has one place."""
    write_checkpoint(tmp_path, {"x.safetensors": {"a": u8(1), "c": u8(4)}, "y.safetensors": {"a": u8(2)}})
    if not indexed:
        (tmp_path / "model.safetensors.index.json").unlink()

    error = _refused(tmp_path, "tensor-in-two-shards")

    assert "tensor 'a' is in two shards, x.safetensors and y.safetensors" in str(error)


BAD_INDEXES: dict[str, tuple[Any, str, str]] = {
    "no weight_map": ({"metadata": {}}, "bad-index", "weight_map is missing"),
    "weight_map null": ({"weight_map": None}, "bad-index", "weight_map is missing"),
    "weight_map list": ({"weight_map": ["a"]}, "bad-index", "weight_map is ['a']"),
    "weight_map empty": ({"weight_map": {}}, "bad-index", "weight_map is {}"),
    "shard number": ({"weight_map": {"a": 1}}, "bad-index", "weight_map['a'] is 1, expected a .safetensors file"),
    "shard null": ({"weight_map": {"a": None}}, "bad-index", "weight_map['a'] is None"),
    "shard pickled": ({"weight_map": {"a": "x.bin"}}, "bad-index", "weight_map['a'] is 'x.bin'"),
    "shard empty": ({"weight_map": {"a": ""}}, "bad-index", "weight_map['a'] is ''"),
    "array": ([], "bad-json", "found a JSON array, expected an object"),
}


@pytest.mark.parametrize(("document", "code", "text"), BAD_INDEXES.values(), ids=BAD_INDEXES)
def test_bad_indexes(tmp_path: Path, document: Any, code: str, text: str) -> None:
    """An index is checked before any shard is opened."""
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(document))

    assert text in str(_refused(tmp_path, code))


def test_a_tensor_twice_in_the_index(tmp_path: Path) -> None:
    """JSON parsers elsewhere take the last; here it is an error."""
    (tmp_path / "model.safetensors.index.json").write_text(
        '{"weight_map": {"a": "x.safetensors", "a": "y.safetensors"}}'
    )

    assert "key 'a' is given twice" in str(_refused(tmp_path, "duplicate-key"))


def test_two_indexes(tmp_path: Path) -> None:
    """Which one is meant cannot be guessed."""
    write_checkpoint(tmp_path, SHARDS)
    write_checkpoint(tmp_path, SHARDS, index="diffusion_pytorch_model.safetensors.index.json")

    assert "2 indexes (diffusion_pytorch_model.safetensors.index.json, model" in str(_refused(tmp_path, "two-indexes"))


@pytest.mark.parametrize(
    ("damage", "code"),
    [
        (lambda content: content[:-5], "truncated"),
        (lambda _: b"", "truncated"),
        (lambda _: lfs_pointer(), "lfs-pointer"),
    ],
    ids=["h13 cut by 5", "h13 empty", "h14 pointer"],
)
def test_h13_h14_a_damaged_shard_is_named(tmp_path: Path, damage: Any, code: str) -> None:
    """The library's message has no file name; this one starts with it."""
    write_checkpoint(tmp_path, SHARDS)
    path = tmp_path / "model-00002-of-00002.safetensors"
    path.write_bytes(damage(tensors_file({"c": u8(3)})))

    assert str(_refused(tmp_path, code)).startswith(f"{path}: ")


def test_a_dangling_shard_is_named_with_its_target(tmp_path: Path) -> None:
    """A snapshot whose blob was pruned lists the shard, so that it is not simply missing."""
    write_checkpoint(tmp_path, SHARDS)
    path = tmp_path / "model-00002-of-00002.safetensors"
    path.unlink()
    path.symlink_to("../../blobs/gone")

    assert f"{path}: link to ../../blobs/gone" in str(_refused(tmp_path, "dangling-link"))


def test_pickled_weights_are_refused_by_name(tmp_path: Path) -> None:
    """The formats that can run code are told apart from no weights at all."""
    (tmp_path / "pytorch_model.bin").write_bytes(b"x")

    assert "only pickled weights (pytorch_model.bin)" in str(_refused(tmp_path, "pickle"))


@pytest.mark.parametrize(("present", "text"), [([], "found no file at all"), (["config.json"], "found config.json")])
def test_no_weights(tmp_path: Path, present: list[str], text: str) -> None:
    """An absent checkpoint says what is there instead."""
    for name in present:
        (tmp_path / name).write_text("{}")

    with pytest.raises(NotHere, match=text):
        read_checkpoint(Folder(tmp_path))


def test_weights_that_sit_deeper_are_pointed_at(tmp_path: Path) -> None:
    """The folder above the right one is a common slip; the hint names the right one."""
    write_checkpoint(tmp_path / "model/transformer", SHARDS)
    write_checkpoint(tmp_path / "model/vae", SHARDS)

    for files, folder in ((Folder(tmp_path / "model"), ""), (Folder(tmp_path), "model")):
        with pytest.raises(NotHere, match="found only folders") as caught:
            read_checkpoint(files, folder)
        assert caught.value.hint == f"the files sit deeper: use {tmp_path}/model/transformer, {tmp_path}/model/vae"
