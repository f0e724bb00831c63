"""A bucket of a service, through the filesystem that fsspec has for it."""

from __future__ import annotations

import random
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit, urlunsplit

import fsspec  # type: ignore[import-untyped]  # it has no types

from overlay.errors import InvalidUsage, OverlayError, Refused, TryAgain

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["RemoteBucket", "open_remote"]

_T = TypeVar("_T")

_TRIES = 7
_FIRST_WAIT = 0.25  # seconds; twice as long each time, but never longer than:
_LONGEST_WAIT = 15.0
_NO_LOGIN = {"NoCredentialsError", "PartialCredentialsError", "ProfileNotFound", "TokenRetrievalError", "RefreshError"}
"""Names of errors of the cloud clients, of which not every one is installed."""

_dice = random.SystemRandom()  # hosts that start together must not wait alike


def open_remote(url: str) -> RemoteBucket:
    """The bucket of an fsspec URL; endpoint and credentials come from the variables and files of the service's client.

    Raises:
        InvalidUsage: Nothing that is installed here knows such a URL.
    """
    shown = _without_login(url)
    try:
        # A listing that is remembered would hide what others write.
        filesystem, root = fsspec.core.url_to_fs(url, use_listings_cache=False, skip_instance_cache=True)
    except (ImportError, ValueError) as error:
        raise InvalidUsage(
            f"{shown}: {error}",
            code="store-unsupported",
            hint="pip install 'model-overlay[store]' for s3://bucket/prefix, gcsfs for gs://bucket/prefix"
            if isinstance(error, ImportError)
            else "a store is a folder, or a URL that fsspec knows, such as s3://bucket/prefix",
            store=shown,
        ) from error
    return RemoteBucket(filesystem, root.rstrip("/"), shown)


@dataclass(frozen=True, slots=True)
class RemoteBucket:
    """See :class:`overlay.store.Bucket`."""

    filesystem: Any
    root: str
    url: str

    def read(self, key: str, limit: int) -> bytes | None:
        """See :class:`overlay.store.Bucket`."""

        def read() -> bytes | None:
            try:
                data: bytes = self.filesystem.cat_file(self._path(key), start=0, end=limit + 1)
            except FileNotFoundError:
                return None
            return data

        return self._patiently("read", key, read)

    def size(self, key: str) -> int | None:
        """See :class:`overlay.store.Bucket`."""

        def size() -> int | None:
            try:
                found = self.filesystem.info(self._path(key))
            except FileNotFoundError:
                return None
            return int(found["size"]) if found["type"] == "file" else None

        return self._patiently("read", key, size)

    def create(self, key: str, data: bytes) -> bool:
        """See :class:`overlay.store.Bucket`."""

        def create() -> bool:
            try:
                self.filesystem.pipe_file(self._path(key), data, mode="create")
            except FileExistsError:
                return False
            return True

        return self._patiently("write", key, create)

    def replace(self, key: str, data: bytes) -> None:
        """See :class:`overlay.store.Bucket`."""
        self._patiently("write", key, lambda: self.filesystem.pipe_file(self._path(key), data))

    def names(self, folder: str) -> list[str]:
        """See :class:`overlay.store.Bucket`."""

        def names() -> list[str]:
            try:
                found = self.filesystem.ls(self._path(folder), detail=False)
            except FileNotFoundError:
                return []
            return sorted(name.rstrip("/").rpartition("/")[2] for name in found)

        return self._patiently("list", folder, names)

    def _path(self, key: str) -> str:
        return f"{self.root}/{key}"

    def _patiently(self, verb: str, key: str, call: Callable[[], _T]) -> _T:
        """What the call gives; one that fails is made again, after waits that differ from host to host."""
        wait = _FIRST_WAIT
        for tries_left in reversed(range(_TRIES)):
            try:
                return call()
            except OverlayError:
                raise
            except Exception as error:  # the clients below fsspec have no class in common
                if _is_for_good(error):
                    raise Refused(
                        f"{self.url}: cannot {verb} {key}: {_said(error)}",
                        code="store-refused",
                        hint="check the URL and this host's credentials, and what they allow",
                        store=self.url,
                        where=key,
                    ) from error
                if not tries_left:
                    raise TryAgain(
                        f"{self.url}: cannot {verb} {key}: {_said(error)} ({_TRIES} tries)",
                        code="store-unreachable",
                        hint="run the same command again; what was finished stays",
                        store=self.url,
                        where=key,
                    ) from error
            time.sleep(_dice.uniform(wait / 2, wait))
            wait = min(2 * wait, _LONGEST_WAIT)
        raise AssertionError("the last try returns or raises")


def _is_for_good(error: Exception) -> bool:
    """Whether trying again does not help: not permitted, no login, or, of a write, no such bucket."""
    return isinstance(error, PermissionError | FileNotFoundError) or type(error).__name__ in _NO_LOGIN


def _said(error: Exception) -> str:
    return " ".join(str(error).split())[:300] or type(error).__name__


def _without_login(url: str) -> str:
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2], query="", fragment=""))
