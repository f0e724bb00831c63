"""The guarantees page: every row rests on something and names tests, and these tests exist."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

pytestmark = pytest.mark.no_torch

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs/explanation/guarantees.md"
HEADER = ["guarantee", "rests on", "held by"]


def rows() -> list[list[str]]:
    """Cells of the rows of all tables of guarantees."""
    found, within = [], False
    for line in PAGE.read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")] if line.startswith("|") else []
        within = cells == HEADER or (within and bool(cells))
        if within and cells != HEADER and set(line) - set("|- "):
            found.append(cells)
    return found


def named_tests() -> list[str]:
    return sorted(set(re.findall(r"`(tests/[^`]+)`", PAGE.read_text())))


def test_every_guarantee_names_a_test() -> None:
    """Three cells a row: what holds, on what it rests, and at least one test."""
    assert len(rows()) > 15
    for cells in rows():
        assert len(cells) == len(HEADER), cells
        assert all(cells), cells
        assert re.fullmatch(r"`tests/\S+::test_\w+`(<br>`tests/\S+::test_\w+`)*", cells[2]), cells


@pytest.mark.parametrize("name", named_tests())
def test_a_named_test_exists(name: str) -> None:
    """The file is there and has a function of this name."""
    path, _, function = name.partition("::")
    tree = ast.parse((ROOT / path).read_text())
    assert function in {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
