"""The cache: finished files by content, what made them, and the trees that link to them."""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

from overlay.cache import actions, locks, trees
from overlay.cache.disk import (
    cannot_write,
    existing,
    free_room,
    fsync,
    has_layout,
    is_file_of,
    make_folder,
    put_in_place,
    remove,
    share_with_group,
    write_atomically,
    writing,
)
from overlay.cache.layout import LAYOUT_VERSION, CacheRoot
from overlay.cache.links import How, LinkMode, LinkResult, input_changed, link_file, ways, ways_into_tree
from overlay.cache.staging import staging
from overlay.errors import CannotWrite, TryAgain
from overlay.formats.local import explain_os_error
from overlay.formats.wording import format_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from contextlib import AbstractContextManager
    from pathlib import Path

__all__ = ["Cache"]

_TAG = b"""Signature: 8a477f597d28d172789f06886806bc55
# This folder is a cache: everything in it can be made again by `overlay prewarm`.
# For information about cache directory tags see https://bford.info/cachedir/
"""


@dataclass(frozen=True, slots=True)
class Cache:
    """One cache root. Looking things up never writes, and works where the root is read-only or not there.

    Attributes:
        root: The root and its folders.
        notes: What was found wrong and dropped, for the user; grows as it happens.
    """

    root: CacheRoot
    notes: list[str] = field(default_factory=list)

    @classmethod
    def open(cls, root: Path, *, create: bool, decided_by: str = "--cache-root") -> Self:
        """Open a root.

        Args:
            root: Its folder.
            create: Make what is missing; nothing is written where the root is complete.
            decided_by: Option or variable that chose the root, for messages.

        Raises:
            CannotWrite: It cannot be made, or a newer version of this program laid it out.
        """
        place = CacheRoot(root.absolute(), decided_by)
        if not has_layout(place) and create:
            make_folder(place.locations, place, durable=True)
            # Here, because the memo, which knows of no root, would make it without the group's bits.
            make_folder(place.digests, place, durable=False)
            trees.try_publishing(place)
            write_atomically(place.own / "CACHEDIR.TAG", _TAG, place, durable=True)
            write_atomically(place.version, f"{LAYOUT_VERSION}\n".encode(), place, durable=True)
        return cls(place)

    def require_room(self, needed: int) -> None:
        """Refuse a job that the disk has no room for.

        Raises:
            CannotWrite: Less than ``needed`` bytes are free.
        """
        free = free_room(self.root.path)
        if free < needed:
            raise CannotWrite(
                f"{self.root.path}: {format_bytes(needed)} needed, {format_bytes(free)} free",
                code="no-room",
                hint="free some room there (overlay cache gc), or choose another root with --cache-root or "
                f"OVERLAY_CACHE_ROOT (this root comes from {self.root.decided_by})",
                where=str(self.root.path),
                decided_by=self.root.decided_by,
                needed=needed,
                free=free,
            )

    def require_writable(self) -> None:
        """Refuse a job on a root that this user cannot write; nothing is written to find out.

        Raises:
            CannotWrite: It cannot be written.
        """
        place = existing(self.root.staging)
        if not os.access(place, os.W_OK | os.X_OK):
            read_only = os.statvfs(place).f_flag & os.ST_RDONLY
            number = errno.EROFS if read_only else errno.EACCES
            raise cannot_write(OSError(number, os.strerror(number), str(place)), self.root, f"write to {place}")

    # Objects

    def object_path(self, digest: str) -> Path:
        """Where the object of this digest is, or would be."""
        return self.root.object(digest)

    def has_object(self, digest: str, size: int) -> bool:
        """Whether the object is there with this size; its bytes are not read."""
        return is_file_of(self.root.object(digest), size)

    def adopt_file(self, staged: Path, digest: str) -> Path:
        """Move a finished file of our own staging into the objects; one that is there already is kept.

        Raises:
            CannotWrite: The filesystem refused.
        """
        target = self.root.object(digest)
        with writing(self.root, "fsync a finished file"):
            size = staged.stat().st_size
            share_with_group(staged, self.root)
            fsync(staged)
        make_folder(target.parent, self.root, durable=True)
        with writing(self.root, "rename into objects"):
            # A link never replaces, so of two equal files the first keeps its inode and trees share it.
            with suppress(OSError):
                target.hardlink_to(staged)
            if is_file_of(target, size):
                staged.unlink()
            else:
                put_in_place(staged, target)
        with writing(self.root, "fsync objects"):
            fsync(target.parent)
        return target

    def link_object(
        self,
        source: Path,
        digest: str,
        mode: LinkMode,
        *,
        shared_store: bool,
        check: Callable[[Path, How], None] | None = None,
    ) -> LinkResult:
        """Bring an input file in as an object.

        Args:
            source: The file; links to it are followed.
            digest: Its digest, which the caller vouches for.
            mode: ``auto``, or the one way that is allowed.
            shared_store: The file lies in a store that nobody edits (the Hub's cache), so ``auto`` may share the inode
                of one that is large.
            check: Called with the new name and how it came, before it becomes an object: raises if it, or the source,
                is not what it was. A hardlink has changed the source's ctime.

        Raises:
            NotHere: The source is gone.
            BrokenInput: The source changed meanwhile.
            Refused: The source may not be read.
            CannotWrite: None of the allowed ways works here.
        """
        source = source.resolve()
        size = _readable_size(source)
        if self.has_object(digest, size):
            return LinkResult("present", size, self.root.object(digest))
        allowed = ways(mode, shared_store=shared_store, size=size)
        with staging(self.root) as folder, writing(self.root, f"{'/'.join(allowed)} {source}"):
            staged = folder / source.name
            how = link_file(source, staged, allowed)
            if staged.stat().st_size != size:
                raise input_changed(source, size, staged.stat().st_size)
            if check is not None:
                check(staged, how)
            return LinkResult(how, size, self.adopt_file(staged, digest))

    def place_file(self, source: Path, dest: Path, small: bool) -> LinkResult:  # noqa: FBT001 - what the file is, not a switch
        """Bring an object to its place in a staged tree.

        Args:
            source: The object.
            dest: New path under a staging folder; its folder is made.
            small: The consumer may rewrite it (:func:`overlay.cache.is_small`), so it gets an inode of its own.

        Raises:
            TryAgain: The object vanished, because somebody collected it at this very moment.
            CannotWrite: The filesystem refused.
        """
        allowed = ways_into_tree(dest.name, small=small)
        with writing(self.root, f"{'/'.join(allowed)} {dest.name}"):
            make_folder(dest.parent, self.root, durable=False)
            try:
                how = link_file(source, dest, allowed)
            except FileNotFoundError as error:
                message = f"{source}: the object was removed meanwhile"
                raise TryAgain(message, code="object-gone", where=str(source)) from error
            note = _why_copied(source, self.root)
            if how == "copy" and dest.suffix == ".safetensors" and note not in self.notes:
                self.notes.append(note)
            return LinkResult(how, dest.stat().st_size, dest)

    def drop_object(self, digest: str) -> None:
        """Forget an object whose bytes were found to be wrong; the next build makes it again."""
        with writing(self.root, "unlink an object"), suppress(FileNotFoundError):
            remove(self.root.object(digest))

    # Actions

    def find_action(self, key: str) -> dict[str, Any] | None:
        """What :meth:`put_action` was given for this key, if its object is there with the size it names.

        An entry that cannot be right is dropped, counts as absent, and is noted.
        """
        return actions.find_action(self.root, key, self.notes)

    def put_action(self, key: str, entry: Mapping[str, Any]) -> None:
        """Remember what an action gave: JSON with at least ``digest`` and ``size`` of the object."""
        actions.put_action(self.root, key, entry)

    def drop_action(self, key: str, reason: str) -> None:
        """Remove an entry that cannot be right, and note why."""
        actions.drop_action(self.root, key, reason, self.notes)

    # Trees and locations

    def staging(self) -> AbstractContextManager[Path]:
        """See :func:`overlay.cache.staging.staging`."""
        return staging(self.root)

    def tree_path(self, name: str) -> Path:
        """Where the tree of this name is, or would be."""
        return self.root.tree(name)

    def publish_tree(self, staged_tree: Path, tree_name: str, *, verify: Callable[[Path], bool]) -> trees.Published:
        """See :func:`overlay.cache.trees.publish_tree`."""
        return trees.publish_tree(self.root, staged_tree, tree_name, verify)

    def quarantine_tree(self, staged_tree: Path, tree_name: str, *, verify: Callable[[Path], bool]) -> trees.Published:
        """See :func:`overlay.cache.trees.quarantine_tree`."""
        return trees.quarantine_tree(self.root, staged_tree, tree_name, verify)

    def move_aside(self, tree: str) -> None:
        """Take a damaged tree out, in one step; locations that point to it lead nowhere until they are swung."""
        trees.move_aside(self.root, self.root.tree(tree))

    def location_path(self, name: str) -> Path:
        """Where the location of this name is, or would be."""
        return self.root.location(name)

    def location_target(self, name: str) -> Path | None:
        """See :func:`overlay.cache.trees.location_target`."""
        return trees.location_target(self.root, name)

    def swing_location(self, name: str, tree: str) -> Path:
        """See :func:`overlay.cache.trees.swing_location`."""
        return trees.swing_location(self.root, name, tree)

    def require_replaceable(self, name: str) -> None:
        """See :func:`overlay.cache.replacing.require_replaceable`."""
        from overlay.cache import replacing  # as below

        replacing.require_replaceable(self.root, name)

    def swing_checked(self, name: str, tree: str, check: Callable[[], None]) -> Path:
        """See :func:`overlay.cache.replacing.swing_checked`."""
        from overlay.cache import replacing  # as below

        return replacing.swing_checked(self.root, name, tree, check)

    def replace_folder(
        self,
        name: str,
        tree: str,
        *,
        folder: os.stat_result,
        check: Callable[[], None],
        changed: Callable[[Path], str],
    ) -> Path:
        """See :func:`overlay.cache.replacing.replace_folder`."""
        from overlay.cache import replacing  # loads the C library, which only an adoption needs

        return replacing.replace_folder(self.root, name, tree, folder, check, changed, self.notes)

    def drop_location(self, name: str) -> None:
        """Remove a location that leads nowhere any more."""
        with writing(self.root, f"unlink materialized_models/{name}"):
            self.root.location(name).unlink(missing_ok=True)

    def lock(
        self, name: str, *, timeout: float, on_wait: Callable[[str], None] | None = None
    ) -> AbstractContextManager[bool]:
        """See :func:`overlay.cache.locks.lock`."""
        return locks.lock(self.root, name, timeout=timeout, on_wait=on_wait)


def _why_copied(source: Path, root: CacheRoot) -> str:
    """A sentence on weights that could not be linked from the objects into a tree."""
    with suppress(OSError, ValueError):
        if source.stat().st_nlink >= os.pathconf(source, "PC_LINK_MAX"):
            return f"{source}: has as many names as its filesystem allows, so the tree takes its room once more"
    return f"{root.path}: no hardlinks here, so the tree takes the room of its weights once more"


def _readable_size(source: Path) -> int:
    try:
        with source.open("rb") as file:
            return os.fstat(file.fileno()).st_size
    except OSError as error:
        raise explain_os_error(source, error) from error
