"""Downloaded bytes against the Hub's digests."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import pytest
from support.hubs import add_repo, commit

from overlay.errors import BrokenInput
from overlay.fingerprint import DigestMemo, file_digest, git_blob_digest
from overlay.fingerprint import memo as memo_module
from overlay.hub import check_digests

if TYPE_CHECKING:
    from pathlib import Path

    from conftest import World

pytestmark = pytest.mark.no_torch

ONE = "unet/one.safetensors"
TWO = "unet/two.safetensors"


class Counting(DigestMemo):
    """Counts what it is asked."""

    def __init__(self) -> None:
        super().__init__(None)
        self.asked: list[Path] = []

    def sha256(self, path: Path) -> str:
        self.asked.append(path)
        return super().sha256(path)


def test_good_files_pass(world: World) -> None:
    """LFS files by sha256, small ones by git's digest."""
    repo = world.open()
    memo = Counting()

    files = repo.fetch(repo.paths(), None)

    assert check_digests(repo, files, memo) is None
    assert sorted(memo.asked) == sorted([files[ONE], files[TWO]])


@pytest.mark.parametrize("path", [TWO, "README.md"])
def test_a_flipped_byte_names_file_digests_and_fix(world: World, path: str) -> None:
    """Right size, wrong bytes: the file, both digests and the blob to remove are named; nothing is deleted."""
    world.server.fault(method="GET", path=f"*{path}", flip=3)
    repo = world.open()
    files = repo.fetch([ONE, path], None)

    with pytest.raises(BrokenInput) as caught:
        check_digests(repo, files, DigestMemo(None))

    data = files[path].read_bytes()
    found = f"sha256:{hashlib.sha256(data).hexdigest()}" if path == TWO else git_blob_digest(data)
    assert caught.value.data["files"] == {path: {"found": found, "expected": repo.digest(path)}}
    assert f"org/base@aaaaaaaaaaaa/{path}" in caught.value.message
    assert caught.value.message.count(found) == caught.value.message.count(repo.digest(path)) == 1
    assert (caught.value.hint or "").endswith(f"rm {files[path]}")
    assert files[path].exists()


def test_the_name_of_a_blob_is_not_believed(world: World) -> None:
    """The blob is still named for the right sha256; its content decides."""
    repo = world.open()
    files = repo.fetch([ONE], None)
    assert files[ONE].name == repo.digest(ONE).removeprefix("sha256:")
    files[ONE].write_bytes(bytes(repo.size(ONE)))

    with pytest.raises(BrokenInput):
        check_digests(repo, files, DigestMemo(None))


def test_one_inode_is_read_once(world: World) -> None:
    """Two paths with one blob cost one pass."""
    content = (world.hub / "org/base" / commit("a") / ONE).read_bytes()
    add_repo(world.hub, "org/base", commit("a"), {"copy.safetensors": content})
    repo = world.open()
    memo = Counting()

    files = repo.fetch([ONE, "copy.safetensors"], None)
    check_digests(repo, files, memo)

    assert files[ONE] == files["copy.safetensors"]
    assert memo.asked == [files[ONE]]


def test_the_pass_that_checks_takes_the_fast_digest_too(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that no verify has to read what came from the Hub by sha256."""
    monkeypatch.setattr(memo_module, "BLOCK", 1)
    repo, memo = world.open(), DigestMemo(None)
    files = repo.fetch([ONE], None)

    check_digests(repo, files, memo)

    assert memo.xxh3_of(repo.digest(ONE)) == file_digest(files[ONE], "xxh3_128")


def test_a_file_that_vanished_is_the_result(world: World) -> None:
    """Whatever happens on the thread arrives where the result is awaited."""
    repo = world.open()
    files = repo.fetch([ONE], None)
    files[ONE].unlink()

    with pytest.raises(FileNotFoundError):
        check_digests(repo, files, DigestMemo(None))
