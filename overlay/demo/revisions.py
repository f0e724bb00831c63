"""What upstream does to a published checkpoint, on the made one: each change is a new revision beside the old.

Revisions are hashes of the one before and of the change, so they are the same everywhere. Unchanged files of 64 MiB and
more are hardlinks, smaller ones are copies.
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
    from collections.abc import Callable

__all__ = ["bump_alpha", "bump_readme", "bump_rename", "bump_turbo_block", "reshard_base"]

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
    readme = bumped.source_folder / "README.md"
    readme.write_text(readme.read_text() + "\nSee the model card for the licence.\n")
    return bumped


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


def reshard_base(hub: HubFolder) -> HubFolder:
    """Save the same base tensors again, with half the shard limit."""
    bumped = _next_source(hub, "halve the shard limit")
    folder = bumped.source_folder / "h3-base" / "transformer"
    config = (folder / "config.json").read_bytes()
    shutil.rmtree(folder)
    write_shards(
        folder,
        transformer_tensors(hub.preset.transformer),
        Weights(hub.preset.name, hub.seed),
        "h3-base/transformer",
        limit=hub.preset.shard_limit // 2,
    )
    (folder / "config.json").write_bytes(config)
    return bumped


def _next_source(hub: HubFolder, change: str) -> HubFolder:
    bumped = replace(hub, source=_revision(hub.source, change))
    try:
        shutil.copytree(hub.source_folder, bumped.source_folder, copy_function=_link_or_copy)
    except FileExistsError:
        raise InvalidUsage(
            f"{bumped.source_folder}: exists already",
            code="revision-exists",
            hint="start from another revision, or remove that folder",
            repo=SOURCE_REPO,
            revision=bumped.source,
        ) from None
    return bumped


def _revision(before: str, change: str) -> str:
    return hashlib.blake2b(f"{before} {change}".encode(), digest_size=20).hexdigest()


def _link_or_copy(source: str, target: str) -> None:
    if Path(source).stat().st_size >= _LINK_FROM:
        os.link(source, target)
    else:
        shutil.copyfile(source, target)


def _edit_json(path: Path, edit: Callable[[dict[str, Any]], None]) -> None:
    document = json.loads(path.read_bytes())
    edit(document)
    path.write_bytes(dump_line(document))
