from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
import torch
from gpu_identity import ODD, RELEASE, SMALL, Case, Inputs, fuse
from support.fuse_files import Store, Weight, random_values, seeded
from support.fuse_oracle import Pair

from overlay.fusion.engine import Engine
from overlay.fusion.ordered import ordered_product
from overlay.fusion.ordered_cuda import fused_product
from overlay.fusion.self_test import same_bits
from overlay.planning.outputs import Fused, OutputTensor
from overlay.planning.rules import RULES

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def engines() -> list[Engine]:
    if not torch.cuda.is_available():
        pytest.skip("no GPU here")
    return [Engine.start("cpu"), Engine.start("cuda"), Engine.start("cuda", ordered=True)]


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("case", [*ODD, *SMALL, *RELEASE], ids=str)
def test_a_gpu_gives_the_bytes_of_the_cpu(engines: list[Engine], tmp_path: Path, case: Case, rule: str) -> None:
    """Whole files, at the release's shapes and at odd ones."""
    inputs = Inputs(tmp_path)
    digests = {fuse(inputs, case, engine, rule, 4, tmp_path)[0].digest for engine in engines}
    assert len(digests) == 1


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize(("rows", "cols", "heads"), [(12, 5, 3), (7168, 640, 56)])
def test_rows_of_fused_weights_are_those_of_the_cpu(
    engines: list[Engine], tmp_path: Path, rule: str, rows: int, cols: int, heads: int
) -> None:
    """Three weights interleaved by head, as the native layout has them, each folded with a pair of rank 4."""
    dice = seeded(11)
    store, per_head = Store(tmp_path), rows // heads
    joined: list[Fused] = []
    for name in "qkv":
        a, b = random_values(dice, 4 * cols, "BF16"), random_values(dice, rows * 4, "BF16")
        weight = Weight(
            name, "BF16", rows, cols, random_values(dice, rows * cols, "BF16"), [Pair(a, b, "BF16", 4, 1.0)]
        )
        joined += [piece for piece in store.fused(weight).pieces if isinstance(piece, Fused)]
    pieces = tuple(
        replace(piece, first_row=head * per_head, num_rows=per_head) for head in range(heads) for piece in joined
    )
    tensor = OutputTensor("qkv", "BF16", (3 * rows, cols), pieces)
    digests = {store.build([tensor], tmp_path / f"out-{at}", engine, rule).digest for at, engine in enumerate(engines)}
    assert len(digests) == 1


def test_the_gpu_passes_its_start_up_test(engines: list[Engine]) -> None:
    """Its own arithmetic follows the rule."""
    about = engines[1].describe()
    assert about["device"] == "cuda"
    assert about["self_test"]["passed"]


@pytest.mark.parametrize("scale", [1.0, 2.0**-70])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("shape", [(1, 1, 1), (1, 64, 5000), (5000, 3, 1), (257, 512, 259), (70_001, 16, 9)])
def test_the_cuda_kernel_gives_the_bits_of_torch_operations(
    shape: tuple[int, int, int], dtype: torch.dtype, scale: float
) -> None:
    """Also for A cut out of a wider matrix, and where products and sums are subnormal."""
    rows, rank, cols = shape
    generator = torch.Generator().manual_seed(3)
    b = (torch.randn(rows, rank, generator=generator).bfloat16() * scale).to(dtype)
    a = (torch.randn(rank, cols + 5, generator=generator).bfloat16() * scale).to(dtype)[:, 5:]
    made = fused_product(b.cuda(), a.cuda())
    assert made is not None
    assert same_bits(made.cpu(), ordered_product(b, a))
