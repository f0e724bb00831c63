"""A bucket of a service, through the filesystem that fsspec has for it."""

from __future__ import annotations

import asyncio
import random
import threading
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

import fsspec  # type: ignore[import-untyped]  # it has no types

from overlay.errors import InvalidUsage, Refused, TryAgain
from overlay.store.bucket import shown_url

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["RemoteBucket", "open_remote"]

_T = TypeVar("_T")

_TRIES = 7
_FIRST_WAIT = 0.25  # seconds; twice as long each time, but never longer than:
_LONGEST_WAIT = 15.0
_NO_LOGIN = {
    "NoCredentialsError",
    "PartialCredentialsError",
    "ProfileNotFound",
    "RefreshError",
    "TokenRetrievalError",
    "UnauthorizedSSOTokenError",
}
"""Names of errors of the cloud clients, of which not every one is installed."""

_PASSING = {
    *(307, 408, 409, 425, 429),
    *("RequestTimeout", "IncompleteBody", "BadDigest", "XAmzContentSHA256Mismatch"),
}
"""Statuses and codes of S3 that put the blame on the request, which is right the next time."""

_S3_CLIENT = {
    "config_kwargs": {
        "max_pool_connections": 16,
        "response_checksum_validation": "when_required",
        "retries": {"total_max_attempts": 1, "mode": "standard"},
    }
}
"""One layer of patience, and it is ours: of three of them, one in another, a call would take a hundred tries. And we
prove what comes: where the client did, bytes that are damaged for good would look like a service that is away."""

_dice = random.SystemRandom()  # hosts that start together must not wait alike


def open_remote(url: str) -> RemoteBucket:
    """The bucket of an fsspec URL; endpoint and credentials come from the variables and files of the service's client.

    Raises:
        InvalidUsage: Nothing that is installed here knows such a URL.
    """
    shown = shown_url(url)
    client = _S3_CLIENT if url.startswith(("s3://", "s3a://")) else {}
    try:
        # A listing that is remembered would hide what others write.
        filesystem, root = fsspec.core.url_to_fs(url, use_listings_cache=False, skip_instance_cache=True, **client)
    except (ImportError, ValueError) as error:
        raise InvalidUsage(
            f"{shown}: {error}",
            code="store-unsupported",
            hint=_install(url.partition("://")[0])
            if isinstance(error, ImportError)
            else "a store is a folder, or a URL that fsspec knows, such as s3://bucket/prefix",
            store=shown,
        ) from error
    except OSError as error:  # some connect at once
        raise TryAgain(
            f"{shown}: {error.strerror or error}",
            code="store-unreachable",
            hint="run the same command again",
            store=shown,
        ) from error
    if not root.strip("/"):
        raise InvalidUsage(
            f"{shown}: names no bucket",
            code="store-unsupported",
            hint="name it, and a prefix in it: s3://bucket/prefix",
            store=shown,
        )
    if client:
        filesystem.retries = 1  # what s3fs calls a retry is a try
    return RemoteBucket(filesystem, root.rstrip("/"), shown)


@dataclass(frozen=True, slots=True)
class RemoteBucket:
    """See :class:`overlay.store.Bucket`."""

    filesystem: Any
    root: str
    url: str
    _running: set[Future[Any]] = field(default_factory=set)
    _closed: threading.Event = field(default_factory=threading.Event)

    def close(self) -> None:
        """See :class:`overlay.store.Bucket`."""
        self._closed.set()
        for running in tuple(self._running):
            running.cancel()

    def read(self, key: str, limit: int) -> bytes | None:
        """See :class:`overlay.store.Bucket`."""

        def read() -> bytes | None:
            try:
                data: bytes = self._call("cat_file", self._path(key), start=0, end=limit + 1)
            except FileNotFoundError as error:
                if "NoSuchBucket" in _answer(error):
                    raise
                return None
            except OSError as error:
                if 416 in _answer(error):  # noqa: PLR2004  # an empty file has no first byte to begin at
                    return b""
                raise
            return data

        return self._patiently("read", key, read)

    def size(self, key: str) -> int | None:
        """See :class:`overlay.store.Bucket`."""

        def size() -> int | None:
            try:
                found = self._call("info", self._path(key))
            except FileNotFoundError:
                return None
            return int(found["size"]) if found["type"] == "file" else None

        return self._patiently("read", key, size)

    def create(self, key: str, data: bytes) -> bool:
        """See :class:`overlay.store.Bucket`."""

        def create() -> bool:
            try:
                self._call("pipe_file", self._path(key), data, mode="create")
            except FileExistsError:
                return False
            except OSError as error:
                if 412 in _answer(error):  # noqa: PLR2004  # not every service says which condition failed
                    return False
                raise
            return True

        return self._patiently("write", key, create)

    def replace(self, key: str, data: bytes) -> None:
        """See :class:`overlay.store.Bucket`."""
        self._patiently("write", key, lambda: self._call("pipe_file", self._path(key), data))

    def names(self, folder: str) -> list[str]:
        """See :class:`overlay.store.Bucket`."""

        def names() -> list[str]:
            try:
                found = self._call("ls", self._path(folder), detail=False)
            except FileNotFoundError as error:
                if "NoSuchBucket" in _answer(error):
                    raise
                return []
            return sorted(name.rstrip("/").rpartition("/")[2] for name in found)

        return self._patiently("list", folder, names)

    def _path(self, key: str) -> str:
        return f"{self.root}/{key}"

    def _call(self, method: str, *args: Any, **options: Any) -> Any:
        """A method of the filesystem; where it is a coroutine, :meth:`close` ends it."""
        if not self.filesystem.async_impl:
            return getattr(self.filesystem, method)(*args, **options)
        call = getattr(self.filesystem, f"_{method}")(*args, **options)
        running = asyncio.run_coroutine_threadsafe(call, self.filesystem.loop)
        self._running.add(running)
        try:
            if self._closed.is_set():  # since this try began
                running.cancel()
            return running.result()
        finally:
            self._running.discard(running)

    def _patiently(self, verb: str, key: str, call: Callable[[], _T]) -> _T:
        """What the call gives; one that fails is made again, after waits that differ from host to host."""
        wait = _FIRST_WAIT
        for tries in range(1, _TRIES + 1):
            if self._closed.is_set():
                break
            try:
                return call()
            except CancelledError:
                break
            except Exception as error:  # the clients below fsspec have no class in common
                if _is_for_good(error):
                    raise Refused(
                        f"{self.url}: cannot {verb} {key}: {_said(error)}",
                        code="store-refused",
                        hint="check the URL and this host's credentials, and what they allow",
                        store=self.url,
                        where=key,
                    ) from error
                if tries == _TRIES:
                    raise self._unreachable(verb, key, f"{_said(error)} ({tries} tries)") from error
            self._closed.wait(_dice.uniform(wait / 2, wait))
            wait = min(2 * wait, _LONGEST_WAIT)
        raise self._unreachable(verb, key, "the store was closed")

    def _unreachable(self, verb: str, key: str, why: str) -> TryAgain:
        return TryAgain(
            f"{self.url}: cannot {verb} {key}: {why}",
            code="store-unreachable",
            hint="run the same command again; what was finished stays",
            store=self.url,
            where=key,
        )


def _is_for_good(error: Exception) -> bool:
    """Whether trying again does not help: not permitted, no login, no such bucket, a request that makes no sense."""
    if isinstance(error, PermissionError | FileNotFoundError | ValueError) or type(error).__name__ in _NO_LOGIN:
        return True
    status, code = _answer(error)
    return (300 <= status < 500 or status == 501) and not {status, code} & _PASSING  # noqa: PLR2004  # HTTP


def _answer(error: BaseException) -> tuple[int, str]:
    """HTTP status and error code that S3 answered with; zero and nothing of other errors."""
    response = getattr(error.__cause__, "response", None)
    if not isinstance(response, dict):
        return 0, ""
    status = response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    return int(status), str(response.get("Error", {}).get("Code", ""))


def _install(scheme: str) -> str:
    packages = {"s3": "'model-overlay[store]'", "s3a": "'model-overlay[store]'", "gs": "gcsfs", "gcs": "gcsfs"}
    packages |= dict.fromkeys(("az", "abfs", "abfss", "adl"), "adlfs")
    return f"pip install {packages.get(scheme, 'the package that the message names')}"


def _said(error: Exception) -> str:
    return " ".join(str(error).split())[:300] or type(error).__name__
