"""What checks share: telling a broken file from one that cannot be had now, and naming files in messages."""

from __future__ import annotations

from typing import TYPE_CHECKING

from overlay.errors import BrokenInput, NotHere
from overlay.formats.wording import some

if TYPE_CHECKING:
    from collections.abc import Iterable

    from overlay.errors import OverlayError
    from overlay.hub import Repo
    from overlay.registry import Entry, Pin

__all__ = ["MOST_DATA", "is_broken", "named", "pin_of", "said", "shown"]

MOST_DATA = 1000
"""Names that a finding's data lists at most; its message lists far fewer."""

_LONGEST_NAME = 200
_LONGEST_MESSAGE = 2000
_CANNOT_TELL = {"not-cached", "offline", "revision-not-here", "damaged-in-hub-cache"}
"""Codes of errors that are about this host and not about what was published."""


def is_broken(error: OverlayError) -> bool:
    """Whether an error says that a repo's content is at fault; else nothing can be said of the content now."""
    return isinstance(error, BrokenInput | NotHere) and error.code not in _CANNOT_TELL


def shown(name: str) -> str:
    """A name out of a repo for a message: on one line, without control characters, not endless."""
    return _printable(name, _LONGEST_NAME)


def said(error: OverlayError) -> str:
    """What a reader says of a file, likewise: it quotes names out of the file."""
    return _printable(error.message, _LONGEST_MESSAGE)


def named(names: Iterable[str], limit: int = 5) -> str:
    """The first of many names, each fit for a message, and how many more there are."""
    names = list(names)
    return some([*map(shown, names[:limit]), *names[limit:]], limit)


def pin_of(entry: Entry, repo: Repo) -> Pin:
    """The pin by which an entry has a repo."""
    return next((pin for pin in entry.pins if pin.repo == repo.repo), entry.source)


def _printable(text: str, longest: int) -> str:
    cut = text if len(text) <= longest else f"{text[:longest]}…"
    return cut if cut.isprintable() else "".join(c if c.isprintable() else ascii(c)[1:-1] for c in cut)
