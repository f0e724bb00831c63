"""Every finding has a page, and every page names tests that are there."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from generate_docs import named_tests

from overlay.contract.finding import CODES

pytestmark = pytest.mark.no_torch

ROOT = Path(__file__).parents[2]
PAGES = ROOT / "docs/reference/findings"


def functions(file: str) -> set[str]:
    """Names of the tests in a file of the repository; none where there is no such file."""
    path = ROOT / file
    tree = ast.parse(path.read_text()) if path.exists() else ast.Module([], [])
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


@pytest.mark.parametrize("code", sorted(CODES))
def test_a_code_has_a_page_and_tests(code: str) -> None:
    """The page is called like the code, shows it as it is printed, and names at least one test, all of which exist."""
    page = (PAGES / f"{code}.md").read_text()
    named = named_tests(page)

    assert page.startswith((f"# `{code}`\n", f"# `{code}`: {CODES[code].title}\n"))
    assert f"[{code}]: " in page
    assert named
    for test in named:
        file, _, function = test.partition("::")
        assert function in functions(file), f"{code}.md names {test}"


def test_a_page_has_a_code() -> None:
    """No page is left over from a code that is no more."""
    assert {path.stem for path in PAGES.glob("*.md")} - {"README"} == set(CODES)
