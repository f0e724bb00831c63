"""Changing a registry file that people write: of its bytes, only the values meant are replaced.

A YAML library that loads, changes and writes a file again (ruamel's round trip keeps comments and order) also indents
it anew, wraps long values and takes out spaces. So the parser only tells where a value stands, and the change is made
in the text. What comes out is parsed once more and must hold exactly what was intended; else nothing is written.
"""

from __future__ import annotations

import copy
import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

from ruamel.yaml import YAML
from ruamel.yaml.nodes import MappingNode, ScalarNode

from overlay.errors import InvalidRegistry
from overlay.registry.entries import DEFAULT_MATERIALIZER_VERSION
from overlay.registry.explain import checked
from overlay.registry.problems import Problem, refuse
from overlay.registry.strict_yaml import parse

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from overlay.registry.strict_yaml import Document

__all__ = ["NewPin", "add_entry", "set_pins"]

_LINE = re.compile(r"[^\r\n]*(?:\r\n|\r|\n|\Z)")
_PLAIN = re.compile(r"(?!null$|Null$|NULL$)[A-Za-z0-9_][A-Za-z0-9_./+-]*")
_STEP = 2
_BOM = "\ufeff"


@dataclass(frozen=True, slots=True)
class NewPin:
    """What a pin becomes.

    Attributes:
        revision: 40 hex digits.
        fingerprint: Of an overlay's metadata files at that commit: replaces the one that stands there, and is written
            where the whole section is, or nothing but it is new. None takes out the one that stands there.
        materializer_version: Of an overlay's manifest at that commit: replaces the one that stands there, and is
            written beside a fingerprint if it is not the one that is meant where none stands.
    """

    revision: str
    fingerprint: str | None = None
    materializer_version: str = DEFAULT_MATERIALIZER_VERSION


def set_pins(content: bytes, file: str, model: str, pins: Mapping[str, NewPin]) -> bytes:
    """A registry file with other pins for one model.

    A section that the file does not have is added to the model's entry, and an entry that it does not have to the
    end of the file: it changes what another registry says below it.

    Args:
        content: The file.
        file: How messages name it.
        pins: By section: ``source``, ``overlay``.

    Raises:
        InvalidRegistry: The file is no registry, or the values cannot be replaced where they stand.
    """
    text = _Text.of(content, file)
    entry = text.document.data["models"].get(model)
    if entry is None:
        return add_entry(content, file, model, {name: _fields(pin) for name, pin in pins.items()})
    expected = copy.deepcopy(text.document.data)
    for name, pin in pins.items():
        path = ("models", model, name)
        section = expected["models"][model].get(name)
        if section is None:
            expected["models"][model][name] = _fields(pin)
            text.append(path[:-1], {name: _fields(pin)})
            continue
        _set_pin(text, path, section, pin)
    return text.result(expected)


def add_entry(content: bytes, file: str, model: str, entry: Mapping[str, Any]) -> bytes:
    """A registry file with one entry more, in block style at the end of ``models``.

    Args:
        content: The file.
        file: How messages name it.
        entry: Its fields: mappings, lists and text, as the file has them.

    Raises:
        InvalidRegistry: The file is no registry, has the entry, or ``models`` is in flow style.
    """
    text = _Text.of(content, file)
    if model in text.document.data["models"]:
        text.refuse(("models", model), f"{model} is in the file already")
    expected = copy.deepcopy(text.document.data)
    expected["models"][model] = dict(entry)
    text.append(("models",), {model: entry})
    return text.result(expected)


def _set_pin(text: _Text, path: tuple[str, ...], section: dict[str, str], pin: NewPin) -> None:
    """Change a section in the text and, likewise, what the text is to hold afterwards."""
    is_same = section.get("revision") == pin.revision
    if "floating" in section:
        text.replace((*path, "floating"), pin.revision, key="revision")
        section.pop("floating")
    elif "revision" in section:
        text.replace((*path, "revision"), pin.revision)
    else:
        text.append(path, {"revision": pin.revision})
    section["revision"] = pin.revision
    if "fingerprint" in section and pin.fingerprint is None:
        text.remove((*path, "fingerprint"))
        section.pop("fingerprint")
    elif "fingerprint" in section and pin.fingerprint is not None:
        text.replace((*path, "fingerprint"), pin.fingerprint)
        section["fingerprint"] = pin.fingerprint
    elif pin.fingerprint is not None and is_same:  # one that another registry says below is wrong
        text.append(path, {"fingerprint": pin.fingerprint})
        section["fingerprint"] = pin.fingerprint
    if "materializer_version" in section:
        text.replace((*path, "materializer_version"), pin.materializer_version)
        section["materializer_version"] = pin.materializer_version
    elif _says_version(pin):
        text.append(path, {"materializer_version": pin.materializer_version})
        section["materializer_version"] = pin.materializer_version


def _fields(pin: NewPin) -> dict[str, str]:
    fields = {"revision": pin.revision}
    if pin.fingerprint:
        fields["fingerprint"] = pin.fingerprint
    if _says_version(pin):
        fields["materializer_version"] = pin.materializer_version
    return fields


def _says_version(pin: NewPin) -> bool:
    return pin.fingerprint is not None and pin.materializer_version != DEFAULT_MATERIALIZER_VERSION


class _Text:
    """A registry file as text, and the replacements that are to be made in it, by where they stand."""

    def __init__(self, text: str, document: Document) -> None:
        self.document = document
        self._text = text.removeprefix(_BOM)  # as the parser counts it
        self._bom = text[: len(text) - len(self._text)]
        self._root = YAML(typ="safe", pure=True).compose(self._text)
        self._newline = "\r\n" if "\r\n" in text else "\n"
        self._changes: list[tuple[int, int, str]] = []

    @classmethod
    def of(cls, content: bytes, file: str) -> _Text:
        document = parse(content, file)
        checked(document)
        return cls(content.decode("utf-8"), document)

    def refuse(self, path: tuple[str, ...], problem: str) -> NoReturn:
        line, column = self.document.find(path)
        hint = "edit the file by hand, then run: overlay lock"
        refuse([Problem(self.document.file, line, column, "cannot-edit", problem, hint)])

    def replace(self, path: tuple[str, ...], value: str, *, key: str | None = None) -> None:
        """Put another value in the place of a scalar, in the quotes that it has; and another key before it."""
        name, node = self._find(path)
        quote = node.style if node.style in ("'", '"') and key is None else ""
        if key is not None:
            self._change(name.start_mark.index, name.end_mark.index, key)
        self._change(node.start_mark.index, self._end(node), f"{quote}{value}{quote}")

    def remove(self, path: tuple[str, ...]) -> None:
        """Take out a key and its value: in block style the whole line, with what is said beside it."""
        name, node = self._find(path)
        pairs = self._find(path[:-1])[1].value
        number = next(i for i, (other, _) in enumerate(pairs) if other is name)
        start, end = name.start_mark.index, self._end(node)
        if self._find(path[:-1])[1].flow_style:
            if number:
                start = self._end(pairs[number - 1][1])
            elif len(pairs) > 1:
                end = pairs[1][0].start_mark.index
        else:
            start, end = start - name.start_mark.column, self._line_end(end)
            if self._text[start : name.start_mark.index].strip(" "):
                self.refuse(path, f"{path[-1]} does not stand on a line of its own")
        self._change(start, end, "")

    def append(self, path: tuple[str, ...], fields: Mapping[str, Any]) -> None:
        """Add fields at the end of a mapping, below the comments of its depth."""
        name, node = self._find(path)
        depth = name.start_mark.column + _STEP
        if not node.flow_style:
            depth = node.value[0][0].start_mark.column
            at = self._below(self._line_end(self._end(node)), depth)
        elif path == ("models",) and not node.value:
            start, end = node.start_mark.index, self._end(node)
            # The braces go, with the space before them; a comment beside them stays.
            self._change(len(self._text[:start].rstrip(" ")), end, "")
            at = self._below(self._line_end(end), depth)
        else:
            self.refuse(path, f"{path[-1]} is in flow style ({{…}}), and {' and '.join(fields)} would have to be added")
        lines = [" " * depth + line for line in _dump(fields)]
        if path == ("models",) and node.value:
            lines.insert(0, "")
        block = "".join(f"{line}{self._newline}" for line in lines)
        ends_line = at == 0 or self._text[at - 1] in "\r\n"
        self._change(at, at, block if ends_line else self._newline + block)

    def result(self, expected: Any) -> bytes:
        """The text with all replacements made.

        Raises:
            InvalidRegistry: It does not hold what was intended.
        """
        text = self._text
        for start, end, new in sorted(self._changes, key=lambda change: change[:2], reverse=True):
            text = text[:start] + new + text[end:]
        content = (self._bom + text).encode()
        try:
            document = parse(content, self.document.file)
            checked(document)
            sound = document.data == expected
        except InvalidRegistry:
            sound = False
        if not sound:
            self.refuse((), "cannot be changed without changing more than is meant")
        return content

    def _change(self, start: int, end: int, new: str) -> None:
        self._changes.append((start, end, new))

    def _find(self, path: tuple[str, ...]) -> tuple[Any, Any]:
        """The nodes of a key and of its value."""
        found: tuple[Any, Any] = (self._root, self._root)
        for part in path:
            found = next((key, value) for key, value in found[1].value if key.value == part)
        return found

    def _end(self, node: Any) -> int:
        """Where the text of a node ends: the parser's mark of a block is where the next thing begins."""
        end: int = node.end_mark.index
        if isinstance(node, ScalarNode):
            return len(self._text[:end].rstrip()) if node.style in ("|", ">") else end
        if node.flow_style or not node.value:
            return end
        last = node.value[-1]
        return self._end(last[1] if isinstance(node, MappingNode) else last)

    def _line_end(self, at: int) -> int:
        """Where the next line begins."""
        found = _LINE.match(self._text, at)
        return found.end() if found else at

    def _below(self, at: int, depth: int) -> int:
        """Behind the comment lines from ``at`` that are at least so deep."""
        below = at
        while at < len(self._text):
            end = self._line_end(at)
            line = self._text[at:end]
            if line.strip() and not (line.lstrip(" ").startswith("#") and len(line) - len(line.lstrip(" ")) >= depth):
                break
            if line.strip():
                below = end
            at = end
        return below


def _dump(fields: Mapping[str, Any]) -> Iterator[str]:
    """Fields in block style, lists of words in one line."""
    for key, value in fields.items():
        if isinstance(value, dict) and value:
            yield f"{key}:"
            yield from (" " * _STEP + line for line in _dump(value))
        elif isinstance(value, list) and any(isinstance(item, dict) for item in value):
            yield f"{key}:"
            for item in value:
                first, *rest = _dump(item)
                yield f"{' ' * _STEP}- {first}"
                yield from (" " * (_STEP + 2) + line for line in rest)
        elif isinstance(value, list):
            yield f"{key}: [{', '.join(_scalar(item) for item in value)}]"
        else:
            yield f"{key}: {'{}' if isinstance(value, dict) else _scalar(value)}"


def _scalar(value: str) -> str:
    return value if _PLAIN.fullmatch(value) else json.dumps(value, ensure_ascii=False)
