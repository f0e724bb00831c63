"""Every finding has a page, and every page names tests that are there."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
from generate_docs import named_tests

from overlay.contract.finding import CODES, SEVERITIES

pytestmark = pytest.mark.no_torch

ROOT = Path(__file__).parents[2]
PAGES = ROOT / "docs/reference/findings"
WIDTH = 120


def functions(file: str) -> set[str]:
    """Names of the tests in a file of the repository; none where there is no such file."""
    path = ROOT / file
    tree = ast.parse(path.read_text()) if path.exists() else ast.Module([], [])
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


@pytest.mark.parametrize("code", sorted(CODES))
def test_a_code_has_a_page_and_tests(code: str) -> None:
    """The page is called like the code and names at least one test, all of which exist."""
    page = (PAGES / f"{code}.md").read_text()
    named = named_tests(page)

    assert named
    for test in named:
        file, _, function = test.partition("::")
        assert function in functions(file), f"{code}.md names {test}"


@pytest.mark.parametrize("code", sorted(CODES))
def test_all_pages_have_one_shape(code: str) -> None:
    """Code, title, why, an example as a terminal shows it, an item for each consumer, what to do, tests."""
    page, known = (PAGES / f"{code}.md").read_text(), CODES[code]
    shape = re.compile(
        rf"# `{code}`\n\n{re.escape(known.title[0].upper() + known.title[1:])}\.\n\n"
        r"(?P<why>.+?)\n\n```text\n(?P<example>.+?)\n```\n\n"
        rf"- For `overlay`, an? {known.overlay}: .+?\n- For `sglang`, an? {known.sglang}: (?:(?!\n\n).)+\n\n"
        r"## What to do\n\n(?P<todo>.+?)\n\n"
        r"Tests:\n(?:`[^`]+`,\n)*`[^`]+`\n",
        re.DOTALL,
    )
    found = shape.fullmatch(page)
    assert found is not None
    assert "```" not in found["why"] + found["todo"]
    assert page.count("\n## ") == 1

    first, *others = found["example"].splitlines()
    worst = max((known.overlay, known.sglang), key=SEVERITIES.index)
    begins = re.match(rf"registry\.yaml:\d+:\d+: {worst}\[{code}\]: ([^\s:]+):(?: |$)", first)
    assert begins is not None
    assert f"{begins[1]}: {begins[1]}" not in " ".join(found["example"].split())
    assert all(line.startswith("  ") for line in others)
    assert max(map(len, found["example"].splitlines())) <= WIDTH
    differing = f"  severity: {known.overlay} for overlay, {known.sglang} for sglang"
    assert (differing in others) == (known.overlay != known.sglang)


def test_a_page_has_a_code() -> None:
    """No page is left over from a code that is no more."""
    assert {path.stem for path in PAGES.glob("*.md")} - {"README"} == set(CODES)
