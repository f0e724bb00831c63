"""Repos out of the lock and what it left behind: the same checks run without a connection and without the repos."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

from overlay.errors import NotHere
from overlay.formats.files import MAX_RANGE, MAX_SMALL_FILE
from overlay.formats.local import too_large
from overlay.hub.inventory import Inventory
from overlay.hub.repo import no_such_file

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence
    from pathlib import Path

    from overlay.formats.header import Header
    from overlay.hub.contents import Contents
    from overlay.hub.repo import Progress
    from overlay.registry import Pin, Resolution
    from overlay.registry.lock import LockedFile, LockedModel, LockedRepo

__all__ = ["LockRepo", "locked_inventory"]


class LockRepo:
    """One repo as the lock knows it: the files that its model needs, no other.

    Args:
        repo: Repo id.
        section: What the lock says of it.
        contents: Small files and headers.
    """

    shared_store = True

    def __init__(self, repo: str, section: LockedRepo, contents: Contents) -> None:
        self.repo = repo
        self.revision = section.revision
        self.name = f"{repo}@{section.revision[:12]}"
        self._files = dict(sorted(section.files.items()))
        self._contents = contents

    def paths(self) -> Sequence[str]:
        """Every locked file, sorted."""
        return list(self._files)

    def size(self, path: str) -> int:
        """Bytes of a file."""
        return self._file(path).size

    def digest(self, path: str) -> str:
        """``sha256:<hex>``."""
        return self._file(path).digest

    def where(self, path: str) -> str:
        """``org/name@6d052b3e9cc6/path``."""
        return f"{self.name}/{path}"

    def local(self, path: str) -> Path | None:
        """None: a lock holds no file."""
        self._file(path)
        return None

    def fetch(self, paths: Collection[str], progress: Progress | None = None) -> Mapping[str, Path]:  # noqa: ARG002  # nothing moves
        """Nothing can be brought.

        Raises:
            NotHere: Always, unless nothing is wanted.
        """
        if paths:
            self._not_here(sorted(paths))
        return {}

    def read_bytes(self, path: str, most: int = MAX_SMALL_FILE) -> bytes:
        """A small file, whole.

        Raises:
            NotHere: It is not at hand (``not-cached``).
            BrokenInput: It has more than ``most`` bytes.
        """
        file = self._file(path)
        if file.size > most:
            raise too_large(self.where(path), file.size, most)
        data = self._contents.small_file(file.sha256)
        return data if data is not None else self._not_here([path])

    def read_range(self, path: str, start: int, nbytes: int) -> bytes:
        """Bytes of a small file, or a scalar of an adapter's weights; no weights are ever at hand.

        Raises:
            NotHere: They are not at hand (``not-cached``).
        """
        if not 0 <= nbytes <= MAX_RANGE or start < 0:
            raise ValueError(f"range {start}+{nbytes} is not within 0 to {MAX_RANGE} bytes")
        sha256 = self._file(path).sha256
        data = self._contents.scalar(sha256, start, nbytes)
        if data is None and (whole := self._contents.small_file(sha256)) is not None:
            data = whole[start : start + nbytes]
        return data if data is not None else self._not_here([path])

    def header(self, path: str) -> Header:
        """The header of a safetensors file.

        Raises:
            NotHere: It is not at hand (``not-cached``).
        """
        file = self._file(path)
        header = self._contents.header(file.sha256, file.size, file.header)
        return header if header is not None else self._not_here([path])

    def _file(self, path: str) -> LockedFile:
        if path not in self._files:
            raise no_such_file(self.name, path, self.paths())
        return self._files[path]

    def _not_here(self, paths: Sequence[str]) -> NoReturn:
        raise NotHere(
            f"{self.name}: the lock knows {', '.join(paths)} by digest alone; the content is not on this host",
            code="not-cached",
            hint="run it once with a connection (without --offline, HF_HUB_OFFLINE unset), or: overlay lock",
            repo=self.repo,
            revision=self.revision,
            missing=list(paths),
        )


def locked_inventory(resolution: Resolution, locked: LockedModel, contents: Contents) -> Inventory:
    """The repos of a resolution as the lock knows them; nothing is asked for.

    Raises:
        NotHere: The lock is of other pins, or does not hold all that the model needs (``not-cached``).
    """
    entry = resolution.entry
    missing = [pin for pin in entry.pins if not _is_known(pin, locked)]
    if missing:
        raise NotHere(
            f"{entry.model}: the lock does not hold all files of {', '.join(map(str, missing))}",
            code="not-cached",
            hint=f"overlay lock {entry.model}",
            model=entry.model,
            repo=missing[0].repo,
            repos=[pin.repo for pin in missing],
        )

    def opened(pin: Pin) -> LockRepo:
        return LockRepo(pin.repo, locked.repos[pin.repo], contents)

    return Inventory(
        resolution,
        source=opened(entry.source),
        overlay=opened(entry.overlay) if entry.overlay else None,
        needs={need.pin.repo: opened(need.pin) for need in entry.needs},
    )


def _is_known(pin: Pin, locked: LockedModel) -> bool:
    section = locked.repos.get(pin.repo)
    return section is not None and section.complete and section.revision == pin.revision
