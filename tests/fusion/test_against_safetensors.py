from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from support.fuse_files import Store, random_weight, seeded

from overlay.fusion.build import build_safetensors
from overlay.fusion.workers import Workers
from overlay.planning.outputs import OutputTensor, SafetensorsFile

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

    from overlay.fusion.engine import Engine

DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "I32": torch.int32,
    "BF16": torch.bfloat16,
    "F16": torch.float16,
    "F8_E4M3": torch.float8_e4m3fn,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}

tensors = st.dictionaries(
    st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), min_size=1, max_size=6).filter(
        lambda name: name != "__metadata__"
    ),
    st.tuples(st.sampled_from(sorted(DTYPES)), st.lists(st.integers(0, 5), max_size=3)),
    max_size=6,
)


@settings(max_examples=60)
@given(wanted=tensors, seed=st.integers(0, 1000), metadata=st.sampled_from([None, {"format": "pt"}]))
def test_a_copied_file_equals_the_librarys(
    tmp_path_factory: pytest.TempPathFactory,
    wanted: dict[str, tuple[str, list[int]]],
    seed: int,
    metadata: dict[str, str] | None,
) -> None:
    """Byte for byte, for any dtypes, shapes and names, wherever the library is deterministic (at most one key)."""
    folder = tmp_path_factory.mktemp("same")
    store, dice = Store(folder), seeded(seed)
    outputs, expected = [], {}
    for index, (name, (dtype, shape)) in enumerate(wanted.items()):
        values = torch.tensor([dice.randrange(2) for _ in range(torch.Size(shape).numel())], dtype=torch.float32)
        expected[name] = values.to(DTYPES[dtype]).reshape(shape)
        stored = expected[name].contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        outputs.append(OutputTensor(name, dtype, tuple(shape), tuple(store.put(f"in{index}", stored))))
    save_file(expected, folder / "library", metadata)
    spec = SafetensorsFile("out", metadata or {}, tuple(dice.sample(outputs, len(outputs))))
    with Workers(None, 2, 2**28) as workers:
        build_safetensors(spec, folder / "out", open_input=store.locate, workers=workers, rule="fp32-once")
    assert (folder / "out").read_bytes() == (folder / "library").read_bytes()


def test_a_fused_file_is_read_by_the_library(engine: Engine, tmp_path: Path) -> None:
    """Names, shapes, dtypes and values come back through the library's own reader."""
    store = Store(tmp_path)
    weights = [random_weight(seeded(1), (3, 4), dtype, ["BF16"], 2, name=dtype) for dtype in ("BF16", "F16", "F32")]
    store.build([store.fused(weight) for weight in weights], tmp_path / "out.safetensors", engine)
    loaded = load_file(tmp_path / "out.safetensors")
    for weight in weights:
        assert loaded[weight.name].dtype == DTYPES[weight.dtype]
        assert loaded[weight.name].shape == (3, 4)
        assert loaded[weight.name].view(torch.uint8).numpy().tobytes() == weight.expected("fp32-once")
