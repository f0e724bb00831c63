"""A new folder of somebody's own, which appears complete, by one rename, or not at all."""

from __future__ import annotations

import errno
import hashlib
import os
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from overlay.cache import cannot_write, free_room
from overlay.cache.disk import fsync
from overlay.cache.layout import CacheRoot
from overlay.cache.staging import owned_folder, remove_abandoned
from overlay.errors import CannotWrite, InvalidUsage, OverlayError
from overlay.formats.os_errors import is_out_of_memory
from overlay.formats.wording import format_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

__all__ = ["new_folder", "require_new"]


def require_new(out: Path, base: Path) -> None:
    """Refuse an ``out`` that is there already, or that would lie in ``base``.

    Raises:
        InvalidUsage: It is, or would.
    """
    if os.path.lexists(out):
        raise _exists(out, "exists; a fuse never writes into what is there")
    if out.resolve().is_relative_to(base.resolve()):
        raise InvalidUsage(
            f"{out}: lies in {base}, which is to stay as it is",
            code="out-inside-base",
            hint="name a folder outside of it with --out",
            path=str(out),
            base=str(base),
        )


@contextmanager
def new_folder(out: Path, room: int) -> Iterator[Path]:
    """A hidden folder beside ``out`` that becomes ``out`` at the end, or is removed.

    Those that killed runs for the same ``out`` left behind are removed first.

    Raises:
        InvalidUsage: Somebody else made ``out`` meanwhile.
        CannotWrite: No room, no permission, or a filesystem that cannot.
    """
    # Not the name itself, which may be as long as a name can be.
    prefix = f".overlay-fuse-{hashlib.sha256(os.fsencode(out.name)).hexdigest()[:16]}-"
    remove_abandoned(out.parent, prefix)
    if (free := free_room(out.parent)) < room:
        raise CannotWrite(
            f"{out.parent}: {format_bytes(room)} needed, {format_bytes(free)} free",
            code="no-room",
            hint="free some room there, or name an --out on another disk",
            needed=room,
            free=free,
        )
    try:
        with _parents_of(out), owned_folder(out.parent, prefix) as staged:
            yield staged
            fsync(staged)
            rename_new(staged, out)
            fsync(out.parent)
    except OSError as error:
        if isinstance(error, OverlayError) or is_out_of_memory(error):
            raise
        raise cannot_write(error, CacheRoot(out.parent, "--out"), f"write {out.name}") from error


def rename_new(staged: Path, out: Path) -> None:
    """Move the finished folder in; an empty folder that somebody made meanwhile is all that it may replace."""
    try:
        staged.rename(out)
    except OSError as error:
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
            raise _exists(out, "somebody else made it meanwhile") from error
        raise


@contextmanager
def _parents_of(out: Path) -> Iterator[None]:
    """The folders above ``out``; those that had to be made are removed again when it fails."""
    made = [folder for folder in out.parents if not os.path.lexists(folder)]
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        yield
    except BaseException:
        for folder in made:
            with suppress(OSError):  # not made yet, or somebody else put something there
                folder.rmdir()
        raise


def _exists(out: Path, what: str) -> InvalidUsage:
    return InvalidUsage(
        f"{out}: {what}",
        code="out-exists",
        hint="name a folder that does not exist yet, or move this one away",
        path=str(out),
    )
