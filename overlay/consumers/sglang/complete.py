"""Whether sglang takes a folder for a finished model, release by release, and why not.

The server has two tests. Any folder that it is given by path must be a complete diffusers folder; what it finds under a
model's key must also hold its marker and, below each component, weights. Neither reads what a file holds, and the two
do not agree on what a component is: some trees that load well are never taken, and built again at every start.
"""

from __future__ import annotations

import glob
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from overlay.errors import BrokenInput, OverlayError
from overlay.formats.local import read_small_file
from overlay.formats.materialized import MARKER_NAME
from overlay.formats.model_index import INDEX_NAMES
from overlay.formats.strict_json import parse_object

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from overlay.consumers.sglang.versions import Release

__all__ = ["why_incomplete"]

_INDEX, _MODULAR_INDEX = INDEX_NAMES
_PAIR, _MODULAR = 2, 3

# By path: a component is without weights if its name holds one of these; its weights lie at its top.
_LIGHT_HINTS = ("tokenizer", "scheduler", "processor", "feature_extractor")
_WEIGHT_SUFFIXES = (".safetensors", ".bin", ".pt", ".pth", ".ckpt")

# By name: a component is without weights if it has one of these names; its weights lie anywhere below it.
_LIGHT_NAMES = {"feature_extractor", "image_processor", "processor", "scheduler", "tokenizer", "tokenizer_2"}
_WEIGHT_SUFFIXES_BELOW = (".safetensors", ".bin", ".pth", ".pt")


def why_incomplete(tree: Path, release: Release, *, by_path: bool = False) -> tuple[str, ...]:
    """Why a server would not take this folder for a finished model; nothing where it would.

    Args:
        tree: The folder, as the server is given it: a ``[`` in its path counts.
        release: Decides which tests there are.
        by_path: As ``--model-path``; else as what lies under a model's key.
    """
    reasons = [*_why_no_diffusers_folder(tree, release)]
    if not by_path:
        if not (tree / MARKER_NAME).exists():
            reasons.append(f"there is no marker {MARKER_NAME}")
        if release.looks_into_components:
            reasons += _why_no_materialization(tree)
    return tuple(dict.fromkeys(reasons))


def _why_no_diffusers_folder(tree: Path, release: Release) -> Iterator[str]:
    index = _MODULAR_INDEX if release.reads_modular_index and not (tree / _INDEX).is_file() else _INDEX
    try:
        document = _components(tree, index)
    except OverlayError as error:
        yield str(error)
        return
    named = [name for name, value in document.items() if _is_component(name, value, release)]
    for name in named or ("transformer", "vae"):
        if not (tree / name).exists():
            yield f"{name}: there is no such component"
        elif name in named and release.looks_for_weights and _bears_weights(name):
            yield from _why_no_weights(tree / name)


def _components(tree: Path, index: str) -> Mapping[str, Any]:
    document = dict(_read(tree, index))
    if index == _MODULAR_INDEX:
        document.pop("_blocks_class_name", None)
        for name, value in document.items():
            if isinstance(value, list) and len(value) == _MODULAR and isinstance(value[-1], dict):
                if value[-1].get("subfolder", name) != name:
                    raise BrokenInput(
                        f"{tree / index}: {name} is in another folder, which a server does not take",
                        code="bad-model-index",
                        where=str(tree / index),
                    )
                document[name] = value[:_PAIR]
    return document


def _read(tree: Path, index: str) -> dict[str, Any]:
    return parse_object(read_small_file(tree / index), str(tree / index))


def _is_component(name: str, value: Any, release: Release) -> bool:
    if not isinstance(value, list) or len(value) != _PAIR:
        return False
    if release.skips_private_keys and name.startswith("_"):
        return False
    if not release.looks_for_weights:
        return all(isinstance(item, str) for item in value)
    return value != [None, None] and all(item is None or isinstance(item, str) for item in value)


def _bears_weights(name: str) -> bool:
    return not name.startswith("_") and not any(hint in name.lower() for hint in _LIGHT_HINTS)


def _why_no_weights(component: Path) -> Iterator[str]:
    if not component.is_dir():
        yield f"{component.name}: is no folder"
    # As the server looks: what is special to a glob is not escaped in the path before it.
    elif not any(glob.glob(f"{component}/*{suffix}") for suffix in _WEIGHT_SUFFIXES):  # noqa: PTH207 - see above
        unescaped = (
            f", or none that a server finds below a path with [ in it: {component}" if "[" in str(component) else ""
        )
        yield f"{component.name}: has no weights at its top ({', '.join(_WEIGHT_SUFFIXES)}){unescaped}"


def _why_no_materialization(tree: Path) -> Iterator[str]:
    try:
        document = _read(tree, _INDEX)
    except OverlayError as error:
        yield str(error)
        return
    yield from (f"{_INDEX}: has no {key}" for key in ("_class_name", "_diffusers_version") if key not in document)
    for name, value in document.items():
        if not isinstance(value, list) or name.startswith("_") or name in _LIGHT_NAMES:
            continue
        if not (tree / name).is_dir():
            yield f"{name}: is no folder, and a server wants one for every list of the index"
        elif not _has_weights_below(tree / name):
            yield f"{name}: has no weights below it ({', '.join(_WEIGHT_SUFFIXES_BELOW)})"


def _has_weights_below(component: Path) -> bool:
    return any(
        name.endswith(_WEIGHT_SUFFIXES_BELOW) and Path(folder, name).is_file()
        for folder, _, names in os.walk(component)
        for name in names
    )
