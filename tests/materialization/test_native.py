"""Recipe ``lora`` in MiniMax's native layout: what is built, mapped back to the Diffusers layout."""

from __future__ import annotations

import json
import shutil
import struct
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from support.h3 import (
    CONFIG,
    HIDDEN,
    NATIVE_MODEL,
    REFINERS,
    ROPE,
    TARGETS,
    diffusers_transformer,
    native_options,
    to_diffusers,
    write_h3_hub,
)
from support.small_models import tensors_of

from overlay.errors import BrokenInput
from overlay.formats.materialized import FUSED_NAME, RECORD_NAME
from overlay.materialization.materialize import materialize

if TYPE_CHECKING:
    from support.tensors import Tensor

INDEX = "diffusion_pytorch_model.safetensors.index.json"


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("h3") / "hub"
    write_h3_hub(folder)
    return folder


def built(hub: Path, root: Path, *, rule: str = "fp32-once", **choices: object) -> Path:
    tree = materialize(NATIVE_MODEL, native_options(hub, cache_root=root, rule=rule, **choices)).path
    assert tree is not None
    return tree


def transformer(tree: Path, folder: str) -> dict[str, Tensor]:
    return tensors_of(*(tree / folder).glob("*.safetensors"))


@pytest.mark.parametrize("rule", ["fp32-once", "openvdn"])
def test_mapped_back_it_is_the_fused_diffusers_layout(hub: Path, tmp_path: Path, rule: str) -> None:
    """Byte for byte, every tensor, by a plain loop over rows; nothing beside them but the rotary frequencies."""
    native = transformer(built(hub, tmp_path / "native", rule=rule), "FL2VA/transformer")
    plain = transformer(built(hub, tmp_path / "plain", rule=rule, output=False), "transformer")
    assert to_diffusers(native) == plain
    assert len(native) == len(plain) - 2 * (2 + REFINERS) + 1  # three become one in each block
    dtype, shape, data = native["rope.inv_freq"]
    assert (dtype, shape) == ("F32", [ROPE])
    assert struct.unpack(f"<{ROPE}f", data)[:2] == (1.0, pytest.approx(10000 ** (-1 / ROPE), rel=1e-6))
    base = diffusers_transformer()
    changed = {name.removesuffix(".weight") for name in plain if plain[name] != base[name]}
    assert changed == TARGETS.keys()


def test_the_tree_is_a_release_with_another_transformer(hub: Path, tmp_path: Path) -> None:
    """Its siblings are those of the native folder; its index lists every tensor; its own transformer is not there."""
    tree = built(hub, tmp_path / "root") / "FL2VA"
    index = json.loads((tree / "transformer" / INDEX).read_text())
    native = transformer(tree, "transformer")
    assert index["weight_map"].keys() == native.keys()
    assert index["metadata"] == {"total_size": sum(len(data) for _, _, data in native.values())}
    for name, shard in index["weight_map"].items():
        assert name in tensors_of(tree / "transformer" / shard)
    assert "own" not in native
    files = {str(path.relative_to(tree)) for path in tree.rglob("*") if path.is_file()}
    assert {path for path in files if not path.startswith("transformer/")} == {
        "model_index.json",
        "tokenizer/tokenizer.json",
        "text_encoder/config.json",
        "text_encoder/model.safetensors",
        "video_vae/config.json",
        "video_vae/model.py",
        "video_vae/model.safetensors",
    }


def test_the_config_has_native_names(hub: Path, tmp_path: Path) -> None:
    """The same numbers, and no class that would have a server take the tensors for Diffusers'."""
    config = json.loads((built(hub, tmp_path / "root") / "FL2VA/transformer/config.json").read_text())
    assert not any(key.startswith("_") for key in config)
    assert config["adaln_out_features"] == 18 * HIDDEN
    assert config["final_adaln_out_features"] == 2 * HIDDEN
    assert config["latents_dim"] == CONFIG["in_channels"]
    assert config["token_refiner_num_layers"] == CONFIG["num_refiner_layers"]
    assert {"in_channels", "num_refiner_layers", "ffn_dim"}.isdisjoint(config)


def test_the_stamp_says_which_adapters_are_in(hub: Path, tmp_path: Path) -> None:
    """Beside the shards, as in the record."""
    tree = built(hub, tmp_path / "root")
    stamp = json.loads((tree / "FL2VA/transformer" / FUSED_NAME).read_text())
    record = json.loads((tree / RECORD_NAME).read_text())
    [adapter] = [item for item in record["inputs"] if item["role"] == "adapter"]
    [said] = stamp["adapters"]
    assert (stamp["layout"], stamp["rule"], said["digest"]) == ("native", "fp32-once", adapter["digest"])
    assert said["pairs"] == len(TARGETS)


def test_a_base_with_the_stamp_is_refused(tmp_path: Path) -> None:
    """Whatever the tree's record: the folder may have been copied without it."""
    hub = tmp_path / "hub"
    release, _ = write_h3_hub(hub)
    stamp = built(hub, tmp_path / "root") / "FL2VA/transformer" / FUSED_NAME
    (release / "transformer" / FUSED_NAME).write_bytes(stamp.read_bytes())
    for output in (True, False):
        with pytest.raises(BrokenInput, match="already holds") as caught:
            built(hub, tmp_path / "other", output=output)
        assert caught.value.code == "already-fused"


@pytest.mark.parametrize("is_fused", [False, True])
def test_a_native_base_is_refused_as_such(tmp_path: Path, *, is_fused: bool) -> None:
    """Before the adapters are held against its names, whether it is a release's or was fused here."""
    hub = tmp_path / "hub"
    release, _ = write_h3_hub(hub)
    native = release / "FL2VA/transformer"
    if is_fused:
        native = Path(shutil.copytree(built(hub, tmp_path / "root") / "FL2VA/transformer", release / "fused"))
    options = native_options(hub, cache_root=tmp_path / "other")
    text = options.registry.read_text()
    options.registry.write_text(
        text.replace("base: {path: transformer}", f"base: {{path: {native.relative_to(release)}}}")
    )
    with pytest.raises(BrokenInput, match="is no MiniMax-H3 transformer in the Diffusers layout") as caught:
        materialize(NATIVE_MODEL, options)
    assert caught.value.code == "not-diffusers-h3"


def test_ref2va_beside_its_own_siblings(hub: Path, tmp_path: Path) -> None:
    """The other partition, by the same rules."""
    tree = built(hub, tmp_path / "root", folder="Ref2VA")
    assert (tree / "Ref2VA/transformer" / INDEX).is_file()
    assert json.loads((tree / "Ref2VA/model_index.json").read_text())["_minimax_h3"]["partition"] == "ref2va"


def test_a_second_run_makes_nothing(hub: Path, tmp_path: Path) -> None:
    """Shards of cut weights are objects like any others, found by their action also where the record is gone."""
    root = tmp_path / "root"
    built(hub, root)
    again = materialize(NATIVE_MODEL, native_options(hub, cache_root=root, link="auto"))
    assert (again.result, again.counters.written) == ("present", 0)
