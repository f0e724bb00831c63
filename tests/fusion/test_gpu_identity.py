"""A case that GPUs are tried on, run where there is none: so that the tool is whole when a GPU is at hand."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from gpu_identity import ODD, Inputs, fuse

from overlay.planning.rules import RULES

if TYPE_CHECKING:
    from pathlib import Path

    from overlay.fusion.engine import Engine


@pytest.mark.parametrize("rule", RULES)
def test_both_kernels_of_the_cpu_give_the_same_file(
    engine: Engine, ordered_engine: Engine, tmp_path: Path, rule: str
) -> None:
    """By the library and by the ordered kernel."""
    inputs = Inputs(tmp_path)
    digests = {fuse(inputs, ODD[-1], kernel, rule, 2, tmp_path)[0].digest for kernel in (engine, ordered_engine)}
    assert len(digests) == 1
