"""Digests: documented values, a plain oracle, bounded memory."""

from __future__ import annotations

import os
import subprocess
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from overlay.errors import BrokenInput, NotHere
from overlay.fingerprint import (
    BLOCK,
    BlockHasher,
    Digests,
    block_digest,
    bytes_digest,
    digest_of_blocks,
    digests,
    file_digest,
    file_digests,
    git_blob_digest,
    parse_digest,
)

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.no_torch


def _oracle(data: bytes, block: int) -> str:
    """Two-level xxh3_128, written as its definition."""
    blocks = [data[start : start + block] for start in range(0, len(data), block)]
    return "xxh3_128:" + xxhash.xxh3_128_hexdigest(b"".join(xxhash.xxh3_128_digest(piece) for piece in blocks))


VECTORS = {
    "nothing": (
        b"",
        "xxh3_128:99aa06d3014798d86001c324468d497f",
        "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
    ),
    "one line": (
        b"overlay\n",
        "xxh3_128:2d36e1225a2e6438d7f88860096250cd",
        "sha256:5971fc5991ae2b514c4e25cbfaa154aa191b4230c4201e33c00da182209f53fd",
    ),
    "a block and a byte": (
        bytes(16 * 2**20) + b"\1",
        "xxh3_128:0ff3edb723728fa857a84b976687a8b4",
        "sha256:7dcc255c06ce4a41fe42a7e488e7b47e3923f5d9b89acb9ab3ddde4bc3520041",
    ),
}


@pytest.mark.parametrize(("content", "xxh3", "sha256"), VECTORS.values(), ids=VECTORS)
def test_h18_documented_values_of_known_files(tmp_path: Path, content: bytes, xxh3: str, sha256: str) -> None:
    """A fingerprint is that of the content, with values that anyone can check."""
    path = tmp_path / "known"
    path.write_bytes(content)

    assert xxh3 == file_digest(path, "xxh3_128") == bytes_digest(content, "xxh3_128")
    assert sha256 == file_digest(path, "sha256") == bytes_digest(content, "sha256")


def test_h18_content_only(tmp_path: Path) -> None:
    """The same content at two paths is the same; other content at the same path and size is not."""
    (tmp_path / "a").write_bytes(b"weights!")
    (tmp_path / "b").write_bytes(b"weights!")
    first = file_digest(tmp_path / "a", "xxh3_128")

    assert first == file_digest(tmp_path / "b", "xxh3_128")
    (tmp_path / "a").write_bytes(b"weights?")
    assert first != file_digest(tmp_path / "a", "xxh3_128")


@pytest.mark.parametrize("size", [BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK, 2 * BLOCK + 5])
def test_sizes_around_the_block_limit_equal_the_oracle(tmp_path: Path, size: int) -> None:
    """The last block may be short, and a full one at the end is not followed by an empty one."""
    data = (bytes(range(251)) * (size // 251 + 1))[:size]
    path = tmp_path / "x"
    path.write_bytes(data)

    assert _oracle(data, BLOCK) == file_digest(path, "xxh3_128") == bytes_digest(data, "xxh3_128")


@given(st.lists(st.binary(max_size=50), max_size=12))
def test_pieces_of_any_size_equal_the_oracle(pieces: list[bytes]) -> None:
    """How bytes are cut into updates does not show, whatever the block size; digests in between change nothing."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(digests, "BLOCK", 16)
        hasher = BlockHasher()
        so_far = b""
        for piece in pieces:
            hasher.update(memoryview(piece))
            so_far += piece
            assert hasher.digest() == _oracle(so_far, 16)


def test_order_of_blocks_counts() -> None:
    """Two swapped blocks are other content."""
    one, two = bytes(BLOCK), b"\1" * BLOCK

    assert bytes_digest(one + two, "xxh3_128") != bytes_digest(two + one, "xxh3_128")


def test_wide_buffers_count_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A view of wider items is cut into blocks by its bytes, not by its length."""
    monkeypatch.setattr(digests, "BLOCK", 16)
    data = bytes(range(64))

    assert bytes_digest(memoryview(data).cast("d"), "xxh3_128") == bytes_digest(data, "xxh3_128")


@pytest.mark.parametrize("size", [0, 1, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK, 2 * BLOCK + 5])
def test_blocks_read_apart_equal_the_file(tmp_path: Path, size: int) -> None:
    """In any order and on any thread; a block behind the end adds nothing of its own."""
    data = (bytes(range(251)) * (size // 251 + 1))[:size]
    path = tmp_path / "x"
    path.write_bytes(data)
    numbers = range(-(-size // BLOCK))

    with ThreadPoolExecutor(3) as pool:
        backwards = list(pool.map(lambda number: block_digest(path, number * BLOCK, BLOCK), reversed(numbers)))

    assert digest_of_blocks(reversed(backwards)) == _oracle(data, BLOCK)
    assert block_digest(path, (len(numbers) + 1) * BLOCK, BLOCK) == xxhash.xxh3_128_digest(b"")
    assert file_digests(path) == Digests(bytes_digest(data, "sha256"), _oracle(data, BLOCK))


def test_a_filesystem_that_reads_short_gives_the_same_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A block ends where it ends, whatever pieces its bytes come in."""
    data = bytes(range(251)) * (2 * BLOCK // 251)
    path = tmp_path / "x"
    path.write_bytes(data)
    read = os.preadv
    monkeypatch.setattr(digests.os, "preadv", lambda fd, buffers, at: read(fd, [buffers[0][:300_001]], at))

    assert digest_of_blocks([block_digest(path, 0, BLOCK), block_digest(path, BLOCK, BLOCK)]) == _oracle(data, BLOCK)


@pytest.mark.parametrize("algorithm", ["xxh3_128", "sha256"])
def test_memory_stays_bounded(tmp_path: Path, algorithm: str) -> None:
    """A file much larger than the buffer is never held, nor is one block of it."""
    path = tmp_path / "large"
    with path.open("wb") as file:
        file.truncate(3 * BLOCK)
    tracemalloc.start()
    try:
        file_digest(path, algorithm)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert peak < 2 * 2**20


def test_files_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    """Absent files and dangling links have their usual errors."""
    (tmp_path / "link").symlink_to("gone")

    with pytest.raises(NotHere, match="none: no such file"):
        file_digest(tmp_path / "none", "sha256")
    with pytest.raises(BrokenInput, match="link to gone"):
        file_digest(tmp_path / "link", "xxh3_128")
    with pytest.raises(NotHere, match="none: no such file"):
        file_digests(tmp_path / "none")
    with pytest.raises(BrokenInput, match="link to gone"):
        block_digest(tmp_path / "link", 0, BLOCK)


@pytest.mark.parametrize(
    ("data", "digest"),
    [
        (b"", "sha1-git:e69de29bb2d1d6434b8b29ae775ad8c2e48c5391"),
        (b"hello\n", "sha1-git:ce013625030ba8dba906f756967f9e9ca394464a"),
    ],
)
def test_git_blob_digests(tmp_path: Path, data: bytes, digest: str) -> None:
    """Known values, and git's own."""
    (tmp_path / "x").write_bytes(data)
    git = subprocess.run(["git", "hash-object", "x"], cwd=tmp_path, capture_output=True, text=True, check=True)  # noqa: S607  # git of the PATH is meant

    assert digest == git_blob_digest(data) == f"sha1-git:{git.stdout.strip()}"


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("sha256:" + "0a" * 32, ("sha256", "0a" * 32)),
        ("xxh3_128:" + "0a" * 16, ("xxh3_128", "0a" * 16)),
        ("sha1-git:" + "0a" * 20, ("sha1-git", "0a" * 20)),
    ],
)
def test_digests_are_parsed(text: str, parts: tuple[str, str]) -> None:
    """Each algorithm has its number of digits."""
    assert parse_digest(text) == parts


@pytest.mark.parametrize(
    "text",
    [
        "",
        "0a" * 32,
        "sha256:",
        "sha256:" + "0a" * 31,
        "sha256:" + "0A" * 32,
        "sha256:" + "0g" * 32,
        "SHA256:" + "0a" * 32,
        "xxh3_128:" + "0a" * 32,
        "md5:" + "0a" * 16,
        " sha256:" + "0a" * 32,
        "sha256:" + "0a" * 32 + "\n",
        "sha256:../" + "0a" * 30 + "a",
    ],
)
def test_anything_else_is_no_digest(text: str) -> None:
    """What goes into a path of the cache must be exactly a digest."""
    with pytest.raises(BrokenInput, match="is not usable, expected xxh3_128:<32 hex digits>") as caught:
        parse_digest(text)

    assert caught.value.code == "bad-digest"
