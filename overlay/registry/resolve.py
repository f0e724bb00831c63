"""From what a user names to an entry: a registry key, a local source, a folder of the Hub's cache, an overlay folder.

The order and the matching are those of sglang 0.5.23, so that both take the same path for the same model.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from overlay.errors import BrokenInput, InvalidUsage
from overlay.formats.overlay_repo import MANIFEST_PATH
from overlay.registry.entries import LOCAL, Entry, Pin, Place, Recipe, Resolution, ServerSpec
from overlay.registry.load import packaged_registry
from overlay.registry.problems import did_you_mean

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from overlay.registry.entries import Registry

__all__ = ["resolve"]


def resolve(model: str, registry: Registry, *, served: bool = False) -> Resolution:
    """What a name or a path stands for.

    Args:
        model: A key of the registry; else an existing folder that maps to one, because its name is the part after the
            ``/`` of the key or because it lies in that repo's folder of a Hub cache (``models--org--name``); else an
            overlay folder (one with ``_overlay/overlay_manifest.json``).
        registry: The registry in force.
        served: As a server takes it, to which the repo id of an overlay stands for the model that it is of.

    Raises:
        InvalidUsage: None of these, or a folder or an overlay that maps to more than one key.
        BrokenInput: The manifest of an overlay folder is unusable.
    """
    if model in registry.entries:
        return _resolution(registry, registry.entries[model])
    if not os.path.exists(model):  # noqa: PTH110 - Path refuses some texts that are no path at all
        overlaid = [key for key, entry in registry.entries.items() if entry.overlay and entry.overlay.repo == model]
        if served and len(overlaid) == 1:
            return _direct_overlay_repo(registry, registry.entries[overlaid[0]], model)
        raise _overlay_not_model(model, overlaid, served=served) if overlaid else _unknown(model, registry)
    folder = Path(os.path.abspath(model))  # noqa: PTH100 - resolve() would replace the user's name for a link
    if not folder.is_dir():
        raise InvalidUsage(f"{folder}: is a file; expected a model or a folder", code="not-a-folder", where=str(folder))
    key = _key_of(folder, registry.entries)
    if key is not None:
        return _local_source(registry, registry.entries[key], folder)
    if os.path.isfile(folder / MANIFEST_PATH):  # noqa: PTH113 - a folder that may not be looked into has none for us
        return _direct_overlay(registry, model, folder)
    raise InvalidUsage(
        f"{folder}: is no source of a known model and no overlay",
        code="unknown-folder",
        hint="the folder of a source is called like its model (.../vdn-minimax-h3 for OpenVDN/vdn-minimax-h3), that of "
        f"an overlay holds {MANIFEST_PATH}; known models: {_names(registry)}",
        where=str(folder),
    )


def _resolution(
    registry: Registry, entry: Entry, notes: Iterable[str] = (), source_folder: Path | None = None
) -> Resolution:
    pins = [pin for pin in entry.pins if not (source_folder and pin is entry.source)]
    floating = [f"{pin.repo} is not pinned: {pin.floating}" for pin in pins if pin.floating]
    if not entry.is_buildable:
        notes = (*notes, "the overlay's own Python builds it, and the entry pins no script that may run")
    moved = registry.moved.get(entry.model, ())
    found = registry.is_found and entry.model in registry.own and entry.recipe.name == "python" and entry.is_buildable
    return Resolution(entry.model, entry, registry.path, (*moved, *floating, *notes), source_folder, moved, found)


def _key_of(folder: Path, entries: Mapping[str, Entry]) -> str | None:
    parts = {part.lower() for part in folder.parts}
    found = [key for key in entries if _cache_folder(key) in parts]
    found = found or [key for key in entries if key.rpartition("/")[2] == folder.name]
    if len(found) > 1:
        raise InvalidUsage(
            f"{folder}: may be the source of {' or '.join(found)}",
            code="ambiguous-folder",
            hint="rename the folder, or give the model's name",
            where=str(folder),
            models=found,
        )
    return found[0] if found else None


def _cache_folder(key: str) -> str:
    return f"models--{key.replace('/', '--')}".lower()


def _local_source(registry: Registry, entry: Entry, folder: Path) -> Resolution:
    parts = [part.lower() for part in folder.parts]
    name = _cache_folder(entry.model)
    if name not in parts:
        return _resolution(registry, entry, [f"the source is the folder {folder}, not {entry.source}"], folder)
    within = folder.parts[parts.index(name) + 1 :]
    if len(within) < 2 or within[0] != "snapshots":  # noqa: PLR2004 - snapshots/<commit>
        return _resolution(registry, entry, [f"{folder} holds no single commit; the source is {entry.source}"])
    snapshot = Path(*folder.parts[: len(parts) - len(within) + 2])
    notes = [f"the source is the snapshot {snapshot}"]
    if within[1] != entry.source.revision:
        notes = [f"the source is the snapshot {snapshot}, not {entry.source}"]
    return _resolution(registry, entry, notes, snapshot)


def _direct_overlay(registry: Registry, model: str, folder: Path) -> Resolution:
    """An overlay folder names its source itself; the rest comes from the registry where that knows the source."""
    from overlay.formats.files import Folder
    from overlay.formats.manifest import read_manifest

    manifest = read_manifest(Folder(folder))
    key = _source_model_id(folder, manifest.source_model_id)
    known = registry.entries.get(key)
    if manifest.source_revision:
        source = _told_pin(key, manifest.source_revision)
    else:
        source = known.source if known else Pin(key, None, "the overlay's manifest names no source_revision")
    recipe = known.recipe if known else None
    if recipe is None or recipe.name in ("mappings", "python"):  # these follow the manifest
        follows = "python" if manifest.custom_materializer else "mappings"
        recipe = recipe if recipe is not None and recipe.name == follows else Recipe(follows, {})
    entry = Entry(
        model=key,
        source=source,
        overlay=Pin(str(folder), LOCAL),
        # Where the overlay's own Python runs, it pins what a commit would.
        overlay_fingerprint=known.overlay_fingerprint if known and recipe.name == "python" else None,
        needs=known.needs if known else (),
        wheels=known.wheels if known else (),
        recipe=recipe,
        place=Place(str(folder / MANIFEST_PATH), 1, 1),
        materializer_version=manifest.materializer_version,
        server=ServerSpec(model, LOCAL, manifest.source_revision),
        serve=known.serve if known else {},
    )
    notes = [f"a server looks at this location only when it is started with exactly --model-path {model}"]
    if known:
        notes.insert(0, f"what the overlay does not say comes from {key} in {registry.path}")
    return _resolution(registry, entry, notes)


def _direct_overlay_repo(registry: Registry, entry: Entry, model: str) -> Resolution:
    """An overlay repo that a server is given by name: it is built as pinned, but the server asks for its main."""
    told = ServerSpec(model, "main", None, by="name")
    note = f"a server looks at this location only when it is started with exactly --model-path {model}"
    return _resolution(registry, replace(entry, server=told), [note])


def _overlay_not_model(model: str, overlaid: list[str], *, served: bool) -> InvalidUsage:
    hint = f"overlay resolve {overlaid[0]}"
    if not served:
        hint = f"name the model, {overlaid[0]}; or add --for sglang, for a server that is given the overlay's name"
    return InvalidUsage(
        f"{model} is the overlay of {', '.join(overlaid)}, not a model",
        code="overlay-not-model",
        hint=hint,
        models=overlaid,
    )


def _source_model_id(folder: Path, found: str | None) -> str:
    from overlay.registry.schema import check_repo  # pydantic is slow to import

    try:
        return check_repo(found or "")
    except ValueError as error:
        raise BrokenInput(
            f"{folder / MANIFEST_PATH}: source_model_id is {found!r}; expected the repo id (org/name) of the source",
            code="no-source-model-id",
            hint="an overlay that is given as a folder must name its source",
            where=str(folder / MANIFEST_PATH),
        ) from error


def _told_pin(repo: str, revision: str) -> Pin:
    from overlay.registry.schema import check_commit  # pydantic is slow to import

    try:
        return Pin(repo, check_commit(revision))
    except ValueError:
        return Pin(repo, None, f"the overlay's manifest names {revision}, which is no commit")


def _unknown(model: str, registry: Registry) -> InvalidUsage:
    if model.startswith(("/", ".", "~")) or model.count("/") > 1:
        return InvalidUsage(f"{model}: no such folder", code="no-such-folder", hint=f"ls {Path(model).parent}")
    packaged = str(packaged_registry())
    searched = registry.path if registry.path == packaged else f"{registry.path} and not in {packaged} below it"
    return InvalidUsage(
        f"{model}: not in {searched}",
        code="unknown-model",
        hint=did_you_mean(model, registry.entries) or f"known models: {_names(registry)}",
        model=model,
        known=list(registry.entries),
    )


def _names(registry: Registry) -> str:
    return ", ".join(registry.entries)
