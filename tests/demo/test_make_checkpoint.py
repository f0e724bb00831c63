"""tools/make_checkpoint.py, and the proof that its base is what diffusers itself saves and loads."""

from __future__ import annotations

import json
import warnings
from typing import TYPE_CHECKING

import pytest
import torch
from click.testing import CliRunner
from make_checkpoint import main, write_library_base
from safetensors.torch import load_file
from support.checkpoints import copy_hub, tiny_hub

from overlay.demo.documents import DIFFUSERS_VERSION
from overlay.formats.rope import rope_inv_freq

if TYPE_CHECKING:
    from pathlib import Path

CLASSES = {
    "transformer": "MiniMaxH3Transformer3DModel",
    "vae": "AutoencoderKLMiniMaxH3",
    "audio_vae": "AutoencoderKLMiniMaxH3Audio",
}


@pytest.fixture
def diffusers() -> object:
    with warnings.catch_warnings():
        # Imports of diffusers warn about deprecations of its own.
        warnings.simplefilter("ignore")
        module = pytest.importorskip("diffusers")
        for name in CLASSES.values():
            getattr(module, name)
    return module


@pytest.mark.slow
@pytest.mark.usefixtures("diffusers")
@pytest.mark.filterwarnings("ignore:.*weight_norm.*:FutureWarning")
def test_base_equals_what_diffusers_saves(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Shards, indexes and configs of all three components are the library's, byte for byte."""
    ours, library = tiny_hub(tmp_path_factory), copy_hub(tmp_path_factory)
    write_library_base(library)
    for component in CLASSES:
        expected, found = (hub.source_folder / "h3-base" / component for hub in (library, ours))
        names = sorted(path.name for path in expected.iterdir())
        assert sorted(path.name for path in found.iterdir()) == names
        for name in names:
            if name == "config.json":
                config = json.loads((expected / name).read_bytes()) | {"_diffusers_version": DIFFUSERS_VERSION}
                assert (json.dumps(config, indent=2, sort_keys=True) + "\n").encode() == (found / name).read_bytes()
            else:
                assert (expected / name).read_bytes() == (found / name).read_bytes()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*weight_norm.*:FutureWarning")
@pytest.mark.parametrize("component", CLASSES)
def test_diffusers_loads_the_base_without_a_missing_or_unexpected_key(
    component: str, diffusers: object, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """The library's class reads our files, finds every key, and holds the stored values."""
    folder = tiny_hub(tmp_path_factory).source_folder / "h3-base" / component
    model, report = getattr(diffusers, CLASSES[component]).from_pretrained(folder, output_loading_info=True)
    assert {key: list(value) for key, value in report.items() if value} == {}
    stored = {name: value for file in folder.glob("*.safetensors") for name, value in load_file(file).items()}
    state = model.state_dict()
    assert state.keys() == stored.keys()
    assert all(torch.equal(state[name].to(value.dtype), value) for name, value in stored.items())


@pytest.mark.parametrize("count", [1, 2, 4, 8, 16, 32, 64])
def test_rope_frequencies_equal_torchs(count: int) -> None:
    """Decimal arithmetic gives the float32 values of the published expression."""
    exponents = torch.arange(0, 2 * count, 2, dtype=torch.float32) / (2 * count)
    assert rope_inv_freq(count) == (1.0 / (10000.0**exponents)).numpy().tobytes()


def test_adapters_change_most_values_of_their_targets(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Fused into its weight, a pair of either adapter shows in more than half of the bf16 values."""
    source = tiny_hub(tmp_path_factory).source_folder
    stored: dict[str, torch.Tensor] = {}
    for folder in ("h3-base/transformer", *(f"stage-dmd-step-250/adapters/{name}" for name in ("default", "turbo"))):
        for file in (source / folder).glob("*.safetensors"):
            stored |= load_file(file)
    weight = stored["transformer_blocks.1.attn.to_q.weight"]
    for adapter in ("default", "turbo"):
        a, b = (
            stored[f"transformer_blocks.1.attn.orig.to_q.lora_{half}.{adapter}.weight"].float() for half in ("A", "B")
        )
        fused = (weight.float() + b @ a).bfloat16()
        assert (fused != weight).float().mean() > 0.5
        assert fused.isfinite().all()


def test_command_writes_the_folder_and_says_how_large_it_is(tmp_path: Path) -> None:
    """The defaults make the tiny checkpoint."""
    result = CliRunner().invoke(main, ["--out", str(tmp_path / "hub"), "--blocks", "1"])
    assert result.exit_code == 0, result.output
    assert " GB in " in result.output
    config = next((tmp_path / "hub").glob("OpenVDN/*/*/h3-base/transformer/config.json"))
    assert json.loads(config.read_bytes())["num_layers"] == 1


def test_command_never_writes_into_a_folder_that_has_something(tmp_path: Path) -> None:
    """What is there stays alone."""
    (tmp_path / "mine.txt").write_text("keep")
    result = CliRunner().invoke(main, ["--out", str(tmp_path)])
    assert result.exit_code == 1
    assert "is not empty" in result.output
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


def test_library_is_for_the_tiny_preset(tmp_path: Path) -> None:
    """Whole models of the released widths do not belong in memory."""
    result = CliRunner().invoke(main, ["--out", str(tmp_path / "hub"), "--preset", "release-dims", "--library"])
    assert result.exit_code == 2
    assert not (tmp_path / "hub").exists()
