"""The YAML of a registry: mappings, lists and text with their places, and nothing that hides what a file says."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ruamel.yaml import YAML
from ruamel.yaml.nodes import MappingNode, SequenceNode

from overlay.errors import InvalidRegistry
from overlay.registry.strict_yaml import MAX_BYTES, parse

pytestmark = pytest.mark.no_torch


def test_data_and_places() -> None:
    """Every key and item has its line and column, from 1; every scalar is text."""
    document = parse(b"\xef\xbb\xbf# comment\na: 1\nb:\r\n  - x\n  - {c: 'null', d: \"\"}\n", "f")
    assert document.data == {"a": "1", "b": ["x", {"c": "null", "d": ""}]}
    assert document.places == {
        (): (1, 1),
        ("a",): (2, 1),
        ("b",): (3, 1),
        ("b", 0): (4, 5),
        ("b", 1): (5, 5),
        ("b", 1, "c"): (5, 6),
        ("b", 1, "d"): (5, 17),
    }


BOMB = b"a: &a [x, x]\nb: &b [*a, *a]\nc: [*b, *b]\n"

CASES = {
    "duplicate key": (b"a: 1\nb: 2\na: 3\n", "duplicate-key", "3:1", "duplicate key a, first given in line 1"),
    "duplicate key below": (b"a:\n  b: 1\n  b: 2\n", "duplicate-key", "3:3", "first given in line 2"),
    "anchor": (b"a: &x b\n", "yaml-anchor", "1:4", "anchor &x"),
    "merge key": (b"a: {b: c}\nd: {<<: *a}\n", "yaml-alias", "2:9", "alias *a"),
    "tag": (b"a: !!python/object:os.system b\n", "yaml-tag", "1:4", "tag tag:yaml.org,2002:python/object:os.system"),
    "own tag": (b"a: !x {}\n", "yaml-tag", "1:4", "tag !x"),
    "no value": (b"a: 1\nb:\n", "no-value", "3:1", "b has no value"),
    "null": (b"a: ~\n", "no-value", "1:4", "a has no value"),
    "item without value": (b"a:\n  - b\n  -\n", "no-value", "3:4", "no value here"),
    "two documents": (b"a: 1\n---\na: 2\n", "several-documents", "2:1", "second document"),
    "empty": (b"# nothing\n", "empty-file", "1:1", "empty"),
    "tab": (b"a:\n\tb: 1\n", "not-yaml", "2:1", "'\\t'"),
    "unclosed": (b"a: [1,\n", "not-yaml", "2:1", "expected"),
    "control character": (b"a: 1\nb: \x01\n", "not-yaml", "2:4", "'\\x01'"),
    "not utf-8": (b"a: 1\nb: \xff\n", "not-utf8", "2:1", "byte 8"),
    "list as key": (b"? [a]\n: b\n", "key-not-text", "1:3", "key"),
    "deep": (b"[" * 500 + b"]" * 500, "too-deep", "1:1", "nested"),
    "very deep": (b"[" * 100_000, "too-deep", "1:1", "nested"),
    "large": (b"#" * (MAX_BYTES + 1), "too-large", "1:1", str(MAX_BYTES)),
}


@pytest.mark.parametrize(("content", "code", "place", "message"), CASES.values(), ids=CASES)
def test_refused(content: bytes, code: str, place: str, message: str) -> None:
    """What is not plain YAML, or hides what it says, is refused at its place."""
    with pytest.raises(InvalidRegistry) as caught:
        parse(content, "f")
    assert caught.value.data["problems"][0]["code"] == code
    assert str(caught.value).startswith(f"f:{place}: ")
    assert message in str(caught.value)


def test_alias_bomb_is_not_expanded() -> None:
    """Aliases are refused as they stand; nothing grows."""
    levels = b"a0: &a0 [x, x]\n" + b"".join(
        b"a%d: &a%d [%s]\n" % (n, n, b", ".join([b"*a%d" % (n - 1)] * 9)) for n in range(1, 12)
    )
    with pytest.raises(InvalidRegistry) as caught:
        parse(levels, "f")
    assert {problem["code"] for problem in caught.value.data["problems"]} == {"yaml-anchor", "yaml-alias"}


def as_text(node: Any) -> Any:
    """The library's own nodes, without its guesses at types."""
    if isinstance(node, MappingNode):
        return {as_text(key): as_text(value) for key, value in node.value}
    if isinstance(node, SequenceNode):
        return [as_text(item) for item in node.value]
    return node.value


@given(content=st.binary(max_size=60) | st.text("ab:-[]{}&*!#'\"\n ,?|>%@`\t~0", max_size=40).map(str.encode))
def test_any_bytes_are_read_or_refused(content: bytes) -> None:
    """Whatever the bytes, the outcome is a document that a YAML library agrees with, or a registry error."""
    try:
        document = parse(content, "f")
    except InvalidRegistry:
        return
    assert document.data == as_text(YAML(typ="safe", pure=True).compose(content.decode("utf-8-sig")))
