"""Words for messages."""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["counted", "format_bytes", "iso_time", "named", "parse_size", "shown", "some"]

_UNITS = ("kB", "MB", "GB", "TB", "PB")
_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?) ?([a-z]*)", re.IGNORECASE)
_FACTORS = {"B": 1}
for _power, _letter in enumerate("KMGTP", start=1):
    _FACTORS |= {_letter: 1000**_power, f"{_letter}B": 1000**_power, f"{_letter}IB": 1024**_power}


def some(names: Iterable[str], limit: int = 3) -> str:
    """The first of many names, and how many more there are."""
    names = list(names)
    more = f" and {len(names) - limit} more" if len(names) > limit else ""
    return ", ".join(names[:limit]) + more


def shown(text: str, longest: int = 200) -> str:
    """A name out of a repo for a message: on one line, without control characters, not endless."""
    cut = text if len(text) <= longest else f"{text[:longest]}…"
    return cut if cut.isprintable() else "".join(c if c.isprintable() else ascii(c)[1:-1] for c in cut)


def named(names: Iterable[str], limit: int = 5) -> str:
    """The first of many names, each fit for a message, and how many more there are."""
    names = list(names)
    return some([*map(shown, names[:limit]), *names[limit:]], limit)


def counted(number: int, noun: str) -> str:
    """A number of things: ``1 tree``, ``2 entries``."""
    if number == 1:
        return f"1 {noun}"
    return f"{number} {noun.removesuffix('y')}ies" if noun.endswith("y") else f"{number} {noun}s"


def format_bytes(nbytes: int) -> str:
    """A size for people: powers of 1000, one decimal (``149.5 GB``)."""
    if abs(nbytes) < 1000:  # noqa: PLR2004  # the base of the units
        return f"{nbytes} B"
    exponent = 1
    while exponent < len(_UNITS) and abs(nbytes) / 1000**exponent >= 999.95:  # noqa: PLR2004  # rounds to 1000.0
        exponent += 1
    return f"{nbytes / 1000**exponent:.1f} {_UNITS[exponent - 1]}"


def parse_size(text: str) -> int | None:
    """Bytes of a size as people write it: ``1GiB``, ``500MB``, ``2000000``; None where it is none."""
    match = _SIZE.fullmatch(text.strip())
    factor = match and _FACTORS.get(match[2].upper() or "B")
    return round(float(match[1]) * factor) if match and factor else None


def iso_time(seconds: float) -> str:
    """A time for records and JSON: ISO 8601, UTC, to the second. ``seconds`` are since the epoch."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))
