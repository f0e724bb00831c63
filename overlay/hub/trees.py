"""What a repo holds at a commit: the client's cached listings, the Hub's answers, and what a snapshot lets one infer.

The client keeps ``trees/<commit>.json`` beside a repo's snapshots. This module reads and writes that format
(version 1) itself, because reading it through the client would import the network stack. A version that either side
does not know is treated by it as absent.
"""

from __future__ import annotations

import json
import re
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from overlay.errors import BrokenInput
from overlay.formats.files import Folder, safe_path
from overlay.formats.local import write_small_file
from overlay.formats.strict_json import parse_object
from overlay.hub.answers import parse_page, reading

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

__all__ = [
    "Tree",
    "TreeFile",
    "read_cached_tree",
    "snapshot_tree",
    "tree_from_listing",
    "write_tree",
]

_FORMAT_VERSION = 1
_INDEX = ".safetensors.index.json"
_SHA1 = re.compile(r"[0-9a-f]{40}")
_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class TreeFile:
    """One file of a repo.

    Attributes:
        size: Bytes; None where only an index says that there is such a file.
        blob_id: Name as a git blob (40 hex), which for an LFS file is that of its pointer; None where it is not known.
        sha256: Of the content, for LFS files.
        xet_hash: Of the content in the Hub's chunk store; no digest that anyone else can compute.
    """

    size: int | None
    blob_id: str | None = None
    sha256: str | None = None
    xet_hash: str | None = None

    @property
    def digest(self) -> str | None:
        """Digest of the content as this program writes it."""
        if self.sha256:
            return f"sha256:{self.sha256}"
        return f"sha1-git:{self.blob_id}" if self.blob_id else None


Tree = dict[str, TreeFile]


def read_cached_tree(storage: Path, commit: str) -> Tree | None:
    """The client's cached listing of a commit; None where there is none that can be used.

    Args:
        storage: The repo's folder in the Hub's cache.
        commit: 40 hex digits.
    """
    path = _tree_path(storage, commit)
    try:
        document = parse_object(path.read_bytes(), str(path))
        if document.get("format_version") != _FORMAT_VERSION:
            return None
        return {
            safe_path(name, str(path)): _checked(
                entry["size"], entry["blob_id"], entry.get("lfs_sha256"), entry.get("xet_hash")
            )
            for name, entry in document["files"].items()
        }
    except (OSError, BrokenInput, KeyError, TypeError, AttributeError, ValueError):
        return None  # as the client does: it is asked for again


def write_tree(storage: Path, commit: str, tree: Tree) -> None:
    """Leave a listing where the client and the next run look for it; a cache that cannot be written does without."""
    files: dict[str, Any] = {}
    for path, file in sorted(tree.items()):
        files[path] = {"size": file.size, "blob_id": file.blob_id}
        if file.sha256:
            files[path] |= {"lfs_sha256": file.sha256, "lfs_size": file.size}
        if file.xet_hash:
            files[path]["xet_hash"] = file.xet_hash
    with suppress(OSError):
        document = json.dumps({"format_version": _FORMAT_VERSION, "files": files}, indent=1)
        write_small_file(_tree_path(storage, commit), document.encode())


def tree_from_listing(pages: Iterable[bytes], where: str) -> Tree:
    """Files out of the pages of the Hub's tree route.

    Raises:
        Refused: A page is not what that route answers (``not-a-hub``).
        BrokenInput: It names a path that leads out of the repo.
    """
    tree: Tree = {}
    for page in pages:
        with reading("listing of files", where):
            for item in parse_page(page, where):
                if item["type"] == "file":
                    lfs = item.get("lfs") or {}
                    size = lfs.get("size", item["size"])
                    file = _checked(size, item["oid"], lfs.get("oid"), item.get("xetHash"))
                    tree[safe_path(item["path"], where)] = file
    return tree


def snapshot_tree(snapshot: Path) -> Tree | None:
    """What a snapshot without a listing lets one infer; None where there is no snapshot.

    The files that are there, and those that its safetensors indexes say must be: an interrupted download left no other
    trace of them.
    """
    if not snapshot.is_dir():
        return None
    folder = Folder(snapshot)
    present = [path for path in folder.paths() if (snapshot / path).is_file()]
    tree = {path: TreeFile(folder.size(path)) for path in present}
    for path in present:
        if path.endswith(_INDEX):
            weight_map = parse_object(folder.read_bytes(path), folder.where(path)).get("weight_map")
            shards = weight_map.values() if isinstance(weight_map, dict) else ()
            for shard in {shard for shard in shards if isinstance(shard, str)}:
                listed = safe_path(f"{path.rpartition('/')[0]}/{shard}".lstrip("/"), folder.where(path))
                tree.setdefault(listed, TreeFile(None))
    return tree


def _tree_path(storage: Path, commit: str) -> Path:
    return storage / "trees" / f"{commit}.json"


def _checked(size: Any, blob_id: Any, sha256: Any, xet_hash: Any) -> TreeFile:
    if type(size) is not int or size < 0:
        raise ValueError(f"size {size!r}")
    if not _SHA1.fullmatch(blob_id) or not (sha256 is None or _SHA256.fullmatch(sha256)):
        raise ValueError(f"digest {blob_id!r}, {sha256!r}")
    return TreeFile(size, blob_id, sha256, xet_hash if isinstance(xet_hash, str) else None)
