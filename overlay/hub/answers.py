"""What the Hub's routes answer, read as if it came from anybody: a proxy or a login page may stand in its place.

An answer of another form says nothing about the repo that was asked for, so it is never held against the repo.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from overlay.errors import BrokenInput, Refused
from overlay.formats.strict_json import parse_json

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["not_a_hub", "parse_page", "reading"]


def not_a_hub(message: str, where: str) -> Refused:
    """The error for an endpoint that answers, but not as a Hub does."""
    return Refused(
        message,
        code="not-a-hub",
        hint="check that HF_ENDPOINT points to a Hub, and that no proxy or login page answers in its place",
        where=where,
    )


@contextmanager
def reading(what: str, where: str) -> Iterator[None]:
    """Read an answer inside: whatever form it has instead of the expected one is no Hub's.

    Args:
        what: What was expected, such as ``list of commits``.
        where: How messages name what was asked for.

    Raises:
        Refused: It is something else (``not-a-hub``).
        BrokenInput: It names a path that leads out of the repo.
    """
    try:
        yield
    except (BrokenInput, KeyError, TypeError, AttributeError, ValueError) as error:
        if isinstance(error, BrokenInput) and error.code == "unsafe-path":
            raise
        raise not_a_hub(f"{where}: answered something that is no {what}", where) from error


def parse_page(page: bytes, where: str) -> list[Any]:
    """The items of a page of a listing; to be called inside :func:`reading`."""
    items = parse_json(page, where)
    if not isinstance(items, list):
        raise TypeError(f"{where}: a page is no array")
    return items
