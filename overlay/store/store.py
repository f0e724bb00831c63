"""Files, action entries and trees in a bucket; what comes from there is proven before it is handed on."""

from __future__ import annotations

import hashlib
import os
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Self, TypeVar

from overlay.errors import BrokenInput, NotHere
from overlay.fingerprint import parse_digest, stream_hasher
from overlay.formats.local import open_file
from overlay.store.bucket import open_bucket
from overlay.store.documents import (
    CHUNK,
    LARGEST_DOCUMENT,
    StoredObject,
    StoredTree,
    action_bytes,
    parse_action,
    parse_pointer,
    pointer_bytes,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from overlay.store.bucket import Bucket

__all__ = ["Store", "open_store"]

_T = TypeVar("_T")

_REQUESTS = 16  # at a time
_WINDOW = 4
"""Chunks of one file that are on their way. A file takes the memory of these and one more."""


def open_store(url: str) -> Store:
    """The store at a URL; nothing is asked yet.

    Raises:
        InvalidUsage: Nothing that is installed here knows such a URL.
    """
    return Store(open_bucket(url))


class Store:
    """One store, open until it is left; safe to be used by several threads.

    Every method raises what a :class:`Bucket` raises.
    """

    def __init__(self, bucket: Bucket) -> None:
        self.url = bucket.url
        self._bucket = bucket
        self._pool = ThreadPoolExecutor(_REQUESTS, thread_name_prefix="overlay-store")
        self._damaged: set[str] = set()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Give up what is on its way, in any thread: whoever waits for a file gets an error at once.

        Whoever is interrupted while others bring files calls it first, and then waits for them.
        """
        self._bucket.close()
        self._pool.shutdown(cancel_futures=True)

    # Files

    def find_object(self, digest: str, size: int) -> StoredObject | None:
        """A file by its digest; None where the store does not have it.

        Raises:
            BrokenInput: What it says of the file is damaged, or of another size.
        """
        key = _object_key(digest)
        found = self._read(key, lambda data, where: StoredObject.parse(data, digest, where))
        if found is not None and found.size != size:
            raise self._wrong(key, f"says that {digest} has {found.size} bytes, expected {size}")
        return found

    def get_object(self, stored: StoredObject, path: Path, progress: Callable[[int], None]) -> None:
        """Bring a file here and prove it.

        Args:
            path: Where; of what lies there already, the front that is right is kept and counts as progress, so a
                download that was cut goes on where it was.
            progress: Called with bytes that are here.

        Raises:
            BrokenInput: The store's bytes are not what their names say.
            NotHere: It does not have them.
            OSError: The file cannot be written.
        """
        where = self._where(_object_key(stored.digest))
        whole = stream_hasher(parse_digest(stored.digest)[0], stored.size, where)
        sizes = stored.sizes()
        with path.open("r+b" if path.exists() else "x+b") as file:
            first = 0
            while first < len(sizes) and _digest(data := file.read(sizes[first])) == stored.chunks[first]:
                whole.update(data)
                progress(len(data))
                first += 1
            file.seek(min(first * CHUNK, stored.size))
            file.truncate()
            for data in self._chunks(stored, first):
                whole.update(data)
                file.write(data)
                progress(len(data))
        if whole.digest() != stored.digest:
            raise self._wrong(_object_key(stored.digest), f"its chunks make {whole.digest()}, expected {stored.digest}")

    def put_object(
        self, path: Path, digest: str, size: int, progress: Callable[[int], None], *, anew: bool = False
    ) -> int:
        """Offer a file; what the store has of it is not sent again.

        Args:
            progress: Called with bytes that the store has.
            anew: Send and replace everything, whatever the store has.

        Returns:
            Bytes that were sent.

        Raises:
            BrokenInput: The file is not what its digest says.
            OverlayError: It cannot be read.
        """
        key, replaces = _object_key(digest), anew
        try:
            found = None if anew else self.find_object(digest, size)
        except BrokenInput:  # what the store says of it is to be said anew
            found, replaces = None, True
        if found is not None and not self._damaged.intersection(found.chunks):
            progress(size)
            return 0
        whole = stream_hasher(parse_digest(digest)[0], size, str(path))
        chunks, sending, sent = list[str](), deque[Future[int]](), 0
        for data in _read_chunks(path):
            whole.update(data)
            chunks.append(_digest(data))
            sending.append(self._pool.submit(self._put_chunk, chunks[-1], data, anew))
            if len(sending) == _WINDOW:
                sent += sending.popleft().result()
            progress(len(data))
        sent += sum(future.result() for future in sending)
        if whole.digest() != digest:
            raise BrokenInput(
                f"{path}: its bytes have digest {whole.digest()}, expected {digest}; nothing of it was offered",
                code="object-damaged",
                hint="overlay cache repair",
                where=str(path),
            )
        made = StoredObject(digest, size, tuple(chunks))
        self._write(key, made.to_bytes(), replaces)
        return sent

    def _chunks(self, stored: StoredObject, first: int) -> Iterator[bytes]:
        """The chunks from this number on, in order, each proven."""
        coming = deque[Future[bytes]]()
        for chunk, size in zip(stored.chunks[first:], stored.sizes()[first:], strict=True):
            coming.append(self._pool.submit(self._get_chunk, chunk, size))
            if len(coming) == _WINDOW:
                yield coming.popleft().result()
        while coming:
            yield coming.popleft().result()

    def _get_chunk(self, chunk: str, size: int) -> bytes:
        key = _chunk_key(chunk)
        for _ in range(2):  # what came wrong once may have been damaged on the way
            data = self._bucket.read(key, size)
            if data is None:
                self._damaged.add(chunk)
                raise NotHere(
                    f"{self._where(key)}: no such chunk, though a file of the store is made of it",
                    code="store-incomplete",
                    hint=f"on a host that has the model: overlay push MODEL --anew --store {self.url}",
                    where=self._where(key),
                )
            found = _digest(data)
            if found == chunk:
                return data
        self._damaged.add(chunk)
        raise self._wrong(key, f"what came has sha256 {found}, expected that of its name")

    def _put_chunk(self, chunk: str, data: bytes, anew: bool) -> int:  # noqa: FBT001  # private
        key = _chunk_key(chunk)
        there = self._bucket.size(key)
        if there is None:
            return len(data) if self._bucket.create(key, data) else 0
        if not anew and there == len(data) and chunk not in self._damaged:
            return 0
        self._bucket.replace(key, data)
        self._damaged.discard(chunk)
        return len(data)

    # Documents

    def find_action(self, key: str) -> dict[str, Any] | None:
        """What :meth:`put_action` was given for this key; None where the store has none.

        Raises:
            BrokenInput: It is damaged.
        """
        return self._read(_action_key(key), lambda data, where: parse_action(data, key, where))

    def put_action(self, key: str, entry: Mapping[str, Any], *, anew: bool = False) -> None:
        """Offer an action entry, after its file."""
        self._write(_action_key(key), action_bytes(key, entry), anew)

    def find_tree(self, name: str) -> StoredTree | None:
        """A materialization by its name; None where the store has none.

        Raises:
            BrokenInput: It is damaged.
        """
        return self._read(_tree_key(name), lambda data, where: StoredTree.parse(data, name, where))

    def put_tree(self, tree: StoredTree, *, anew: bool = False) -> None:
        """Offer a materialization, after its files and actions."""
        self._write(_tree_key(tree.name), tree.to_bytes(), anew)

    def find_model(self, label: str, pins: str, location: str | None) -> dict[str, str]:
        """Names of the trees that a model is, by location.

        Args:
            label: ``<org>__<name>``.
            pins: Digest of what the registry pins.
            location: The one location that is wanted; None for all.

        Raises:
            BrokenInput: An entry is damaged.
        """
        folder = f"v1/models/{label}/{pins}"
        names = [f"{location}.json"] if location is not None else self._bucket.names(folder)
        found = {}
        for name in names:
            key = f"{folder}/{name}"
            tree = self._read_pointer(key)
            if tree is not None:
                found[name.removesuffix(".json")] = tree
        return found

    def put_model(self, label: str, pins: str, location: str, tree: str, *, anew: bool = False) -> None:
        """Offer a tree as what a model is, after the tree.

        Raises:
            BrokenInput: The store has another tree for the same pins: somebody's build differs.
        """
        key = f"v1/models/{label}/{pins}/{location}.json"
        if anew:
            self._bucket.replace(key, pointer_bytes(key, tree))
        elif not self._bucket.create(key, pointer_bytes(key, tree)):
            before = self.find_model(label, pins, location).get(location)
            if before != tree:
                raise BrokenInput(
                    f"{self._where(key)}: the store has {before} for the same pins, this host made {tree}",
                    code="store-differs",
                    hint="find out which one is right: overlay pull into another --cache-root, then overlay compare; "
                    "the right one replaces the other with overlay push --anew",
                    where=self._where(key),
                    stored=before,
                    made=tree,
                )

    def _read(self, key: str, parse: Callable[[bytes, str], _T]) -> _T | None:
        """A document; one that came damaged is read again, as it may be sound where it lies."""
        where = self._where(key)
        for is_last in (False, True):
            data = self._bucket.read(key, LARGEST_DOCUMENT)
            try:
                return None if data is None else parse(data, where)
            except BrokenInput:
                if is_last:
                    raise
        raise AssertionError("the last read returns or raises")

    def _read_pointer(self, key: str) -> str | None:
        return self._read(key, lambda data, where: parse_pointer(data, key, where))

    def _write(self, key: str, data: bytes, anew: bool) -> None:  # noqa: FBT001  # private
        if anew:
            self._bucket.replace(key, data)
        else:
            self._bucket.create(key, data)

    def _where(self, key: str) -> str:
        return f"{self.url.rstrip('/')}/{key}"

    def _wrong(self, key: str, what: str) -> BrokenInput:
        return BrokenInput(
            f"{self._where(key)}: {what}",
            code="store-damaged",
            hint=f"on a host that has the model: overlay push MODEL --anew --store {self.url}",
            where=self._where(key),
        )


def _read_chunks(path: Path) -> Iterator[bytes]:
    with open_file(path) as (descriptor, found):
        for start in range(0, found.st_size, CHUNK):
            yield os.pread(descriptor, CHUNK, start)


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _chunk_key(chunk: str) -> str:
    return f"v1/chunks/{chunk[:2]}/{chunk}"


def _object_key(digest: str) -> str:
    algorithm, value = parse_digest(digest)
    return f"v1/objects/{algorithm}/{value}.json"


def _action_key(key: str) -> str:
    return f"v1/actions/{key}.json"


def _tree_key(name: str) -> str:
    return f"v1/trees/{name}.json"
