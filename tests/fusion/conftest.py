from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING

import pytest
from support.fuse_files import seeded

if TYPE_CHECKING:
    import random

    from overlay.fusion.engine import Engine

if importlib.util.find_spec("torch"):
    from overlay.fusion.library import mkl_library

    # MKL takes its mode before the process's first product, which any other test may run.
    mkl_library()


@pytest.fixture(scope="session")
def engine() -> Engine:
    """The CPU with its library, as a build has it."""
    from overlay.fusion.engine import Engine

    return Engine.start("cpu")


@pytest.fixture(scope="session")
def ordered_engine() -> Engine:
    """The CPU with the ordered kernel alone."""
    import torch

    from overlay.fusion.engine import Engine

    return Engine(torch.device("cpu"), None)


@pytest.fixture
def dice() -> random.Random:
    return seeded(7)
