"""The fuse alone: a folder and adapters to a new folder."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import pytest
from support.children import as_plain_user
from support.models import readable_by_all
from support.published_rule import files_of
from support.small_models import IN, MODULES, OUT, fused, small_adapter, small_base, tensors_of, write_base, write_peft
from support.tensors import write_tensors

from overlay.errors import BrokenInput, InvalidUsage
from overlay.materialization.compare import compare
from overlay.materialization.fuse import Fusion, fuse
from overlay.materialization.record import RECORD_NAME
from overlay.materialization.survey import Counters
from overlay.materialization.verify import verify

if TYPE_CHECKING:
    from pathlib import Path


INDEX = "model.safetensors.index.json"


def record_of(folder: Path) -> Any:
    return json.loads((folder / RECORD_NAME).read_bytes())


@pytest.fixture
def base(tmp_path: Path) -> Path:
    """A base in three shards."""
    return write_base(tmp_path / "base")


@pytest.fixture
def adapter(tmp_path: Path) -> Path:
    """A PEFT adapter of rank 2, alpha 2."""
    return write_peft(tmp_path / "adapter", small_adapter())


# What comes out


def test_a_sharded_base_keeps_its_shards_and_index(base: Path, adapter: Path, tmp_path: Path) -> None:
    """Targets are fused by the written rule, everything else is as it was, the index is taken along."""
    done = fuse(base, [adapter], tmp_path / "out")
    assert done.path == tmp_path / "out"
    assert sorted(files_of(done.path)) == ["a.safetensors", "b.safetensors", "c.safetensors", INDEX, RECORD_NAME]
    assert tensors_of(*done.path.glob("*.safetensors")) == fused(small_base(), [(small_adapter(), 1.0)])
    assert (done.path / INDEX).read_bytes() == (base / INDEX).read_bytes()
    assert (done.path / "c.safetensors").read_bytes() == (base / "c.safetensors").read_bytes()
    assert verify(done.path).ok
    assert not (done.path / "a.safetensors").samefile(base / "a.safetensors")
    assert not (done.path / "c.safetensors").samefile(base / "c.safetensors")  # people edit their folders in place


def test_a_single_file_base(tmp_path: Path, adapter: Path) -> None:
    """Any name; metadata is kept."""
    write_tensors(tmp_path / "base/weights.safetensors", small_base(), {"format": "pt", "origin": "here"})
    done = fuse(tmp_path / "base", [adapter], tmp_path / "out")
    assert tensors_of(done.path / "weights.safetensors") == fused(small_base(), [(small_adapter(), 1.0)])
    assert b'"__metadata__":{"format":"pt","origin":"here"}' in (done.path / "weights.safetensors").read_bytes()
    assert verify(done.path).ok


def test_shards_in_sub_folders_stay_there(tmp_path: Path, adapter: Path) -> None:
    """As the index names them."""
    base = write_base(tmp_path / "base", inside="parts/")
    done = fuse(base, [adapter], tmp_path / "out")
    assert sorted(path for path in files_of(done.path) if path.startswith("parts/")) == [
        f"parts/{name}.safetensors" for name in "abc"
    ]
    assert tensors_of(*done.path.glob("parts/*")) == fused(small_base(), [(small_adapter(), 1.0)])
    assert verify(done.path).ok


def test_the_order_of_adapters_is_the_order_given(base: Path, tmp_path: Path) -> None:
    """fp32 sums depend on the order: both orders equal the exact loop, and differ from each other."""
    base = write_base(tmp_path / "fp32", small_base(dtype="F32"))
    one, two = (write_peft(tmp_path / f"adapter{seed}", small_adapter(seed)) for seed in (1, 2))
    pairs = [(small_adapter(1), 1.0), (small_adapter(2), 1.0)]
    made = []
    for number, (paths, order) in enumerate([([one, two], pairs), ([two, one], pairs[::-1])]):
        done = fuse(base, paths, tmp_path / f"out{number}")
        assert [use.weights.repo for use in done.adapters] == [
            f"adapter{index}:{path.name}" for index, path in enumerate(paths, 1)
        ]
        found = tensors_of(*done.path.glob("*.safetensors"))
        assert found == fused(small_base(dtype="F32"), order)
        made.append(found)
    assert made[0] != made[1]


def test_the_same_adapter_given_twice_is_refused(base: Path, adapter: Path, tmp_path: Path) -> None:
    """By its content, whatever the copies are called."""
    shutil.copytree(adapter, tmp_path / "copy")
    for other in (adapter, tmp_path / "copy"):
        with pytest.raises(BrokenInput, match="these are the weights of") as caught:
            fuse(base, [adapter, other], tmp_path / "out")
        assert caught.value.code == "adapter-twice"
    assert not (tmp_path / "out").exists()


def test_other_rule(base: Path, adapter: Path, tmp_path: Path) -> None:
    """``openvdn`` by name; the record says it."""
    done = fuse(base, [adapter], tmp_path / "out", rule="openvdn")
    expected = fused(small_base(), [(small_adapter(), 1.0)], "openvdn")
    assert tensors_of(*done.path.glob("*.safetensors")) == expected
    assert record_of(done.path)["rule"] == "openvdn"


@pytest.mark.parametrize("rule", ["", "fp32", "FP32-ONCE"])
def test_an_unknown_rule_is_refused_before_anything_is_written(
    base: Path, adapter: Path, tmp_path: Path, rule: str
) -> None:
    """With those that exist."""
    with pytest.raises(InvalidUsage, match="no rule"):
        fuse(base, [adapter], tmp_path / "out", rule=rule)
    assert not (tmp_path / "out").exists()


def test_an_adapter_may_be_a_folder_or_its_file(base: Path, adapter: Path, tmp_path: Path) -> None:
    """The JSON beside the file governs either way."""
    by_folder = fuse(base, [adapter], tmp_path / "one")
    by_file = fuse(base, [adapter / "adapter_model.safetensors"], tmp_path / "two")
    assert compare(by_folder.path, by_file.path).identical


def test_what_lies_beside_an_adapter_file_is_none_of_our_business(base: Path, adapter: Path, tmp_path: Path) -> None:
    """A downloads folder with links in a circle and folders that nobody may enter."""
    downloads = tmp_path / "downloads"
    write_tensors(downloads / "style.safetensors", small_adapter(), {"lora_alpha": "2"})
    (downloads / "circle").symlink_to(downloads)
    (downloads / "closed").mkdir(mode=0o000)
    (downloads / os.fsdecode(b"caf\xe9")).write_text("latin-1")
    fuse(base, [adapter], tmp_path / "first")  # imports what the plain user may not be able to read
    readable_by_all(tmp_path)
    tmp_path.chmod(0o777)
    done = as_plain_user(lambda: fuse(base, [downloads / "style.safetensors"], tmp_path / "out"))
    assert isinstance(done, Fusion)


# What is taken along


def test_json_text_and_licences_are_taken_along_and_the_rest_is_listed(
    base: Path, adapter: Path, tmp_path: Path
) -> None:
    """Of the top folder; nothing is silently left behind."""
    along = [
        "LICENSE",
        "LICENCE.txt",
        "NOTICE",
        "README",
        "README.md",
        "config.json",
        "tokenizer.JSON",
        "COPYING.LESSER",
    ]
    left = ["model.onnx", "sub/config.json", "picture.png", ".gitattributes", "extra.bin"]
    for path in (*along, *left):
        (base / path).parent.mkdir(exist_ok=True)
        (base / path).write_text(path)
    done = fuse(base, [adapter], tmp_path / "out")
    made = files_of(done.path)
    assert {path: made[path].decode() for path in along} == {path: path for path in along}
    assert set(done.left_out) == set(left)
    assert not set(made) & set(left)
    assert verify(done.path).ok


def test_a_record_of_the_base_is_replaced_by_ones_own(base: Path, tmp_path: Path) -> None:
    """Fusing a second adapter into a fused folder: the new record is that of the new folder."""
    one, two = (write_peft(tmp_path / f"adapter{seed}", small_adapter(seed)) for seed in (1, 2))
    first = fuse(base, [one], tmp_path / "first")
    second = fuse(first.path, [two], tmp_path / "second")
    once = fused(small_base(), [(small_adapter(1), 1.0)])
    assert tensors_of(*second.path.glob("*.safetensors")) == fused(once, [(small_adapter(2), 1.0)])
    assert verify(second.path).ok
    assert RECORD_NAME not in second.left_out


def test_an_adapter_that_the_base_holds_already_is_refused_over_generations(base: Path, tmp_path: Path) -> None:
    """The record of a fused folder also tells what its base held."""
    one, two = (write_peft(tmp_path / f"adapter{seed}", small_adapter(seed)) for seed in (1, 2))
    first = fuse(base, [one], tmp_path / "first")
    with pytest.raises(BrokenInput) as caught:
        fuse(first.path, [one], tmp_path / "again")
    assert caught.value.code == "already-fused"
    second = fuse(first.path, [two], tmp_path / "second")
    for adapter in (one, two):
        with pytest.raises(BrokenInput) as caught:
            fuse(second.path, [adapter], tmp_path / "again")
        assert caught.value.code == "already-fused"
    assert not (tmp_path / "again").exists()


# The record


def test_h02_scale_and_its_origin_go_in_the_record(base: Path, tmp_path: Path) -> None:
    """Rank 8 and alpha 1 is 0.125, not 1: in the weights and in the record."""
    tensors = small_adapter(rank=8)
    adapter = write_peft(tmp_path / "adapter", tensors, r=8, lora_alpha=1)
    done = fuse(base, [adapter], tmp_path / "out")
    assert tensors_of(*done.path.glob("*.safetensors")) == fused(small_base(), [(tensors, 0.125)])
    [use] = record_of(done.path)["adapters"]
    assert use["scales"] == [0.125]
    [origin] = use["scale_origins"]
    assert "alpha 1" in origin
    assert "rank 8" in origin
    assert use["kind"] == "peft"


def test_rslora_divides_by_the_root_of_the_rank(base: Path, tmp_path: Path) -> None:
    """alpha / sqrt(rank), divided in float64, rounded once."""
    tensors = small_adapter(rank=8)
    adapter = write_peft(tmp_path / "adapter", tensors, r=8, lora_alpha=3, use_rslora=True)
    done = fuse(base, [adapter], tmp_path / "out")
    assert tensors_of(*done.path.glob("*.safetensors")) == fused(small_base(), [(tensors, 3 / 8**0.5)])


def test_the_record_names_every_input_with_its_digest_and_no_folder(base: Path, adapter: Path, tmp_path: Path) -> None:
    """Weights and description of the adapter by sha256, the base's files by what was read; labels instead of paths."""
    done = fuse(base, [adapter], tmp_path / "out")
    record = record_of(done.path)
    roles = {
        (item["repo"], item["path"]): (item["role"], item["digest"].partition(":")[0]) for item in record["inputs"]
    }
    assert roles == {
        ("base:base", "a.safetensors"): ("base", "safetensors_xxh3_128"),
        ("base:base", "b.safetensors"): ("base", "safetensors_xxh3_128"),
        ("base:base", "c.safetensors"): ("base", "xxh3_128"),
        ("base:base", INDEX): ("base", "xxh3_128"),
        ("adapter1:adapter", "adapter_model.safetensors"): ("adapter", "sha256"),
        ("adapter1:adapter", "adapter_config.json"): ("spec", "sha256"),
    }
    assert str(tmp_path) not in json.dumps(record)
    other = fuse(write_base(tmp_path / "elsewhere/base"), [adapter], tmp_path / "elsewhere/out")
    again = record_of(other.path)
    del record["run"], again["run"]
    assert again == record


def test_counters_of_a_dry_run_are_those_of_the_run(base: Path, adapter: Path, tmp_path: Path) -> None:
    """Nothing is written, not even a hidden folder."""
    before = files_of(tmp_path)
    planned = fuse(base, [adapter], tmp_path / "out", dry_run=True)
    assert files_of(tmp_path) == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["adapter", "base"]
    done = fuse(base, [adapter], tmp_path / "out")
    assert planned.counters == done.counters
    assert asdict(done.counters) == record_of(done.path)["run"]["counters"]
    assert (planned.room, planned.left_out, planned.adapters) == (done.room, done.left_out, done.adapters)
    weights, pairs = len(MODULES) * OUT * IN * 2, len(MODULES) * 2 * (OUT + IN) * 2
    rest = 4 * IN + 2 * OUT + 16
    assert done.counters == Counters(read=weights + pairs + rest, written=weights + rest)


def test_asked_for_links_are_counted_as_such(base: Path, adapter: Path, tmp_path: Path) -> None:
    """A shard without a target shares its inode where that was asked for."""
    planned = fuse(base, [adapter], tmp_path / "out", link="hardlink", dry_run=True)
    done = fuse(base, [adapter], tmp_path / "out", link="hardlink")
    assert done.counters == planned.counters
    assert done.counters.linked == 16
    assert (done.path / "c.safetensors").samefile(base / "c.safetensors")


# Against PEFT itself


@pytest.mark.parametrize("rslora", [False, True])
def test_a_peft_adapter_merges_as_peft_merges_it(tmp_path: Path, rslora: bool) -> None:  # noqa: FBT001 - a table's column
    """Saved by PEFT, fused here: within one bf16 rounding of PEFT's own fp32 merge."""
    import peft as library
    import torch
    from safetensors.torch import load_file, save_file

    torch.manual_seed(3)
    model = torch.nn.ModuleDict(
        {"q": torch.nn.Linear(24, 16), "k": torch.nn.Linear(24, 16), "o": torch.nn.Linear(16, 8)}
    )
    model.config = {"model_type": "small"}  # type: ignore[assignment] # PEFT asks for one
    for parameter in model.parameters():
        parameter.data = parameter.data.bfloat16().float()
    (tmp_path / "base").mkdir()
    save_file(
        {name: value.bfloat16() for name, value in model.state_dict().items()}, tmp_path / "base/model.safetensors"
    )
    config = library.LoraConfig(r=4, lora_alpha=6, target_modules=["q", "o"], use_rslora=rslora, rank_pattern={"o": 2})
    wrapped = library.get_peft_model(model, config)
    for name, parameter in wrapped.named_parameters():
        if "lora_" in name:
            torch.nn.init.normal_(parameter, std=0.3)
            parameter.data = parameter.data.bfloat16().float()
    wrapped.save_pretrained(tmp_path / "adapter")
    merged = {name: value.clone() for name, value in wrapped.merge_and_unload().state_dict().items()}

    done = fuse(tmp_path / "base", [tmp_path / "adapter"], tmp_path / "out")
    made = load_file(done.path / "model.safetensors")
    assert made.keys() == merged.keys()
    for name, value in made.items():
        assert value.dtype == torch.bfloat16
        step = torch.maximum(value.float().abs(), merged[name].abs()) * 2**-8 + 2**-133
        assert ((value.float() - merged[name]).abs() <= step).all(), name
    assert not torch.equal(made["q.weight"], load_file(tmp_path / "base/model.safetensors")["q.weight"])
    assert torch.equal(made["k.weight"], load_file(tmp_path / "base/model.safetensors")["k.weight"])
