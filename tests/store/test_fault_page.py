"""The page of a store's faults: each row names tests, and these exist."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

pytestmark = pytest.mark.no_torch

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/reference/store-faults.md"
ROWS = [line.strip("|").split("|") for line in PAGE.read_text().splitlines() if line.startswith("| ")][1:]


def test_every_fault_names_a_test() -> None:
    """Three cells a row, the last of them tests."""
    assert len(ROWS) > 10
    for cells in ROWS:
        assert len(cells) == 3, cells
        assert re.fullmatch(r" `tests/\S+::test_\w+`(<br>`tests/\S+::test_\w+`)* ", cells[2]), cells


@pytest.mark.parametrize("name", sorted(set(re.findall(r"`(tests/[^`]+)`", PAGE.read_text()))))
def test_a_named_test_exists(name: str) -> None:
    """The file is there and has a function of this name."""
    path, _, function = name.partition("::")
    tree = ast.parse((ROOT / path).read_text())
    assert function in {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
