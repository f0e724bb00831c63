"""Recipe ``vdn-h3``: what it makes of each input, and what it refuses before anything is built."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from support.checkpoints import copy_hub, tiny_hub
from support.models import STAGE, VDN, options, vdn_registry
from support.small_models import tensors_of
from support.tensors import f32, write_tensors

from overlay.demo.revisions import bump_rename
from overlay.errors import BrokenInput, InvalidRegistry, InvalidUsage, OverlayError
from overlay.planning.outputs import AliasFile, CarriedFile, Fused, GeneratedFile, SafetensorsFile

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from conftest import Planner

    from overlay.demo.checkpoint import HubFolder
    from overlay.planning.plan import Plan

pytestmark = pytest.mark.no_torch

DEFAULT, TURBO = (f"{STAGE}/adapters/{name}" for name in ("default", "turbo"))
TRANSFORMER = "h3-base/transformer"
INDEX = f"{TRANSFORMER}/diffusion_pytorch_model.safetensors.index.json"


@pytest.fixture
def tiny(tmp_path_factory: pytest.TempPathFactory) -> HubFolder:
    """A hub folder to change."""
    return copy_hub(tmp_path_factory)


def edit(path: Path, change: Callable[[Any], Any]) -> None:
    path.write_text(json.dumps(change(json.loads(path.read_bytes()))))


def setting(**values: Any) -> Callable[[Any], Any]:
    """The document with these values."""
    return lambda document: {**document, **values}


def being(value: Any) -> Callable[[Any], Any]:
    """Another document."""
    return lambda _document: value


def planned(plan_of: Planner, hub: HubFolder, tmp_path: Path) -> Plan:
    return plan_of(VDN, options(hub, tmp_path / "root"))


def refused(plan_of: Planner, hub: HubFolder, tmp_path: Path, kind: type[OverlayError] = BrokenInput) -> OverlayError:
    with pytest.raises(kind) as caught:
        planned(plan_of, hub, tmp_path)
    return caught.value


def test_each_output_is_made_in_its_own_way(
    plan_of: Planner, tmp_path_factory: pytest.TempPathFactory, tmp_path: Path
) -> None:
    """Shards fused; VAE and rope written; branch, text encoder, audio VAE carried; JSON generated; one alias."""
    plan = planned(plan_of, tiny_hub(tmp_path_factory), tmp_path)
    kinds = {output.path: output for output in plan.outputs}
    assert [path for path in kinds if path.startswith("transformer/") and kinds[path].__class__ is SafetensorsFile] == [
        *(f"transformer/diffusion_pytorch_model-0000{number}-of-00003.safetensors" for number in (1, 2, 3)),
        "transformer/sglang_rope_inv_freq.safetensors",
    ]
    assert isinstance(kinds["video_vae/source/model.safetensors"], SafetensorsFile)
    assert kinds["video_vae/model.safetensors"] == AliasFile(
        "video_vae/model.safetensors", "video_vae/source/model.safetensors"
    )
    for path in ("transformer/sglang_vdn_linear_branch.safetensors", "audio_vae/diffusion_pytorch_model.safetensors"):
        assert isinstance(kinds[path], CarriedFile)
    for path in ("transformer/config.json", "audio_vae/config.json", "model_index.json", "README.md"):
        assert isinstance(kinds[path], GeneratedFile)
    assert not any(path.startswith("_overlay") for path in kinds)
    assert list(kinds) == sorted(kinds)
    fused = [
        tensor.name
        for output in plan.outputs
        if isinstance(output, SafetensorsFile)
        for tensor in output.tensors
        if any(isinstance(piece, Fused) for piece in tensor.pieces)
    ]
    assert len(fused) == 34
    assert [(use.name, use.num_pairs) for use in plan.adapters] == [("default", 20), ("turbo", 34)]


def test_the_record_will_know_every_file_that_shaped_the_plan(
    plan_of: Planner, tmp_path_factory: pytest.TempPathFactory, tmp_path: Path
) -> None:
    """Weights, specs, configs and metadata of the source, at their commit, with digests."""
    hub = tiny_hub(tmp_path_factory)
    inputs = {item.path: item for item in planned(plan_of, hub, tmp_path).inputs() if item.repo == VDN}
    assert {
        f"{DEFAULT}/adapter_spec.json",
        f"{DEFAULT}/adapter_model.safetensors",
        f"{TURBO}/adapter_spec.json",
        f"{STAGE}/metadata.json",
        f"{STAGE}/linear_branch/config.json",
        f"{STAGE}/linear_branch/model.safetensors",
        f"{TRANSFORMER}/config.json",
        "h3-base/vae/config.json",
        "h3-base/audio_vae/config.json",
    } <= set(inputs)
    assert not any("stage-b-step-2000" in path or "scheduler" in path for path in inputs)
    for item in inputs.values():
        assert item.revision == hub.source
        assert item.size == (hub.source_folder / item.path).stat().st_size
        assert re.fullmatch(r"sha256:[0-9a-f]{64}", item.digest)


def test_h01_a_required_file_that_was_renamed_is_hinted(
    plan_of: Planner, tmp_path_factory: pytest.TempPathFactory, tmp_path: Path
) -> None:
    """The overlay asks for the former name and the source has the present one, and the other way round."""
    old = copy_hub(tmp_path_factory, "adapter_config.json")
    new = bump_rename(old)
    mixed = replace(new, overlay=old.overlay)
    error = refused(plan_of, mixed, tmp_path)
    assert error.code == "required-file-missing"
    assert f"{DEFAULT}/adapter_config.json" in error.message
    assert f"the source has {DEFAULT}/adapter_spec.json instead" in str(error.hint)
    assert error.data["renamed"] == [f"{DEFAULT}/adapter_spec.json", f"{TURBO}/adapter_spec.json"]

    mixed = replace(old, overlay=new.overlay)
    error = refused(plan_of, mixed, tmp_path)
    assert f"the source has {DEFAULT}/adapter_config.json instead" in str(error.hint)


def test_every_required_file_that_is_missing_is_listed(plan_of: Planner, tiny: HubFolder, tmp_path: Path) -> None:
    """All at once, with nothing guessed where nothing is alike."""
    for path in (f"{STAGE}/linear_branch/model.safetensors", "h3-base/vae/config.json"):
        (tiny.source_folder / path).unlink()
    error = refused(plan_of, tiny, tmp_path)
    assert error.data["missing"] == ["h3-base/vae/config.json", f"{STAGE}/linear_branch/model.safetensors"]
    assert error.hint == f"put these files into {tiny.source_folder}"


@pytest.mark.parametrize(("moved_to", "renamed"), [(None, []), ("meta_data.json", [f"{STAGE}/meta_data.json"])])
def test_a_file_that_only_the_recipe_needs_is_required_too(
    plan_of: Planner, tiny: HubFolder, tmp_path: Path, moved_to: str | None, renamed: list[str]
) -> None:
    """The pinned commit lacks it, which no build or connection changes; where it was renamed, that is said."""
    path = tiny.source_folder / STAGE / "metadata.json"
    path.rename(path.with_name(moved_to)) if moved_to else path.unlink()
    error = refused(plan_of, tiny, tmp_path)
    assert (error.code, error.exit_status) == ("required-file-missing", 1)
    assert error.data["missing"] == [f"{STAGE}/metadata.json"]
    assert error.data["renamed"] == renamed
    assert "recipe vdn-h3 requires files that are not there" in error.message


def test_a_missing_component_of_a_need_is_named(plan_of: Planner, tiny: HubFolder, tmp_path: Path) -> None:
    """The repo and the folder."""
    shutil.rmtree(tiny.needs_folder / "processor")
    error = refused(plan_of, tiny, tmp_path)
    assert (error.code, error.data["folder"]) == ("component-missing", "processor")
    assert "MiniMax-H3" in error.message


def test_an_unknown_stage_is_refused_with_those_that_exist(
    plan_of: Planner, tmp_path_factory: pytest.TempPathFactory, tmp_path: Path
) -> None:
    """A typo in the registry."""
    hub = tiny_hub(tmp_path_factory)
    chosen = options(hub, tmp_path / "root", stage="stage-dmd-step-25")
    with pytest.raises(InvalidRegistry, match="stage-dmd-step-25") as caught:
        plan_of(VDN, chosen)
    assert caught.value.code == "unknown-stage"
    assert "stage-dmd-step-250, stage-b-step-2000" in str(caught.value.hint)


def test_an_unknown_rule_is_refused(plan_of: Planner, tmp_path_factory: pytest.TempPathFactory, tmp_path: Path) -> None:
    """With those that exist."""
    with pytest.raises(InvalidUsage, match="fp16") as caught:
        plan_of(VDN, options(tiny_hub(tmp_path_factory), tmp_path / "root", rule="fp16"))
    assert "fp32-once, openvdn" in caught.value.message


def stamp_prefused(hub: HubFolder) -> str:
    sums = {"adapters": [{"adapter_model_sha256": sha256_of(hub, f"{TURBO}/adapter_model.safetensors")}]}
    (hub.source_folder / TRANSFORMER / "sglang_vdn_prefused.json").write_text(json.dumps(sums))
    return "turbo"


def stamp_record(hub: HubFolder) -> str:
    digest = f"sha256:{sha256_of(hub, f'{DEFAULT}/adapter_model.safetensors')}"
    record = {"inputs": [{"role": "adapter", "digest": digest}], "fused_before": []}
    (hub.source_folder / "h3-base/overlay_record.json").write_text(json.dumps(record))
    return "default"


def stamp_marker(hub: HubFolder) -> str:
    (hub.source_folder / TRANSFORMER / ".sglang_overlay_materialized.json").write_text("{}")
    return "was fused before"


def sha256_of(hub: HubFolder, path: str) -> str:
    import hashlib

    return hashlib.sha256((hub.source_folder / path).read_bytes()).hexdigest()


@pytest.mark.parametrize("stamp", [stamp_prefused, stamp_record, stamp_marker])
def test_a_base_that_is_fused_already_is_refused(
    plan_of: Planner, tiny: HubFolder, tmp_path: Path, stamp: Callable[[HubFolder], str]
) -> None:
    """By the server's provenance, by our record, by the server's marker: twice would double the effect."""
    words = stamp(tiny)
    error = refused(plan_of, tiny, tmp_path)
    assert error.code == "already-fused"
    assert words in error.message
    assert "doubles its effect" in str(error.hint)


@pytest.mark.parametrize("name", ["transformer_blocks.0.attn.to_q.weight", "rope.inv_freq"])
def test_a_branch_whose_tensors_have_another_place_is_refused(
    plan_of: Planner, tiny: HubFolder, tmp_path: Path, name: str
) -> None:
    """Two tensors of one name in one index: with the base, or with the file that is made."""
    path = tiny.source_folder / STAGE / "linear_branch/model.safetensors"
    write_tensors(path, {**tensors_of(path), name: f32([1], [0.0])}, {"format": "pt"})
    error = refused(plan_of, tiny, tmp_path)
    assert (error.code, error.data["tensors"]) == ("tensor-collision", [name])


@pytest.mark.parametrize("name", ["sglang_vdn_linear_branch", "sglang_rope_inv_freq"])
def test_a_shard_by_the_name_of_a_file_that_is_made_is_refused(
    plan_of: Planner, tiny: HubFolder, tmp_path: Path, name: str
) -> None:
    """It would be replaced without a word, and its tensors lost."""
    folder = tiny.source_folder / TRANSFORMER
    old = "diffusion_pytorch_model-00003-of-00003.safetensors"
    (folder / old).rename(folder / f"{name}.safetensors")
    index = folder / "diffusion_pytorch_model.safetensors.index.json"
    index.write_text(index.read_text().replace(old, f"{name}.safetensors"))
    error = refused(plan_of, tiny, tmp_path)
    assert (error.code, error.data["path"]) == ("output-collision", f"transformer/{name}.safetensors")


@pytest.mark.parametrize(
    ("path", "change", "words"),
    [
        (f"{TRANSFORMER}/config.json", setting(rope_freq_dim=None), "rope_freq_dim is None"),
        (f"{TRANSFORMER}/config.json", setting(rope_freq_dim=True), "rope_freq_dim is True"),
        (f"{TRANSFORMER}/config.json", setting(rope_freq_dim=-1), "expected a positive integer"),
        (f"{TRANSFORMER}/config.json", setting(rope_freq_dim=10**9), "expected a positive integer up to 10000"),
        (f"{TRANSFORMER}/config.json", being([]), "expected an object"),
        ("h3-base/vae/config.json", setting(decoder_num_attention_heads="3"), "decoder_num_attention_heads"),
        ("h3-base/vae/config.json", setting(decoder_num_attention_heads=4), "rows (4 heads of 16)"),
        ("h3-base/vae/config.json", being("text"), "expected an object"),
        ("h3-base/audio_vae/config.json", being([1]), "expected an object"),
        (f"{STAGE}/metadata.json", being(7), "expected an object"),
        (f"{STAGE}/metadata.json", setting(checkpoint_format_version=3), "expected 2"),
        (f"{STAGE}/linear_branch/config.json", setting(version=3), "expected 2"),
        (f"{STAGE}/linear_branch/config.json", setting(type="softmax"), "hybrid_attention"),
        (f"{STAGE}/linear_branch/config.json", setting(config=None), "expected an object"),
        (f"{STAGE}/model_spec.json", lambda d: {**d, "adapters": d["adapters"][:1]}, "lists 1 adapters"),
        (f"{STAGE}/model_spec.json", lambda d: {**d, "adapters": d["adapters"][::-1]}, "do not say the same"),
        (INDEX, setting(metadata=[1]), "metadata is [1]"),
        (INDEX, setting(metadata={"total_size": "big"}), "total_size is a number of bytes"),
        (f"{DEFAULT}/adapter_spec.json", lambda d: {**d, "config": {**d["config"], "rank": 4}}, "rank"),
        (f"{TURBO}/adapter_spec.json", lambda d: {**d, "config": {**d["config"], "targets": ["x"]}}, "target"),
    ],
)
def test_documents_that_are_not_what_they_must_be_are_named(
    plan_of: Planner, tiny: HubFolder, tmp_path: Path, path: str, change: Callable[[Any], Any], words: str
) -> None:
    """Odd types, unknown versions, two files that do not agree: an error with the file's name, never a crash."""
    edit(tiny.source_folder / path, change)
    error = refused(plan_of, tiny, tmp_path)
    assert words in error.message
    assert any(part in error.message for part in (path, path.rpartition("/")[0]))


def test_an_adapter_of_another_kind_is_refused_by_this_recipe(
    plan_of: Planner, tiny: HubFolder, tmp_path: Path
) -> None:
    """A PEFT config in the place of OpenVDN's spec: the provenance that a server reads cannot be written of it."""
    from support.lora import peft_config

    folder = tiny.source_folder / DEFAULT
    modules = sorted(name.partition(".lora_")[0] for name in tensors_of(folder / "adapter_model.safetensors"))
    (folder / "adapter_spec.json").write_text(json.dumps(peft_config(list(dict.fromkeys(modules)), r=8, lora_alpha=8)))
    (tiny.source_folder / STAGE / "model_spec.json").unlink()
    error = refused(plan_of, tiny, tmp_path)
    assert (error.code, error.data["kind"]) == ("adapter-kind", "peft")


def test_a_base_without_total_size_gets_one(plan_of: Planner, tiny: HubFolder, tmp_path: Path) -> None:
    """An index that some tool wrote without metadata."""
    index = tiny.source_folder / TRANSFORMER / "diffusion_pytorch_model.safetensors.index.json"
    edit(index, lambda document: {"weight_map": document["weight_map"]})
    outputs = {output.path: output for output in planned(plan_of, tiny, tmp_path).outputs}
    made = outputs["transformer/diffusion_pytorch_model.safetensors.index.json"]
    assert isinstance(made, GeneratedFile)
    branch = tiny.source_folder / STAGE / "linear_branch/model.safetensors"
    assert json.loads(made.data)["metadata"] == {"total_size": branch.stat().st_size}


def test_the_overlays_own_files_never_replace_what_the_recipe_makes(
    plan_of: Planner, tiny: HubFolder, tmp_path: Path
) -> None:
    """A config of its own in the transformer's folder gives way, another file beside stays."""
    (tiny.overlay_folder / "transformer").mkdir()
    (tiny.overlay_folder / "transformer/config.json").write_text("{}")
    (tiny.overlay_folder / "transformer/notes.md").write_text("note")
    (tiny.overlay_folder / "overlay_record.json").write_text("{}")
    outputs = {output.path: output for output in planned(plan_of, tiny, tmp_path).outputs}
    config = outputs["transformer/config.json"]
    assert isinstance(config, GeneratedFile)
    assert b"hybrid_attention" in config.data
    assert outputs["transformer/notes.md"] == GeneratedFile("transformer/notes.md", b"note")
    assert "overlay_record.json" not in outputs


def test_the_fingerprint_of_another_overlay_is_noted(plan_of: Planner, tiny: HubFolder, tmp_path: Path) -> None:
    """A server with the published overlay looks in another directory: said, not hidden."""
    registry = vdn_registry(tmp_path, tiny, overlay=f"      fingerprint: {'0' * 64}")
    plan = plan_of(VDN, options(tiny, tmp_path / "root", registry=registry))
    assert any("looks in another directory" in note for note in plan.notes)
