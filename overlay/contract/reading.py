"""What checks share: telling a broken file from one that cannot be had now, and naming files in messages."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from overlay.errors import BrokenInput, NotHere, OverlayError
from overlay.formats.wording import named, shown, some

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from overlay.hub import Repo
    from overlay.registry import Entry, Pin

__all__ = [
    "MOST_DATA",
    "OF_THIS_HOST",
    "error_facts",
    "folded_paths",
    "is_below",
    "is_broken",
    "pin_of",
    "said",
    "serve_instead",
    "unless_broken",
]

P = ParamSpec("P")
T = TypeVar("T")

MOST_DATA = 1000
"""Names that a finding's data lists at most; its message lists far fewer."""

_LONGEST_MESSAGE = 2000
OF_THIS_HOST = {"not-cached", "offline", "revision-not-here", "damaged-in-hub-cache"}
"""Codes of errors that are about this host and not about what was published."""


def is_broken(error: OverlayError) -> bool:
    """Whether an error says that a repo's content is at fault; else nothing can be said of the content now."""
    return isinstance(error, BrokenInput | NotHere) and error.code not in OF_THIS_HOST


def unless_broken(read: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T | None:
    """What a reader returns; None where it finds the content of a repo at fault: that is for another check to say.

    Raises:
        OverlayError: It cannot be told now.
    """
    try:
        return read(*args, **kwargs)
    except OverlayError as error:
        if is_broken(error):
            return None
        raise


def is_below(path: str, folder: str) -> bool:
    """Whether a path is that of a folder or file, or lies in it; everything lies in ``""``."""
    return not folder or path == folder or path.startswith(f"{folder}/")


def said(error: OverlayError) -> str:
    """What a reader says of a file, likewise: it quotes names out of the file."""
    return shown(error.message, _LONGEST_MESSAGE)


def error_facts(error: OverlayError) -> dict[str, Any]:
    """A reader's code and data for a finding's data, no name in it endless."""
    return {"code": error.code, **{key: _cut(value) for key, value in error.data.items()}}


def folded_paths(paths: Iterable[str], limit: int = 5) -> str:
    """The first of many paths of a repo, what they share said once: ``a/{b,c}/d.json and 3 more``."""
    paths = list(paths)
    split = [shown(path).split("/") for path in paths[:limit]]
    if len(split) < 2:  # noqa: PLR2004  # one shares nothing
        return named(paths, limit)
    shortest = min(map(len, split))
    begin = _shared(split, shortest - 1)
    end = _shared([parts[::-1] for parts in split], shortest - 1 - begin)
    if not begin + end:
        return named(paths, limit)
    middles = ",".join("/".join(parts[begin : len(parts) - end]) for parts in split)
    first = split[0]
    folded = "/".join([*first[:begin], f"{{{middles}}}", *first[len(first) - end :]])
    return some([folded, *paths[limit:]], 1)


def serve_instead(entry: Entry) -> str:
    """What helps where only a server that resolves the overlay by itself would fail."""
    serve = f"serve what is built here (overlay prewarm {entry.model})"
    others = [consumer for consumer in entry.consumers if consumer != "overlay"]
    return f"{serve} and write consumers: [overlay] in the entry" if others else serve


def pin_of(entry: Entry, repo: Repo) -> Pin:
    """The pin by which an entry has a repo."""
    return next((pin for pin in entry.pins if pin.repo == repo.repo), entry.source)


def _shared(rows: Sequence[Sequence[str]], most: int) -> int:
    """How many parts all rows begin with, ``most`` at most."""
    columns = list(zip(*rows, strict=False))[:most]
    return next((number for number, parts in enumerate(columns) if len(set(parts)) > 1), len(columns))


def _cut(value: Any) -> Any:
    if isinstance(value, list):
        return [_cut(item) for item in value[:MOST_DATA]]
    return shown(value) if isinstance(value, str) else value
