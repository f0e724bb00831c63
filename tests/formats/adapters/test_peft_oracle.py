"""PEFT's own code as the judge of how its configs are read."""

from __future__ import annotations

import struct
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.lora import infos, peft_config, read

torch = pytest.importorskip("torch")
peft = pytest.importorskip("peft")
from peft.tuners.tuners_utils import check_target_module_exists  # noqa: E402  # after the skip
from peft.utils.other import get_pattern_key  # noqa: E402  # after the skip

from overlay.formats.adapters.peft import PeftConfig, _first  # noqa: E402  # after the skip

if TYPE_CHECKING:
    from pathlib import Path

NAMES = [
    "to_q",
    "proj.to_q",
    "blocks.0.attn.to_q",
    "blocks.10.attn.to_q",
    "blocks.1.attn.to_out.0",
    "blocks.1.attn.xto_q",
    "refiner.blocks.0.attn.to_k",
    "model.layers.1.experts.0.up",
    "layers.3.mlp",
]
PATTERNS = [
    "to_q",
    "to_.",
    "q",
    ".*",
    "attn.to_q",
    r"blocks\.1\.attn\.to_q",
    "blocks.1.attn.to_q",
    "^blocks.0.attn.to_q",
    r"blocks\.\d+\.attn\.(to_q|to_k)",
    "to_q|up",
    "0",
    "nowhere",
]
ENDS = ["to_q", "q", "attn.to_q", "to_out.0", "0", "up", "mlp", "blocks.0.attn.to_q", "nowhere"]
REGEXES = [".*to_q", r"blocks\.\d+\..*", "to_q", r".*\.(up|mlp)", "to_q|up"]


@given(st.lists(st.sampled_from(PATTERNS), max_size=4, unique=True), st.sampled_from(NAMES))
def test_h04_first_pattern_that_matches_is_pefts(patterns: list[str], name: str) -> None:
    """The entry that applies to a module is the one that PEFT takes."""
    expected = get_pattern_key(patterns, name)

    assert _first(dict.fromkeys(patterns, 1), name) == (expected if expected in patterns else None)


@given(
    target_modules=st.one_of(st.lists(st.sampled_from(ENDS), min_size=1, max_size=3), st.sampled_from(REGEXES)),
    exclude_modules=st.one_of(st.none(), st.lists(st.sampled_from(ENDS), max_size=2), st.sampled_from(["", *REGEXES])),
    layers_to_transform=st.one_of(st.none(), st.integers(0, 3), st.lists(st.integers(0, 3), max_size=2)),
    layers_pattern=st.one_of(
        st.none(),
        st.sampled_from(["blocks", "layers", ""]),
        st.lists(st.sampled_from(["blocks", "layers"]), max_size=3),
    ),
    name=st.sampled_from(NAMES),
)
def test_targets_are_pefts(
    target_modules: Any, exclude_modules: Any, layers_to_transform: Any, layers_pattern: Any, name: str
) -> None:
    """A module is a target exactly where PEFT says so."""
    fields = {
        "target_modules": target_modules,
        "exclude_modules": exclude_modules,
        "layers_to_transform": layers_to_transform,
        "layers_pattern": layers_pattern,
    }
    judge = SimpleNamespace(**fields, target_parameters=None, modules_to_save=None)
    config = PeftConfig.model_validate(peft_config(["x"]) | fields)

    assert config._targets(name, 2, *config._endings()) == bool(check_target_module_exists(judge, name))


class Attention(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.to_q = torch.nn.Linear(4, 6)
        self.to_k = torch.nn.Linear(4, 6, bias=False)
        self.norm = torch.nn.LayerNorm(4)


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = torch.nn.ModuleList(Attention() for _ in range(3))
        self.proj_out = torch.nn.Linear(4, 3)


CONFIGS = {
    "suffixes": {"target_modules": ["to_q", "proj_out"]},
    "alpha": {"target_modules": ["to_q"], "r": 8, "lora_alpha": 1},
    "rslora": {"target_modules": ["to_q"], "r": 3, "lora_alpha": 2, "use_rslora": True},
    "regex": {"target_modules": r"blocks\.[02]\..*to_[qk]"},
    "all-linear": {"target_modules": "all-linear"},
    "excluded": {"target_modules": ["to_q", "to_k"], "exclude_modules": ["blocks.1.to_q"]},
    "layers": {"target_modules": ["to_q"], "layers_to_transform": [0, 2], "layers_pattern": "blocks"},
    "patterns": {
        "target_modules": ["to_q", "to_k"],
        "r": 5,
        "lora_alpha": 7,
        "rank_pattern": {"blocks.1.to_q": 2, "to_q": 3},
        "alpha_pattern": {"to_.": 4},
    },
}


@pytest.mark.parametrize("options", CONFIGS.values(), ids=CONFIGS)
def test_adapter_saved_by_peft_is_read_as_peft_reads_it(tmp_path: Path, options: dict[str, Any]) -> None:
    """Modules, ranks and scales of a saved adapter are those of PEFT's own layers."""
    model = Model()
    base = infos({name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}, dtype="F32")
    wrapped = peft.get_peft_model(model, peft.LoraConfig(**options))
    wrapped.save_pretrained(tmp_path)
    layers = {
        name.removeprefix("base_model.model."): (layer.r["default"], layer.scaling["default"])
        for name, layer in wrapped.named_modules()
        if isinstance(layer, peft.tuners.lora.LoraLayer)
    }

    adapter = read(tmp_path, base)

    assert {p.target.removesuffix(".weight"): (p.rank, p.scale) for p in adapter.pairs} == {
        name: (rank, struct.unpack("<f", struct.pack("<f", scale))[0]) for name, (rank, scale) in layers.items()
    }
    assert (adapter.kind, adapter.dtype) == ("peft", "F32")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of diffusers' own imports
def test_adapter_saved_by_diffusers_is_read_by_its_metadata(tmp_path: Path) -> None:
    """diffusers writes no JSON; its file holds PEFT's config in the metadata."""
    from diffusers.configuration_utils import ConfigMixin, register_to_config
    from diffusers.loaders import PeftAdapterMixin
    from diffusers.models.modeling_utils import ModelMixin

    class Toy(ModelMixin, ConfigMixin, PeftAdapterMixin):
        @register_to_config
        def __init__(self) -> None:
            super().__init__()
            self.to_q = torch.nn.Linear(4, 6)
            self.to_k = torch.nn.Linear(4, 6)

    model = Toy()
    base = infos({name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}, dtype="F32")
    config = peft.LoraConfig(r=8, lora_alpha=1, target_modules=["to_q", "to_k"], alpha_pattern={"to_k": 4})
    model.add_adapter(config)
    model.save_lora_adapter(tmp_path)

    adapter = read(tmp_path, base)

    assert [(p.target, p.scale) for p in adapter.pairs] == [("to_k.weight", 0.5), ("to_q.weight", 0.125)]
    assert (adapter.kind, adapter.spec) == ("bare", None)
