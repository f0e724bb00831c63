"""Trees as a server leaves them: built by nobody of this program, in a real folder, with the server's own marker."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING, Any

from support.models import options

from overlay.fingerprint import file_digest
from overlay.materialization.record import RECORD_NAME

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from conftest import Built

    from overlay.demo.checkpoint import HubFolder
    from overlay.materialization.request import Options

__all__ = [
    "CARRIED",
    "FUSED",
    "MARKER",
    "RELAID",
    "SECOND_NAME",
    "ServerFolder",
    "edit_marker",
    "flip",
    "identity",
    "payload",
    "place_server_tree",
    "require_sound_objects",
    "server_tree",
]

MARKER = ".sglang_overlay_materialized.json"
FUSED = "transformer/diffusion_pytorch_model-00002-of-00003.safetensors"
RELAID = "video_vae/source/model.safetensors"
SECOND_NAME = "video_vae/model.safetensors"
CARRIED = "transformer/sglang_vdn_linear_branch.safetensors"


def server_tree(hub: HubFolder, folder: Path) -> Path:
    """The tree of a hub folder, made the plain way into the new ``folder``; its marker names a folder of the server."""
    from support.published_rule import published_tree  # needs torch, which not all tests of a folder have

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


def identity(tree: Path) -> dict[str, Any]:
    """A record without what one run did."""
    record: dict[str, Any] = json.loads((tree / RECORD_NAME).read_bytes())
    del record["run"]
    return record


def payload(folder: Path) -> int:
    """Bytes of the tensors of every weight file, each inode once."""
    inodes = {path.stat().st_ino: path for path in folder.rglob("*.safetensors")}
    return sum(path.stat().st_size - 8 - int.from_bytes(path.read_bytes()[:8], "little") for path in inodes.values())


def require_sound_objects(root: Path) -> None:
    """Every object holds what its name says."""
    for path in root.glob(".overlay/objects/*/*/*"):
        algorithm = path.parent.parent.name
        assert file_digest(path, algorithm) == f"{algorithm}:{path.name}"


class ServerFolder:
    """A server's folder at its location, below a root where this program never was.

    Attributes:
        folder: The real folder.
        built: A build of the same by this program, in another root.
    """

    def __init__(self, built: Built, tree: Path, root: Path) -> None:
        self.built = built
        self.root = root
        self.folder = place_server_tree(tree, root, built.location.name)

    def options(self, **choices: Any) -> Options:
        """Options of a run on the root."""
        return options(self.built.hub, self.root, **choices)

    @property
    def objects(self) -> list[Path]:
        """Every object."""
        return list(self.root.glob(".overlay/objects/*/*/*"))

    def seen(self) -> dict[str, tuple[int, int, bytes]]:
        """Inode, mode and content of every file of the folder."""
        paths = [path for path in self.folder.rglob("*") if path.is_file()]
        return {
            str(path.relative_to(self.folder)): (path.stat().st_ino, path.stat().st_mode, path.read_bytes())
            for path in paths
        }

    def require_untouched(self, before: dict[str, tuple[int, int, bytes]]) -> None:
        """The folder is what it was, and the cache holds nothing of it."""
        assert not self.folder.is_symlink()
        assert self.seen() == before
        assert self.objects == []
        for place in ("trees", "actions", "staging"):
            assert list(self.root.glob(f".overlay/{place}/*")) == []
