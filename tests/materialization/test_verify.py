"""Verifying: every kind of problem is found, named and told apart; what is right is read once."""

from __future__ import annotations

import json
import os
import re
import struct
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
from support.models import copy_root
from support.tensors import tensors_file, u8

from overlay.errors import BrokenInput, InvalidUsage, NotHere
from overlay.fingerprint import bytes_digest, digests, part_digest
from overlay.formats.adapters import fused_adapters
from overlay.formats.files import Folder
from overlay.formats.header import read_header
from overlay.materialization.content import Problem
from overlay.materialization.record import (
    RECORD_NAME,
    SCHEMA_VERSION,
    RecordedFile,
    RecordedTensor,
    read_record,
    record_bytes,
)
from overlay.materialization.verify import verify

if TYPE_CHECKING:
    from pathlib import Path

    from conftest import Built

SHARD = "transformer/diffusion_pytorch_model-00001-of-00003.safetensors"
BRANCH = "transformer/sglang_vdn_linear_branch.safetensors"


def outputs(tree: Path) -> dict[str, dict[str, Any]]:
    record = read_record(tree)
    assert record is not None
    return {item.path: item.to_json() for item in record.outputs}


def flip(path: Path, offset: int) -> None:
    """One bit, in an inode of its own: the others of the file's names are no part of the test."""
    data = bytearray(path.read_bytes())
    data[offset] ^= 0x10
    path.unlink()
    path.write_bytes(data)


def problems(tree: Path, level: str = "full") -> list[tuple[str, str]]:
    return [(problem.path, problem.kind) for problem in verify(tree, level).problems]


@pytest.mark.parametrize("level", ["quick", "full"])
def test_a_whole_tree_has_no_problems(shared_build: Built, level: str) -> None:
    """Through the location or by its own name; quick reads no content, full reads every distinct byte once."""
    sizes = {
        (shared_build.tree / path).stat().st_ino: item["size"] for path, item in outputs(shared_build.tree).items()
    }
    for folder in (shared_build.location, shared_build.tree):
        found = verify(folder, level)
        assert found.ok
        assert (found.path, found.level, found.model) == (shared_build.tree, level, "OpenVDN/vdn-minimax-h3")
        assert found.num_files == len(outputs(shared_build.tree))
        assert found.bytes_read == (sum(sizes.values()) if level == "full" else 0)


def test_both_names_of_one_inode_are_read_once(shared_build: Built) -> None:
    """The video VAE has two names; its bytes count once."""
    both = [
        item
        for path, item in outputs(shared_build.tree).items()
        if path.startswith("video_vae/") and item.get("tensors")
    ]
    assert [item["size"] for item in both] == [both[0]["size"]] * 2
    total = sum(item["size"] for item in outputs(shared_build.tree).values())
    assert verify(shared_build.tree).bytes_read == total - both[0]["size"]


def test_two_names_with_different_records_are_both_read(built: Built) -> None:
    """One inode that the record gives two digests cannot be right under both names."""
    path = built.tree / RECORD_NAME
    record = json.loads(path.read_bytes())
    [alias] = [item for item in record["outputs"] if item["path"] == "video_vae/model.safetensors"]
    alias["digest"] = f"xxh3_128:{'0' * 32}"
    path.write_text(json.dumps(record))
    assert problems(built.tree) == [(RECORD_NAME, "content"), ("video_vae/model.safetensors", "content")]


def test_an_edited_record_is_found_wherever_it_was_edited(built: Built) -> None:
    """Pins, inputs, adapters, outputs: everything but the run is what the tree was named by."""
    file = built.tree / RECORD_NAME
    original = json.loads(file.read_bytes())
    for field in set(original) - {"schema_version", "run", "location"}:
        file.write_text(json.dumps({**original, field: original[field] * 2 if field == "outputs" else "edited"}))
        if field == "outputs":
            assert (RECORD_NAME, "content") in problems(built.tree, "quick")
        else:
            assert problems(built.tree, "quick") == [(RECORD_NAME, "content")]
            assert problems(built.tree) == [(RECORD_NAME, "content")]
    file.write_text(json.dumps({**original, "run": {}}))
    assert problems(built.tree) == []


def test_a_flipped_bit_in_any_file_is_found_by_full_and_by_name(built: Built) -> None:
    """Shard, branch, VAE, rope, index, config, provenance, marker, tokenizer, text encoder, README: each alone."""
    kinds = {re.sub(r"\d{5}", "N", path): path for path in outputs(built.tree)}
    assert len(kinds) > 20
    for number, path in enumerate(kinds.values()):
        root = copy_root(built.root, built.root.parent / f"copy{number}")
        [tree] = (root / ".overlay/trees").iterdir()
        size = (tree / path).stat().st_size
        flip(tree / path, number * 7 % size)
        assert problems(tree) == [(path, "content")]
        assert problems(tree, "quick") == []


def test_a_flipped_bit_at_every_place_of_a_small_file_is_found(built: Built) -> None:
    """First, last and every byte between, header included."""
    path = built.tree / "transformer/sglang_rope_inv_freq.safetensors"
    for offset in range(path.stat().st_size):
        flip(path, offset)
        assert problems(built.tree) == [("transformer/sglang_rope_inv_freq.safetensors", "content")]
        flip(path, offset)
    assert problems(built.tree) == []


def test_the_tensors_that_differ_are_named(built: Built) -> None:
    """Of a file whose tensors the record holds: those, and no other."""
    path = built.tree / SHARD
    header = read_header(path)
    names = list(header.tensors)[2:5]
    for name in names:
        flip(path, header.offset(name) + header.tensors[name].nbytes - 1)
    [problem] = verify(built.tree).problems
    assert problem.tensors == tuple(names)
    assert f"3 tensors changed, {names[0]} first" in problem.what


def test_a_header_that_differs_alone_names_no_tensor(built: Built) -> None:
    """The tensors are what they were; the file is not."""
    path = built.tree / SHARD
    data = path.read_bytes()
    [length] = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length])
    header["__metadata__"] = {"format": "np"}
    text = json.dumps(header, separators=(",", ":")).encode()
    path.unlink()
    path.write_bytes(struct.pack("<Q", length) + text.ljust(length) + data[8 + length :])
    [problem] = verify(built.tree).problems
    assert (problem.path, problem.kind, problem.tensors) == (SHARD, "content", ())


def test_every_other_kind_of_problem_at_once(built: Built) -> None:
    """Missing, extra, short, long, a folder in the place of a file, unreadable: one problem each, in path order."""
    tree = built.tree
    (tree / SHARD).unlink()
    (tree / "transformer/config.json").unlink()
    (tree / "transformer/config.json").mkdir()
    (tree / "README.md").write_text("longer or shorter")
    os.truncate(tree / BRANCH, (tree / BRANCH).stat().st_size - 1)
    (tree / "tokenizer/notes.txt").write_text("mine")
    (tree / "model_index.json").unlink()
    (tree / "model_index.json").symlink_to("nowhere.json")
    expected = [
        ("README.md", "size"),
        ("model_index.json", "missing"),
        ("tokenizer/notes.txt", "extra"),
        ("transformer/config.json", "missing"),
        (SHARD, "missing"),
        (BRANCH, "size"),
    ]
    assert problems(tree, "quick") == expected
    assert problems(tree) == expected
    what = {problem.path: problem.what for problem in verify(tree).problems}
    assert what["README.md"].startswith("has 17 bytes, expected ")
    assert "no regular file" in what["transformer/config.json"]


def test_a_link_inside_the_tree_to_the_right_bytes_is_no_problem(built: Built, tmp_path: Path) -> None:
    """Links count as what they lead to: other tools may have moved weights to another disk."""
    moved = (built.tree / SHARD).rename(tmp_path / "moved.safetensors")
    (built.tree / SHARD).symlink_to(moved)
    assert verify(built.tree).ok


@pytest.mark.parametrize("path", ["README.md", SHARD])
def test_a_file_that_cannot_be_read_is_a_problem_of_its_own(
    built: Built, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    """Could not tell is not the same as differs; by whichever digest it is read."""

    @contextmanager
    def refuse(place: Path) -> Any:
        if place == built.tree / path:
            raise PermissionError(13, "Permission denied", str(place))
        with real(place) as opened:
            yield opened

    real = digests.open_file
    monkeypatch.setattr(digests, "open_file", refuse)
    [problem] = verify(built.tree).problems
    assert (problem.path, problem.kind) == (path, "unreadable")
    assert "Permission denied" in problem.what


@pytest.mark.parametrize("jobs", [1, 5])
def test_any_number_of_readers_finds_the_same(built: Built, jobs: int) -> None:
    """And progress adds up to what was read."""
    from threading import Lock

    flip(built.tree / SHARD, 4000)
    flip(built.tree / "tokenizer/merges.txt", 0)
    seen: list[int] = []
    lock = Lock()

    @contextmanager
    def phase(label: str, total: int) -> Any:
        assert label == "verify"

        def update(nbytes: int) -> None:
            with lock:
                seen.append(nbytes)

        yield update
        assert sum(seen) == total

    found = verify(built.tree, jobs=jobs, phase=phase)
    assert [problem.path for problem in found.problems] == ["tokenizer/merges.txt", SHARD]
    assert sum(seen) == found.bytes_read


def test_a_folder_without_a_record_cannot_be_verified(tmp_path: Path) -> None:
    """It is said what can be: compare."""
    with pytest.raises(NotHere, match=RECORD_NAME) as caught:
        verify(tmp_path)
    assert "overlay compare" in str(caught.value.hint)
    with pytest.raises(NotHere, match="no such folder"):
        verify(tmp_path / "nothing")


def test_an_unknown_level_is_refused(shared_build: Built) -> None:
    """With those that exist."""
    with pytest.raises(InvalidUsage) as caught:
        verify(shared_build.tree, "deep")
    assert "quick, full, sha256" in str(caught.value.hint)


@pytest.mark.parametrize("path", ["../outside", "/etc/passwd", "a/../../b", "", "x\0y"])
def test_h16_a_record_cannot_lead_out_of_its_folder(built: Built, path: str) -> None:
    """Output paths of a record are contained."""
    file = built.tree / RECORD_NAME
    record = json.loads(file.read_bytes())
    record["outputs"][0]["path"] = path
    file.write_text(json.dumps(record))
    with pytest.raises(BrokenInput, match=RECORD_NAME):
        verify(built.tree)


def test_the_record_holds_what_the_files_hold(shared_build: Built) -> None:
    """Sizes, tensors and their digests are those of the files, by another reading of them."""
    from safetensors import safe_open

    checked = 0
    for path, item in outputs(shared_build.tree).items():
        file = shared_build.tree / path
        assert item["size"] == file.stat().st_size
        if not path.endswith(".safetensors"):
            assert "tensors" not in item
            continue
        with safe_open(file, framework="pt") as opened:
            told = {tensor["name"]: (tensor["dtype"], tensor["shape"]) for tensor in item["tensors"]}
            slices = {name: opened.get_slice(name) for name in told}
            assert set(opened.keys()) == set(told)
            assert told == {name: (part.get_dtype(), part.get_shape()) for name, part in slices.items()}
        header = read_header(file)
        for tensor in item["tensors"]:
            if "digest" in tensor:
                info = header.tensors[tensor["name"]]
                assert part_digest(file, (header.offset(info.name), info.nbytes)) == tensor["digest"]
                checked += 1
    assert checked > 100


def test_problems_say_what_was_found_and_what_was_expected(built: Built) -> None:
    """A digest each, of the algorithm that the record has."""
    flip(built.tree / "README.md", 0)
    [problem] = verify(built.tree).problems
    assert isinstance(problem, Problem)
    found, expected = re.findall(r"sha256:[0-9a-f]{64}", problem.what)
    assert found != expected == outputs(built.tree)["README.md"]["digest"]


@pytest.mark.no_torch
def test_verifying_needs_neither_torch_nor_a_cache(tmp_path: Path) -> None:
    """A folder with a record of its own, wherever it lies."""
    data = tensors_file({"w": u8(1, 2, 3)})
    (tmp_path / "model.safetensors").write_bytes(data)
    digest = bytes_digest(data, "xxh3_128")
    output = {"path": "model.safetensors", "size": len(data), "digest": digest}
    (tmp_path / RECORD_NAME).write_text(json.dumps({"schema_version": 1, "outputs": [output]}))
    assert verify(tmp_path).ok
    flip(tmp_path / "model.safetensors", len(data) - 1)
    assert problems(tmp_path) == [("model.safetensors", "content")]
    assert problems(tmp_path, "quick") == []


@pytest.mark.slow
def test_the_record_of_a_base_with_very_many_tensors_is_read(tmp_path: Path) -> None:
    """Some 77 MB of JSON, more than any small file of a repo may have; names are long, so that it takes no time."""
    tensors = tuple(
        RecordedTensor(
            f"language_model.model.layers.{number}.mlp.experts.down_proj.{'weight' * 100}",
            "BF16",
            (4096, 1536),
            f"xxh3_128:{number:032x}",
        )
        for number in range(95_000)
    )
    file = RecordedFile("model.safetensors", f"xxh3_128:{1:032x}", 10, tensors)
    record = record_bytes({"schema_version": SCHEMA_VERSION, "inputs": [], "outputs": [file.to_json()]})
    (tmp_path / RECORD_NAME).write_bytes(record)
    assert len(record) > 64 * 2**20
    found = read_record(tmp_path)
    assert found is not None
    assert found.outputs == (file,)
    assert fused_adapters(Folder(tmp_path), "") == ()
