"""Which layout a server loads: that of Diffusers, or that of MiniMax's own releases, a folder for each partition."""

from __future__ import annotations

from typing import TYPE_CHECKING

from overlay.errors import OverlayError
from overlay.formats.local import read_small_file
from overlay.formats.strict_json import parse_object

if TYPE_CHECKING:
    from collections.abc import Container
    from pathlib import Path

    from overlay.consumers.server import Server

__all__ = ["H3", "INDEX", "native_folders", "transformer_of", "why_not_loaded"]

INDEX = "model_index.json"
H3 = "MiniMaxH3Transformer3DModel"
"""What Diffusers calls the transformer that MiniMax releases in a layout of its own, too."""

_PARTITIONS = ("FL2VA", "Ref2VA")


def native_folders(paths: Container[str]) -> tuple[str, ...]:
    """Folders that are each a model of their own, as MiniMax releases them; none in another layout.

    Args:
        paths: Of the files of a tree.
    """
    return tuple(name for name in _PARTITIONS if f"{name}/{INDEX}" in paths)


def transformer_of(tree: Path) -> str | None:
    """The class that a tree in the layout of Diffusers names for its transformer; None where it names none."""
    config = tree / "transformer/config.json"
    try:
        found = parse_object(read_small_file(config), str(config)).get("_class_name")
    except OverlayError:
        return None
    return found if isinstance(found, str) else None


def why_not_loaded(server: Server, paths: Container[str], transformer: str | None) -> str | None:
    """Why a server cannot load a tree; None where its layout does not speak against it.

    Args:
        paths: Of the files of the tree.
        transformer: The class of its transformer in the layout of Diffusers.
    """
    native = native_folders(paths)
    if server.name == "sglang" and native and INDEX not in paths:
        return f"{server} loads the layout of Diffusers, and this is MiniMax's own ({', '.join(native)})"
    if server.name == "vllm-omni" and not native and transformer == H3:
        return f"{server} loads this family in MiniMax's own layout (FL2VA, Ref2VA), and this is that of Diffusers"
    return None
