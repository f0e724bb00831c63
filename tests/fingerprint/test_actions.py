"""Action keys."""

from __future__ import annotations

import hashlib

import pytest

from overlay.fingerprint import action_key

pytestmark = pytest.mark.no_torch


def test_a_known_key() -> None:
    """The canonical form is sorted, compact ASCII JSON."""
    canonical = b'{"a":[1,1.0,null,true,"\\u00e9"],"b":{"x":"y"}}'

    assert hashlib.sha256(canonical).hexdigest() == action_key({"b": {"x": "y"}, "a": (1, 1.0, None, True, "é")})


def test_order_of_keys_does_not_count_and_everything_else_does() -> None:
    """Documents that differ in meaning have different keys."""
    documents = [{}, [], {"a": 1}, {"a": "1"}, {"a": 1.5}, {"a": [1, 2]}, {"a": [2, 1]}, {"b": 1}, None, ""]

    assert len(documents) == len({action_key(document) for document in documents})
    assert action_key({"a": 1, "b": 2}) == action_key({"b": 2, "a": 1})


@pytest.mark.parametrize("value", [float("nan"), float("inf"), b"bytes", {1, 2}])
def test_what_json_cannot_say_has_no_key(value: object) -> None:
    """Nothing is stringified on the way."""
    with pytest.raises((TypeError, ValueError)):
        action_key({"a": value})
