"""``model_index.json``: which components a diffusers pipeline has."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from overlay.errors import BrokenInput
from overlay.formats.strict_json import parse_object

if TYPE_CHECKING:
    from collections.abc import Mapping

    from overlay.formats.files import Files

__all__ = ["INDEX_NAMES", "ModelIndex", "read_model_index"]

INDEX_NAMES = ("model_index.json", "modular_model_index.json")
"""Where a server looks for the components of a tree, in this order; without either it loads none."""

_PAIR = 2


@dataclass(frozen=True, slots=True)
class ModelIndex:
    """The components of a pipeline.

    Attributes:
        class_name: ``_class_name``, the pipeline's class.
        diffusers_version: ``_diffusers_version``.
        components: (library, class) by component name, which is its folder; either may be None, not both.
        absent: Components that the pipeline knows and this model does not have (null, or two nulls).
        document: The file, whole; it also has options, which are neither.
    """

    class_name: str
    diffusers_version: str
    components: Mapping[str, tuple[str | None, str | None]]
    absent: tuple[str, ...]
    document: Mapping[str, Any]


def read_model_index(files: Files, path: str = "model_index.json") -> ModelIndex:
    """Reads and checks a model index.

    Raises:
        NotHere: There is none.
        BrokenInput: Not a JSON object, or without ``_class_name`` or ``_diffusers_version``, which SGLang requires.
    """
    where = files.where(path)
    document = parse_object(files.read_bytes(path), where)
    for key in ("_class_name", "_diffusers_version"):
        if not isinstance(document.get(key), str):
            found = f"has no {key}" if document.get(key) is None else f"{key} is {document[key]!r}"
            raise BrokenInput(
                f"{where}: {found}, expected a string",
                code="bad-model-index",
                hint=f"add {key} to the file",
                where=where,
                key=key,
            )
    listed = {name: value for name, value in document.items() if not name.startswith("_")}
    components = {name: (value[0], value[1]) for name, value in listed.items() if _is_pair(value) and any(value)}
    absent = tuple(name for name, value in listed.items() if value is None or value == [None, None])
    return ModelIndex(document["_class_name"], document["_diffusers_version"], components, absent, document)


def _is_pair(value: Any) -> bool:
    return (
        isinstance(value, list) and len(value) == _PAIR and all(item is None or isinstance(item, str) for item in value)
    )
