"""JSON as this project reads and writes it: no duplicate keys, no NaN, nothing that could not be written back."""

from __future__ import annotations

import json
import math
from collections import Counter
from typing import Any, NoReturn

from overlay.errors import BrokenInput

__all__ = ["dump_json", "parse_json", "parse_object", "why_no_json"]


class _RefusedError(ValueError):
    """A document that ``json`` would accept and we do not; carries its stable code."""

    def __init__(self, message: str, code: str) -> None:
        super().__init__(message)
        self.code = code


def parse_json(data: bytes, where: str) -> Any:
    """The value of a UTF-8 JSON document.

    Args:
        data: The whole document.
        where: Name of the file, for messages.

    Raises:
        BrokenInput: Not UTF-8, not JSON (with line and column), a key given twice, NaN or an infinity (also as an
            overflowing number), ``-0``, a lone surrogate, or nesting too deep to read.
    """
    try:
        text = data.decode("utf-8")
        value = json.loads(
            text,
            object_pairs_hook=_object,
            parse_constant=_constant,
            parse_float=_float,
            parse_int=_int,
        )
        if "\\ud" in text or "\\uD" in text:
            # The only way in for a lone surrogate, which could never be written out again.
            json.dumps(value, ensure_ascii=False).encode("utf-8")
    except UnicodeDecodeError as error:
        problem, code = f"not UTF-8 at byte {error.start}", "bad-json"
    except UnicodeEncodeError:
        problem, code = "holds a lone surrogate (\\ud800 to \\udfff), which is no character", "bad-json"
    except json.JSONDecodeError as error:
        problem, code = f"line {error.lineno}, column {error.colno}: {error.msg}", "bad-json"
    except _RefusedError as error:
        problem, code = str(error), error.code
    except RecursionError:
        problem, code = "nested too deeply", "bad-json"
    else:
        return value
    raise BrokenInput(
        f"{where}: {problem}; expected one valid JSON document",
        code=code,
        hint="download or write the file again",
        where=where,
    )


def parse_object(data: bytes, where: str) -> dict[str, Any]:
    """As ``parse_json``, for a document that must be a JSON object."""
    value = parse_json(data, where)
    if not isinstance(value, dict):
        raise BrokenInput(
            f"{where}: found a JSON {_kind(value)}, expected an object",
            code="bad-json",
            hint="download or write the file again",
            where=where,
        )
    return value


def dump_json(value: Any) -> bytes:
    """The document as published overlays write it: indent 2, sorted keys, ASCII, no newline at the end."""
    return json.dumps(value, indent=2, sort_keys=True, allow_nan=False).encode("ascii")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) != len(pairs):
        repeated, _ = Counter(key for key, _ in pairs).most_common(1)[0]
        raise _RefusedError(f"key {repeated[:80]!r} is given twice in one object", "duplicate-key")
    return value


def _constant(token: str) -> NoReturn:
    raise _RefusedError(f"{token} is not JSON", "bad-json")


def _float(token: str) -> float:
    value = float(token)
    if math.isinf(value):
        raise _RefusedError(f"number {token[:40]} does not fit a float64", "bad-json")
    return value


def _int(token: str) -> int:
    # -0 is a float to other readers; more digits than any format has would only cost time (and Python refuses 4300).
    if token == "-0" or len(token) > 100:  # noqa: PLR2004, S105  # a sanity bound; a JSON token is no password
        raise _RefusedError(f"number {token[:40]} is no usable integer", "bad-json")
    return int(token)


def _kind(value: Any) -> str:
    if value is None:
        return "null"
    return {list: "array", str: "string", bool: "boolean"}.get(type(value), "number")


def why_no_json(data: bytes, *, is_object: bool = False) -> str | None:
    """What keeps a file that is passed on from being JSON as servers read it, who take NaN and a key given twice.

    Args:
        is_object: Whether it must hold an object.
    """
    try:
        value = json.loads(data.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        return f"{len(data)} bytes that are no JSON ({error})" if data else "an empty file, which is no JSON"
    if is_object and not isinstance(value, dict):
        return f"found a JSON {type(value).__name__}, expected an object"
    return None
