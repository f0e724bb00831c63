"""Files on their way in from a store: kept when a transfer is cut, so that the next one goes on from there.

Whoever goes on believes nothing that lies here: every chunk is proven before it is kept. So a file may change hands by
a rename, whatever becomes of whoever wrote it.
"""

from __future__ import annotations

import os
import stat
import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from overlay.cache.disk import entries, last_written, make_folder, share_with_group, writing
from overlay.cache.locks import try_flock
from overlay.fingerprint import parse_digest

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from overlay.cache.layout import CacheRoot

__all__ = ["abandoned", "arrived", "incoming"]

# Seconds. Of a writer on another host no lock may be seen; it writes all the time, though.
_SILENCE = 3600.0


@contextmanager
def incoming(root: CacheRoot, digest: str) -> Iterator[Path]:
    """A file of ours to bring this content into, with what an earlier transfer left of it, which may be anything.

    It stays when the context ends, unless it was moved away.

    Raises:
        CannotWrite: The filesystem refused.
    """
    name = "-".join(parse_digest(digest))
    make_folder(root.incoming, root, durable=False)
    mine = root.incoming / f"{name}.{os.urandom(6).hex()}"
    with writing(root, "open an incoming file"):
        descriptor = _left_over(root, name, mine)
        if descriptor is None:
            descriptor = os.open(mine, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666)
            try_flock(descriptor)
            share_with_group(mine, root)
    try:
        yield mine
    finally:
        os.close(descriptor)


def _left_over(root: CacheRoot, name: str, mine: Path) -> int | None:
    """Take a file over that an earlier transfer left; its descriptor, which holds the lock."""
    for left in entries(root.incoming):
        if left.name.startswith(f"{name}.") and (descriptor := _lock(left, os.O_RDWR)) is not None:
            with suppress(FileNotFoundError, PermissionError):  # another one was first; a folder with the sticky bit
                left.rename(mine)
                return descriptor
            os.close(descriptor)
    return None


def arrived(root: CacheRoot, sizes: Mapping[str, int]) -> int:
    """Bytes of room that earlier transfers took already for these contents, which the next one goes on with.

    Args:
        sizes: By digest, bytes of the whole content.
    """
    names = {"-".join(parse_digest(digest)): size for digest, size in sizes.items()}
    found: dict[str, int] = {}
    for path in entries(root.incoming):
        name = path.name.partition(".")[0]
        if name in names and name not in found and (descriptor := _lock(path, os.O_RDWR)) is not None:
            found[name] = min(names[name], os.fstat(descriptor).st_blocks * 512)
            os.close(descriptor)
    return sum(found.values())


def abandoned(root: CacheRoot) -> list[Path]:
    """Incoming files that nobody writes any more, and that nobody came back for within an hour."""
    now = time.time()
    return [path for path in entries(root.incoming) if _is_free(path) and now - last_written(path) > _SILENCE]


def _is_free(path: Path) -> bool:
    descriptor = _lock(path, os.O_RDONLY)
    if descriptor is not None:
        os.close(descriptor)
    return descriptor is not None


def _lock(path: Path, access: int) -> int | None:
    """Open a file of nobody else: none that a process writes that can be seen from here, or that has a further name."""
    try:
        descriptor = os.open(path, access | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return None
    found = os.fstat(descriptor)
    if not stat.S_ISREG(found.st_mode) or found.st_nlink != 1 or try_flock(descriptor) is False:
        os.close(descriptor)
        return None
    return descriptor
