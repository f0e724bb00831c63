"""Sizes and ages on the command line."""

from __future__ import annotations

import click
import pytest

from overlay.cli._types import AGE, SIZE

pytestmark = pytest.mark.no_torch


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0", 0),
        ("2000", 2000),
        ("1GiB", 2**30),
        ("1.5 gb", 1_500_000_000),
        ("2T", 2 * 10**12),
        ("7B", 7),
        ("64MiB", 64 * 2**20),
    ],
)
def test_size(text: str, expected: int) -> None:
    """Decimal and binary units, in any case; a bare number is bytes."""
    assert expected == SIZE.convert(text, None, None)


@pytest.mark.parametrize("text", ["", "GB", "-1", "1XB", "1 GB GB", "1iB", "0x10", "1e9", "\u0663"])
def test_size_refused(text: str) -> None:
    """What is not plainly a size is refused with an example."""
    with pytest.raises(click.BadParameter, match="1GiB"):
        SIZE.convert(text, None, None)


@pytest.mark.parametrize(("text", "expected"), [("30d", 2_592_000), ("12h", 43_200), ("5 m", 300), ("2w", 1_209_600)])
def test_age(text: str, expected: int) -> None:
    """An age is a number and a unit."""
    assert expected == AGE.convert(text, None, None)


@pytest.mark.parametrize("text", ["", "30", "d", "1y", "-1d", "1.5h", "\u0663d"])
def test_age_refused(text: str) -> None:
    """A bare number would be ambiguous; it is refused with an example."""
    with pytest.raises(click.BadParameter, match="30d"):
        AGE.convert(text, None, None)
