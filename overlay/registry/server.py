"""sglang's own override, ``SGLANG_DIFFUSION_MODEL_OVERLAY_REGISTRY``: inline JSON, or the path of a JSON file.

A server drops what it does not understand in there; here each such thing is an error. Two readings come out of it: what
the entry's pins are now, and what a server with this variable was told, verbatim, for the name of its directory.
"""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NoReturn

from pydantic_core import PydanticCustomError

from overlay.errors import BrokenInput
from overlay.formats.strict_json import parse_object
from overlay.registry.entries import LOCAL, Entry, ServerSpec
from overlay.registry.merge import lay_over
from overlay.registry.problems import Problem, did_you_mean, refuse
from overlay.registry.schema import EntryFields, MappingsFields, OverlayFields, PinFields, check_commit, check_repo
from overlay.registry.strict_yaml import Document
from overlay.registry.variables import SGLANG_REGISTRY

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

__all__ = ["apply_server_registry"]

_KEYS = ("overlay_repo_id", "overlay_revision", "source_revision")


def apply_server_registry(
    entries: Mapping[str, Entry], environ: Mapping[str, str], cwd: Path
) -> tuple[dict[str, Entry], dict[str, tuple[str, ...]]]:
    """Entries with the variable's laid over them, and by model what it replaced.

    Args:
        entries: Of the registry in force.
        environ: Environment.
        cwd: Working directory, which relative paths start from.

    Raises:
        InvalidRegistry: The variable is not usable as it stands; every problem in it is named.
    """
    raw = environ.get(SGLANG_REGISTRY, "").strip()
    if not raw:
        return dict(entries), {}
    name, content = (SGLANG_REGISTRY, raw.encode()) if raw.startswith("{") else _file(raw, cwd)
    try:
        told = parse_object(content, name)
    except BrokenInput as error:
        _refuse(name, error.code, error.message.removeprefix(f"{name}: "), "give a JSON object, or the path of one")

    reader = _Reader(name, cwd, entries)
    readings = {model: reading for model, value in told.items() if (reading := reader.read(model, value))}
    if reader.problems:
        refuse(reader.problems)
    fields = {model: fields for model, (_, fields) in readings.items()}
    result, replaced = lay_over(entries, fields, Document(name, told, {(): (0, 0)}), name)
    for model, (spec, _) in readings.items():
        result[model] = replace(result[model], server=spec)
        pin = result[model].overlay
        if pin and pin.revision not in (LOCAL, None, spec.overlay_revision):
            takes = f"{pin.repo} at {spec.overlay_revision}, whatever that is by then"
            note = f"a server with {SGLANG_REGISTRY} takes {takes}"
            replaced[model] = (*replaced.get(model, ()), note)
    return result, replaced


def _file(raw: str, cwd: Path) -> tuple[str, bytes]:
    path = cwd / os.path.expanduser(raw)  # noqa: PTH111 - as the server expands it
    name = f"{SGLANG_REGISTRY} ({path})"
    try:
        return name, path.read_bytes()
    except OSError as error:
        hint = "give a JSON object, or the path of one; or unset the variable"
        _refuse(name, "registry-unreadable", f"cannot be read: {error.strerror}", hint)


def _refuse(name: str, code: str, message: str, hint: str) -> NoReturn:
    refuse([Problem(name, 0, 0, code, message, hint)])


class _Reader:
    """Reads the values of the variable, each twice; collects problems."""

    def __init__(self, name: str, cwd: Path, entries: Mapping[str, Entry]) -> None:
        self.name = name
        self.cwd = cwd
        self.entries = entries
        self.problems: list[Problem] = []

    def read(self, model: str, value: Any) -> tuple[ServerSpec, EntryFields] | None:
        """What the server was told, and what that changes in the entry; None where a problem was reported."""
        before = len(self.problems)
        given = {"overlay_repo_id": value} if isinstance(value, str) else value
        self.checked(model, check_repo, model)
        self.check_shape(model, given)
        if len(self.problems) > before:
            return None
        overlay = self.overlay(model, given)
        source = self.pin(model, given, "source_revision")
        recipe = None
        if model not in self.entries:
            source = source or {"floating": f"{SGLANG_REGISTRY} gives no source_revision"}
            recipe = MappingsFields(name="mappings")
        if len(self.problems) > before:
            return None
        spec = ServerSpec(given["overlay_repo_id"], given.get("overlay_revision", "main"), given.get("source_revision"))
        return spec, EntryFields(overlay=overlay, source=PinFields(**source) if source else None, recipe=recipe)

    def report(self, model: str, code: str, message: str, hint: str | None = None) -> None:
        self.problems.append(Problem(self.name, 0, 0, code, f"{model}: {message}", hint))

    def checked(self, model: str, check: Callable[[str], str], text: str, repo: str = "") -> None:
        try:
            check(text)
        except PydanticCustomError as error:
            context = error.context or {}
            self.report(model, context["code"], context["message"], context["hint"].replace("{repo}", repo) or None)

    def check_shape(self, model: str, given: Any) -> None:
        if not isinstance(given, dict):
            self.report(model, "wrong-type", "expected a repo id, or an object with overlay_repo_id")
            return
        for key, text in given.items():
            if key not in _KEYS:
                hint = did_you_mean(key, _KEYS) or f"known here: {', '.join(_KEYS)}"
                self.report(model, "unknown-key", f"unknown key {key}", hint)
            elif not isinstance(text, str) or not text:
                self.report(model, "wrong-type", f"{key}: expected text")
        if "overlay_repo_id" not in given:
            self.report(model, "missing-key", "overlay_repo_id is missing")

    def overlay(self, model: str, given: Mapping[str, str]) -> OverlayFields:
        repo = given["overlay_repo_id"]
        folder = self.cwd / repo
        # As the server: an existing path is used in place. os.path, because any text may stand there.
        if os.path.isdir(folder):  # noqa: PTH112
            # No validation: a registry file cannot name a folder, this variable can.
            return OverlayFields.model_construct(repo=os.path.abspath(folder), revision=LOCAL)  # noqa: PTH100 - keeps links
        self.checked(model, check_repo, repo)
        below = self.entries.get(model)
        same_repo = below is not None and below.overlay is not None and below.overlay.repo == repo
        if "overlay_revision" not in given and not same_repo:
            message = f"the overlay {repo} has no overlay_revision; a server would take whatever is on main"
            self.report(model, "repo-without-revision", message, 'add "overlay_revision": "<40 hex digits>"')
        pin = self.pin(model, given, "overlay_revision")
        return OverlayFields.model_construct(repo=repo, revision=pin.get("revision"), floating=pin.get("floating"))

    def pin(self, model: str, given: Mapping[str, str], key: str) -> dict[str, str]:
        """The revision as fields of a pin: a commit, or ``main``, which the server's own examples have."""
        revision = given.get(key)
        if revision is None:
            return {}
        if revision == "main":
            return {"floating": f"{SGLANG_REGISTRY} says main"}
        self.checked(model, check_commit, revision, given["overlay_repo_id"] if key == "overlay_revision" else model)
        return {"revision": revision}
