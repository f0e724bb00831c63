"""From pydantic's errors to problems at a line and column, in the words of the file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from overlay.registry.launch_fields import LaunchFields
from overlay.registry.problems import did_you_mean, refuse
from overlay.registry.schema import (
    ComposeFields,
    EntryFields,
    LoraFields,
    MappingsFields,
    NeedFields,
    OutputFields,
    OverlayFields,
    PartFields,
    PinFields,
    PlaceFields,
    PythonFields,
    RegistryFile,
    VdnH3Fields,
)
from overlay.registry.script_fields import LimitsFields, ScriptFields, WheelFields

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from overlay.registry.problems import Problem
    from overlay.registry.schema import Fields
    from overlay.registry.strict_yaml import Document

__all__ = ["checked"]

_RECIPES: Mapping[str, type[Fields]] = {
    "vdn-h3": VdnH3Fields,
    "lora": LoraFields,
    "compose": ComposeFields,
    "mappings": MappingsFields,
    "python": PythonFields,
}
_SECTIONS: Mapping[str, type[Fields]] = {
    "source": PinFields,
    "overlay": OverlayFields,
    "needs": NeedFields,
    "need-repo": NeedFields,
    "need-wheel": WheelFields,
    "script": ScriptFields,
    "limits": LimitsFields,
    "base": PlaceFields,
    "adapters": PlaceFields,
    "output": OutputFields,
    "siblings": PlaceFields,
    "parts": PartFields,
    "same_as": PlaceFields,
    **_RECIPES,
}
_EXPECTED = {
    "model_type": "a mapping (key: value)",
    "model_attributes_type": "a mapping (key: value)",
    "dict_type": "a mapping (key: value)",
    "tuple_type": "a list",
    "string_type": "text",
}


def checked(document: Document) -> RegistryFile:
    """A parsed file as the schema has it.

    Raises:
        InvalidRegistry: With every problem of the file, each at its line and column.
    """
    try:
        return RegistryFile.model_validate(document.data)
    except ValidationError as error:
        problems = [_problem(document, found["loc"], found) for found in error.errors(include_url=False)]
        refuse(sorted(problems, key=lambda problem: (problem.line, problem.column)))


def _problem(document: Document, loc: tuple[str | int, ...], found: Mapping[str, Any]) -> Problem:
    context = found.get("ctx", {})
    name = str(loc[-1]) if loc else "the file"
    hint: str | None = None
    match found["type"]:
        case "registry":
            code, message = context["code"], context["message"]
            hint = context["hint"] or None
            if hint and "{repo}" in hint:
                hint = hint.replace("{repo}", _repo_at(document.data, loc))
        case "extra_forbidden":
            known = sorted(_section(loc[:-1]).model_fields)
            code, message = "unknown-key", f"unknown key {name}"
            hint = did_you_mean(name, known) or f"known here: {', '.join(known) or 'none'}"
        case "missing":
            code, message = "missing-key", f"{name} is missing"
        case "union_tag_invalid":
            code, message = "unknown-recipe", f"there is no recipe {context['tag']}"
            hint = f"name: one of {', '.join(_RECIPES)}"
            loc = (*loc, "name")
        case "union_tag_not_found":
            code, message = "unknown-recipe", "the recipe has no name"
            hint = f"name: one of {', '.join(_RECIPES)}"
        case "literal_error" if loc[-1] != "schema_version":
            code, message = "unknown-value", f"{name} is {found['input']!r}; expected {found['ctx']['expected']}"
        case "literal_error":
            code, message = "schema-version", f"schema_version is {found['input']!r}; this program reads 1"
            hint = "a newer registry needs a newer program"
        case kind:
            expected = _EXPECTED.get(kind)
            code, message = "wrong-type", f"{name}: expected {expected}" if expected else f"{name}: {found['msg']}"
    return document.problem(loc, code, message, hint)


def _section(loc: Sequence[str | int]) -> type[Fields]:
    match [part for part in loc if isinstance(part, str)]:
        case []:
            return RegistryFile
        case ["models", _]:
            return EntryFields
        case ["models", _, "serve", _]:
            return LaunchFields
        case names:
            return _SECTIONS[names[-1]]


def _repo_at(data: Any, loc: Sequence[str | int]) -> str:
    """The repo that a revision at ``loc`` belongs to, as far as the file says it."""
    section = data
    for part in loc[:-1]:
        if isinstance(part, int) or part in section:  # else it tells one kind of section from another
            section = section[part]
    return str(section.get("repo") or (loc[1] if "source" in loc else "<repo>"))
