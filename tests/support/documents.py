"""What commands print with ``--json``, held against the published schemas."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema

__all__ = ["checked_document"]

SCHEMAS = Path(__file__).parents[2] / "docs/reference/schemas"


def checked_document(text: str, schema: str) -> Any:
    """The document, once it is found to be what ``docs/reference/schemas/<schema>.json`` says."""
    found = json.loads(text)
    rules = json.loads((SCHEMAS / f"{schema}.json").read_text())
    jsonschema.validate(found, rules, cls=jsonschema.Draft202012Validator)
    return found
