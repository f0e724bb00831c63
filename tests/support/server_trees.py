"""Trees as a server leaves them: built by nobody of this program, in a real folder, with the server's own marker."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING, Any

from support.published_rule import published_tree

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from overlay.demo.checkpoint import HubFolder

__all__ = ["MARKER", "edit_marker", "flip", "place_server_tree", "server_tree"]

MARKER = ".sglang_overlay_materialized.json"


def server_tree(hub: HubFolder, folder: Path) -> Path:
    """The tree of a hub folder, made the plain way into the new ``folder``; its marker names a folder of the server."""
    published_tree(hub, folder)
    edit_marker(folder, lambda marker: marker.update(source_dir="/srv/hf/models--OpenVDN--vdn-minimax-h3/snapshots/x"))
    return folder


def place_server_tree(tree: Path, root: Path, location: str) -> Path:
    """A copy of such a tree where the server looks for it, second names still sharing their inode."""
    folder = root / "materialized_models" / location
    folder.mkdir(parents=True)
    inodes: dict[int, Path] = {}
    for path in sorted(tree.rglob("*")):
        to = folder / path.relative_to(tree)
        if path.is_dir():
            to.mkdir()
        elif (inode := path.stat().st_ino) in inodes:
            to.hardlink_to(inodes[inode])
        else:
            inodes[inode] = to
            shutil.copy2(path, to)
    return folder


def edit_marker(folder: Path, edit: Callable[[dict[str, Any]], object]) -> None:
    """Change the marker in the server's own form."""
    marker = json.loads((folder / MARKER).read_bytes())
    edit(marker)
    (folder / MARKER).write_text(json.dumps(marker, indent=2, sort_keys=True))


def flip(path: Path, at: int) -> None:
    """Flip one bit of the byte ``at`` (from the end where negative)."""
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)
