"""The other recipes, from registry to tree: ``lora`` on the tiny checkpoint, ``mappings``, and what needs a script."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
import torch
from hub_server import HubServer
from safetensors.torch import load_file
from support.checkpoints import tiny_hub
from support.hubs import add_repo, client_of, commit, shard
from support.models import VDN, write_registry
from support.published_rule import files_of, fold, shard_metadata
from support.small_models import (
    MODEL,
    STYLE_REPO,
    fused,
    small_adapter,
    small_base,
    small_options,
    tensors_of,
    write_base,
    write_peft,
    write_small_hub,
)

from overlay.demo.checkpoint import LORA_REPO, LORA_REVISION
from overlay.errors import Untrusted
from overlay.materialization.materialize import materialize, plan
from overlay.materialization.record import RECORD_NAME
from overlay.materialization.request import Options
from overlay.materialization.resolve import resolve
from overlay.materialization.survey import Counters
from overlay.materialization.verify import verify

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("base_in", ["source", "needs"])
def test_h07_a_community_file_is_folded_into_the_tiny_base(
    tmp_path_factory: pytest.TempPathFactory, tmp_path: Path, base_in: str
) -> None:
    """lora_down, lora_up and an alpha a module, no JSON: targets get alpha/rank, every other file is carried."""
    hub = tiny_hub(tmp_path_factory)
    pins = [f"{{repo: {VDN}, revision: {hub.source}}}", f"{{repo: {LORA_REPO}, revision: {LORA_REVISION}}}"]
    source, need = pins if base_in == "source" else pins[::-1]
    registry = write_registry(
        tmp_path,
        f"""\
  lakeside-studio/watercolor:
    source: {source}
    needs: [{need}]
    recipe:
      name: lora
      base: {{repo: {VDN}, path: h3-base/transformer}}
      adapters: [{{repo: {LORA_REPO}, path: {hub.lora_file.name}}}]
""",
    )
    chosen = Options(registry=registry, hub=hub.root, cache_root=tmp_path / "root")
    planned = plan("lakeside-studio/watercolor", chosen).counters
    done = materialize("lakeside-studio/watercolor", chosen)
    assert done.counters == planned
    assert done.path is not None
    assert verify(done.path).ok

    lora = load_file(hub.lora_file)
    modules = {name.removesuffix(".alpha") for name in lora if name.endswith(".alpha")}
    made, before = files_of(done.path), files_of(hub.source_folder)
    licences = {f"licenses/{VDN.replace('/', '__')}/LICENSE"}
    assert set(made) == set(before) | {RECORD_NAME} | licences
    assert {made[path] for path in licences} == {before["LICENSE"]}
    num_fused = 0
    for path in before:
        folder = "h3-base/transformer/"
        if not (path.startswith(folder) and path.endswith(".safetensors")):
            assert made[path] == before[path]
            continue
        result = load_file(done.path / path)
        for name, weight in load_file(hub.source_folder / path).items():
            module = name.removesuffix(".weight")
            if module in modules:
                a, b, alpha = (lora[f"{module}.{part}"] for part in ("lora_down.weight", "lora_up.weight", "alpha"))
                weight = fold(weight, [(a, b, float(alpha) / a.shape[0])])  # noqa: PLW2901 - what is expected
                num_fused += 1
            assert torch.equal(result[name], weight), name
        assert shard_metadata(done.path / path) == (shard_metadata(hub.source_folder / path) or {"format": "pt"})
    assert num_fused == len(modules) > 0
    [use] = json.loads(made[RECORD_NAME])["adapters"]
    assert (use["kind"], use["num_pairs"], use["scales"], use["spec"]) == ("kohya", len(modules), [0.125], None)
    assert resolve("lakeside-studio/watercolor", chosen).state.name == "present"
    assert materialize("lakeside-studio/watercolor", chosen).result == "present"


def test_adapters_are_folded_in_the_order_of_the_registry(tmp_path: Path) -> None:
    """Both orders are the exact loop's, and each has its own location."""
    base, style = write_small_hub(tmp_path / "hub")
    write_base(base / "unet", small_base(dtype="F32"))
    for name, seed in (("one", 1), ("two", 2)):
        write_peft(style / name, small_adapter(seed))
    made = []
    for names, seeds in ((("one", "two"), (1, 2)), (("two", "one"), (2, 1))):
        places = [f"{{repo: {STYLE_REPO}, path: {name}}}" for name in names]
        done = materialize(MODEL, small_options(tmp_path / "hub", adapters=places))
        assert done.path is not None
        found = tensors_of(*done.path.glob("unet/*.safetensors"))
        assert found == fused(small_base(dtype="F32"), [(small_adapter(seed), 1.0) for seed in seeds])
        made.append((found, done.location))
    assert made[0] != made[1]
    assert made[0][1] != made[1][1]


def test_a_second_adapter_finds_what_the_first_run_carried(tmp_path: Path) -> None:
    """Files that no adapter touches are objects already; a shard that is fused otherwise is built."""
    _, style = write_small_hub(tmp_path / "hub")
    write_peft(style / "two", small_adapter(2, modules=["blocks.1.q"]))
    materialize(MODEL, small_options(tmp_path / "hub"))
    places = [f"{{repo: {STYLE_REPO}, path: adapter_model.safetensors}}", f"{{repo: {STYLE_REPO}, path: two}}"]
    work = plan(MODEL, small_options(tmp_path / "hub", adapters=places))
    assert [step.output.path for step in work.steps if step.how == "build"] == ["unet/b.safetensors"]


def test_mappings_are_a_tree_of_their_own(tmp_path: Path) -> None:
    """Files, glob and tree of the manifest, the overlay's own files, marker and record; and nothing else."""
    hub = tmp_path / "hub"
    manifest = {
        "materializer_version": "v7",
        "file_mappings": [
            {"src": "unet/config.json", "dst": "config.json"},
            {"type": "glob", "src": "unet/*.safetensors"},
            {"type": "tree", "src": "vae", "dst_dir": "video/vae"},
        ],
    }
    index = json.dumps({"_class_name": "P", "_diffusers_version": "0", "unet": ["own", "U"]})
    source = {"unet/config.json": "{}", "unet/w.safetensors": shard("w"), "vae/v.safetensors": shard("v"), "x.txt": "x"}
    add_repo(hub, "acme/source", commit("a"), source)
    overlay = {"_overlay/overlay_manifest.json": json.dumps(manifest), "README.md": "mapped", "model_index.json": index}
    add_repo(hub, "acme/overlay", commit("b"), overlay)
    registry = write_registry(
        tmp_path,
        f"""\
  acme/source:
    source: {{revision: {commit("a")}}}
    overlay: {{repo: acme/overlay, revision: {commit("b")}}}
    recipe: {{name: mappings}}
""",
    )
    chosen = Options(registry=registry, hub=hub, cache_root=tmp_path / "root")
    planned = plan("acme/source", chosen).counters
    done = materialize("acme/source", chosen)
    assert done.counters == planned == Counters(read=32, written=32)
    assert done.path is not None
    made = files_of(done.path)
    del made[RECORD_NAME]
    marker = json.loads(made.pop(".sglang_overlay_materialized.json"))
    assert marker["materializer_version"] == "v7"
    assert made == {
        "README.md": b"mapped",
        "config.json": b"{}",
        "model_index.json": index.encode(),
        "unet/w.safetensors": shard("w"),
        "video/vae/v.safetensors": shard("v"),
    }
    assert verify(done.path).ok
    assert materialize("acme/source", chosen).result == "present"


def test_an_entry_that_needs_its_script_is_refused_before_any_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Status 7; ``resolve`` answers all the same."""
    (tmp_path / "hub").mkdir()
    with HubServer(tmp_path / "hub") as server, client_of(server, monkeypatch, tmp_path / "hf/hub"):
        chosen = Options(cache_root=tmp_path / "root", allow_floating=True)
        for run in (materialize, plan):
            with pytest.raises(Untrusted) as caught:
                run("tencent/Hy-Nomas", chosen)
            assert (caught.value.code, caught.value.exit_status) == ("script-not-pinned", 7)
        assert resolve("tencent/Hy-Nomas", chosen).state.name in ("absent", "unknown")
        assert server.requests == []
    assert not list(tmp_path.glob("root/.overlay/objects/*"))
