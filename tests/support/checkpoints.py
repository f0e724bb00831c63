"""The tiny checkpoint for tests: made once a run, and copied where a test wants to change it."""

from __future__ import annotations

import shutil
from dataclasses import replace
from typing import TYPE_CHECKING

from overlay.demo.checkpoint import SPEC_NAME, HubFolder, write_hub

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

__all__ = ["copy_hub", "tiny_hub"]


_made: dict[tuple[Path, str], HubFolder] = {}


def tiny_hub(factory: pytest.TempPathFactory, spec_name: str = SPEC_NAME) -> HubFolder:
    """The tiny hub folder, shared by all tests of the run: read it, never write into it."""
    key = factory.getbasetemp(), spec_name
    if key not in _made:
        _made[key] = write_hub(factory.mktemp("tiny-hub"), spec_name=spec_name)
    return _made[key]


def copy_hub(factory: pytest.TempPathFactory, spec_name: str = SPEC_NAME) -> HubFolder:
    """A copy of the tiny hub folder that the caller may change."""
    folder = factory.mktemp("hub")
    shutil.copytree(tiny_hub(factory, spec_name).root, folder, dirs_exist_ok=True)
    return replace(tiny_hub(factory, spec_name), root=folder)
