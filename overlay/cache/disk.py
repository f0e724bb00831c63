"""The few filesystem steps that everything here is made of, and what their failures mean.

Folders and files get their modes from the umask. Where the root is writable by its group, the cache is taken for a
shared one and the group's bits are added. No chmod is ever needed for correctness, so none is ever fatal.
"""

from __future__ import annotations

import errno
import os
import stat
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from overlay.cache.layout import LAYOUT_VERSION
from overlay.errors import CannotWrite, OverlayError
from overlay.formats import os_errors
from overlay.formats.folders import remove_folder
from overlay.formats.wording import format_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from overlay.cache.layout import CacheRoot

__all__ = [
    "cannot_write",
    "entries",
    "free_room",
    "fsync",
    "has_layout",
    "is_file_of",
    "last_written",
    "make_folder",
    "put_in_place",
    "remove",
    "share_with_group",
    "write_atomically",
    "writing",
]

# Of a layout version at most: Python refuses to read a number of thousands of them.
_DIGITS = 9
_LONGEST_VERSION = 100
# Filesystems without fsync (many FUSE mounts) answer one of these: there is nothing more to do then.
_NO_FSYNC = {errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP}


def cannot_write(error: OSError, root: CacheRoot, operation: str, **data: Any) -> CannotWrite:
    """``error`` as one that names the root, the operation, and what to do."""
    detail = ""
    if error.errno == errno.ENOSPC:
        data["free"] = free_room(root.path)
        detail = f" ({format_bytes(data['free'])} free)"
    return os_errors.cannot_write(
        error,
        str(root.path),
        operation,
        first="" if root.decided_by == "--out" else "overlay cache gc",
        elsewhere=_another(root),
        detail=detail,
        decided_by=root.decided_by,
        **data,
    )


def _another(root: CacheRoot) -> str:
    if root.decided_by == "--out":
        return "name another folder with --out"
    return f"choose another root with --cache-root or OVERLAY_CACHE_ROOT (this root comes from {root.decided_by})"


@contextmanager
def writing(root: CacheRoot, operation: str) -> Iterator[None]:
    """Everything inside writes under ``root``; its failures become :class:`CannotWrite`.

    Args:
        root: Named in the error.
        operation: What is being done, with the system call's name in it: ``rename into objects``.
    """
    try:
        yield
    except OverlayError:
        raise
    except OSError as error:
        raise cannot_write(error, root, operation) from error


def free_room(path: Path) -> int:
    """Bytes that this user may still write where ``path`` is or will be."""
    room = os.statvfs(existing(path))
    return room.f_bavail * room.f_frsize


def existing(path: Path) -> Path:
    """``path``, or the nearest folder above it that exists."""
    while not os.path.exists(path) and path != path.parent:  # noqa: PTH110 - Path.exists raises where it may not look
        path = path.parent
    return path


def entries(folder: Path) -> list[Path]:
    """What lies in a folder, sorted; nothing where it cannot be read."""
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []


def fsync(path: Path) -> None:
    """Put a file or folder on the disk, where the filesystem can."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in _NO_FSYNC:
            raise
    finally:
        os.close(descriptor)


def has_layout(root: CacheRoot) -> bool:
    """Whether the root has a layout that this version knows; False where it has none yet.

    Raises:
        CannotWrite: It has another one, or cannot be entered.
    """
    with writing(root, "read the layout version"):
        try:
            is_file = stat.S_ISREG(root.version.stat().st_mode)  # opening a pipe would wait for its writer
            with (root.version if is_file else Path(os.devnull)).open("rb") as file:
                text = file.read(_LONGEST_VERSION).decode("ascii", "replace").strip()
        except FileNotFoundError:
            return False
    if not text.isdecimal() or len(text) > _DIGITS or int(text) > LAYOUT_VERSION:
        raise CannotWrite(
            f"{root.version}: layout version {text[:20]!r}, this program knows versions to {LAYOUT_VERSION}",
            code="layout-unknown",
            hint="upgrade model-overlay, or choose another root with --cache-root or OVERLAY_CACHE_ROOT",
            where=str(root.version),
        )
    return True


def is_file_of(path: Path, size: int) -> bool:
    """Whether a real file is there and has this size."""
    try:
        status = path.lstat()
    except OSError:
        return False
    return stat.S_ISREG(status.st_mode) and status.st_size == size


def remove(path: Path) -> None:
    """Remove whatever is there."""
    if path.is_dir() and not path.is_symlink():
        remove_folder(path)
    else:
        path.unlink()


def last_written(path: Path) -> float:
    """When a file was last written, in seconds since the epoch; now where that cannot be told, as of one in use."""
    try:
        return path.lstat().st_mtime
    except OSError:
        return time.time()


def put_in_place(file: Path, path: Path) -> None:
    """Rename a finished file to its place, whatever is there: a folder is none of ours."""
    try:
        file.replace(path)
    except IsADirectoryError:
        remove_folder(path)
        file.replace(path)


def make_folder(path: Path, root: CacheRoot, *, durable: bool) -> None:
    """Make a folder under the root, and the ones above it.

    Args:
        path: The folder.
        root: The cache root, made too where it is missing.
        durable: What is made must survive a power cut.
    """
    if path.is_dir():
        return
    if path != root.path:
        make_folder(path.parent, root, durable=durable)
        with writing(root, f"mkdir {path}"), suppress(FileExistsError):
            path.mkdir()
        share_with_group(path, root)
        if durable:
            with writing(root, f"fsync {path.parent}"):
                fsync(path.parent)
    else:
        with writing(root, f"mkdir {path}"):
            path.mkdir(parents=True, exist_ok=True)


def share_with_group(path: Path, root: CacheRoot) -> None:
    """Give our own new file or folder the group bits of a root that its group may write.

    A file with a second link is left alone: the inode may be somebody else's.
    """
    with suppress(OSError):
        mode, of_root = path.lstat(), root.path.stat().st_mode
        if not of_root & stat.S_IWGRP:
            return
        if stat.S_ISDIR(mode.st_mode):
            path.chmod(stat.S_IMODE(mode.st_mode) | of_root & (stat.S_IRWXG | stat.S_ISGID))
        elif stat.S_ISREG(mode.st_mode) and mode.st_nlink == 1:
            path.chmod(stat.S_IMODE(mode.st_mode) | of_root & (stat.S_IRGRP | stat.S_IWGRP))


def write_atomically(path: Path, data: bytes, root: CacheRoot, *, durable: bool) -> None:
    """Write a small file so that readers see the old one or the new one.

    Args:
        path: The file.
        data: Its bytes.
        root: The cache root that it lies under.
        durable: So also after a power cut; without, it may then be empty.
    """
    make_folder(path.parent, root, durable=durable)
    temporary = path.with_name(f".{path.name}.{os.getpid()}-{os.urandom(4).hex()}.tmp")
    try:
        with writing(root, f"write {path.name}"), temporary.open("xb") as file:
            file.write(data)
        if durable:
            with writing(root, f"fsync {path.name}"):
                fsync(temporary)
        share_with_group(temporary, root)
        with writing(root, f"rename {path.name} into place"):
            put_in_place(temporary, path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise
