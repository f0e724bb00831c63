"""Cases from the field, through ``overlay fuse`` and through the recipe ``lora``: refused before a byte is written."""

from __future__ import annotations

import json
import os
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest
from support.small_models import (
    MODEL,
    MODULES,
    fused,
    small_adapter,
    small_base,
    small_options,
    tensors_of,
    write_base,
    write_peft,
    write_small_hub,
)
from support.tensors import bf16, f32, lfs_pointer, write_tensors

from overlay.errors import BrokenInput, NotHere, OverlayError
from overlay.materialization.fuse import fuse
from overlay.materialization.materialize import materialize

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@dataclass
class Job:
    """One of the two ways to fuse, on inputs that a test may change.

    Attributes:
        run: Fuses; the folder with the fused base.
        written: What there is of outputs, finished or not.
    """

    base: Path
    adapter: Path
    run: Callable[[], Path]
    written: Callable[[], list[Path]]


def by_fuse(folder: Path) -> Job:
    base, adapter = write_base(folder / "base"), write_peft(folder / "adapter", small_adapter())
    return Job(
        base,
        adapter,
        lambda: fuse(base, [adapter], folder / "out").path,
        lambda: [path for path in folder.iterdir() if path not in (base, adapter)],
    )


def by_recipe(folder: Path) -> Job:
    base, adapter = write_small_hub(folder / "hub")

    def run() -> Path:
        path = materialize(MODEL, small_options(folder / "hub")).path
        assert path is not None
        return path / "unet"

    def written() -> list[Path]:
        own = folder / "root/.overlay"
        made = [*own.glob("objects/*/*/*"), *own.glob("trees/*"), *own.glob("staging/*"), *own.glob("actions/*/*")]
        return [*made, *folder.glob("root/materialized_models/*")]

    return Job(base / "unet", adapter, run, written)


@pytest.fixture(params=[by_fuse, by_recipe])
def job(request: pytest.FixtureRequest, tmp_path: Path) -> Job:
    """Both ways."""
    made: Job = request.param(tmp_path)
    return made


def refused(job: Job, kind: type[OverlayError] = BrokenInput) -> OverlayError:
    """The error of a run that must not have written anything."""
    with pytest.raises(kind) as caught:
        job.run()
    assert job.written() == []
    return caught.value


def test_both_ways_give_the_same_weights(job: Job) -> None:
    """Sound inputs: those of the exact loop."""
    assert tensors_of(*job.run().glob("*.safetensors")) == fused(small_base(), [(small_adapter(), 1.0)])


def test_h01_no_description_names_what_was_tried_and_what_is_there(job: Job) -> None:
    """Neither spec nor config: the folder, both names, and what the folder holds."""
    (job.adapter / "adapter_config.json").rename(job.adapter / "config.json")
    error = refused(job, OverlayError)
    text = f"{error.message} {error.hint}"
    assert all(part in text for part in (str(job.adapter), "adapter_spec.json", "adapter_config.json", "config.json"))


def test_h01_one_folder_too_deep_is_hinted(job: Job) -> None:
    """The files lie one level deeper, as after a careless copy."""
    deeper = job.adapter / "style"
    deeper.mkdir()
    for path in list(job.adapter.iterdir()):
        if path != deeper:
            path.rename(deeper / path.name)
    error = refused(job, OverlayError)
    assert "style" in f"{error.message} {error.hint}"


def test_h02_rank_8_alpha_1_is_an_eighth(job: Job) -> None:
    """Never alpha = rank; scale and its origin are recorded."""
    tensors = small_adapter(rank=8)
    write_peft(job.adapter, tensors, r=8, lora_alpha=1)
    out = job.run()
    assert tensors_of(*out.glob("*.safetensors")) == fused(small_base(), [(tensors, 0.125)])
    [record] = [path for folder in (out, out.parent) for path in folder.glob("overlay_record.json")]
    [adapter] = json.loads(record.read_bytes())["adapters"]
    assert adapter["scales"] == [0.125]
    assert "alpha 1 / rank 8" in adapter["scale_origins"][0]


def test_h06_an_adapter_that_matches_nothing_is_no_success(job: Job) -> None:
    """Every key has a prefix that the base lacks: some wanted and some available names."""
    write_peft(job.adapter, small_adapter(modules=[f"other.{module}" for module in MODULES]))
    error = refused(job)
    assert "other.blocks.0.q" in error.message or "other.blocks.0.k" in error.message
    assert "blocks.0." in f"{error.message} {error.hint}".replace("other.blocks", "")


def test_h06_an_adapter_that_matches_in_part_is_no_success(job: Job) -> None:
    """Three of four would be fused: nothing is."""
    write_peft(job.adapter, small_adapter(modules=[*MODULES[:3], "blocks.7.q"]))
    assert "blocks.7.q" in refused(job).message


def test_h11_every_tensor_keeps_its_dtype_and_is_rounded_once(job: Job) -> None:
    """An fp32 norm among bf16 weights; values where bf16 arithmetic would give other bits."""
    made = tensors_of(*job.run().glob("*.safetensors"))
    assert {name: dtype for name, (dtype, _, _) in made.items()} == {
        name: dtype for name, (dtype, _, _) in small_base().items()
    }
    assert made != fused(small_base(), [(small_adapter(), 1.0)], "openvdn")


@pytest.mark.parametrize("half", ["A", "B"])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_h12_what_is_not_finite_in_an_adapter_is_an_error(job: Job, half: str, value: float) -> None:
    """Adapter, key and count; no tree, no location, no OUT; and the fixed adapter fuses."""
    tensors = small_adapter()
    key = f"blocks.1.k.lora_{half}.weight"
    dtype, shape, data = tensors[key]
    broken = struct.pack("<f", value)[2:]
    tensors[key] = dtype, shape, broken + data[2:-2] + broken
    write_peft(job.adapter, tensors)
    with pytest.raises(BrokenInput) as caught:
        job.run()
    error = caught.value
    assert error.code == "adapter-not-finite"
    assert (error.data["tensor"], error.data["count"]) == (key, 2)
    assert "adapter" in error.message
    assert not any("materialized_models" in path.parts or "trees" in path.parts for path in job.written())
    assert not any(path.name == "out" or ".out." in path.name or "staging" in path.parts for path in job.written())
    write_peft(job.adapter, small_adapter())
    assert tensors_of(*job.run().glob("*.safetensors")) == fused(small_base(), [(small_adapter(), 1.0)])


def test_h12_finite_inputs_whose_sum_is_not_finite_are_an_error(job: Job) -> None:
    """The fuse itself would make an infinity."""
    weights = small_base()
    weights["blocks.0.q.weight"] = bf16([6, 4], [2.0**127] * 24)
    write_base(job.base, weights)
    pairs = small_adapter()
    pairs["blocks.0.q.lora_A.weight"] = bf16([2, 4], [2.0**63] * 8)
    pairs["blocks.0.q.lora_B.weight"] = bf16([6, 2], [2.0**63] * 12)
    write_peft(job.adapter, pairs)
    with pytest.raises(BrokenInput) as caught:
        job.run()
    assert caught.value.code == "result-not-finite"
    assert "blocks.0.q.weight" in caught.value.message


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 5)


def emptied(path: Path) -> None:
    os.truncate(path, 0)


def with_a_header_beyond_its_end(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(struct.pack("<Q", len(data)) + data[8:])


@pytest.mark.parametrize("damage", [cut, emptied, with_a_header_beyond_its_end])
@pytest.mark.parametrize("which", ["base", "carried", "adapter"])
def test_h13_a_short_file_is_named_with_its_sizes(job: Job, damage: Callable[[Path], None], which: str) -> None:
    """File, real and expected size, what to do."""
    file = {
        "base": job.base / "b.safetensors",
        "carried": job.base / "c.safetensors",
        "adapter": job.adapter / "adapter_model.safetensors",
    }[which]
    size = file.stat().st_size
    damage(file)
    error = refused(job)
    assert str(file) in error.message
    assert str(file.stat().st_size) in error.message or "an empty file" in error.message
    if damage is cut:
        assert str(size) in error.message
    assert "download" in str(error.hint)


@pytest.mark.parametrize("which", ["base", "adapter", "json"])
def test_h14_a_git_lfs_pointer_is_told_as_such(job: Job, which: str) -> None:
    """With the real size and the command that fixes it."""
    file = {
        "base": job.base / "b.safetensors",
        "adapter": job.adapter / "adapter_model.safetensors",
        "json": job.adapter / "adapter_config.json",
    }[which]
    file.write_bytes(lfs_pointer(real_size=4_279_428_112))
    error = refused(job)
    assert "Git LFS pointer" in error.message
    assert "4279428112" in error.message.replace("_", "").replace(",", "")
    assert "lfs pull" in str(error.hint)


def test_h15_every_missing_shard_is_listed_before_any_work(job: Job) -> None:
    """An incomplete download."""
    for name in "ab":
        (job.base / f"{name}.safetensors").unlink()
    error = refused(job)
    assert error.code == "missing-shards"
    assert "a.safetensors, b.safetensors" in error.message
    assert "incomplete download?" in str(error.hint)


@pytest.mark.parametrize("shard", ["../../other/x.safetensors", "/etc/x.safetensors", "a/../../x.safetensors"])
def test_h16_an_index_cannot_lead_out_of_its_folder(job: Job, shard: str) -> None:
    """The entry is named, the file outside is never opened."""
    outside = job.base.parent.parent / "other"
    write_tensors(outside / "x.safetensors", {"w": f32([1], [1.0])})
    index = job.base / "model.safetensors.index.json"
    document: Any = json.loads(index.read_bytes())
    document["weight_map"]["blocks.0.q.weight"] = shard
    index.write_text(json.dumps(document))
    with pytest.raises(BrokenInput) as caught:
        job.run()
    assert "blocks.0.q.weight" in caught.value.message
    assert shard in caught.value.message


def test_a_dangling_link_is_named_before_any_work(job: Job) -> None:
    """A snapshot whose blob was pruned."""
    (job.base / "b.safetensors").unlink()
    (job.base / "b.safetensors").symlink_to("../../blobs/0123")
    error = refused(job, (BrokenInput, NotHere))  # type: ignore[arg-type]
    assert "b.safetensors" in error.message
    assert "0123" in error.message


def test_pickled_weights_are_refused(job: Job) -> None:
    """A base or an adapter that is a pickle is never opened."""
    for path in job.adapter.glob("*.safetensors"):
        path.rename(path.with_name("adapter_model.bin"))
    error = refused(job, OverlayError)
    assert "adapter_model.bin" in f"{error.message} {error.hint}"
