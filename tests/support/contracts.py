"""Subjects for contract checks: tiny made-up repos in a folder in the place of the Hub, at revisions to edit."""

from __future__ import annotations

import hashlib
import json
import shutil
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from overlay.contract.subject import Subject
from overlay.demo.checkpoint import SOURCE_REPO, HubFolder, write_hub
from overlay.demo.registry import write_registry
from overlay.fingerprint import DigestMemo
from overlay.hub import take_inventory
from overlay.registry import load_registry, resolve

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from overlay.contract.finding import Finding
    from overlay.registry.lock import LockedModel

__all__ = ["MODEL", "codes", "edit_json", "make_hub", "next_overlay", "next_source", "subject_of"]

MODEL = SOURCE_REPO


_made: dict[str, tuple[HubFolder, dict[str, bytes]]] = {}


def make_hub(root: Path, **options: Any) -> HubFolder:
    """The tiny VDN-H3 repos, one block deep: made once a process, then written from memory."""
    folder, key = root / "hub", repr(sorted(options.items()))
    if key not in _made:
        hub = write_hub(folder, **{"blocks": 1, **options})
        files = {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
        _made[key] = hub, files
        return hub
    hub, files = _made[key]
    for name, data in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return replace(hub, root=folder)


def next_source(hub: HubFolder, change: str) -> HubFolder:
    """A new revision of the source with the content of the one before, for the test to edit."""
    bumped = replace(hub, source=_revision(hub.source, change))
    shutil.copytree(hub.source_folder, bumped.source_folder)
    return bumped


def next_overlay(hub: HubFolder, change: str) -> HubFolder:
    """A new revision of the overlay with the content of the one before, for the test to edit."""
    bumped = replace(hub, overlay=_revision(hub.overlay, change))
    shutil.copytree(hub.overlay_folder, bumped.overlay_folder)
    return bumped


def subject_of(
    hub: HubFolder,
    root: Path,
    *,
    registry: str | None = None,
    model: str = MODEL,
    locked: LockedModel | None = None,
    before: Subject | None = None,
) -> Subject:
    """What a check is given for these repos; the registry is the demo's unless its text is given."""
    path = root / f"registry-{hub.source[:6]}-{hub.overlay[:6]}.yaml"
    if registry is None:
        write_registry(path, hub)
    else:
        path.write_text(registry)
    resolution = resolve(model, load_registry(path, environ={}, cwd=root))
    inventory = take_inventory(
        resolution, hub=hub.root, offline=True, memo=DigestMemo(None, write=False), allow_floating=True
    )
    return Subject(inventory, locked, before)


def codes(findings: Iterable[Finding]) -> list[str]:
    """The codes of findings, in order."""
    return [finding.code for finding in findings]


def edit_json(path: Path, edit: Callable[[Any], object]) -> None:
    """Change a JSON file in place."""
    document = json.loads(path.read_bytes())
    edit(document)
    path.write_text(json.dumps(document, indent=2, sort_keys=True) + "\n")


def _revision(before: str, change: str) -> str:
    return hashlib.blake2b(f"{before} {change}".encode(), digest_size=20).hexdigest()
