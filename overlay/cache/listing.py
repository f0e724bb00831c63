"""What a cache holds, and what its files cost: reads folders, records and inodes, never a weight."""

from __future__ import annotations

import hashlib
import json
import stat
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from overlay.cache.disk import entries, has_layout
from overlay.cache.leases import leases
from overlay.cache.pins import pins
from overlay.cache.trees import is_our_link, location_target
from overlay.errors import BrokenInput, NotHere
from overlay.fingerprint import parse_digest
from overlay.formats.folders import files_below
from overlay.formats.local import read_small_file
from overlay.formats.materialized import LARGEST_RECORD, MARKER_NAME, RECORD_NAME

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from overlay.cache.layout import CacheRoot
    from overlay.cache.leases import Lease
    from overlay.cache.pins import Pin

__all__ = ["FileInfo", "Files", "TreeInfo", "files_under", "find", "locations_of", "ls"]


@dataclass(frozen=True, slots=True)
class FileInfo:
    """One name of a file.

    Attributes:
        inode: Device and inode number.
        links: Names that the inode has anywhere, the Hub's cache included.
        changed: When its inode changed (linked, renamed, written), in seconds since the epoch.
    """

    path: Path
    size: int
    inode: tuple[int, int]
    links: int
    changed: float


@dataclass(frozen=True, slots=True)
class TreeInfo:
    """One materialization.

    Attributes:
        name: Name of the tree.
        model: What its record says it is; None where the record cannot be read.
        locations: Names of the locations that point to it; none for a superseded generation.
        size: Bytes of its files, each inode once.
        created: When it was published, in seconds since the epoch.
        current_since: When it last became the current one of its model, in seconds since the epoch; else ``created``.
        last_used: Now under a lease; else the last read of a weight file as far as the filesystem notes it (relatime:
            within a day), when a lease was taken or given back, the last swing of a location, or ``created``.
        generation: What it was made of and what came out, what only one consumer looks at aside.
        digests: Digests of its files by its record: these objects belong to it.
        files: Its files.
        leases: Who reads it.
        pin: Who wants it kept, if anybody.
        in_quarantine: It was never published, because its output is not what a lock expects.
    """

    name: str
    path: Path
    model: str | None
    locations: tuple[str, ...]
    size: int
    created: float
    current_since: float
    last_used: float
    generation: str
    digests: frozenset[str]
    files: tuple[FileInfo, ...]
    leases: tuple[Lease, ...]
    pin: Pin | None
    in_quarantine: bool


class Files:
    """Names of files, and what removing all of them frees."""

    def __init__(self, files: Iterable[FileInfo]) -> None:
        self._inodes: dict[tuple[int, int], FileInfo] = {}
        self._names: Counter[tuple[int, int]] = Counter()
        for file in {file.path: file for file in files}.values():
            self._inodes[file.inode] = file
            self._names[file.inode] += 1

    def size(self) -> int:
        """Bytes, each inode once."""
        return sum(file.size for file in self._inodes.values())

    def frees(self) -> int:
        """Bytes that the filesystem gets back: the inodes that have no name elsewhere."""
        return sum(file.size for inode, file in self._inodes.items() if not self._elsewhere(inode))

    def held_outside(self, cache: Files) -> int:
        """Bytes that stay because of names outside the whole cache; what vanished from it meanwhile does not count."""
        mine = (file for inode, file in self._inodes.items() if inode in cache._inodes)
        return sum(file.size for file in mine if cache._elsewhere(file.inode))

    def _elsewhere(self, inode: tuple[int, int]) -> bool:
        return self._inodes[inode].links > self._names[inode]


def ls(root: CacheRoot) -> tuple[TreeInfo, ...]:
    """Every tree, those in quarantine too, the last used first.

    Raises:
        CannotWrite: A newer version of this program laid the root out, so nothing can be said or removed here.
    """
    has_layout(root)
    pointing: dict[Path, list[str]] = {}
    for name, target in locations_of(root).items():
        if target is not None:
            pointing.setdefault(target, []).append(name)
    held, pinned = leases(root), pins(root)
    trees = [
        _tree(root, path, pointing.get(path, []), held.get(path.name, ()), pinned.get(path.name))
        for path in (*entries(root.trees), *entries(root.quarantine))
        if path.is_dir()
    ]
    return tuple(sorted(trees, key=lambda tree: (-tree.last_used, tree.name)))


def locations_of(root: CacheRoot) -> dict[str, Path | None]:
    """Every location that is a link of ours by name, and its tree; None where that is gone."""
    links = (path for path in entries(root.locations) if not path.name.startswith(".") and is_our_link(path))
    return {path.name: location_target(root, path.name) for path in links}


def find(root: CacheRoot, target: str) -> tuple[tuple[TreeInfo, ...], frozenset[str]]:
    """What a user means: a location, a tree, a model, or the path of one of the first two.

    A tree in quarantine is meant by its own name or path alone.

    Returns:
        The trees, and the names of the locations that were meant: the one named, or all that lead to these trees.

    Raises:
        NotHere: Nothing of that name.
    """
    path = Path(target).absolute()
    ours = {root.locations.resolve(), root.trees.resolve(), root.quarantine.resolve()}
    folder = path.parent.resolve()
    name = path.name if folder in ours else target
    trees = ls(root)
    if folder in (root.trees.resolve(), root.quarantine.resolve()):  # the same name may be in both
        trees = tuple(tree for tree in trees if tree.path.parent.resolve() == folder)
    if name in locations_of(root):
        return tuple(tree for tree in trees if name in tree.locations), frozenset({name})
    meant = tuple(tree for tree in trees if name == tree.name or (name == tree.model and not tree.in_quarantine))
    if not meant:
        raise NotHere(
            f"{root.path}: holds no location, tree or model named {target!r}",
            code="not-in-cache",
            hint="overlay cache ls",
            target=target,
        )
    return meant, frozenset(location for tree in meant for location in tree.locations)


def files_under(folder: Path) -> Iterator[FileInfo]:
    """Every regular file in a folder and below; what vanishes meanwhile is left out."""
    for name in files_below(folder):
        path = folder / name
        try:
            status = path.lstat()
        except OSError:
            continue
        if stat.S_ISREG(status.st_mode):
            inode = (status.st_dev, status.st_ino)
            yield FileInfo(path, status.st_size, inode, status.st_nlink, status.st_ctime)


def _tree(root: CacheRoot, path: Path, locations: list[str], held: tuple[Lease, ...], pin: Pin | None) -> TreeInfo:
    files = tuple(sorted(files_under(path), key=lambda file: file.path))
    record = _record(path)
    created = _time(path, "st_mtime")
    uses = [_time(file.path, "st_atime") for file in files if file.path.suffix == ".safetensors"]
    swings = [_time(root.location(name), "st_mtime") for name in locations]
    reads = time.time() if held else _time(root.leases / path.name, "st_mtime")
    model = record.get("model")
    return TreeInfo(
        name=path.name,
        path=path,
        model=model if isinstance(model, str) else None,
        locations=tuple(sorted(locations)),
        size=Files(files).size(),
        created=created,
        current_since=_time(root.current / path.name, "st_mtime") or created,
        last_used=max([created, reads, *uses, *swings]),
        generation=_generation(record),
        digests=_digests(record.get("outputs")),
        files=files,
        leases=held,
        pin=pin,
        in_quarantine=path.parent == root.quarantine,
    )


def _record(tree: Path) -> Mapping[str, Any]:
    """The tree's record, read tolerantly: a damaged one must not keep anybody from listing or removing."""
    try:
        document = json.loads(read_small_file(tree / RECORD_NAME, LARGEST_RECORD))
    except (OSError, ValueError, RecursionError):
        return {}
    return document if isinstance(document, dict) else {}


def _generation(record: Mapping[str, Any]) -> str:
    outputs = record.get("outputs")
    files = [item for item in outputs if isinstance(item, dict)] if isinstance(outputs, list) else []
    content = [[str(item.get("path")), str(item.get("digest"))] for item in files if item.get("path") != MARKER_NAME]
    made_of = [record.get(key) for key in ("pins", "recipe", "rule")]
    return hashlib.sha256(json.dumps([made_of, sorted(content)], sort_keys=True).encode()).hexdigest()[:16]


def _digests(outputs: Any) -> frozenset[str]:
    found = set()
    for item in outputs if isinstance(outputs, list) else ():
        with suppress(BrokenInput, TypeError, KeyError):
            parse_digest(item["digest"])
            found.add(item["digest"])
    return frozenset(found)


def _time(path: Path, which: str) -> float:
    try:
        return float(getattr(path.lstat(), which))
    except OSError:
        return 0.0
