"""Files of a store become objects of the cache, several at a time, each proven before it is one."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from overlay.cache.disk import writing
from overlay.cache.incoming import incoming
from overlay.errors import BrokenInput, CannotWrite, NotHere, OverlayError, Refused, TryAgain

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from overlay.cache import Cache
    from overlay.materialization.record import RecordedFile
    from overlay.materialization.request import Phase
    from overlay.store import Store

__all__ = ["FILES_AT_A_TIME", "Brought", "bring", "is_gone"]

FILES_AT_A_TIME = 4
"""Each takes some 80 MiB: the chunks that are on their way."""


@dataclass(slots=True)
class Brought:
    """What came of some files.

    Attributes:
        came: Digests of those that are objects now.
        errors: What the store did wrong, in the order in which it was met.
    """

    came: set[str] = field(default_factory=set)
    errors: list[OverlayError] = field(default_factory=list)


def is_gone(error: OverlayError) -> bool:
    """Whether a store that did this is not worth another question."""
    return isinstance(error, CannotWrite | Refused | TryAgain)


def bring(store: Store, cache: Cache, files: Iterable[RecordedFile], phase: Phase) -> Brought:
    """Make objects of these files, each of another content.

    A file that is damaged keeps no other from coming; a store that is gone is asked for no more.

    Raises:
        OverlayError: The cache cannot be written.
    """
    wanted = sorted(files, key=lambda file: -file.size)  # so that no long file is left for the end
    brought = Brought()
    if not wanted:
        return brought
    with phase("pull", sum(file.size for file in wanted)) as update, ThreadPoolExecutor(FILES_AT_A_TIME) as pool:

        def one(file: RecordedFile) -> None:
            if any(is_gone(error) for error in brought.errors):
                return
            try:
                _bring(store, cache, file, update)
                brought.came.add(file.digest)
            except (BrokenInput, NotHere, Refused, TryAgain) as error:
                brought.errors.append(error)

        try:
            list(pool.map(one, wanted))
        except BaseException:
            store.close()
            pool.shutdown(cancel_futures=True)
            raise
    return brought


def _bring(store: Store, cache: Cache, file: RecordedFile, update: Callable[[int], None]) -> None:
    stored = store.find_object(file.digest, file.size)
    if stored is None:
        raise NotHere(
            f"{store.url}: lacks {file.path} ({file.digest}), though it has what names it",
            code="store-incomplete",
            hint=f"on a host that has the model: overlay push MODEL --anew --store {store.url}",
            store=store.url,
            where=file.path,
        )
    with incoming(cache.root, file.digest) as path:
        with writing(cache.root, f"write {file.path}"):
            store.get_object(stored, path, update)
        cache.adopt_file(path, file.digest)
