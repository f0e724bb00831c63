"""The adapters of the VDN-H3 release at full size, in sparse files: names, shapes and sizes are the published ones."""

from __future__ import annotations

import hashlib
import json
import math
from typing import TYPE_CHECKING, Any

import pytest
from support.lora import infos, read
from support.tensors import raw_file

from overlay.errors import BrokenInput
from overlay.formats.adapters import check_model_spec
from overlay.formats.files import Folder

if TYPE_CHECKING:
    from pathlib import Path

    from overlay.formats.adapters import Adapter

pytestmark = pytest.mark.no_torch

HIDDEN, INNER, FFN, TIME = 5376, 7168, 14336, 2688
SHAPES = {
    "attn.to_k": (INNER, HIDDEN),
    "attn.to_out.0": (HIDDEN, INNER),
    "attn.to_q": (INNER, HIDDEN),
    "attn.to_v": (INNER, HIDDEN),
    "ff.net.0.proj": (2 * FFN, HIDDEN),
    "ff.net.2": (HIDDEN, FFN),
}
ADALN = {"norm_out.linear": (4 * TIME, TIME)} | {
    f"transformer_blocks.{i}.adaln_proj.linear": (36 * TIME, TIME) for i in range(50)
}
BLOCKS = [f"transformer_blocks.{i}" for i in range(50)]
REFINERS = [f"token_refiner.refiner_blocks.{i}" for i in range(2)]
MODULES = {f"{block}.{part}": shape for block in BLOCKS + REFINERS for part, shape in SHAPES.items()} | ADALN
BASE = infos(
    {f"{module}.weight": shape for module, shape in MODULES.items()}
    | {f"{block}.norm{i}.weight": (HIDDEN,) for block in BLOCKS + REFINERS for i in (1, 2)}
)

DEFAULT = {
    "config": {
        "alpha": 64,
        "rank": 64,
        "targets": [
            *(f"attn.orig.{part}" for part in ("to_k", "to_out.0", "to_q", "to_v")),
            *(f"token_refiner.refiner_blocks.*.attn.{part}" for part in ("to_k", "to_out.0", "to_q", "to_v")),
        ],
    },
    "type": "lora",
    "version": 1,
}


def wrapped(module: str) -> str:
    """The name of a module in the trained model: main blocks only."""
    return module.replace(".attn.", ".attn.orig.") if module.startswith("transformer_blocks.") else module


TURBO = {
    "config": {
        "alpha": 64,
        "alpha_pattern": dict.fromkeys(ADALN, 16),
        "exact_targets": True,
        "family": "larryvrh_v4_step600_ema",
        "name": "turbo",
        "rank": 64,
        "rank_pattern": dict.fromkeys(ADALN, 16),
        "targets": sorted(map(wrapped, MODULES)),
    },
    "type": "lora",
    "version": 1,
}
ATTENTION = [module for module in MODULES if ".attn." in module]
RELEASE = {
    "default": (DEFAULT, ATTENTION, "89e0ff8920b9629b826eb99ab6150cce6924a53aa445186d1b493225fd091b96", 334_026_912),
    "turbo": (TURBO, list(MODULES), "627968f670747c29cd7a0d3f8c75166e501d70f9e829b5cd3242a8f14cefbc18", 851_452_696),
}


def write_release(folder: Path, name: str, modules: list[str]) -> tuple[Path, Path]:
    """The spec's bytes and a sparse weights file; returns the two paths."""
    shapes = {}
    for module in modules:
        rank = 16 if module in ADALN else 64
        out, cols = MODULES[module]
        shapes[f"{wrapped(module)}.lora_A.{name}.weight"] = (rank, cols)
        shapes[f"{wrapped(module)}.lora_B.{name}.weight"] = (out, rank)
    header, end = {}, 0
    for key, shape in sorted(shapes.items()):
        header[key] = {"dtype": "BF16", "shape": shape, "data_offsets": [end, end + 2 * math.prod(shape)]}
        end += 2 * math.prod(shape)
    folder.mkdir(parents=True)
    spec = folder / "adapter_spec.json"
    spec.write_text(json.dumps(RELEASE[name][0], indent=2, sort_keys=True) + "\n")
    weights = folder / "adapter_model.safetensors"
    prefix = raw_file(json.dumps(header, separators=(",", ":")))
    with weights.open("wb") as file:
        file.write(prefix)
        file.truncate(len(prefix) + end)
    return spec, weights


@pytest.mark.parametrize("name", RELEASE)
def test_published_adapter_lands_whole(tmp_path: Path, name: str) -> None:
    """208 and 363 pairs, scale 1 everywhere; spec and weights have the published digest and size."""
    _, modules, digest, size = RELEASE[name]
    spec, weights = write_release(tmp_path / name, name, modules)
    assert hashlib.sha256(spec.read_bytes()).hexdigest() == digest
    assert weights.stat().st_size == size

    adapter = read(tmp_path, BASE, name)

    assert [pair.target for pair in adapter.pairs] == sorted(f"{module}.weight" for module in modules)
    assert len(adapter.pairs) == {"default": 208, "turbo": 363}[name]
    assert {pair.scale for pair in adapter.pairs} == {1.0}
    assert {pair.module: pair.rank for pair in adapter.pairs} == {wrapped(m): 16 if m in ADALN else 64 for m in modules}
    assert (adapter.name, adapter.dtype, adapter.header.metadata) == (name, "BF16", {})


@pytest.mark.parametrize("lost", ["transformer_blocks.31.attn.to_v", "token_refiner.refiner_blocks.1.attn.to_k"])
@pytest.mark.parametrize("name", RELEASE)
def test_one_lost_pair_of_the_release_is_missed(tmp_path: Path, name: str, lost: str) -> None:
    """Suffixes, globs and full names all notice it."""
    write_release(tmp_path / name, name, [module for module in RELEASE[name][1] if module != lost])

    with pytest.raises(BrokenInput, match=f"1 of .* targets of its config have no LoRA pair: {lost}"):
        read(tmp_path, BASE, name)


def test_default_without_one_kind_of_projection_is_missed(tmp_path: Path) -> None:
    """All 50 keys of a kind gone: the wrapper seen on their siblings tells that they are expected."""
    kept = [m for m in ATTENTION if not (m.startswith("transformer_blocks.") and m.endswith("to_k"))]
    write_release(tmp_path / "default", "default", kept)

    with pytest.raises(BrokenInput, match="50 of 208 targets of its config have no LoRA pair"):
        read(tmp_path, BASE, "default")


def write_stage(folder: Path, model_spec: Any) -> tuple[Folder, list[Adapter]]:
    """Both adapters and the stage's model_spec.json."""
    for name, (_, modules, _, _) in RELEASE.items():
        write_release(folder / "stage/adapters" / name, name, modules)
    if model_spec is not None:
        (folder / "stage/model_spec.json").write_text(json.dumps(model_spec))
    files = Folder(folder)
    return files, [read(folder, BASE, f"stage/adapters/{name}", name=name) for name in RELEASE]


@pytest.mark.parametrize("model_spec", [None, {"format_version": 2}, {"adapters": [DEFAULT, TURBO]}])
def test_model_spec_that_agrees(tmp_path: Path, model_spec: Any) -> None:
    """The stage's own copy of the specs, if it has one, says the same."""
    files, adapters = write_stage(tmp_path, model_spec)

    check_model_spec(files, "stage", adapters)


@pytest.mark.parametrize(
    ("entries", "says"),
    [
        ([TURBO, DEFAULT], r"adapters\[0\] and .*default/adapter_spec.json do not say the same"),
        (
            [DEFAULT, TURBO | {"config": TURBO["config"] | {"alpha": 32}}],
            r"adapters\[1\] and .*turbo/adapter_spec.json",
        ),
        ([DEFAULT], "lists 1 adapters; expected 2: default, turbo"),
        ({"default": DEFAULT}, "no list of objects"),
        ([DEFAULT, {"type": "lora"}], r"adapters\[1\]"),
    ],
    ids=["swapped", "other-alpha", "one-less", "no-list", "broken"],
)
def test_model_spec_that_differs_is_refused(tmp_path: Path, entries: Any, says: str) -> None:
    """A stage put together from two publications is noticed."""
    files, adapters = write_stage(tmp_path, {"adapters": entries})

    with pytest.raises(BrokenInput, match=says):
        check_model_spec(files, "stage", adapters)
