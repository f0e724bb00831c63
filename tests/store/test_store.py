"""Files, entries and trees in a store: offered once, proven when they are fetched."""

from __future__ import annotations

import hashlib
import os
import threading
import uuid
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from overlay.errors import BrokenInput, InvalidUsage, NotHere
from overlay.fingerprint import file_digest
from overlay.store import Store, StoredObject, StoredTree, open_bucket, open_store
from overlay.store.bucket import shown_url

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.no_torch

KEY = "ab" * 32
CHUNK = 1000


@pytest.fixture(autouse=True)
def _small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("overlay.store.store.CHUNK", CHUNK)
    monkeypatch.setattr("overlay.store.documents.CHUNK", CHUNK)


@pytest.fixture(params=["folder", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    """A store on a disk, and one behind fsspec."""
    url = str(tmp_path / "store") if request.param == "folder" else f"memory://{uuid.uuid4().hex}/store"
    with open_store(url) as opened:
        yield opened


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Of two chunks and a bit."""
    path = tmp_path / "file"
    path.write_bytes(os.urandom(2 * CHUNK + CHUNK // 2))
    return path


def offer(store: Store, path: Path, algorithm: str = "xxh3_128", *, anew: bool = False) -> StoredObject:
    digest, size = file_digest(path, algorithm), path.stat().st_size
    store.put_object(path, digest, size, lambda _: None, anew=anew)
    found = store.find_object(digest, size)
    assert found is not None
    return found


def fetch(store: Store, stored: StoredObject, path: Path) -> int:
    told: list[int] = []
    store.get_object(stored, path, told.append)
    return sum(told)


def chunk_name(stored: StoredObject, number: int) -> str:
    return f"v1/chunks/{stored.chunks[number][:2]}/{stored.chunks[number]}"


@pytest.mark.parametrize("algorithm", ["xxh3_128", "sha256"])
def test_a_file_comes_back_as_it_was(store: Store, file: Path, tmp_path: Path, algorithm: str) -> None:
    """Under its digest, with every byte counted."""
    stored = offer(store, file, algorithm)
    assert store.find_object(stored.digest, stored.size) == stored
    assert fetch(store, stored, tmp_path / "copy") == stored.size
    assert (tmp_path / "copy").read_bytes() == file.read_bytes()
    assert store.find_object(f"sha256:{KEY}", 1) is None


def test_an_empty_file(store: Store, tmp_path: Path) -> None:
    """Has no chunk."""
    (tmp_path / "empty").touch()
    stored = offer(store, tmp_path / "empty")
    assert stored.chunks == ()
    fetch(store, stored, tmp_path / "copy")
    assert (tmp_path / "copy").read_bytes() == b""


@pytest.mark.parametrize("kept", [0, 1, CHUNK - 1, CHUNK, CHUNK + 7, 2 * CHUNK, 10 * CHUNK])
def test_a_cut_download_goes_on(
    store: Store, file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kept: int
) -> None:
    """Whole chunks at its front are not asked for again, whatever follows them."""
    stored = offer(store, file)
    data = file.read_bytes()
    (tmp_path / "copy").write_bytes(data[:kept].ljust(kept, b"x"))
    asked = []
    get_chunk = store._get_chunk
    monkeypatch.setattr(store, "_get_chunk", lambda chunk, size: asked.append(chunk) or get_chunk(chunk, size))
    assert fetch(store, stored, tmp_path / "copy") == stored.size
    assert (tmp_path / "copy").read_bytes() == data
    assert asked == list(stored.chunks[min(kept, len(data)) // CHUNK if kept < len(data) else len(stored.chunks) :])


def test_wrong_bytes_in_front_are_replaced(store: Store, file: Path, tmp_path: Path) -> None:
    """Nothing that lies there is believed."""
    stored = offer(store, file)
    (tmp_path / "copy").write_bytes(bytes(stored.size + 1))
    fetch(store, stored, tmp_path / "copy")
    assert (tmp_path / "copy").read_bytes() == file.read_bytes()


@pytest.mark.parametrize("damage", ["flipped", "short", "long", "gone"])
def test_damaged_chunks_are_refused_and_healed(store: Store, file: Path, tmp_path: Path, damage: str) -> None:
    """The place is named; whoever met the damage replaces it with the next offer, others when they are told to."""
    stored = offer(store, file)
    data = file.read_bytes()[:CHUNK]
    flipped = data[:-1] + bytes([data[-1] ^ 1])
    broken = {"flipped": flipped, "short": data[:-1], "long": data + b"x", "gone": b""}[damage]
    if damage == "gone":
        stored = StoredObject(stored.digest, stored.size, (KEY, *stored.chunks[1:]))
    else:
        store._bucket.replace(chunk_name(stored, 0), broken)
    with pytest.raises((BrokenInput, NotHere), match=stored.chunks[0]) as caught:
        fetch(store, stored, tmp_path / "copy")
    assert caught.value.code == ("store-incomplete" if damage == "gone" else "store-damaged")
    if damage != "gone":
        with open_store(store.url) as other:
            assert offer(other, file) == stored
            with pytest.raises(BrokenInput):
                fetch(other, stored, tmp_path / "copy")
        assert offer(store, file) == stored
        fetch(store, stored, tmp_path / "copy")
        store._bucket.replace(chunk_name(stored, 0), broken)
        with open_store(store.url) as other:
            offer(other, file, anew=True)
            fetch(other, stored, tmp_path / "copy")
        assert (tmp_path / "copy").read_bytes() == file.read_bytes()


def test_chunks_of_another_file_are_refused(store: Store, file: Path, tmp_path: Path) -> None:
    """A document that names right chunks in the wrong order."""
    stored = offer(store, file)
    swapped = StoredObject(stored.digest, stored.size, (stored.chunks[1], stored.chunks[0], stored.chunks[2]))
    with pytest.raises(BrokenInput, match="chunks make"):
        fetch(store, swapped, tmp_path / "copy")


def test_a_damaged_file_is_not_offered(store: Store, file: Path) -> None:
    """Its digest is taken while it is sent."""
    digest = file_digest(file, "xxh3_128")
    with file.open("r+b") as writable:
        writable.write(b"\0\1\2\3\4")
    with pytest.raises(BrokenInput, match="nothing of it was offered") as caught:
        store.put_object(file, digest, file.stat().st_size, lambda _: None)
    assert caught.value.code == "object-damaged"
    assert store.find_object(digest, file.stat().st_size) is None


@pytest.mark.parametrize(
    "data", [b"", b"{", b"null", b'{"schema_version": 1}', b"[" * 100_000, b"\xff\xfe", b'{"a": NaN}']
)
def test_damaged_documents_are_refused_and_replaced(store: Store, file: Path, data: bytes) -> None:
    """Whatever lies where a document should."""
    stored = offer(store, file)
    algorithm, value = stored.digest.split(":")
    for key, find in {
        f"v1/objects/{algorithm}/{value}.json": lambda: store.find_object(stored.digest, stored.size),
        f"v1/actions/{KEY}.json": lambda: store.find_action(KEY),
        "v1/trees/acme__m-1.json": lambda: store.find_tree("acme__m-1"),
        "v1/models/acme__m/p/l.json": lambda: store.find_model("acme__m", "p", "l"),
    }.items():
        store._bucket.replace(key, data)
        with pytest.raises(BrokenInput) as caught:
            find()
        assert caught.value.code == "store-damaged"
        assert key in str(caught.value)
    assert offer(store, file) == stored
    assert store.find_object(stored.digest, stored.size) == stored


@pytest.mark.parametrize(
    "entry",
    [
        None,
        [],
        {"size": -1, "chunks": []},
        {"size": True, "chunks": [KEY]},
        {"size": 1, "chunks": []},
        {"size": 1, "chunks": [KEY, KEY]},
        {"size": 1, "chunks": ["../../../etc/passwd"]},
        {"size": 1, "chunks": KEY},
        {"size": 1, "chunks": [KEY.upper()]},
    ],
)
def test_documents_that_cannot_be(entry: object) -> None:
    """Well written, and wrong."""
    from overlay.fingerprint.entries import entry_bytes

    digest = f"sha256:{KEY}"
    with pytest.raises(BrokenInput):
        StoredObject.parse(entry_bytes(1, digest, entry), digest, "here")


def test_actions_trees_and_models(store: Store) -> None:
    """Come back as they were; another tree for the same pins is refused, and says so."""
    store.put_action(KEY, {"digest": f"sha256:{KEY}", "size": 3, "tensors": []})
    assert store.find_action(KEY) == {"digest": f"sha256:{KEY}", "size": 3, "tensors": []}
    tree = StoredTree("acme__m-0123456789abcdef", '{"é": 1}\n'.encode(), (KEY,))
    store.put_tree(tree)
    assert store.find_tree(tree.name) == tree
    assert store.find_tree("other") is None
    store.put_model("acme__m", "p", "here", tree.name)
    store.put_model("acme__m", "p", "here", tree.name)
    assert store.find_model("acme__m", "p", "here") == {"here": tree.name}
    assert store.find_model("acme__m", "p", None) == {"here": tree.name}
    assert store.find_model("acme__m", "q", None) == {}
    with pytest.raises(BrokenInput) as caught:
        store.put_model("acme__m", "p", "here", "acme__m-2")
    assert caught.value.code == "store-differs"
    store.put_model("acme__m", "p", "here", "acme__m-2", anew=True)
    assert store.find_model("acme__m", "p", "here") == {"here": "acme__m-2"}


def test_two_writers(store: Store, file: Path, tmp_path: Path) -> None:
    """Of one file at one time both succeed, and of two trees for one model one does."""
    with ThreadPoolExecutor(4) as pool:
        assert len(set(pool.map(lambda _: offer(store, file), range(4)))) == 1
    fetch(store, offer(store, file), tmp_path / "copy")
    barrier, results = threading.Barrier(4), []

    def point(number: int) -> None:
        barrier.wait(10)
        try:
            store.put_model("acme__m", "p", "l", f"tree-{number}")
            results.append(number)
        except BrokenInput as error:
            assert error.code == "store-differs"  # noqa: PT017  # it is raised in a thread

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(point, range(4)))
    if store.url.startswith("memory"):
        assert results
    else:
        (winner,) = results
        assert store.find_model("acme__m", "p", "l") == {"l": f"tree-{winner}"}


def test_memory_is_bounded(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Few chunks of a file are ever on their way, in either direction."""
    path, most, now, lock = tmp_path / "file", [0], [0], threading.Lock()
    path.write_bytes(os.urandom(100_000))

    def counted(call: object) -> object:
        def run(*args: object) -> object:
            with lock:
                now[0] += 1
                most[0] = max(most[0], now[0])
            try:
                return call(*args)  # type: ignore[operator]
            finally:
                with lock:
                    now[0] -= 1

        return run

    monkeypatch.setattr(store, "_put_chunk", counted(store._put_chunk))
    monkeypatch.setattr(store, "_get_chunk", counted(store._get_chunk))
    stored = offer(store, path)
    fetch(store, stored, tmp_path / "copy")
    assert len(stored.chunks) == 100
    assert 1 <= most[0] <= 4
    assert hashlib.sha256((tmp_path / "copy").read_bytes()).digest() == hashlib.sha256(path.read_bytes()).digest()


@pytest.mark.parametrize("url", ["nosuch://bucket", "http//x://y"])
def test_unknown_urls(url: str) -> None:
    """Are refused by name."""
    with pytest.raises(InvalidUsage) as caught:
        open_bucket(url)
    assert caught.value.code == "store-unsupported"


def test_logins_are_never_shown() -> None:
    """A URL may carry one."""
    with pytest.raises(InvalidUsage) as caught:
        open_bucket("nosuch://me:secret@bucket/x?token=secret")
    assert "secret" not in str(caught.value) + str(caught.value.data)


@pytest.mark.parametrize("url", ["", "file:", "file:rel", "file://host/p", "file://"])
def test_what_names_no_folder(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Is refused, and not taken for a folder of the working directory."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidUsage) as caught:
        open_bucket(url)
    assert caught.value.code == "store-unsupported"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("s3://AK:secret@bucket/x?token=secret", "s3://bucket/x"),
        ("filecache::s3://u:secret@b/x", "filecache::s3://b/x"),
        ("https://a/b@c", "https://a/b@c"),
    ],
)
def test_urls_as_they_are_shown(url: str, shown: str) -> None:
    """Also those that hold another one."""
    assert shown_url(url) == shown


def test_what_is_no_file_in_a_folder(store: Store, file: Path, tmp_path: Path) -> None:
    """A pipe in the place of a document is damage; nobody waits for its writer."""
    stored = offer(store, file)
    if not store.url.startswith("memory"):
        place = tmp_path / "store/v1/objects" / stored.digest.replace(":", "/")
        path = place.with_name(f"{place.name}.json")
        path.unlink()
        os.mkfifo(path)
        with pytest.raises(BrokenInput) as caught:
            store.find_object(stored.digest, stored.size)
        assert caught.value.code == "store-damaged"
