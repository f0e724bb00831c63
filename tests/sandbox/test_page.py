"""The page on the sandbox has the table of the tests."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.escapes import ESCAPES, table

pytestmark = pytest.mark.no_torch

PAGE = Path(__file__).parents[2] / "docs/explanation/sandbox.md"


def test_the_page_has_the_table() -> None:
    """What is documented is what is tested; the error shows the table to put there."""
    between = PAGE.read_text().partition("<!-- table -->\n")[2].partition("\n<!-- end of table -->")[0]

    assert between == table()


def test_each_attempt_is_one_of_a_kind() -> None:
    """No two lines have one name."""
    assert len({escape.what for escape in ESCAPES}) == len(ESCAPES)
