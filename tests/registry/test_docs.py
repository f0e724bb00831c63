"""The reference page of the registry: its examples are registries."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

import pytest
from support.registries import load_text

from overlay.registry import load_registry

pytestmark = pytest.mark.no_torch

PAGE = Path(__file__).parents[2] / "docs/reference/registry.md"
EXAMPLES = re.findall(r"```yaml\n(.*?)```", PAGE.read_text(), re.DOTALL)


@pytest.mark.parametrize("example", EXAMPLES, ids=range(len(EXAMPLES)))
def test_example_is_a_registry(tmp_path: Path, example: str) -> None:
    """Every YAML block of the page can be used as it stands."""
    assert len(load_text(tmp_path, example).entries) >= 8


def test_first_example_is_the_packaged_entry(tmp_path: Path) -> None:
    """The page shows the entry that ships, not one of its past."""
    registry = load_text(tmp_path, EXAMPLES[0])
    assert registry.replaced == {}
    assert registry.entries.keys() == load_registry(environ={}, cwd=tmp_path).entries.keys()


def test_the_entry_of_the_page_on_vllm_omni_is_one(tmp_path: Path) -> None:
    """What stands in a step of a list there can be used as it stands, and tells the server what it needs."""
    page = (PAGE.parents[1] / "how-to/serve-with-vllm-omni.md").read_text()
    [example] = re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)
    launch = load_text(tmp_path, textwrap.dedent(example)).entries["acme/h3-turbo"].serve["vllm-omni"]
    assert launch.flags
    assert launch.grid_points
