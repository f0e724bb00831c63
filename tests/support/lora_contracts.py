"""Subjects of the recipe ``lora`` for contract checks: a small base, and one adapter in a repo of its own."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from support.contracts import subject_of
from support.lora import block_base, zeros
from support.tensors import write_tensors

from overlay.demo.checkpoint import HubFolder
from overlay.demo.presets import make_preset
from overlay.fingerprint import DigestMemo
from overlay.hub import FolderRepo

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from support.tensors import Tensor

    from overlay.contract.subject import Subject
    from overlay.formats.header import TensorInfo

__all__ = [
    "ADAPTER",
    "ADAPTER_PLACE",
    "ADAPTER_REVISION",
    "BASE",
    "BASE_PLACE",
    "BASE_REVISION",
    "Listed",
    "base_folder",
    "listed",
    "lora_folder",
    "lora_subject",
    "write_base",
]

BASE, ADAPTER = "org/base", "artist/lora"
BASE_REVISION, ADAPTER_REVISION = "b" * 40, "a" * 40
BASE_PLACE, ADAPTER_PLACE = (4, 14), (6, 29)
"""Line and column of the revision in the registry that ``lora_subject`` writes."""


def base_folder(root: Path, revision: str = BASE_REVISION, repo: str = BASE) -> Path:
    """Where a revision of the base lies."""
    return root / "hub" / repo / revision


def lora_folder(root: Path, name: str = "") -> Path:
    """Where the adapter lies."""
    return root / "hub" / ADAPTER / ADAPTER_REVISION / name


def write_base(folder: Path, tensors: Mapping[str, TensorInfo] | None = None, *, fill: int = 0, **config: Any) -> Path:
    """A base in one file, every byte of it ``fill``; ``block_base`` unless told."""
    infos = block_base() if tensors is None else tensors
    made: dict[str, Tensor] = {}
    for name, info in infos.items():
        dtype, shape, data = zeros(*info.shape, dtype=info.dtype)
        made[name] = dtype, shape, bytes([fill]) * len(data)
    folder.mkdir(parents=True, exist_ok=True)
    write_tensors(folder / "model.safetensors", made)
    (folder / "config.json").write_text(json.dumps({"_class_name": "Model", **config}))
    return folder


def lora_subject(
    root: Path, *, adapters: Sequence[str] = ("",), revision: str = BASE_REVISION, before: Subject | None = None
) -> Subject:
    """The subject of a registry with the base and the adapters at these paths of their repo."""
    places = "".join(f"\n          - {{repo: {ADAPTER}, path: {json.dumps(path)}}}" for path in adapters)
    registry = f"""\
schema_version: 1
models:
  {BASE}:
    source: {{revision: {revision}}}
    needs:
      - {{repo: {ADAPTER}, revision: {ADAPTER_REVISION}}}
    recipe:
      name: lora
      base: {{}}
      adapters:{places}
"""
    hub = HubFolder(root / "hub", make_preset("tiny", 1), 0, source=revision)
    return subject_of(hub, root, registry=registry, model=BASE, before=before)


class Listed(FolderRepo):
    """A folder whose listing tells the digests of its files, as the Hub's does."""

    shared_store = True


def listed(subject: Subject) -> Subject:
    """The same subject out of a Hub: every digest is known without reading."""

    def known(repo: Any) -> Listed:
        return Listed(repo.root, repo=repo.repo, revision=repo.revision, memo=DigestMemo(None, write=False))

    inventory = subject.inventory
    needs = {name: known(repo) for name, repo in inventory.needs.items()}
    return replace(subject, inventory=replace(inventory, source=known(inventory.source), needs=needs))
