"""Problems of a registry: each with its place, all of one file reported together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn

from overlay.errors import InvalidRegistry

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

__all__ = ["Problem", "did_you_mean", "refuse"]

MAX_SHOWN = 1000


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing wrong with a registry.

    Attributes:
        file: The file, or the variable that holds the text.
        line: From 1; 0 where the text has no lines to point at.
        column: From 1.
        code: Stable identifier in kebab-case.
        message: What was found and what was expected.
        hint: What to do about it.
    """

    file: str
    line: int
    column: int
    code: str
    message: str
    hint: str | None = None

    @property
    def place(self) -> str:
        """``file:line:column``, as editors read it."""
        return f"{self.file}:{self.line}:{self.column}" if self.line else self.file

    def __str__(self) -> str:
        return f"{self.place}: {_printable(self.message)}"


def refuse(problems: Sequence[Problem]) -> NoReturn:
    """Raise one error that holds all problems (at least one): one a line, each with its own hint."""
    lines = [str(problem) + (f"\n  {_printable(problem.hint)}" if problem.hint else "") for problem in problems]
    codes = {problem.code for problem in problems}
    raise InvalidRegistry(
        str(problems[0]) if len(problems) == 1 else "\n".join(lines),
        code=codes.pop() if len(codes) == 1 else "invalid-registry",
        hint=_printable(problems[0].hint) if len(problems) == 1 and problems[0].hint else None,
        problems=[
            {"file": p.file, "line": p.line, "column": p.column, "code": p.code, "message": p.message, "hint": p.hint}
            for p in problems
        ],
    )


def _printable(text: str) -> str:
    """Text out of a file as one line for a terminal: no control characters, and not endless."""
    shown = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
    return shown if len(shown) <= MAX_SHOWN else f"{shown[:MAX_SHOWN]}…"


def did_you_mean(word: str, known: Iterable[str]) -> str | None:
    """``did you mean X?`` for a close match, whatever its case; else None."""
    import difflib  # 7 ms that only an error needs

    by_lower = {name.lower(): name for name in known}
    close = difflib.get_close_matches(word.lower(), by_lower, n=3, cutoff=0.6)
    return f"did you mean {' or '.join(by_lower[name] for name in close)}?" if close else None
