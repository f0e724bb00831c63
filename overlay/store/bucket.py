"""Where a store's bytes lie: a folder, or whatever fsspec has a filesystem for."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from overlay.errors import InvalidUsage

if TYPE_CHECKING:
    from collections.abc import Collection

__all__ = ["Bucket", "open_bucket", "shown_url"]


class Bucket(Protocol):
    """Files by key, a relative path with slashes. Any thread may call, at any time.

    Every method raises CannotWrite or Refused where it is not permitted or not possible for good, and TryAgain where it
    failed as often as it was tried.

    """

    @property
    def url(self) -> str:
        """As messages show it, without credentials."""

    def read(self, key: str, limit: int) -> bytes | None:
        """The bytes of a file, of a longer one the first ``limit`` + 1; None where there is no such file."""

    def size(self, key: str) -> int | None:
        """Bytes of a file; None where there is no such file."""

    def create(self, key: str, data: bytes) -> bool:
        """Write a new file, whole or not at all; False where there is one already, which stays as it is.

        Where the service has no conditional writes, the last of several writers at the same moment wins.
        """

    def replace(self, key: str, data: bytes) -> None:
        """Write a file whole or not at all, whatever is there."""

    def names(self, folder: str) -> Collection[str]:
        """Names of the files in a folder, sorted; a listing may be behind the truth."""

    def close(self) -> None:
        """Give up what is on its way, in any thread: it fails with TryAgain, and so may every later call."""


def shown_url(url: str) -> str:
    """A URL as messages show it: without a login, and without what may be a token behind a question mark."""
    return re.sub(r"//[^/@]*@", "//", url).partition("?")[0]


def open_bucket(url: str) -> Bucket:
    """The place that a URL, or the path of a folder, names.

    Raises:
        InvalidUsage: Nothing that is installed here knows such a URL, or it names no bucket.
    """
    scheme, is_url, rest = url.partition("://")
    if not is_url or scheme in ("file", "local"):
        from overlay.store.folder import FolderBucket

        if not url or (url.startswith("file:") and not rest.startswith("/")):
            raise InvalidUsage(
                f"{url.partition(':')[0]}: names no folder" if url else "no store is named",
                code="store-unsupported",
                hint="name it by its path, or as file:///srv/store",
            )
        return FolderBucket(Path(rest or url).expanduser().absolute(), rest or url)
    from overlay.store.remote import open_remote  # loads fsspec

    return open_remote(url)
