"""Adapters against the base, by headers alone: each kind of disagreement is one finding that names all modules."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from support.contracts import codes, edit_json, make_hub, next_source, subject_of
from support.lora import IN, OUT, RANK, kohya, openvdn_spec, pair, pairs, peft_config, write_adapter, zeros
from support.lora_contracts import ADAPTER_PLACE, BASE, base_folder, lora_folder, lora_subject, write_base
from support.tensors import f32, write_tensors

from overlay.contract.checks.adapters import check_adapters
from overlay.errors import NotHere
from overlay.formats.header import read_header
from overlay.hub import FolderRepo

if TYPE_CHECKING:
    from pathlib import Path

    from support.tensors import Tensor

    from overlay.contract.finding import Finding

pytestmark = pytest.mark.no_torch

Q0, Q1, K0 = "blocks.0.attn.to_q", "blocks.1.attn.to_q", "blocks.0.attn.to_k"
STAGE = "stage-dmd-step-250"


def _found(root: Path, tensors: dict[str, Tensor], **documents: Any) -> list[Finding]:
    """What is found of one adapter on the small base."""
    write_base(base_folder(root))
    write_adapter(lora_folder(root), tensors, **documents)
    return list(check_adapters(lora_subject(root)))


CLEAN = {
    # By name: tensors and documents.
    "h02-scale-of-an-eighth": (pair(Q0, rank=8), {"config": peft_config([Q0], r=8, lora_alpha=1)}),
    "h02-openvdn": (pair(Q0), {"spec": openvdn_spec([Q0], exact_targets=True, alpha=16)}),
    "h04-peft-patterns": (
        pairs([Q0, Q1, "refiner.0.attn.to_q"], rank=8),
        {"config": peft_config(["to_q"], rank_pattern={"to_q": 8}, alpha_pattern={r"blocks\.1\.attn\.to_q": 1})},
    ),
    "h04-openvdn-patterns": (
        {**pair(Q0, rank=8), **pair(K0)},
        {"spec": openvdn_spec([Q0, K0], exact_targets=True, rank_pattern={Q0: 8})},
    ),
    "h07-kohya": ({**kohya(Q0, f32((), [1])), **kohya(Q1, f32((), [4]))}, {}),
    "h10-adapter-named-in-the-keys": (
        pair(Q0, "base_model.model.{module}.lora_{half}.default_0.weight"),
        {"config": peft_config([Q0])},
    ),
    "h11-fp32-adapter-on-a-bf16-base": (pair(Q0, dtype="F32"), {"config": peft_config([Q0])}),
}


@pytest.mark.parametrize(("tensors", "documents"), CLEAN.values(), ids=CLEAN)
def test_adapter_that_can_be_applied_is_no_finding(
    tmp_path: Path, tensors: dict[str, Tensor], documents: dict[str, Any]
) -> None:
    """Any scale, any layout that the reader understands, any floating dtype."""
    assert _found(tmp_path, tensors, **documents) == []


BROKEN = {
    # By name: tensors, documents, the finding's code and the reader's, and what the message says.
    "h03-rank-of-the-tensors": (
        pairs([Q0, Q1]),
        {"config": peft_config(["to_q"], r=8, exclude_modules=["refiner.0.attn.to_q"])},
        ("rank-mismatch", "adapter-rank"),
        [f"{Q0}: the tensors have rank 2, the config says 8", f"so it is for 2 modules, also for {Q1}"],
    ),
    "h03-rank-pattern": (
        pair(Q0),
        {"spec": openvdn_spec([Q0], exact_targets=True, rank_pattern={Q0: 4})},
        ("rank-mismatch", "adapter-rank"),
        ["the tensors have rank 2, the config says 4 (rank_pattern)"],
    ),
    "rank-in-the-metadata": (
        pair(Q0),
        {"metadata": {"rank": "4", "alpha": "4"}},
        ("rank-mismatch", "adapter-rank"),
        ["the metadata's rank is 4, the pairs have rank 2"],
    ),
    "h04-peft-pattern-without-a-module": (
        pair(Q0),
        {"config": peft_config([Q0], rank_pattern={"to_v": 8, "to_w": 8})},
        ("pattern-unmatched", "adapter-pattern-unmatched"),
        ["rank_pattern names 'to_v', which matches no LoRA pair", "2 entries match nothing, also to_w"],
    ),
    "h04-openvdn-pattern-is-no-suffix": (
        pair(Q0),
        {"spec": openvdn_spec([Q0], exact_targets=True, alpha_pattern={"to_q": 1})},
        ("pattern-unmatched", "adapter-pattern-unmatched"),
        ["alpha_pattern names 'to_q', which matches no LoRA pair"],
    ),
    "h05-half-a-pair": (
        {f"{Q0}.lora_A.weight": zeros(RANK, IN)},
        {"config": peft_config([Q0])},
        ("adapter-broken", "adapter-half-pair"),
        [f"{Q0}: lora_B (lora_up) is missing"],
    ),
    "h06-prefix-that-the-base-lacks": (
        pairs([f"model.layers.{Q0}", f"model.layers.{Q1}"]),
        {"config": peft_config(["to_q"])},
        ("targets-differ", "adapter-unmatched"),
        ["2 of 2 LoRA pairs have no module in the base", f"wanted model.layers.{Q0} (near: {Q0}"],
    ),
    "h08-dora": (
        {**pair(Q0), f"{Q0}.lora_magnitude_vector": zeros(OUT)},
        {"config": peft_config([Q0], use_dora=True)},
        ("adapter-broken", "adapter-feature"),
        ["use_dora is True: DoRA"],
    ),
    "h09-modules-to-save": (
        {**pair(Q0), "proj_out.weight": zeros(3, IN)},
        {"spec": openvdn_spec([Q0], exact_targets=True)},
        ("adapter-broken", "adapter-feature"),
        ["proj_out.weight is a whole weight, as modules_to_save keeps them"],
    ),
    "h10-two-spellings": (
        {**pair(Q0), **pair(Q0, "base_model.model.{module}.lora_{half}.weight")},
        {"config": peft_config([Q0])},
        ("adapter-broken", "adapter-duplicate-pair"),
        [f"{Q0}: A is there under 2 names"],
    ),
    "pairs-that-are-missing-and-unexpected": (
        pairs([Q0, K0]),
        {"spec": openvdn_spec([Q0, Q1], exact_targets=True)},
        ("targets-differ", "adapter-pairs-missing"),
        [f"1 of 2 targets of its config have no LoRA pair: {Q1}", "there are 2 pairs, and 1 LoRA pair", K0],
    ),
    "pairs-that-are-unexpected": (
        pairs([Q0, K0]),
        {"config": peft_config([Q0])},
        ("targets-differ", "adapter-pairs-unexpected"),
        [f"1 LoRA pair is no target of its config: {K0}; it has 1 targets, and there are 2 pairs"],
    ),
    "targets-that-match-nothing": (
        pair(Q0),
        {"spec": openvdn_spec(["attn.to_q", "attn.to_v", "attn.to_w"])},
        ("targets-differ", "adapter-target-unmatched"),
        ["2 of 3 targets match no module of the base", "attn.to_v"],
    ),
    "shapes": (
        {**pairs([Q0, Q1], cols=IN + 1), **pair(K0)},
        {"spec": openvdn_spec([Q0, Q1, K0], exact_targets=True)},
        ("shape-mismatch", "adapter-shape"),
        [f"{Q0}.weight is [6, 4], so expected [rank, 4]", f"so it is for 2 modules, also for {Q1}"],
    ),
    "target-that-is-no-matrix": (
        pair("conv"),
        {"spec": openvdn_spec(["conv"])},
        ("shape-mismatch", "adapter-target-shape"),
        ["conv.weight of the base has shape [6, 4, 1, 1]"],
    ),
    "description-of-another-project": (
        pair(Q0),
        {"spec": {"adapter_kind": "x"}},
        ("adapter-broken", "adapter-spec-unknown"),
        ["is the adapter_spec.json of another project"],
    ),
    "config-in-the-metadata-and-beside": (
        pair(Q0),
        {"metadata": {"lora_adapter_metadata": "{}"}, "config": peft_config([Q0])},
        ("adapter-broken", "adapter-specs-differ"),
        ["has a config in its metadata (lora_adapter_metadata) and another beside it"],
    ),
    "pickle": (
        pair(Q0),
        {"file": "adapter_model.bin"},
        ("adapter-broken", "pickle"),
        ["adapter_model.bin: is a pickle"],
    ),
}


@pytest.mark.parametrize(("tensors", "documents", "wanted", "says"), BROKEN.values(), ids=BROKEN)
def test_adapter_that_cannot_be_applied_is_one_finding(
    tmp_path: Path, tensors: dict[str, Tensor], documents: dict[str, Any], wanted: tuple[str, str], says: list[str]
) -> None:
    """The finding stands at the pin of the adapter's repo and carries what the reader found."""
    [finding] = _found(tmp_path, tensors, **documents)

    assert (finding.code, finding.data["error"]["code"]) == wanted
    assert (finding.place.line, finding.place.column) == ADAPTER_PLACE
    assert [text for text in says if text not in finding.message] == []
    assert f"artist/lora/{'a' * 40}/" in finding.message
    assert finding.data["repo"] == "artist/lora"
    assert finding.severities["overlay"] == "error"
    assert finding.severities["sglang"] == ("warning" if wanted[0] == "pattern-unmatched" else "error")
    assert finding.fix
    if wanted[0] != "adapter-broken":
        assert finding.fix == f"overlay bump {BASE}"


def test_all_modules_are_in_the_data(tmp_path: Path) -> None:
    """The message names the first few, the data all of them."""
    blocks = [f"blocks.{i}.attn.to_q" for i in range(2)]
    [finding] = _found(tmp_path, pairs(blocks, out=OUT + 1), config=peft_config(["to_q"]))

    assert finding.data["error"]["modules"] == blocks
    assert finding.data["error"]["count"] == 2


def test_broken_adapter_does_not_hide_the_next(tmp_path: Path) -> None:
    """Each adapter of the recipe is read, in fusing order; the one between is sound."""
    write_base(base_folder(tmp_path))
    for name, tensors in {"one": pair(Q0, rank=3), "two": pair(Q0), "three": pair(K0)}.items():
        write_adapter(lora_folder(tmp_path, name), tensors, config=peft_config([Q0]))

    found = list(check_adapters(lora_subject(tmp_path, adapters=["one", "two", "three"])))

    assert [(finding.code, finding.data["adapter"]) for finding in found] == [
        ("rank-mismatch", "one"),
        ("targets-differ", "three"),
    ]


def test_release_layout_is_clean_and_each_edit_is_found(tmp_path: Path) -> None:
    """Both adapters of a VDN stage are read, and a finding stands at the pin of the source."""
    hub = make_hub(tmp_path)
    assert list(check_adapters(subject_of(hub, tmp_path))) == []
    bumped = next_source(hub, "other targets and ranks")
    adapters = bumped.source_folder / STAGE / "adapters"
    edit_json(adapters / "default/adapter_spec.json", lambda spec: spec["config"].update(rank=9))
    edit_json(adapters / "turbo/adapter_spec.json", lambda spec: spec["config"]["targets"].pop())

    found = list(check_adapters(subject_of(bumped, tmp_path)))

    assert codes(found) == ["rank-mismatch", "targets-differ"]
    assert [finding.data["adapter"] for finding in found] == ["default", "turbo"]
    assert {(finding.place.line, finding.place.column) for finding in found} == {(4, 14)}
    assert "it has 19 targets, and there are 20 pairs" in found[1].message


@pytest.mark.parametrize("absent", ["adapter_model.safetensors", "adapter_spec.json", "*"])
def test_absent_files_are_left_to_the_check_of_files(tmp_path: Path, absent: str) -> None:
    """One cause, one finding."""
    hub = next_source(make_hub(tmp_path), "a file less")
    for path in (hub.source_folder / STAGE / "adapters/turbo").glob(absent):
        path.unlink()

    assert list(check_adapters(subject_of(hub, tmp_path))) == []


def test_two_specs_that_differ_are_left_to_the_check_of_files(tmp_path: Path) -> None:
    """One cause, one finding."""
    documents = {"spec": openvdn_spec([Q0], exact_targets=True), "config": openvdn_spec([Q1], exact_targets=True)}

    assert _found(tmp_path, pair(Q0), **documents) == []


def test_h15_base_that_lacks_a_shard_says_nothing_of_the_adapters(tmp_path: Path) -> None:
    """Without the whole base nothing can be told of what lands in it; the absent shard is another check's finding."""
    hub = next_source(make_hub(tmp_path), "a shard less")
    next(hub.source_folder.glob("h3-base/transformer/*.safetensors")).unlink()

    assert list(check_adapters(subject_of(hub, tmp_path))) == []


def test_quantised_target_is_left_to_the_check_of_bases(tmp_path: Path) -> None:
    """One cause, one finding, and it is the base's."""
    write_base(base_folder(tmp_path))
    header = read_header(base_folder(tmp_path) / "model.safetensors")
    tensors = {name: zeros(*info.shape, dtype="F8_E4M3") for name, info in header.tensors.items()}
    write_tensors(base_folder(tmp_path) / "model.safetensors", tensors)
    write_adapter(lora_folder(tmp_path), pair(Q0), config=peft_config([Q0]))

    assert list(check_adapters(lora_subject(tmp_path))) == []


def test_recipe_without_adapters_is_no_finding(tmp_path: Path) -> None:
    """What is built by mappings has none."""
    hub = make_hub(tmp_path)
    registry = f"""\
schema_version: 1
models:
  OpenVDN/vdn-minimax-h3:
    source: {{revision: {hub.source}}}
    overlay: {{repo: kevin-mi/VDN-H3-overlay, revision: {hub.overlay}}}
    recipe: {{name: mappings}}
"""
    assert list(check_adapters(subject_of(hub, tmp_path, registry=registry))) == []


def test_file_that_is_not_on_this_host_is_no_finding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What could not be read now is the runner's to tell: it is not the adapter's fault."""
    write_base(base_folder(tmp_path))
    write_adapter(lora_folder(tmp_path), pair(Q0), config=peft_config([Q0]))
    subject = lora_subject(tmp_path)

    def not_cached(_repo: FolderRepo, path: str) -> None:
        raise NotHere(f"{path}: not cached", code="not-cached")

    monkeypatch.setattr(FolderRepo, "header", not_cached)

    with pytest.raises(NotHere, match="not cached"):
        list(check_adapters(subject))


def test_hostile_names_make_no_message_of_several_lines(tmp_path: Path) -> None:
    """A name may be anything that a header can hold; a message is one line that ends, and so is what `data` has."""
    module = "x\r::error::" + "y" * 10_000

    [finding] = _found(tmp_path, pair(module), config=peft_config(["x"]))

    assert finding.code == "targets-differ"
    assert finding.message.isprintable()
    assert "x\\r::error::yyy" in finding.message
    assert len(finding.message) < 3000
    assert all(len(name) < 300 for name in finding.data["error"]["modules"])
