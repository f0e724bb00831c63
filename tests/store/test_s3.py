"""A store in S3: a service that answers, and one that does not, does so wrongly, or only sometimes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
import uuid
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest
from support.s3_server import S3Server, answer, cut_download, cut_upload, flipped, lost_answer, silent, slow

from overlay.errors import BrokenInput, InvalidUsage, NotHere, OverlayError, Refused, TryAgain
from overlay.fingerprint import file_digest
from overlay.store import Store, StoredObject, StoredTree, open_bucket, open_store

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from support.s3_server import Fault

KEY = "ab" * 32
CHUNK = 1000
TRIES = 7

SLOW_DOWN = answer("503 Slow Down", "SlowDown")
INTERNAL = answer("500 Internal Server Error", "InternalError")
DENIED = answer("403 Forbidden", "AccessDenied")
NOT_FOUND = answer("404 Not Found", "NoSuchKey")


@pytest.fixture
def s3(s3_service: S3Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Server]:
    """The service without faults, found as users let it be found; chunks and waits are small."""
    s3_service.point_to(monkeypatch)
    monkeypatch.setattr("overlay.store.store.CHUNK", CHUNK)
    monkeypatch.setattr("overlay.store.documents.CHUNK", CHUNK)
    s3_service.heal()
    yield s3_service
    s3_service.heal()


@pytest.fixture
def url(s3: S3Server) -> str:
    """A store with nothing in it, in a bucket of its own."""
    return s3.bucket(f"bucket-{uuid.uuid4().hex}")


@pytest.fixture
def store(url: str) -> Iterator[Store]:
    """The same, open."""
    with open_store(url) as opened:
        yield opened


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Of two chunks and a bit."""
    path = tmp_path / "file"
    path.write_bytes(os.urandom(2 * CHUNK + CHUNK // 2))
    return path


def offer(store: Store, path: Path) -> StoredObject:
    digest, size = file_digest(path, "xxh3_128"), path.stat().st_size
    store.put_object(path, digest, size, lambda _: None)
    found = store.find_object(digest, size)
    assert found is not None
    return found


def fetch(store: Store, stored: StoredObject, copy: Path) -> bytes:
    store.get_object(stored, copy, lambda _: None)
    return copy.read_bytes()


def test_everything_comes_back(store: Store, file: Path, tmp_path: Path) -> None:
    """Files, actions, trees and models."""
    assert store.find_object(f"sha256:{KEY}", 1) is None
    assert store.find_action(KEY) is None
    assert store.find_tree("acme__m-1") is None
    assert store.find_model("acme__m", "p", None) == {}
    assert fetch(store, offer(store, file), tmp_path / "copy") == file.read_bytes()
    (tmp_path / "empty").touch()
    assert fetch(store, offer(store, tmp_path / "empty"), tmp_path / "copy") == b""
    entry = {"digest": f"sha256:{KEY}", "size": 3}
    store.put_action(KEY, entry)
    assert store.find_action(KEY) == entry
    tree = StoredTree("acme__m-1", b"{}\n", (KEY,))
    store.put_tree(tree)
    assert store.find_tree(tree.name) == tree
    for location in ("there", "here"):
        store.put_model("acme__m", "p", location, tree.name)
    assert store.find_model("acme__m", "p", None) == {"here": tree.name, "there": tree.name}


def test_two_writers(s3: S3Server, url: str) -> None:
    """Of two trees for one model exactly one gets in: the service is told If-None-Match."""
    barrier, won, lost = threading.Barrier(2), [], []

    def point(number: int) -> None:
        with open_store(url) as store:
            barrier.wait(10)
            try:
                store.put_model("acme__m", "p", "l", f"tree-{number}")
                won.append(number)
            except BrokenInput as error:
                lost.append(error.code)

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(point, range(2)))
    (winner,) = won
    assert lost == ["store-differs"]
    assert len(s3.conditional) == 2
    with open_store(url) as store:
        assert store.find_model("acme__m", "p", "l") == {"l": f"tree-{winner}"}


def test_what_is_there_is_not_replaced(url: str) -> None:
    """Whoever writes second is told so, and an empty file is a file."""
    bucket = open_bucket(url)
    assert bucket.create("a/b", b"")
    assert not bucket.create("a/b", b"other")
    assert (bucket.read("a/b", 10), bucket.size("a/b"), bucket.names("a")) == (b"", 0, ["b"])
    bucket.replace("a/b", b"other")
    assert bucket.read("a/b", 2) == b"oth"
    assert bucket.size("a") is None


# Faults that pass


@pytest.mark.parametrize(
    ("fault", "method"),
    [
        (cut_download, "GET"),
        (cut_upload, "PUT"),
        (lost_answer, "PUT"),
        (lost_answer, "GET"),
        (SLOW_DOWN, "PUT"),
        (SLOW_DOWN, "GET"),
        (answer("503 Service Unavailable", "ServiceUnavailable"), "HEAD"),
        (INTERNAL, "PUT"),
        (INTERNAL, "GET"),
        (INTERNAL, "HEAD"),
        (answer("429 Too Many Requests", "TooManyRequests"), "PUT"),
        (answer("400 Bad Request", "RequestTimeout"), "PUT"),
        (answer("409 Conflict", "ConditionalRequestConflict"), "PUT"),
    ],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_faults_that_pass(s3: S3Server, store: Store, file: Path, tmp_path: Path, fault: Fault, method: str) -> None:
    """Cuts, storms and lost answers: the request is made again, and nobody notices."""
    s3.fail(fault, method, "chunks/", times=3)
    assert fetch(store, offer(store, file), tmp_path / "copy") == file.read_bytes()
    assert s3.faults[0][0] == 0


def test_an_answer_that_was_lost(s3: S3Server, store: Store) -> None:
    """What the first try wrote is not taken for somebody else's."""
    s3.fail(lost_answer, "PUT", times=1)
    store.put_model("acme__m", "p", "l", "tree")
    assert store.find_model("acme__m", "p", "l") == {"l": "tree"}


def test_a_condition_that_failed(s3: S3Server, url: str) -> None:
    """Also where the service does not say which one it was."""
    s3.fail(answer("412 Precondition Failed", "PreconditionFailed"), "PUT")
    assert not open_bucket(url).create("a", b"")


def test_a_document_that_came_damaged(s3: S3Server, store: Store) -> None:
    """Once, it is read again; twice, it is damaged."""
    store.put_model("acme__m", "p", "l", "tree")
    s3.fail(flipped, "GET", "models/", times=1)
    assert store.find_model("acme__m", "p", "l") == {"l": "tree"}
    s3.fail(flipped, "GET", "models/")
    with pytest.raises(BrokenInput, match="models/acme__m/p/l") as caught:
        store.find_model("acme__m", "p", "l")
    assert caught.value.code == "store-damaged"


def test_wrong_bytes_once(s3: S3Server, store: Store, file: Path, tmp_path: Path) -> None:
    """Damage on the way is healed by a second read."""
    stored = offer(store, file)
    s3.fail(flipped, "GET", f"chunks/{stored.chunks[1][:2]}", times=1)
    assert fetch(store, stored, tmp_path / "copy") == file.read_bytes()
    assert s3.faults[0][0] == 0


# Faults that last: which error, after how many requests, and then, without the fault, the work is done


@pytest.mark.parametrize(
    ("fault", "method", "error", "code", "requests"),
    [
        (flipped, "GET", BrokenInput, "store-damaged", 2),
        (NOT_FOUND, "GET", NotHere, "store-incomplete", 1),
        (DENIED, "GET", Refused, "store-refused", 1),
        (cut_download, "GET", TryAgain, "store-unreachable", TRIES),
        (INTERNAL, "GET", TryAgain, "store-unreachable", TRIES),
        (SLOW_DOWN, "GET", TryAgain, "store-unreachable", TRIES),
        (answer("400 Bad Request", "AuthorizationHeaderMalformed"), "GET", Refused, "store-refused", 1),
        (answer("301 Moved Permanently", "PermanentRedirect"), "PUT", Refused, "store-refused", 2),  # by region
        (answer("501 Not Implemented", "NotImplemented"), "GET", Refused, "store-refused", 1),
        (DENIED, "PUT", Refused, "store-refused", 1),
        (DENIED, "HEAD", Refused, "store-refused", 1),
        (answer("400 Bad Request", "ExpiredToken"), "PUT", Refused, "store-refused", 1),
        (INTERNAL, "PUT", TryAgain, "store-unreachable", TRIES),
    ],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_faults_that_last(
    s3: S3Server, url: str, file: Path, fault: Fault, method: str, error: type[OverlayError], code: str, requests: int
) -> None:
    """The place is named, tries are bounded, and a later run goes on."""
    file.write_bytes(os.urandom(CHUNK // 2))
    with open_store(url) as store:
        if method == "GET":
            offer(store, file)
        s3.log.clear()
        s3.fail(fault, method, "chunks/")
        with pytest.raises(error, match=r"s3://bucket-.*chunks/") as caught:
            fetch(store, offer(store, file), file.with_name("copy"))
        assert caught.value.code == code
        assert len([line for line in s3.log if line.startswith(method) and "chunks/" in line]) == requests
    s3.heal()
    with open_store(url) as store:
        assert fetch(store, offer(store, file), file.with_name("copy")) == file.read_bytes()


def test_a_chunk_that_only_seems_to_be_there(s3: S3Server, store: Store, file: Path, tmp_path: Path) -> None:
    """HEAD says so, GET says not: whoever met that sends it with the next offer."""
    stored = offer(store, file)
    s3.fail(NOT_FOUND, "GET", stored.chunks[0])
    with pytest.raises(NotHere, match=stored.chunks[0]):
        fetch(store, stored, tmp_path / "copy")
    s3.heal()
    offer(store, file)
    assert [line for line in s3.log if line.startswith("PUT") and stored.chunks[0] in line]
    assert fetch(store, stored, tmp_path / "copy") == file.read_bytes()


GONE = """<Contents><Key>some/prefix/v1/models/acme__m/p/gone.json</Key><Size>9</Size><ETag>"0"</ETag>
<LastModified>2026-01-01T00:00:00Z</LastModified></Contents>"""


@pytest.mark.parametrize("listed", ["", GONE])
def test_stale_listings(s3: S3Server, store: Store, listed: str) -> None:
    """They hide what is new and show what is gone: whoever names a location is told the truth all the same."""
    store.put_model("acme__m", "p", "here", "tree")
    s3.fail(answer("200 OK", "", f"<ListBucketResult>{listed}</ListBucketResult>"), "GET", "list-type=2")
    assert store.find_model("acme__m", "p", None) == {}
    assert store.find_model("acme__m", "p", "here") == {"here": "tree"}
    store.put_model("acme__m", "p", "here", "tree")
    with pytest.raises(BrokenInput, match="made other"):
        store.put_model("acme__m", "p", "here", "other")


# No service at all


CALLS: dict[str, Callable[[str], object]] = {
    "read": lambda url: open_bucket(url).read("a", 1),
    "create": lambda url: open_bucket(url).create("a", b""),
    "replace": lambda url: open_bucket(url).replace("a", b""),
    "names": lambda url: open_bucket(url).names("a"),
}


@pytest.mark.parametrize("call", CALLS)
def test_no_such_bucket(s3: S3Server, call: str) -> None:
    """Is no empty store: a name that is misspelt is told at once."""
    with pytest.raises(Refused, match="bucket does not exist") as caught:
        CALLS[call]("s3://nobodys-bucket/prefix")
    assert caught.value.code == "store-refused"
    assert len(s3.log) == 1


@pytest.mark.parametrize("call", CALLS)
def test_no_login(s3: S3Server, url: str, monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    """Nothing is asked then."""
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    s3.log.clear()
    with pytest.raises(Refused, match="locate credentials") as caught:
        CALLS[call](url)
    assert caught.value.code == "store-refused"
    assert s3.log == []


@pytest.mark.parametrize("call", CALLS)
def test_nobody_listens(s3: S3Server, monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    """Seven tries and no more: no layer below has a patience of its own."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    started = time.monotonic()
    with pytest.raises(TryAgain, match="7 tries") as caught:
        CALLS[call]("s3://bucket/prefix")
    assert caught.value.code == "store-unreachable"
    assert time.monotonic() - started < 10


def test_silence(s3: S3Server, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A service that takes requests and never answers is given up as one that is not there."""
    monkeypatch.setattr("s3fs.core.S3FileSystem.read_timeout", 0.1)
    release = threading.Event()
    s3.fail(silent(release), "GET")
    with pytest.raises(TryAgain, match="7 tries") as caught:
        open_bucket(url).read("a", 1)
    release.set()
    assert caught.value.code == "store-unreachable"


def test_waits_are_bounded() -> None:
    """Whoever calls a service that is gone hears of it within half a minute."""
    from overlay.store import remote

    waits = [min(remote._FIRST_WAIT * 2**number, remote._LONGEST_WAIT) for number in range(remote._TRIES - 1)]
    assert sum(waits) < 30
    assert remote._TRIES == TRIES


@pytest.mark.parametrize(
    ("url", "hint"),
    [("gs://bucket/x", "gcsfs"), ("az://bucket/x", "adlfs"), ("s3://", "s3://bucket/prefix"), ("S3://b/x", "s3://")],
)
def test_hints_of_other_urls(url: str, hint: str) -> None:
    """Name the package to install, or what a URL looks like."""
    with pytest.raises(InvalidUsage) as caught:
        open_bucket(url)
    assert caught.value.code == "store-unsupported"
    assert hint in (caught.value.hint or "")


# Closing


def test_closing_ends_what_is_on_its_way(s3: S3Server, url: str, file: Path, tmp_path: Path) -> None:
    """In whatever thread: a server that never stops sending holds nobody up."""
    release = threading.Event()
    with open_store(url) as store, ThreadPoolExecutor(1) as pool:
        stored = offer(store, file)
        s3.fail(slow(release), "GET", "chunks/")
        s3.log.clear()
        fetching = pool.submit(fetch, store, stored, tmp_path / "copy")
        while not s3.log:
            time.sleep(0.01)
        started = time.monotonic()
        store.close()
        with pytest.raises((TryAgain, RuntimeError)):
            fetching.result(10)
        assert time.monotonic() - started < 5
        with pytest.raises(TryAgain, match="closed"):
            store.find_action(KEY)
    release.set()


INTERRUPTED = """
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from overlay.store import open_store

url, digest, size, folder = sys.argv[1], sys.argv[2], int(sys.argv[3]), Path(sys.argv[4])
try:
    with open_store(url) as store, ThreadPoolExecutor(2) as pool:
        stored = store.find_object(digest, size)
        try:
            list(pool.map(lambda name: store.get_object(stored, folder / name, lambda _: None), "ab"))
        except BaseException:
            store.close()
            raise
except KeyboardInterrupt:
    sys.exit(130)
"""


@pytest.mark.slow  # a process that imports fsspec
def test_an_interrupt_ends_a_slow_download(s3: S3Server, url: str, tmp_path: Path) -> None:
    """Within seconds, though several threads and the loop of fsspec wait for the service."""
    release, file = threading.Event(), tmp_path / "file"
    file.write_bytes(os.urandom(CHUNK // 2))
    with open_store(url) as store:
        stored = offer(store, file)
    s3.fail(slow(release), "GET", "chunks/")
    s3.log.clear()
    args = [sys.executable, "-c", INTERRUPTED, url, stored.digest, str(stored.size), str(tmp_path)]
    with subprocess.Popen(args) as child:
        while sum("chunks/" in line for line in s3.log) < 2:
            assert child.poll() is None
            time.sleep(0.05)
        started = time.monotonic()
        child.send_signal(signal.SIGINT)
        assert child.wait(30) == 130
        assert time.monotonic() - started < 5
    release.set()


MEMORY = """
import resource, sys
from pathlib import Path
from overlay.fingerprint import file_digest
from overlay.store import open_store

folder = Path(sys.argv[1])
source, block = folder / "source", bytes(range(256)) * 4096
with source.open("wb") as file:
    for number in range(400):
        file.write(number.to_bytes(8, "big") + block[8:])
digest, size = file_digest(source, "xxh3_128"), source.stat().st_size
with open_store(str(folder / "store")) as store:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    sent = store.put_object(source, digest, size, lambda _: None)
    store.get_object(store.find_object(digest, size), folder / "copy", lambda _: None)
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
assert sent == size and file_digest(folder / "copy", "xxh3_128") == digest
print(grown)
"""


@pytest.mark.slow  # 400 MiB, thrice
def test_memory_is_bounded(tmp_path: Path) -> None:
    """A file takes a few chunks, whatever its size."""
    done = subprocess.run([sys.executable, "-c", MEMORY, str(tmp_path)], capture_output=True, check=True, text=True)
    assert int(done.stdout) * 1024 < 150 * 2**20
