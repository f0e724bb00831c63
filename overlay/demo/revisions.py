"""What upstream does to a published checkpoint, on the made one: each change is a new revision beside the old.

Revisions are hashes of the one before and of the change, so they are the same everywhere. Unchanged files of 64 MiB and
more are hardlinks, smaller ones are copies. ``BUMPS`` names the changes whose cost is held by tests and measured.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from overlay.demo.checkpoint import (
    OVERLAY_REPO,
    SOURCE_REPO,
    SPEC_NAME,
    HubFolder,
    vdn_adapter_tensors,
    write_overlay,
    write_vdn_adapter,
)
from overlay.demo.documents import ADAPTER_STAGES, DMD_STAGE, dump_line
from overlay.demo.shards import write_shards
from overlay.demo.tensors import transformer_tensors
from overlay.demo.weights import Weights
from overlay.errors import InvalidUsage
from overlay.formats.dtypes import tensor_nbytes

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = [
    "BUMPS",
    "bump_alpha",
    "bump_overlay_readme",
    "bump_overlay_whitespace",
    "bump_readme",
    "bump_rename",
    "bump_turbo_block",
    "move_overlay",
    "move_source",
    "reshard_base",
]

_LINK_FROM = 64 * 2**20


def bump_rename(hub: HubFolder) -> HubFolder:
    """Rename every ``adapter_config.json`` to ``adapter_spec.json``, and let a new overlay revision require that.

    Raises:
        InvalidUsage: The files have their present name already, or the new revisions exist.
    """
    if hub.spec_name == SPEC_NAME:
        raise InvalidUsage(
            f"{hub.source_folder}: adapter specs are called {SPEC_NAME} already",
            code="already-renamed",
            hint='make the checkpoint with spec_name="adapter_config.json"',
        )
    bumped = replace(_next_source(hub, f"rename to {SPEC_NAME}"), spec_name=SPEC_NAME)
    for stage, adapters in ADAPTER_STAGES.items():
        for adapter in adapters:
            folder = bumped.source_folder / stage / "adapters" / adapter
            (folder / hub.spec_name).rename(folder / SPEC_NAME)
    bumped = replace(bumped, overlay=_revision(hub.overlay, f"require {SPEC_NAME}"))
    write_overlay(bumped)
    return bumped


def bump_readme(hub: HubFolder) -> HubFolder:
    """Change a word of the source's README and nothing else."""
    bumped = _next_source(hub, "edit README")
    _add_line(bumped.source_folder / "README.md")
    return bumped


def bump_overlay_readme(hub: HubFolder) -> HubFolder:
    """Change a word of the overlay's README and nothing else."""
    bumped = _next_overlay(hub, "edit README")
    _add_line(bumped.overlay_folder / "README.md")
    return bumped


def bump_overlay_whitespace(hub: HubFolder) -> HubFolder:
    """Indent the overlay's JSON files otherwise: they say the same in other bytes."""
    bumped = _next_overlay(hub, "indent JSON")
    for path in bumped.overlay_folder.rglob("*.json"):
        path.write_text(json.dumps(json.loads(path.read_bytes()), indent=3) + "\n")
    return bumped


def move_source(hub: HubFolder) -> HubFolder:
    """A new revision of the source that holds what the one before holds."""
    return _next_source(hub, "nothing")


def move_overlay(hub: HubFolder) -> HubFolder:
    """A new revision of the overlay that holds what the one before holds."""
    return _next_overlay(hub, "nothing")


def bump_turbo_block(hub: HubFolder, block: int = 0) -> HubFolder:
    """Retrain one block of the turbo adapter: its pairs get other values, everything else stays.

    Args:
        hub: The checkpoint to start from.
        block: Which transformer block.
    """
    if not 0 <= block < hub.preset.blocks:
        raise InvalidUsage(
            f"{hub.source_folder}: block {block} asked for, found {hub.preset.blocks} blocks",
            code="no-such-block",
            block=block,
        )
    bumped = _next_source(hub, f"retrain turbo block {block}")
    weights = Weights(hub.preset.name, hub.seed)
    retrained = {
        name: b"".join(weights.chunks(f"retrained in {bumped.source}", name, dtype, tensor_nbytes(dtype, shape)))
        for name, dtype, shape in vdn_adapter_tensors(hub.preset, "turbo")
        if name.startswith(f"transformer_blocks.{block}.")
    }
    folder = bumped.source_folder / DMD_STAGE / "adapters" / "turbo"
    (folder / "adapter_model.safetensors").unlink()
    write_vdn_adapter(folder, hub.preset, weights, DMD_STAGE, "turbo", retrained=retrained)
    return bumped


def bump_alpha(hub: HubFolder, alpha: float, adapter: str = "default") -> HubFolder:
    """Change the alpha of an adapter, in its spec and in the model spec that repeats it.

    Args:
        hub: The checkpoint to start from.
        alpha: The new value; modules of an ``alpha_pattern`` keep theirs.
        adapter: ``default`` or ``turbo``.
    """
    bumped = _next_source(hub, f"alpha {alpha} of {adapter}")
    stage = bumped.source_folder / DMD_STAGE
    place = ADAPTER_STAGES[DMD_STAGE].index(adapter)
    _edit_json(stage / "adapters" / adapter / hub.spec_name, lambda spec: spec["config"].update(alpha=alpha))
    _edit_json(stage / "model_spec.json", lambda spec: spec["adapters"][place]["config"].update(alpha=alpha))
    return bumped


def reshard_base(hub: HubFolder, limit: int | None = None) -> HubFolder:
    """Save the same base tensors again, with another shard limit.

    Args:
        hub: The checkpoint to start from.
        limit: Most tensor bytes in one shard; half the preset's unless given.
    """
    limit = limit or hub.preset.shard_limit // 2
    bumped = _next_source(hub, f"shard limit {limit}")
    folder = bumped.source_folder / "h3-base" / "transformer"
    config = (folder / "config.json").read_bytes()
    shutil.rmtree(folder)
    write_shards(
        folder,
        transformer_tensors(hub.preset.transformer),
        Weights(hub.preset.name, hub.seed),
        "h3-base/transformer",
        limit=limit,
    )
    (folder / "config.json").write_bytes(config)
    return bumped


BUMPS: Mapping[str, Callable[[HubFolder], HubFolder]] = {
    "adapter_config.json renamed to adapter_spec.json": bump_rename,
    "README changed in the overlay": bump_overlay_readme,
    "JSON whitespace changed in the overlay": bump_overlay_whitespace,
    "overlay revision moved, same content": move_overlay,
    "source revision moved, same content": move_source,
    "turbo adapter changed in one block": bump_turbo_block,
    "alpha changed in one adapter's spec": lambda hub: bump_alpha(hub, hub.preset.rank / 2),
    "base re-sharded, same tensors": reshard_base,
}
"""The changes whose cost the program promises, by what a table calls them; the first needs the specs' former name."""


def _next_source(hub: HubFolder, change: str) -> HubFolder:
    bumped = replace(hub, source=_revision(hub.source, change))
    _next_revision(SOURCE_REPO, hub.source_folder, bumped.source_folder)
    return bumped


def _next_overlay(hub: HubFolder, change: str) -> HubFolder:
    bumped = replace(hub, overlay=_revision(hub.overlay, change))
    _next_revision(OVERLAY_REPO, hub.overlay_folder, bumped.overlay_folder)
    return bumped


def _next_revision(repo: str, old: Path, new: Path) -> None:
    try:
        shutil.copytree(old, new, copy_function=_link_or_copy)
    except FileExistsError:
        raise InvalidUsage(
            f"{new}: exists already",
            code="revision-exists",
            hint="start from another revision, or remove that folder",
            repo=repo,
            revision=new.name,
        ) from None


def _revision(before: str, change: str) -> str:
    return hashlib.blake2b(f"{before} {change}".encode(), digest_size=20).hexdigest()


def _link_or_copy(source: str, target: str) -> None:
    if Path(source).stat().st_size >= _LINK_FROM:
        os.link(source, target)
    else:
        shutil.copyfile(source, target)


def _add_line(path: Path) -> None:
    path.write_text(path.read_text() + "\nSee the model card for the licence.\n")


def _edit_json(path: Path, edit: Callable[[dict[str, Any]], None]) -> None:
    document = json.loads(path.read_bytes())
    edit(document)
    path.write_bytes(dump_line(document))
