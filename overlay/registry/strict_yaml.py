"""YAML as a registry uses it: mappings, lists and text, with the line and column of each.

Read from the parser's events, without YAML's type guessing (a commit of digits alone stays text) and without what only
makes a file harder to trust: anchors, aliases, tags, several documents. Duplicate keys and empty values are refused.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError
from ruamel.yaml.events import (
    AliasEvent,
    DocumentStartEvent,
    MappingEndEvent,
    MappingStartEvent,
    NodeEvent,
    SequenceEndEvent,
    SequenceStartEvent,
)

from overlay.registry.problems import Problem, refuse

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ruamel.yaml.error import StringMark

__all__ = ["Document", "parse"]

MAX_BYTES = 2**20
MAX_DEPTH = 20
_EMPTY = ("", "~", "null", "Null", "NULL")

Path = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class Document:
    """A parsed file.

    Attributes:
        file: How messages name it.
        data: Dicts, lists and strings.
        places: Line and column, from 1, of each key and list item by its path.
    """

    file: str
    data: Any
    places: dict[Path, tuple[int, int]]

    def find(self, path: Path) -> tuple[int, int]:
        """Line and column of ``path``; parts of it that the file does not have are skipped."""
        known: Path = ()
        for part in path:
            if (*known, part) in self.places:
                known = (*known, part)
        return self.places[known]

    def problem(self, path: Path, code: str, message: str, hint: str | None = None) -> Problem:
        """A problem at ``path``."""
        return Problem(self.file, *self.find(path), code, message, hint)


def parse(content: bytes, file: str) -> Document:
    """Parse a registry file.

    Args:
        content: The bytes of the file.
        file: How messages name it.

    Raises:
        InvalidRegistry: It is not UTF-8, not YAML, or uses what a registry does not need.
    """
    if len(content) > MAX_BYTES:
        refuse([Problem(file, 1, 1, "too-large", f"{len(content)} bytes; a registry has at most {MAX_BYTES}")])
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        refuse([Problem(file, line, 1, "not-utf8", f"byte {error.start} is not UTF-8")])
    builder = _Builder(file)
    try:
        data = builder.document(YAML(typ="safe", pure=True).parse(text))
    except YAMLError as error:
        refuse([_syntax_problem(error, text, file)])
    if builder.problems:
        refuse(builder.problems)
    return Document(file, data, builder.places)


def _syntax_problem(error: YAMLError, text: str, file: str) -> Problem:
    mark = getattr(error, "problem_mark", None)
    if mark is not None:
        line, column = mark.line + 1, mark.column + 1
        message = getattr(error, "problem", None) or "not YAML"
    else:  # a character that YAML does not allow, found by the reader
        position = getattr(error, "position", 0)
        line, column = text.count("\n", 0, position) + 1, position - text.rfind("\n", 0, position)
        message = f"the character {text[position : position + 1]!r} is not allowed in YAML"
    return Problem(file, line, column, "not-yaml", message)


@dataclass(slots=True)
class _Builder:
    file: str
    places: dict[Path, tuple[int, int]] = field(default_factory=lambda: {(): (1, 1)})
    problems: list[Problem] = field(default_factory=list)

    def report(self, mark: StringMark, code: str, message: str, hint: str | None = None) -> None:
        self.problems.append(Problem(self.file, mark.line + 1, mark.column + 1, code, message, hint))

    def document(self, events: Iterator[Any]) -> Any:
        data: Any = None
        documents = 0
        for event in events:
            if isinstance(event, DocumentStartEvent):
                documents += 1
                if documents > 1:
                    self.report(event.start_mark, "several-documents", "a second document starts here; expected one")
            elif isinstance(event, NodeEvent):
                data = self.node(event, events, ())
        if not documents:
            self.problems.append(Problem(self.file, 1, 1, "empty-file", "the file is empty"))
        return data

    def node(self, event: Any, events: Iterator[Any], path: Path) -> Any:
        if isinstance(event, AliasEvent):
            self.report(event.start_mark, "yaml-alias", f"alias *{event.anchor}: write the value out")
            return ""
        if event.anchor is not None:
            self.report(
                event.start_mark, "yaml-anchor", f"anchor &{event.anchor}: write the value out where it is used"
            )
        if event.tag is not None:
            self.report(event.start_mark, "yaml-tag", f"tag {event.tag}: a registry holds plain text only")
        if len(path) > MAX_DEPTH:
            # Raised at once: unlike every other problem, this one must stop the walk.
            refuse([*self.problems, Problem(self.file, event.start_mark.line + 1, 1, "too-deep", "nested too deeply")])
        if isinstance(event, MappingStartEvent):
            return self.mapping(events, path)
        if isinstance(event, SequenceStartEvent):
            return self.sequence(events, path)
        return self.scalar(event, path)

    def mapping(self, events: Iterator[Any], path: Path) -> dict[str, Any]:
        result: dict[str, Any] = {}
        for event in events:
            if isinstance(event, MappingEndEvent):
                break
            key = self.node(event, events, (*path, "?"))
            mark = event.start_mark
            if not isinstance(key, str):
                self.report(mark, "key-not-text", "a key must be text")
                key = "?"
            elif key in result:
                first = self.places[*path, key][0]
                self.report(mark, "duplicate-key", f"duplicate key {key}, first given in line {first}", "remove one")
            else:
                self.places[*path, key] = (mark.line + 1, mark.column + 1)
            value = self.node(next(events), events, (*path, key))
            result.setdefault(key, value)
        return result

    def sequence(self, events: Iterator[Any], path: Path) -> list[Any]:
        result: list[Any] = []
        for event in events:
            if isinstance(event, SequenceEndEvent):
                break
            item: Path = (*path, len(result))
            self.places[item] = (event.start_mark.line + 1, event.start_mark.column + 1)
            result.append(self.node(event, events, item))
        return result

    def scalar(self, event: Any, path: Path) -> str:
        plain = bool(event.implicit[0])
        if plain and event.value in _EMPTY:
            name = f"{path[-1]} has no value" if path and isinstance(path[-1], str) else "no value here"
            self.report(event.start_mark, "no-value", name, "give it one, or remove the line")
        return str(event.value)
