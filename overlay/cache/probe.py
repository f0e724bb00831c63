"""What a root's filesystem can do, found by doing it in a scratch folder that is removed again; for a report."""

from __future__ import annotations

import fcntl
import os
import re
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from overlay.cache.disk import existing
from overlay.cache.links import How, link_file
from overlay.cache.outlook import link_outlook, reason, sample_of, scratch
from overlay.errors import BrokenInput, OverlayError
from overlay.formats.folders import files_below

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from overlay.cache.layout import CacheRoot

__all__ = ["LAYERED", "Filesystem", "Probe", "RootReport", "filesystem_of", "probe_root"]

LAYERED = {"overlay", "aufs", "fuse.fuse-overlayfs"}
"""Kinds of filesystem that copy a file of a lower layer whole before they link it."""
_OCTAL = re.compile(rb"\\([0-7]{3})")
_SEARCHED = 1000


@dataclass(frozen=True, slots=True)
class Probe:
    """One answer: yes, no, or None where it could not be tried; and why, where it is not a plain yes."""

    name: str
    ok: bool | None
    why: str = ""


@dataclass(frozen=True, slots=True)
class Filesystem:
    """Where a path lies.

    Attributes:
        kind: As the kernel calls it: ext4, xfs, nfs4, overlay; ``unknown`` where it does not say.
        container_layer: The writable layer of a container, lost with it and slow to fill.
        free: Bytes that this user may still write.
        total: Bytes of the whole filesystem.
    """

    kind: str
    mount_point: str
    read_only: bool
    container_layer: bool
    free: int
    total: int


@dataclass(frozen=True, slots=True)
class RootReport:
    """A cache root, where it lies, and what works there."""

    root: Path
    decided_by: str
    exists: bool
    filesystem: Filesystem
    probes: tuple[Probe, ...]


def probe_root(root: CacheRoot, hub: Path | None = None) -> RootReport:
    """Try everything that publishing rests on.

    Args:
        root: The root; it need not exist.
        hub: Folder that files would be linked from, such as the Hub's cache; nothing is written there.
    """
    try:
        with scratch(root) as folder:
            probes = [Probe("write", ok=True), *(_try(name, probe, folder) for name, probe in _PROBES.items())]
            if hub is not None:
                probes += _from_folder(hub, root)
    except (OSError, OverlayError) as error:
        names = [*_PROBES, *(_FROM_FOLDER if hub is not None else ())]
        probes = [
            Probe("write", ok=False, why=reason(error)),
            *(Probe(name, ok=None, why="not writable") for name in names),
        ]
    exists = existing(root.own) == root.own
    return RootReport(root.path, root.decided_by, exists, filesystem_of(root.path), tuple(probes))


def filesystem_of(path: Path) -> Filesystem:
    """Where ``path`` lies or would lie."""
    place = existing(path).resolve()
    kind, mount_point = _mount_of(place)
    room = os.statvfs(place)
    return Filesystem(
        kind=kind,
        mount_point=mount_point,
        read_only=bool(room.f_flag & os.ST_RDONLY),
        container_layer=kind in LAYERED and mount_point == "/",
        free=room.f_bavail * room.f_frsize,
        total=room.f_blocks * room.f_frsize,
    )


def _mount_of(place: Path) -> tuple[str, str]:
    """Kind and mount point, from the kernel's table; the last of equal mount points covers the others."""
    found = ("unknown", "/")
    try:
        table = Path("/proc/self/mountinfo").read_bytes()
    except OSError:
        return found
    deepest = 0
    for line in table.splitlines():
        before, _, after = line.partition(b" - ")
        point = os.fsdecode(_OCTAL.sub(lambda code: bytes([int(code[1], 8)]), before.split(b" ")[4]))
        depth = len(Path(point).parts)
        if place.is_relative_to(point) and depth >= deepest:
            deepest, found = depth, (os.fsdecode(after.split(b" ")[0]), point)
    return found


def _try(name: str, probe: Callable[[Path], str | None], scratch: Path) -> Probe:
    folder = scratch / name.replace(" ", "-")
    folder.mkdir()
    try:
        problem = probe(folder)
    except (OSError, BrokenInput) as error:
        problem = reason(error)
    return Probe(name, ok=problem is None, why=problem or "")


def _from_folder(hub: Path, root: CacheRoot) -> list[Probe]:
    """One answer for each way, and one more for files that are somebody else's."""
    samples: dict[int, Path] = {}
    for path in _some_files(hub):
        samples.setdefault(path.stat().st_uid, path)
    if not samples:
        return [Probe(name, ok=None, why=f"no file under {hub} to try with") for name in _FROM_FOLDER]
    own = os.geteuid()
    found = []
    for uid, path in sorted(samples.items(), key=lambda item: (item[0] != own, item[0])):
        whose = "" if len(samples) == 1 or uid == own else f", of uid {uid}"
        for name, how in _FROM_FOLDER.items():
            outlook = link_outlook(root, sample_of(path)[0], (how,))
            found.append(Probe(f"{name}{whose}", ok=outlook.how == how, why=outlook.why.removeprefix(f"{how}: ")))
    return found


def _some_files(folder: Path) -> Iterator[Path]:
    paths = (folder / name for name in files_below(folder))
    for path in islice(paths, _SEARCHED):
        if path.is_file() and not path.is_symlink() and path.stat().st_size:
            yield path


def _link(source: Path, how: How, folder: Path) -> None:
    link_file(source, folder / "linked", (how,))


def _file(folder: Path, name: str, data: bytes = b"probe") -> Path:
    path = folder / name
    path.write_bytes(data)
    return path


def _reflink(folder: Path) -> None:
    _link(_file(folder, "a"), "reflink", folder)


def _hardlink(folder: Path) -> str | None:
    source = _file(folder, "a")
    _link(source, "hardlink", folder)
    return None if source.stat().st_nlink == 2 else "the link count did not change"  # noqa: PLR2004 - two names


def _rename(folder: Path) -> None:
    _file(folder, "a").rename(folder / "b")
    (folder / "c").mkdir()
    (folder / "c").rename(folder / "d")


def _rename_over(folder: Path) -> str | None:
    _file(folder, "a", b"new").replace(_file(folder, "b", b"old"))
    return None if (folder / "b").read_bytes() == b"new" else "the old file is still there"


def _symlink(folder: Path) -> None:
    for name in ("a", "b"):
        (folder / name).symlink_to("target")
    (folder / "a").replace(folder / "b")


def _flock(folder: Path) -> str | None:
    path = _file(folder, "a")
    with path.open("rb") as first, path.open("rb") as second:
        fcntl.flock(first, fcntl.LOCK_EX | fcntl.LOCK_NB)
        try:
            fcntl.flock(second, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return None
    return "two holders at once: locks do nothing here"


def _fsync(folder: Path) -> None:
    for path in (_file(folder, "a"), folder):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _ftruncate(folder: Path) -> str | None:
    with (folder / "a").open("wb") as file:
        file.truncate(4096)
    return None if (folder / "a").stat().st_size == 4096 else "the size did not change"  # noqa: PLR2004 - as set above


def _copy_file_range(folder: Path) -> str | None:
    with _file(folder, "a").open("rb") as source, (folder / "b").open("wb") as dest:
        copied = os.copy_file_range(source.fileno(), dest.fileno(), 5)
    return None if copied == 5 else f"{copied} of 5 bytes copied"  # noqa: PLR2004 - the length of the sample


_PROBES: dict[str, Callable[[Path], str | None]] = {
    "reflink": _reflink,
    "hardlink": _hardlink,
    "rename": _rename,
    "rename over existing": _rename_over,
    "symlink": _symlink,
    "flock": _flock,
    "fsync": _fsync,
    "ftruncate": _ftruncate,
    "copy_file_range": _copy_file_range,
}
_FROM_FOLDER: dict[str, How] = {"reflink from hub": "reflink", "hardlink from hub": "hardlink"}
