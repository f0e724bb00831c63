from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
from gpu_identity import ODD, RELEASE, SMALL, Case, Inputs, fuse

from overlay.fusion import RULES
from overlay.fusion.engine import Engine

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def engines() -> list[Engine]:
    if not torch.cuda.is_available():
        pytest.skip("no GPU here")
    return [Engine.start("cpu"), Engine.start("cuda"), Engine(torch.device("cuda:0"), None)]


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("case", [*ODD, *SMALL, *RELEASE], ids=str)
def test_a_gpu_gives_the_bytes_of_the_cpu(engines: list[Engine], tmp_path: Path, case: Case, rule: str) -> None:
    """Library and ordered kernel on the GPU against the CPU, at the release's shapes and at odd ones."""
    inputs = Inputs(tmp_path)
    digests = {fuse(inputs, case, engine, rule, 4, tmp_path)[0].digest for engine in engines}
    assert len(digests) == 1


def test_the_gpu_passes_its_start_up_test(engines: list[Engine]) -> None:
    """A GPU that is in the table uses its library."""
    about = engines[1].describe()
    assert about["device"] == "cuda"
    assert about["self_test"] is None or about["self_test"]["passed"]
