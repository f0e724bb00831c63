"""Whether a file can be linked to where the cache is, found by linking it there and removing the link again.

Nothing else tells: two mounts of one disk have one device number and no links between them, nor have two project
quotas, and the kernel may refuse links to files of another owner (``fs.protected_hardlinks``).
"""

from __future__ import annotations

import errno
import os
import stat
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from overlay.cache.disk import entries, existing
from overlay.cache.links import link_file
from overlay.cache.staging import owned_folder, remove_abandoned, staging
from overlay.errors import OverlayError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from overlay.cache.layout import CacheRoot
    from overlay.cache.links import How

__all__ = ["LinkOutlook", "link_outlook", "outlook_within", "reason", "sample_of", "scratch"]

_PREFIX = ".overlay-probe-"
_MANY_LINKS = 1000
"""From so many names on, how many more an inode may have (65,000 on ext4) is a matter of this one file."""


@dataclass(frozen=True, slots=True)
class LinkOutlook:
    """How a file would come over, and what kept it from a cheaper way.

    Attributes:
        how: None where none of the allowed ways works.
        tried: False where nothing could be tried, because nothing can be written there.
    """

    how: How | None
    why: str
    tried: bool = True


def link_outlook(root: CacheRoot, source: Path, allowed: tuple[How, ...]) -> LinkOutlook:
    """What bringing this file to the root would come to.

    Args:
        root: The root; it need not exist.
        source: A file, which is no link. Where it is hardlinked, the time of its last change moves.
        allowed: The ways, in the order to try; a copy is believed to work, and not made.
    """
    try:
        with scratch(root) as folder:
            return _outlook(source, folder, allowed)
    except (OSError, OverlayError) as error:
        return LinkOutlook(None, reason(error), tried=False)


def outlook_within(root: CacheRoot, allowed: tuple[How, ...]) -> LinkOutlook:
    """The same for a file that lies in the root already."""
    try:
        with scratch(root) as folder:
            (folder / "sample").write_bytes(b"sample")
            return _outlook(folder / "sample", folder, allowed)
    except (OSError, OverlayError) as error:
        return LinkOutlook(None, reason(error), tried=False)


def sample_of(source: Path) -> tuple[Path, tuple[object, ...]]:
    """The smallest file beside ``source`` of the same owner and mode, and what these files have in common.

    They can be linked alike; and a link moves the time of its inode's last change, by which digests are remembered, so
    the one is taken whose digest is soonest computed again.
    """
    of_source = source.stat()
    if of_source.st_nlink >= _MANY_LINKS:
        return source, (source.parent, of_source.st_ino)
    kind = (of_source.st_uid, of_source.st_gid, of_source.st_mode)
    best, size = source, of_source.st_size
    for path in entries(source.parent):
        with suppress(OSError):  # somebody works there
            status = path.lstat()
            same = stat.S_ISREG(status.st_mode) and (status.st_uid, status.st_gid, status.st_mode) == kind
            if same and 0 < status.st_size < size and status.st_nlink < _MANY_LINKS:
                best, size = path, status.st_size
    return best, (source.parent, *kind)


def _outlook(source: Path, folder: Path, allowed: tuple[How, ...]) -> LinkOutlook:
    reasons: list[str] = []
    for how in allowed:
        if how == "copy":
            return LinkOutlook("copy", "; ".join(reasons))
        try:
            link_file(source, folder / f"{how}-probe", (how,))
        except OSError as error:
            reasons.append(f"{how}: {_link_problem(error, source, folder)}")
        else:
            return LinkOutlook(how, "; ".join(reasons))
    return LinkOutlook(None, "; ".join(reasons))


def _link_problem(error: OSError, source: Path, folder: Path) -> str:
    """What a refused link means: the system's own words name neither the mount nor the owner."""
    owner = source.stat()
    if error.errno == errno.EXDEV:
        one_disk = owner.st_dev == folder.stat().st_dev
        return f"{'another mount or project quota of one disk' if one_disk else 'another filesystem'} (EXDEV)"
    if error.errno == errno.EPERM and owner.st_uid != os.geteuid():
        return f"the file belongs to uid {owner.st_uid}, and the kernel protects it (EPERM, fs.protected_hardlinks)"
    return reason(error)


def reason(error: BaseException) -> str:
    """The system's words and symbol, else the message."""
    if isinstance(error, OSError) and error.errno:
        return f"{os.strerror(error.errno)} ({errno.errorcode.get(error.errno, error.errno)})"
    return str(error)


@contextmanager
def scratch(root: CacheRoot) -> Iterator[Path]:
    """A folder where the root is, or where it would be. What a killed process left there goes with the next one."""
    if root.own.is_dir():
        with staging(root) as folder:
            yield folder
    else:
        parent = existing(root.path)
        remove_abandoned(parent, _PREFIX)
        with owned_folder(parent, _PREFIX) as folder:
            yield folder
