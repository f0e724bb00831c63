"""JSON in and out."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from overlay.errors import BrokenInput
from overlay.formats.strict_json import dump_json, parse_json, parse_object

pytestmark = pytest.mark.no_torch

REFUSED = {
    "syntax": (b'{\n "a": 1,\n "b" 2\n}', "bad-json", "config.json: line 3, column 6: "),
    "empty": (b"", "bad-json", "line 1, column 1: Expecting value"),
    "extra data": (b"{} {}", "bad-json", "column 4: Extra data"),
    "not UTF-8": (b'{"a": "\xe9"}', "bad-json", "not UTF-8 at byte 7"),
    "UTF-16": ('{"a": 1}'.encode("utf-16"), "bad-json", "not UTF-8 at byte 0"),
    "byte order mark": (b"\xef\xbb\xbf{}", "bad-json", "line 1, column 1"),
    "duplicate key": (b'{"rank": 8, "alpha": 1, "rank": 16}', "duplicate-key", "key 'rank' is given twice"),
    "duplicate key inside": (b'[{"a": {"b": 1, "b": 1}}]', "duplicate-key", "key 'b' is given twice"),
    "duplicate by escape": (b'{"a": 1, "\\u0061": 2}', "duplicate-key", "key 'a' is given twice"),
    "NaN": (b'{"alpha": NaN}', "bad-json", "NaN is not JSON"),
    "infinity": (b"[-Infinity]", "bad-json", "-Infinity is not JSON"),
    "overflow": (b"[1e999]", "bad-json", "number 1e999 does not fit a float64"),
    "minus zero": (b"[-0]", "bad-json", "number -0 is no usable integer"),
    "5000 digits": (b"[" + b"9" * 5000 + b"]", "bad-json", "is no usable integer"),
    "lone surrogate": (b'["\\ud800"]', "bad-json", "lone surrogate"),
    "lone surrogate as a key": (b'{"x\\uDfff": 1}', "bad-json", "lone surrogate"),
    "control character": (b'["\x01"]', "bad-json", "Invalid control character"),
    "deep": (b"[" * 200_000, "bad-json", "nested too deeply"),
    "single quotes": (b"{'a': 1}", "bad-json", "column 2"),
    "comment": (b"{} // no", "bad-json", "Extra data"),
}


@pytest.mark.parametrize(("data", "code", "text"), REFUSED.values(), ids=REFUSED)
def test_what_is_not_one_clear_document_is_refused(data: bytes, code: str, text: str) -> None:
    """The message names the file and the place, and nothing but BrokenInput comes out."""
    with pytest.raises(BrokenInput) as caught:
        parse_json(data, "config.json")

    assert code == caught.value.code
    assert str(caught.value).startswith("config.json: ")
    assert text in str(caught.value)


@pytest.mark.parametrize(
    ("data", "value"),
    [
        (b' {"a": [1, -2, 2.5, 1e3, true, null, "\xc3\xa9"]}\n', {"a": [1, -2, 2.5, 1000.0, True, None, "é"]}),
        (b'"\\ud83d\\ude00"', "😀"),
        (b'"\\\\ud800"', "\\ud800"),
        (b"-0.0", -0.0),
        (b"18446744073709551616", 2**64),
    ],
)
def test_valid_documents_are_read_as_they_are(data: bytes, value: Any) -> None:
    """Pairs of surrogates, escaped backslashes and big integers are no reason to refuse."""
    assert value == parse_json(data, "x")


@pytest.mark.parametrize(
    ("data", "kind"),
    [(b"[]", "array"), (b"null", "null"), (b'"a"', "string"), (b"1.5", "number"), (b"true", "boolean")],
)
def test_an_object_is_asked_for(data: bytes, kind: str) -> None:
    """A file that must hold an object says what it holds instead."""
    with pytest.raises(BrokenInput, match=f"^x: found a JSON {kind}, expected an object"):
        parse_object(data, "x")


@given(st.binary(max_size=40) | st.text(max_size=40).map(str.encode))
def test_noise_raises_nothing_but_broken_input(data: bytes) -> None:
    """What passes is also what the standard library reads."""
    try:
        value = parse_json(data, "x")
    except BrokenInput:
        return
    assert json.loads(data) == value


_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)


@given(_json)
def test_what_is_written_reads_back(value: Any) -> None:
    """Writing and reading are inverse, for every document."""
    assert value == parse_json(dump_json(value), "x")


def test_written_as_published_overlays_write() -> None:
    """Indent 2, sorted keys, ASCII, no newline at the end."""
    assert dump_json({"b": 1.0, "a": ["é"]}) == b'{\n  "a": [\n    "\\u00e9"\n  ],\n  "b": 1.0\n}'
    with pytest.raises(ValueError, match="JSON compliant"):
        dump_json(float("nan"))
