"""Stamps that say which adapters a folder of weights already holds: fusing one twice would double its effect."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from overlay.errors import NotHere
from overlay.formats.materialized import FUSED_NAME, LARGEST_RECORD, MARKER_NAME, PREFUSED_NAME, RECORD_NAME
from overlay.formats.strict_json import parse_object

if TYPE_CHECKING:
    from collections.abc import Iterable

    from overlay.formats.files import Files

__all__ = ["Stamp", "fused_adapters"]


@dataclass(frozen=True, slots=True)
class Stamp:
    """One file that says that weights were fused.

    Attributes:
        path: In its ``Files``.
        digests: ``sha256:<hex>`` of the weights file of each adapter; empty where the stamp does not say which.
    """

    path: str
    digests: tuple[str, ...]


def fused_adapters(files: Files, folder: str) -> tuple[Stamp, ...]:
    """The stamps of a base folder.

    Read are SGLang's provenance of a VDN tree, this program's stamp and its record, each in the folder or the one
    above. SGLang's marker of a materialized overlay does not say what was done; it counts only where nothing else
    speaks.

    Args:
        files: The repo or folder of the base.
        folder: Of the weights, inside ``files``; empty for its root.

    Raises:
        BrokenInput: A stamp that cannot be read.
    """
    places = [folder, folder.rpartition("/")[0]] if folder else [""]
    prefixes = [f"{place}/" if place else "" for place in places]
    named = [prefix + name for prefix in prefixes for name in (PREFUSED_NAME, FUSED_NAME, RECORD_NAME)]
    detailed = [path for path in named if _has(files, path)]
    markers = [prefix + MARKER_NAME for prefix in prefixes if _has(files, prefix + MARKER_NAME)]
    if not detailed:
        return tuple(Stamp(path, ()) for path in markers)
    stamps = (_read(files, path) for path in detailed)
    return tuple(stamp for stamp in stamps if stamp is not None)


def _has(files: Files, path: str) -> bool:
    # Asked for by name: the folder above a base that is given by path may hold anything, and is not to be listed.
    try:
        files.size(path)
    except NotHere:
        return False
    return True


def _read(files: Files, path: str) -> Stamp | None:
    document = parse_object(files.read_bytes(path, LARGEST_RECORD), files.where(path))
    if path.endswith(PREFUSED_NAME):
        adapters = _objects(document.get("adapters"))
        return Stamp(path, _digests(f"sha256:{adapter.get('adapter_model_sha256')}" for adapter in adapters))
    is_record = not path.endswith(FUSED_NAME)
    named, before = document.get("inputs" if is_record else "adapters"), document.get("fused_before", [])
    if not isinstance(named, list) or not isinstance(before, list):
        return Stamp(path, ())  # one of ours, but not one that this version can read
    found = [item for item in _objects(named) if not is_record or item.get("role") == "adapter"]
    held: list[Any] = [item.get("digest") for item in found] + before
    digests = _digests(held)
    return Stamp(path, digests if len(digests) == len(held) else ()) if held else None


def _objects(value: Any) -> list[dict[str, Any]]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _digests(values: Iterable[Any]) -> tuple[str, ...]:
    return tuple(value for value in values if isinstance(value, str) and re.fullmatch(r"sha256:[0-9a-f]{64}", value))
