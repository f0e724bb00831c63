"""Locks for tests: of what a finished run took in and gave out, written beside the registry that it was run with."""

from __future__ import annotations

import copy
import hashlib
import json
from typing import TYPE_CHECKING, Any

from overlay.materialization.record import RECORD_NAME
from overlay.registry import load_registry, resolve
from overlay.registry.lock import Lock, LockedModel, dump_lock, lock_path

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from overlay.materialization.request import Options

__all__ = ["lock_of", "write_lock"]


def lock_of(model: str, options: Options, hub: Path, tree: Path) -> dict[str, Any]:
    """The lock entry that describes a materialization, as JSON: every file of its repos, its output as expected."""
    record = json.loads((tree / RECORD_NAME).read_bytes())
    entry = resolve(model, load_registry(options.registry)).entry
    components = {need.pin.repo: list(need.components) for need in entry.needs}
    repos: dict[str, Any] = {}
    for pin in entry.pins:
        files = _files(hub / pin.repo / str(pin.revision))
        repos[pin.repo] = {"revision": pin.revision, "components": components.get(pin.repo, []), "files": files}
    return {
        "recipe": record["recipe"],
        "location": record["location"],
        "repos": repos,
        "expected": {
            "rule": record["rule"],
            "writer_version": record["writer_version"],
            "files": {item["path"]: _expected(tree, item) for item in record["outputs"]},
        },
    }


def _files(folder: Path) -> dict[str, Any]:
    return {
        path.relative_to(folder).as_posix(): {"size": path.stat().st_size, "sha256": _sha256(path)}
        for path in folder.rglob("*")
        if path.is_file()
    }


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _expected(tree: Path, item: dict[str, Any]) -> dict[str, Any]:
    tensors = {tensor["name"]: tensor["digest"] for tensor in item.get("tensors", []) if "digest" in tensor}
    return {
        "size": item["size"],
        "digest": item["digest"],
        "sha256": _sha256(tree / item["path"]),
        "tensors": tensors or None,
    }


def write_lock(
    model: str, options: Options, document: dict[str, Any], edit: Callable[[dict[str, Any]], object] | None = None
) -> Path:
    """Write a lock of this one model, changed by ``edit``, where it is in force for these options."""
    document = copy.deepcopy(document)
    if edit is not None:
        edit(document)
    assert options.registry is not None
    path = lock_path(options.registry)
    path.write_bytes(dump_lock(Lock(models={model: LockedModel.model_validate_json(json.dumps(document))})))
    return path
