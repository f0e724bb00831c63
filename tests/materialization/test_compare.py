"""Comparing two directories: bytes of files, values of tensors, whatever the sharding."""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING

import pytest
from support.checkpoints import copy_hub
from support.models import VDN, options
from support.tensors import bf16, f16, f32, u8, write_checkpoint, write_tensors

from overlay.demo.revisions import reshard_base
from overlay.errors import BrokenInput, NotHere
from overlay.materialization.compare import compare
from overlay.materialization.differences import ValueDifferences
from overlay.materialization.materialize import materialize
from overlay.materialization.record import RECORD_NAME

if TYPE_CHECKING:
    from pathlib import Path

    from conftest import Built
    from support.tensors import Tensor

    from overlay.materialization.compare import Comparison

TENSORS = {
    "x": f32([2, 2], [1, 2, 3, 4]),
    "y": bf16([2], [0.5, -0.0]),
    "z": f16([], [1.5]),
    "e": f32([0, 3], []),
    "u": u8(1, 2, 3),
}


def two(folder: Path, a: dict[str, Tensor], b: dict[str, Tensor]) -> Comparison:
    """A file ``model.safetensors`` on each side."""
    write_tensors(folder / "a/model.safetensors", a)
    write_tensors(folder / "b/model.safetensors", b)
    return compare(folder / "a", folder / "b")


def differences(found: Comparison) -> list[tuple[str, str, str]]:
    return [(item.folder, item.name, item.kind) for item in found.tensors]


@pytest.mark.no_torch
def test_a_copy_is_identical(tmp_path: Path) -> None:
    """Files and tensors, the count of each."""
    found = two(tmp_path, TENSORS, TENSORS)
    assert (found.identical, found.tensors_equal, found.num_files, found.num_tensors) == (True, True, 1, 5)


def test_two_materializations_differ_in_their_records_alone_and_those_do_not_count(
    shared_build: Built, tmp_path: Path
) -> None:
    """Records tell of runs; compare looks at what a runtime loads."""
    other = materialize(VDN, options(shared_build.hub, tmp_path / "root")).location
    assert other is not None
    assert (other / RECORD_NAME).read_bytes() != (shared_build.location / RECORD_NAME).read_bytes()
    found = compare(shared_build.location, other)
    assert (found.identical, found.tensors_equal) == (True, True)
    assert (found.a, found.b) == (shared_build.tree, other.resolve())


def test_equal_tensors_in_other_shards_are_equal(shared_build: Built, tmp_path_factory: pytest.TempPathFactory) -> None:
    """A re-sharded base: other files, every tensor the same."""
    bumped = reshard_base(copy_hub(tmp_path_factory))
    folders = [hub.source_folder / "h3-base/transformer" for hub in (shared_build.hub, bumped)]
    found = compare(*folders)
    assert (found.identical, found.tensors_equal) == (False, True)
    kinds = {item.kind for item in found.files}
    assert kinds == {"only-in-a", "only-in-b", "content"} - ({"content"} - kinds)
    assert any(item.path.endswith("index.json") or item.kind != "content" for item in found.files)


@pytest.mark.no_torch
def test_one_file_against_shards_in_sub_folders(tmp_path: Path) -> None:
    """Tensors are matched by the folder of their file: another folder is another model."""
    write_checkpoint(tmp_path / "a", {"model.safetensors": TENSORS})
    parts = {"one.safetensors": {"x": TENSORS["x"]}, "two.safetensors": {k: TENSORS[k] for k in "yzeu"}}
    write_checkpoint(tmp_path / "b", parts)
    assert compare(tmp_path / "a", tmp_path / "b").tensors_equal


@pytest.mark.parametrize(
    ("change", "kind", "what"),
    [
        ({"x": f32([4], [1, 2, 3, 4])}, "shape", "[2, 2] in A, [4] in B"),
        ({"z": bf16([], [1.5])}, "dtype", "F16 in A, BF16 in B"),
        ({"e": f32([3, 0], [])}, "shape", "[0, 3] in A, [3, 0] in B"),
        ({"x": f32([2, 2], [1, 2, 3, 4.25])}, "values", "1 of 4 elements differ, by 0.25 at most (524288 ulp)"),
        ({"y": bf16([2], [0.5, 0.0])}, "values", "1 of 2 elements differ, by 0 at most"),
        ({"u": u8(1, 2, 4)}, "values", "1 of 3 elements differ, by 1 at most"),
        ({"z": f16([], [float("nan")])}, "values", "1 of 1 elements differ"),
    ],
)
def test_what_differs_is_said_for_each_kind(tmp_path: Path, change: dict[str, Tensor], kind: str, what: str) -> None:
    """One tensor changed, the others the same."""
    found = two(tmp_path, TENSORS, {**TENSORS, **change})
    [item] = found.tensors
    assert (item.folder, item.name, item.kind, item.what) == (".", next(iter(change)), kind, what)
    assert [(file.path, file.kind) for file in found.files] == [("model.safetensors", "content")]
    assert (item.values is not None) == (kind == "values")


@pytest.mark.no_torch
def test_tensors_on_one_side_only(tmp_path: Path) -> None:
    """Each with the file that holds it."""
    a, b = {k: TENSORS[k] for k in "xy"}, {k: TENSORS[k] for k in "xu"}
    found = two(tmp_path, a, b)
    assert [(item.name, item.kind, item.what) for item in found.tensors] == [
        ("u", "only-in-b", "only in model.safetensors of B"),
        ("y", "only-in-a", "only in model.safetensors of A"),
    ]
    assert found.num_tensors == 3


@pytest.mark.no_torch
def test_files_on_one_side_only_and_other_content(tmp_path: Path) -> None:
    """Sorted by path; hidden files count, records do not."""
    for side in "ab":
        (tmp_path / side / "sub").mkdir(parents=True)
        (tmp_path / side / "same.txt").write_text("same")
        (tmp_path / side / "config.json").write_text(side)
        (tmp_path / side / RECORD_NAME).write_text(side)
    (tmp_path / "a/sub/.hidden").write_text("")
    (tmp_path / "b/new.md").write_text("")
    found = compare(tmp_path / "a", tmp_path / "b")
    assert [(item.path, item.kind) for item in found.files] == [
        ("config.json", "content"),
        ("new.md", "only-in-b"),
        ("sub/.hidden", "only-in-a"),
    ]
    assert (found.num_files, found.num_tensors, found.tensors_equal) == (4, 0, True)


def test_one_name_in_two_files_of_a_folder_is_two_tensors(tmp_path: Path) -> None:
    """An alias or another variant beside: each is held against the file of its own name."""
    for side in "ab":
        for name in ("one", "two"):
            write_tensors(tmp_path / side / f"vae/{name}.safetensors", {"w": f32([1], [1.0])})
    write_tensors(tmp_path / "b/vae/two.safetensors", {"w": f32([1], [2.0])})
    found = compare(tmp_path / "a", tmp_path / "b")
    assert differences(found) == [("vae/two.safetensors", "w", "values")]
    assert found.num_tensors == 2


def test_values_are_counted_over_the_whole_tensor(tmp_path: Path) -> None:
    """Count, largest difference, largest distance."""
    found = two(tmp_path, {"w": f32([4], [1, 2, 3, 4])}, {"w": f32([4], [1, 2.5, 3, 2])})
    assert found.tensors[0].values == ValueDifferences(2, 4, 2.0, 2**23)


@pytest.mark.no_torch
def test_the_same_inode_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hardlinked trees compare by their stat."""
    write_tensors(tmp_path / "a/model.safetensors", TENSORS)
    (tmp_path / "b").mkdir()
    os.link(tmp_path / "a/model.safetensors", tmp_path / "b/model.safetensors")
    monkeypatch.setattr("overlay.materialization.compare._CHUNK", 0)  # reading would find nothing and never end well
    assert compare(tmp_path / "a", tmp_path / "b").identical


@pytest.mark.no_torch
def test_a_damaged_safetensors_file_is_an_error_and_no_difference(tmp_path: Path) -> None:
    """What cannot be read was not compared."""
    write_tensors(tmp_path / "a/model.safetensors", TENSORS)
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    os.truncate(tmp_path / "b/model.safetensors", 20)
    with pytest.raises(BrokenInput, match=r"b/model\.safetensors"):
        compare(tmp_path / "a", tmp_path / "b")


@pytest.mark.no_torch
def test_a_dangling_link_is_an_error_that_names_it(tmp_path: Path) -> None:
    """Neither a crash nor a difference."""
    for side in "ab":
        (tmp_path / side).mkdir()
        (tmp_path / side / "config.json").symlink_to("nowhere")
    with pytest.raises(BrokenInput, match=r"config\.json.*nowhere"):
        compare(tmp_path / "a", tmp_path / "b")


@pytest.mark.no_torch
def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    """Named, on either side."""
    (tmp_path / "a").mkdir()
    for pair in ((tmp_path / "a", tmp_path / "b"), (tmp_path / "b", tmp_path / "a")):
        with pytest.raises(NotHere, match="no such folder"):
            compare(*pair)
