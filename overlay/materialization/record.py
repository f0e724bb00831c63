"""The record: the JSON in a materialization that says what it was made of, by which rule, and what its files hold.

Everything outside ``run`` is a function of the inputs alone, the same wherever it was built, and is what a tree is
named by. ``run`` holds what this one run did: kernels, versions, counters, seconds, links.
"""

from __future__ import annotations

import json
import platform
from contextlib import suppress
from dataclasses import asdict
from importlib import metadata
from typing import TYPE_CHECKING, Any

from overlay.errors import BrokenInput, NotHere, OverlayError
from overlay.fingerprint import action_key, parse_digest
from overlay.formats.files import Folder
from overlay.formats.materialized import RECORD_NAME
from overlay.formats.strict_json import parse_json
from overlay.registry import LOCAL

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from overlay.planning.outputs import Input
    from overlay.planning.plan import AdapterUse, Plan
    from overlay.registry import Pin, Resolution

__all__ = [
    "RECORD_NAME",
    "SCHEMA_VERSION",
    "identity_of",
    "is_intact",
    "pins_of",
    "read_record",
    "record_bytes",
    "tree_name",
    "versions",
]

SCHEMA_VERSION = 1


def pins_of(resolution: Resolution, revisions: Mapping[str, str]) -> dict[str, Any]:
    """The pins of a resolution; a floating one shows the commit that it stood for.

    Args:
        revisions: Commit in use by role (``source``, ``overlay``) and, for needs, by repo id.
    """
    entry = resolution.entry
    pins: dict[str, Any] = {"source": {"repo": portable(entry.source), "revision": revisions["source"]}}
    if entry.overlay is not None:
        pins["overlay"] = {"repo": portable(entry.overlay), "revision": revisions["overlay"]}
    pins["needs"] = [
        {"repo": need.pin.repo, "revision": revisions[need.pin.repo], "components": list(need.components)}
        for need in entry.needs
    ]
    return pins


def portable(pin: Pin) -> str:
    """The repo as a record names it: of a folder only its name, since records say nothing of a host."""
    return pin.repo.rpartition("/")[2] if pin.revision == LOCAL else pin.repo


def identity_of(
    plan: Plan,
    pins: Mapping[str, Any] | None,
    recipe: Mapping[str, Any],
    digests: Mapping[tuple[str, str], str] | None = None,
) -> dict[str, Any]:
    """The part of the record that depends on inputs alone, outputs excepted.

    Args:
        digests: By repo and path, for inputs whose sha256 the plan did not know.
    """
    from overlay.planning.actions import WRITER_VERSION  # a query reads records and makes no plan

    return {
        "schema_version": SCHEMA_VERSION,
        "model": plan.model,
        "pins": pins,
        "recipe": recipe,
        "rule": plan.rule,
        "writer_version": WRITER_VERSION,
        "adapters": [_adapter(use) for use in plan.adapters],
        "fused_before": list(plan.fused_before),
        "inputs": _inputs(plan, digests or {}),
    }


def _adapter(use: AdapterUse) -> dict[str, Any]:
    document = asdict(use)
    document["weights"] = {"repo": use.weights.repo, "path": use.weights.path}
    document["spec"] = {"repo": use.spec.repo, "path": use.spec.path} if use.spec else None
    return document


def _inputs(plan: Plan, digests: Mapping[tuple[str, str], str]) -> list[dict[str, Any]]:
    from overlay.planning.plan import inputs_of  # as above

    def key(item: Input) -> tuple[str, str]:
        return item.repo, item.path

    roles = {key(read): "config" for read in plan.reads}
    roles.update({key(item): "base" for output in plan.outputs for item in inputs_of(output)})
    for use in plan.adapters:
        roles[key(use.weights)] = "adapter"
        if use.spec:
            roles[key(use.spec)] = "spec"
    return [
        {"role": roles[key(item)], **asdict(item), "digest": digests.get(key(item), item.digest)}
        for item in plan.inputs()
    ]


def versions() -> dict[str, str]:
    """Versions of what takes part in a build, those that are installed."""
    found = {"python": platform.python_version()}
    for package in ("model-overlay", "torch", "safetensors", "huggingface_hub", "xxhash"):
        with suppress(metadata.PackageNotFoundError):
            found[package] = metadata.version(package)
    return found


def tree_name(label: str, identity: Mapping[str, Any], outputs: list[dict[str, Any]]) -> str:
    """``<org>__<name>-<16 hex>``: named by everything in the record but the run."""
    digest = action_key({**identity, "outputs": outputs}).removeprefix("sha256:")
    return f"{label.replace('/', '__')}-{digest[:16]}"


def is_intact(record: Mapping[str, Any]) -> bool:
    """Whether a record still is the one that its tree was named by; True for a fused folder, which has no such name."""
    if "tree" not in record:
        return True
    identity = {key: value for key, value in record.items() if key not in ("tree", "location", "outputs", "run")}
    try:
        return bool(record["tree"] == tree_name(str(record.get("model")), identity, record["outputs"]))
    except ValueError:  # NaN, which no record has
        return False


def record_bytes(record: Mapping[str, Any]) -> bytes:
    """The record as it lies on disk: readable, keys in the order of the story, newline at the end."""
    return (json.dumps(record, indent=1, ensure_ascii=False) + "\n").encode()


def read_record(folder: Path) -> dict[str, Any] | None:
    """The record of a materialization; None where there is none.

    Raises:
        BrokenInput: There is one, but it is not a record that this version reads.
    """
    path = folder / RECORD_NAME
    try:
        record = parse_json(Folder(folder).read_bytes(RECORD_NAME), str(path))
    except NotHere:
        return None
    except OverlayError as error:
        raise BrokenInput(error.message, code="record-unreadable", hint=error.hint, path=str(path)) from error
    version = record.get("schema_version") if isinstance(record, dict) else None
    if version != SCHEMA_VERSION or not _well_formed(record):
        raise BrokenInput(
            f"{path}: not a record of schema {SCHEMA_VERSION} (found {version!r})",
            code="record-unreadable",
            hint="it was written by another version of this program, or edited",
            path=str(path),
        )
    return dict(record)


def _well_formed(record: Mapping[str, Any]) -> bool:
    outputs = record.get("outputs")
    return isinstance(outputs, list) and all(
        isinstance(item, dict)
        and type(item.get("size")) is int
        and _is_digest(item.get("digest"))
        and _is_contained(item.get("path"))
        and isinstance(item.get("tensors", []), list)
        and all(map(_is_tensor, item.get("tensors", [])))
        for item in outputs
    )


def _is_tensor(item: Any) -> bool:
    return (
        isinstance(item, dict)
        and isinstance(item.get("name"), str)
        and isinstance(item.get("dtype"), str)
        and isinstance(item.get("shape"), list)
        and ("digest" not in item or _is_digest(item["digest"]))
    )


def _is_digest(value: Any) -> bool:
    try:
        parse_digest(value)
    except (BrokenInput, TypeError):
        return False
    return True


def _is_contained(path: Any) -> bool:
    if not isinstance(path, str):
        return False
    parts = path.split("/")
    return bool(path) and not path.startswith("/") and ".." not in parts and "\0" not in path
