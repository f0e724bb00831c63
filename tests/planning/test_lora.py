"""Recipe ``lora``: what becomes of each file of the base's repo."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from support.hubs import add_repo, commit
from support.models import write_registry
from support.small_models import (
    BASE_REPO,
    MODEL,
    STYLE_REPO,
    small_adapter,
    small_options,
    write_base,
    write_peft,
    write_small_hub,
)
from support.tensors import f32, write_tensors

from overlay.errors import BrokenInput, InvalidRegistry
from overlay.materialization.request import Options
from overlay.planning.outputs import CarriedFile, Fused, SafetensorsFile

if TYPE_CHECKING:
    from pathlib import Path

    from conftest import Planner

    from overlay.planning.plan import Plan

pytestmark = pytest.mark.no_torch


def kinds(plan: Plan) -> dict[str, str]:
    """``fused``, ``written`` or ``carried`` by output path."""

    def kind(output: object) -> str:
        match output:
            case SafetensorsFile():
                return "fused" if any(isinstance(p, Fused) for t in output.tensors for p in t.pieces) else "written"
            case CarriedFile():
                return "carried"
        return type(output).__name__

    return {output.path: kind(output) for output in plan.outputs}


def test_targets_are_fused_and_everything_else_is_carried(hub: Path, plan_of: Planner) -> None:
    """Shards with a target are written, others carried, other folders too; hidden files stay out."""
    write_small_hub(hub)
    plan = plan_of(MODEL, small_options(hub))
    assert kinds(plan) == {
        "README.md": "carried",
        "unet/a.safetensors": "fused",
        "unet/b.safetensors": "fused",
        "unet/c.safetensors": "carried",
        "unet/config.json": "carried",
        "unet/model.safetensors.index.json": "carried",
        "vae/model.safetensors": "carried",
    }
    assert (plan.model, plan.rule) == (MODEL, "fp32-once")
    assert plan.location.startswith("acme__model-")
    [use] = plan.adapters
    assert (use.kind, use.num_pairs, use.scales) == ("peft", 4, (1.0,))
    assert use.spec is not None
    assert use.spec in plan.inputs()
    assert use.weights in plan.inputs()


@pytest.mark.parametrize(
    "path", [".git/config", ".cache/huggingface/download/a.metadata", "unet/.cache/x", ".DS_Store"]
)
def test_what_tools_hide_in_a_folder_is_not_carried(hub: Path, plan_of: Planner, path: str) -> None:
    """Hidden files and what is in hidden folders."""
    base, _ = write_small_hub(hub)
    (base / path).parent.mkdir(parents=True, exist_ok=True)
    (base / path).write_text("x")
    assert path not in kinds(plan_of(MODEL, small_options(hub)))


def test_a_base_of_a_need_and_adapters_of_the_source(hub: Path, plan_of: Planner) -> None:
    """The roles may be the other way round; what is carried is the base's repo, without the adapter's."""
    write_small_hub(hub)
    registry = write_registry(
        hub,
        f"""\
  acme/tuned:
    source: {{repo: {STYLE_REPO}, revision: {commit("b")}}}
    needs:
      - {{repo: {BASE_REPO}, revision: {commit("a")}}}
    recipe: {{name: lora, base: {{repo: {BASE_REPO}, path: unet}}, adapters: [{{path: adapter_model.safetensors}}]}}
""",
    )
    found = kinds(plan_of("acme/tuned", Options(registry=registry, hub=hub)))
    assert found["unet/a.safetensors"] == "fused"
    assert found["README.md"] == "carried"
    assert "adapter_config.json" not in found


def test_a_base_at_the_root_of_its_repo(hub: Path, plan_of: Planner) -> None:
    """Path left out; an adapter in the same repo is not carried along, a text beside it is."""
    base = write_base(hub / BASE_REPO / commit("a"))
    write_peft(base / "style", small_adapter())
    (base / "style/README.md").write_text("a style")
    registry = write_registry(
        hub,
        f"""\
  {MODEL}:
    source: {{repo: {BASE_REPO}, revision: {commit("a")}}}
    recipe: {{name: lora, base: {{}}, adapters: [{{path: style}}]}}
""",
    )
    assert kinds(plan_of(MODEL, Options(registry=registry, hub=hub))) == {
        "a.safetensors": "fused",
        "b.safetensors": "fused",
        "c.safetensors": "carried",
        "model.safetensors.index.json": "carried",
        "style/README.md": "carried",
    }


def test_adapters_keep_the_order_of_the_registry(hub: Path, plan_of: Planner) -> None:
    """Terms of one weight are in that order, whatever the paths are called."""
    _, style = write_small_hub(hub)
    write_peft(style / "z", small_adapter(5))
    write_peft(style / "a", small_adapter(6, modules=["blocks.0.q"]))
    places = [f"{{repo: {STYLE_REPO}, path: {path}}}" for path in ("z", "a")]
    plan = plan_of(MODEL, small_options(hub, adapters=places))
    [shard] = [output for output in plan.outputs if output.path == "unet/a.safetensors"]
    assert isinstance(shard, SafetensorsFile)
    terms = {
        tensor.name: [term.a.input.path for term in piece.terms]
        for tensor in shard.tensors
        for piece in tensor.pieces
        if isinstance(piece, Fused)
    }
    both = ["z/adapter_model.safetensors", "a/adapter_model.safetensors"]
    assert terms == {"blocks.0.q.weight": both, "blocks.0.k.weight": both[:1]}
    assert [use.weights.path for use in plan.adapters] == both


@pytest.mark.parametrize(
    ("stamp", "content"),
    [
        ("unet/overlay_record.json", {"inputs": [{"role": "adapter", "digest": None}], "fused_before": []}),
        ("overlay_record.json", {"inputs": [{"role": "adapter", "digest": None}], "fused_before": []}),
        ("overlay_record.json", {"inputs": [], "fused_before": [None]}),
        ("unet/sglang_vdn_prefused.json", {"adapters": [{"adapter_model_sha256": None}]}),
        (".sglang_overlay_materialized.json", {}),
        ("unet/.sglang_overlay_materialized.json", {}),
    ],
)
def test_a_base_that_already_holds_the_adapter_is_refused(
    hub: Path, plan_of: Planner, stamp: str, content: dict[str, object]
) -> None:
    """Whichever stamp says so, beside the weights or one above."""
    base, style = write_small_hub(hub)
    digest = plan_of(MODEL, small_options(hub)).adapters[0].weights.digest
    text = json.dumps(content)
    text = text.replace('"digest": null', f'"digest": "{digest}"').replace("[null]", f'["{digest}"]')
    text = text.replace("null", f'"{digest.removeprefix("sha256:")}"')
    (base / stamp).write_text(text)
    with pytest.raises(BrokenInput) as caught:
        plan_of(MODEL, small_options(hub))
    assert caught.value.code == "already-fused"
    assert stamp in caught.value.message
    # Another adapter may be folded into it, where the stamp says which one it holds.
    write_peft(style, small_adapter(9))
    if ".sglang" in stamp:
        with pytest.raises(BrokenInput, match="was fused before"):
            plan_of(MODEL, small_options(hub))
    else:
        plan = plan_of(MODEL, small_options(hub))
        assert plan.fused_before == (digest,)
        assert "overlay_record.json" not in kinds(plan)  # the tree gets its own


def test_pickled_files_of_the_base_are_refused(hub: Path, plan_of: Planner) -> None:
    """Nothing that runs code when it is loaded goes into a tree."""
    base, _ = write_small_hub(hub)
    (base / "vae/model.bin").write_bytes(b"\x80\x04.")
    with pytest.raises(BrokenInput, match=r"vae/model\.bin") as caught:
        plan_of(MODEL, small_options(hub))
    assert caught.value.code == "pickle"


def test_a_repo_that_is_not_pinned_is_refused_by_the_registry(hub: Path, plan_of: Planner) -> None:
    """Every place is of the source or of a need."""
    write_small_hub(hub)
    with pytest.raises(InvalidRegistry, match="acme/unknown"):
        plan_of(MODEL, small_options(hub, adapters=["{repo: acme/unknown}"]))


def test_carried_shards_are_written_again_where_their_header_is_not_canonical(hub: Path, plan_of: Planner) -> None:
    """The published script saves every shard anew: no metadata becomes ``{"format": "pt"}``."""
    base, _ = write_small_hub(hub)
    write_tensors(base / "unet/c.safetensors", {"scale": ("F8_E4M3", [16], bytes(16))})
    plan = plan_of(MODEL, small_options(hub))
    [shard] = [output for output in plan.outputs if output.path == "unet/c.safetensors"]
    assert isinstance(shard, SafetensorsFile)
    assert shard.metadata == {"format": "pt"}


def test_another_recipe_has_another_location(hub: Path, plan_of: Planner) -> None:
    """Without an overlay no server has a key, so pins and recipe name the directory."""
    _, style = write_small_hub(hub)
    write_peft(style / "a", small_adapter(6))
    one = plan_of(MODEL, small_options(hub)).location
    other = plan_of(MODEL, small_options(hub, adapters=[f"{{repo: {STYLE_REPO}, path: a}}"])).location
    assert one != other
    assert one == plan_of(MODEL, small_options(hub)).location


def test_an_unrelated_repo_of_the_hub_changes_nothing(hub: Path, plan_of: Planner) -> None:
    """Only what is named is read."""
    write_small_hub(hub)
    before = plan_of(MODEL, small_options(hub))
    add_repo(hub, "acme/other", commit("c"), {"model.bin": b"x"})
    write_tensors(hub / STYLE_REPO / commit("d") / "x.safetensors", {"w": f32([1], [1.0])})
    assert plan_of(MODEL, small_options(hub)) == before


@pytest.mark.parametrize("gone", [f"{BASE_REPO}/{commit('a')}/unet", f"{STYLE_REPO}/{commit('b')}"])
def test_what_the_pinned_commits_lack_is_broken_input(hub: Path, plan_of: Planner, gone: str) -> None:
    """A base or adapter without its files: nothing to wait for, so not the status of what is not here yet."""
    write_small_hub(hub)
    for path in sorted((hub / gone).iterdir()):
        path.unlink()
    with pytest.raises(BrokenInput) as caught:
        plan_of(MODEL, small_options(hub))
    assert (caught.value.code, caught.value.exit_status) == ("required-file-missing", 1)
