"""Objects come in whole, once, and linked in the ways that are allowed."""

from __future__ import annotations

import errno
import fcntl
import os
from typing import TYPE_CHECKING, Any

import pytest
from support.caches import add_object, digest_of
from support.intruders import INTRUDERS, put_in_place

from overlay.cache import SMALL_FILE, Cache, is_small, links
from overlay.errors import BrokenInput, CannotWrite, NotHere, TryAgain

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = pytest.mark.no_torch

DATA = bytes(range(256)) * 40
DIGEST = digest_of(DATA)


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    return Cache.open(tmp_path / "root", create=True)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "hub" / "model.safetensors"
    path.parent.mkdir()
    path.write_bytes(DATA)
    return path


def fail(code: int) -> Callable[..., Any]:
    def function(*_: Any, **__: Any) -> Any:
        raise OSError(code, os.strerror(code))

    return function


def reflink_by_copying(dest: int, request: int, source: int) -> int:
    """Stands in for a filesystem with shared blocks: same content, another inode."""
    assert request == links._FICLONE
    os.pwrite(dest, os.pread(source, os.fstat(source).st_size, 0), 0)
    return 0


def test_adopted_once(cache: Cache) -> None:
    """An adopted file leaves staging and lies where its digest says; of two equal ones the first is kept."""
    first = add_object(cache, DATA)
    inode = first.stat().st_ino

    second = add_object(cache, DATA)

    assert first == second == cache.object_path(DIGEST)
    assert second.stat().st_ino == inode
    assert second.stat().st_nlink == 1
    assert second.read_bytes() == DATA
    assert cache.has_object(DIGEST, len(DATA))
    assert list(cache.root.staging.iterdir()) == []


@pytest.mark.parametrize("intruder", INTRUDERS)
def test_anything_in_the_place_of_an_object_is_replaced(cache: Cache, intruder: str) -> None:
    """A folder, a pipe, a link: it is no object, the next build takes its place, and a repair throws it out."""
    path = cache.object_path(DIGEST)
    path.parent.mkdir(parents=True)
    put_in_place(path, intruder)

    assert not cache.has_object(DIGEST, len(DATA))
    add_object(cache, DATA)
    assert path.read_bytes() == DATA
    assert not path.is_symlink()
    put_in_place(path, intruder)
    cache.drop_object(DIGEST)
    assert not os.path.lexists(path)


def test_a_damaged_object_is_replaced(cache: Cache) -> None:
    """An object of the wrong size is no object, and gives way to a good one; what was linked to it is not touched."""
    cache.object_path(DIGEST).parent.mkdir(parents=True)
    cache.object_path(DIGEST).write_bytes(b"short")
    other_name = cache.root.path / "other"
    other_name.hardlink_to(cache.object_path(DIGEST))

    assert not cache.has_object(DIGEST, len(DATA))
    add_object(cache, DATA)

    assert cache.object_path(DIGEST).read_bytes() == DATA
    assert other_name.read_bytes() == b"short"


@pytest.mark.parametrize("kind", ["folder", "link"])
def test_only_a_real_file_is_an_object(cache: Cache, kind: str) -> None:
    """A folder or a symlink in an object's place is none."""
    path = cache.object_path(DIGEST)
    path.parent.mkdir(parents=True)
    if kind == "folder":
        path.mkdir()
    else:
        (cache.root.path / "x").write_bytes(DATA)
        path.symlink_to(cache.root.path / "x")

    assert not cache.has_object(DIGEST, path.stat().st_size)


@pytest.mark.parametrize("code", [errno.EPERM, errno.ENOSYS, errno.EOPNOTSUPP, errno.EMLINK])
def test_adopting_needs_no_hardlinks(cache: Cache, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    """Where there are no hardlinks, a rename does."""
    monkeypatch.setattr(os, "link", fail(code))

    assert add_object(cache, DATA).read_bytes() == DATA


@pytest.mark.parametrize(
    ("mode", "shared_store", "reflinks", "hardlinks", "how"),
    [
        ("auto", True, True, True, "reflink"),
        ("auto", True, False, True, "hardlink"),
        ("auto", True, False, False, "copy"),
        ("auto", False, True, True, "reflink"),
        ("auto", False, False, True, "copy"),
        ("reflink", True, True, True, "reflink"),
        ("reflink", True, False, True, None),
        ("hardlink", False, True, True, "hardlink"),
        ("hardlink", True, True, False, None),
        ("copy", True, True, True, "copy"),
    ],
)
def test_how_inputs_come_in(
    cache: Cache,
    source: Path,
    monkeypatch: pytest.MonkeyPatch,
    mode: Any,
    shared_store: bool,  # noqa: FBT001 - a column of the table
    reflinks: bool,  # noqa: FBT001 - a column of the table
    hardlinks: bool,  # noqa: FBT001 - a column of the table
    how: str | None,
) -> None:
    """The first way that is allowed and works is taken; a way that was asked for is taken or refused."""
    monkeypatch.setattr(links, "SMALL_FILE", len(DATA))
    monkeypatch.setattr(fcntl, "ioctl", reflink_by_copying if reflinks else fail(errno.EOPNOTSUPP))
    if not hardlinks:
        monkeypatch.setattr(os, "link", fail(errno.EXDEV))
    before = source.stat()
    if how is None:
        with pytest.raises(CannotWrite, match=mode):
            cache.link_object(source, DIGEST, mode, shared_store=shared_store)
        assert not cache.has_object(DIGEST, len(DATA))
    else:
        result = cache.link_object(source, DIGEST, mode, shared_store=shared_store)
        assert (how, len(DATA), cache.object_path(DIGEST)) == (result.how, result.nbytes, result.path)
        assert result.path.read_bytes() == DATA
        assert (result.path.stat().st_ino == before.st_ino) == (how == "hardlink")

    assert (before.st_mode, before.st_mtime_ns) == (source.stat().st_mode, source.stat().st_mtime_ns)
    assert source.read_bytes() == DATA
    assert list(cache.root.staging.iterdir()) == []


def test_an_input_that_is_there_is_not_brought_again(
    cache: Cache, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second call finds the object and moves nothing."""
    cache.link_object(source, DIGEST, "copy", shared_store=False)
    monkeypatch.setattr(os, "copy_file_range", fail(errno.EIO))

    assert cache.link_object(source, DIGEST, "copy", shared_store=False).how == "present"


def test_links_of_the_hub_are_followed(cache: Cache, source: Path) -> None:
    """A snapshot's symlink chain brings in the blob at its end, never the link."""
    (source.parent / "blob").symlink_to(source.name)
    (source.parent / "snapshot").symlink_to("blob")

    result = cache.link_object(source.parent / "snapshot", DIGEST, "hardlink", shared_store=True)

    assert not result.path.is_symlink()
    assert result.path.stat().st_ino == source.stat().st_ino


def test_a_linked_blob_keeps_its_mode(cache: Cache, source: Path) -> None:
    """The mode of a shared inode is not ours to change, group-writable root or not."""
    cache.root.path.chmod(0o2775)
    source.chmod(0o600)

    result = cache.link_object(source, DIGEST, "hardlink", shared_store=True)

    assert result.path.stat().st_mode & 0o777 == 0o600


def test_a_vanished_input_is_named(cache: Cache, source: Path) -> None:
    """A source that is gone, or a dangling link, is an error with its path."""
    source.unlink()

    with pytest.raises(NotHere, match=str(source)):
        cache.link_object(source, DIGEST, "auto", shared_store=True)


def test_an_input_that_cannot_be_read_is_named(cache: Cache, source: Path) -> None:
    """A source that is no file is said to be unreadable, not the root to be broken."""
    with pytest.raises(BrokenInput, match=f"{source.parent}: cannot be read") as caught:
        cache.link_object(source.parent, DIGEST, "auto", shared_store=True)

    assert caught.value.code == "unreadable"


def test_a_fault_of_the_source_is_not_blamed_on_the_root(
    cache: Cache, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk that cannot read the input in its middle: the input is named, and no object is made of it."""

    monkeypatch.setattr(os, "copy_file_range", fail(errno.EIO))
    monkeypatch.setattr(os, "read", fail(errno.EIO))
    with pytest.raises(BrokenInput, match=f"{source}: cannot be read: Input/output error"):
        cache.link_object(source, DIGEST, "copy", shared_store=True)

    assert not cache.has_object(DIGEST, len(DATA))


@pytest.mark.parametrize("code", [errno.EXDEV, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL, errno.EPERM])
def test_copying_needs_no_help_of_the_kernel(
    cache: Cache, source: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    """Without copy_file_range the bytes go through a buffer, larger than which a file may be."""
    data = os.urandom(3 * 2**20 + 17)
    source.write_bytes(data)
    monkeypatch.setattr(os, "copy_file_range", fail(code))

    result = cache.link_object(source, digest_of(data), "copy", shared_store=False)

    assert result.path.read_bytes() == data


def test_a_copy_goes_on_where_the_kernel_stopped(cache: Cache, source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy_file_range that fails half-way, or says the end too early, does not cost or repeat a byte."""
    real = os.copy_file_range
    calls: list[int] = []

    def stops(source: int, dest: int, count: int) -> int:
        calls.append(count)
        return real(source, dest, 1000) if len(calls) == 1 else 0

    monkeypatch.setattr(os, "copy_file_range", stops)

    result = cache.link_object(source, DIGEST, "copy", shared_store=False)

    assert len(calls) == 2
    assert result.path.read_bytes() == DATA


@pytest.mark.parametrize("size", [10, len(DATA) + 10])
def test_a_source_that_changes_is_refused(
    cache: Cache, source: Path, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    """A file that shrinks or grows while it is copied is an error that names it; nothing stays behind."""

    def changes(*_: Any) -> int:
        os.truncate(source, size)
        return 0

    monkeypatch.setattr(os, "copy_file_range", changes)

    with pytest.raises(BrokenInput, match="changed while it was copied") as caught:
        cache.link_object(source, DIGEST, "copy", shared_store=False)

    assert caught.value.data["where"] == str(source)
    assert not cache.object_path(DIGEST).exists()
    assert list(cache.root.staging.iterdir()) == []


def test_a_link_of_another_size_is_refused(cache: Cache, source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A clone that does not have the size the source had is no object."""
    monkeypatch.setattr(fcntl, "ioctl", lambda *_: 0)

    with pytest.raises(BrokenInput, match="changed while it was copied"):
        cache.link_object(source, DIGEST, "reflink", shared_store=True)

    assert not cache.object_path(DIGEST).exists()


@pytest.mark.parametrize(
    ("name", "shares"),
    [("model.safetensors", True), ("config.json", False), ("weights.bin", False)],
)
def test_what_a_consumer_may_rewrite_gets_its_own_inode(cache: Cache, name: str, *, shares: bool) -> None:
    """Weights of a tree share the object's inode at any size; a rewritten config leaves the object alone."""
    path = add_object(cache, DATA)
    with cache.staging() as folder:
        placed = cache.place_file(path, folder / "tree" / "deep" / name, is_small(name, len(DATA)))

        assert shares == (placed.how == "hardlink")
        assert shares == (placed.path.stat().st_ino == path.stat().st_ino)
        assert placed.path.read_bytes() == DATA


@pytest.mark.parametrize(
    ("path", "size", "small"),
    [
        ("config.json", 10, True),
        ("config.json", SMALL_FILE - 1, True),
        ("tokenizer.json", SMALL_FILE, False),
        ("a/model.safetensors", 10, False),
        ("model.safetensors.index.json", 10, True),
    ],
)
def test_what_is_small(path: str, size: int, *, small: bool) -> None:
    """Under 64 MiB and no safetensors: 67108864 bytes is the first size that is linked."""
    assert SMALL_FILE == 67108864
    assert small == is_small(path, size)


@pytest.mark.parametrize("code", [errno.EMLINK, errno.EPERM, errno.EXDEV, errno.ENOSYS, errno.EOPNOTSUPP])
def test_placing_falls_back_to_a_copy(cache: Cache, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    """An object with no link left to give, or a filesystem without links, costs a copy and nothing else."""
    path = add_object(cache, DATA)
    monkeypatch.setattr(os, "link", fail(code))
    with cache.staging() as folder:
        placed = cache.place_file(path, folder / "tree" / "m.safetensors", small=False)

        assert placed.how == "copy"
        assert placed.path.read_bytes() == DATA
        cache.place_file(path, folder / "tree" / "n.safetensors", small=False)
    assert cache.notes == [f"{cache.root.path}: no hardlinks here, so the tree takes the room of its weights once more"]


def test_an_object_that_vanishes_means_again(cache: Cache) -> None:
    """An object collected at this very moment is no bug: the same command works the next time."""
    path = add_object(cache, DATA)
    path.unlink()
    with cache.staging() as folder, pytest.raises(TryAgain) as caught:
        cache.place_file(path, folder / "m.safetensors", small=False)

    assert caught.value.code == "object-gone"


def test_an_object_with_no_name_left_to_give_is_named(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is that file alone that takes its room once more, not the filesystem that has no links."""
    path = add_object(cache, DATA)
    monkeypatch.setattr(os, "link", fail(errno.EMLINK))
    monkeypatch.setattr(os, "pathconf", lambda *_: path.stat().st_nlink)
    with cache.staging() as folder:
        cache.place_file(path, folder / "tree" / "m.safetensors", small=False)
    [note] = cache.notes
    assert note == f"{path}: has as many names as its filesystem allows, so the tree takes its room once more"
