from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING, Any

import pytest
from support.fuse_files import Store

from overlay.errors import BrokenInput, CannotWrite, NotHere
from overlay.fingerprint import bytes_digest
from overlay.fusion import workers
from overlay.fusion.inputs import OpenInputs
from overlay.fusion.workers import Workers
from overlay.planning.outputs import Literal, OutputTensor, Zeros

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = pytest.mark.no_torch

TENSORS = [OutputTensor("a", "U8", (4,), (Literal(b"abcd"),)), OutputTensor("b", "U8", (4,), (Zeros(4),))]


def failing(code: int, *, after: int = 0) -> Callable[..., Any]:
    """A system call that fails with an errno, from its ``after``-th call on."""
    calls = iter(range(10**6))

    def call(descriptor: int, *args: Any) -> int:
        if next(calls) < after:
            return len(args[0])
        raise OSError(code, os.strerror(code))

    return call


@pytest.mark.parametrize("after", [0, 1, 2])
@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (errno.ENOSPC, "no-room"),
        (errno.EDQUOT, "quota-exceeded"),
        (errno.EIO, "disk-error"),
        (errno.EBADF, "write-failed"),
    ],
)
def test_h22_a_full_disk_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, expected: str, after: int
) -> None:
    """Whichever write fails, the error says where and what to do, and the partial file is gone."""
    monkeypatch.setattr(os, "pwrite", failing(code, after=after))
    with pytest.raises(CannotWrite, match="write: ") as caught:
        Store(tmp_path).build(TENSORS, tmp_path / "out", None)
    assert caught.value.code == expected
    assert caught.value.hint
    assert caught.value.data["where"] == str(tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("operation", ["ftruncate", "fsync"])
@pytest.mark.parametrize("code", [errno.ENOSYS, errno.EOPNOTSUPP])
def test_h24_a_filesystem_that_lacks_an_operation_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, operation: str, code: int
) -> None:
    """The message names the path and the operation, the hint a local root."""
    monkeypatch.setattr(os, operation, failing(code))
    with pytest.raises(CannotWrite, match=operation) as caught:
        Store(tmp_path).build(TENSORS, tmp_path / "out", None)
    assert caught.value.code == "operation-missing"
    assert "local" in str(caught.value.hint)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("code", "expected"),
    [(errno.EROFS, "read-only"), (errno.EACCES, "not-permitted"), (errno.ENOENT, "no-such-folder")],
)
def test_a_file_that_cannot_be_made_is_told_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, expected: str
) -> None:
    """Read-only, no permission and no folder each have their own code."""
    opened = os.open

    def refuse(path: Any, flags: int, *args: Any) -> int:
        if flags & os.O_CREAT:
            raise OSError(code, os.strerror(code))
        return opened(path, flags, *args)

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(CannotWrite) as caught:
        Store(tmp_path).build(TENSORS, tmp_path / "out", None)
    assert caught.value.code == expected


def test_an_existing_file_is_left_alone(tmp_path: Path) -> None:
    """Nothing is ever overwritten."""
    (tmp_path / "out").write_bytes(b"mine")
    with pytest.raises(CannotWrite) as caught:
        Store(tmp_path).build(TENSORS, tmp_path / "out", None)
    assert caught.value.code == "exists"
    assert (tmp_path / "out").read_bytes() == b"mine"


def test_short_writes_are_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A write that takes only some of the bytes goes on with the rest."""
    pwrite = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda fd, data, offset: pwrite(fd, bytes(data)[:3], offset))
    Store(tmp_path).build(TENSORS, tmp_path / "out", None)
    assert (tmp_path / "out").read_bytes().endswith(b"abcd" + bytes(4))


@pytest.mark.parametrize("code", [errno.ENOSYS, errno.EXDEV, errno.EPERM, errno.EINVAL, errno.EOPNOTSUPP, None])
@pytest.mark.parametrize("after", [0, 3])
def test_h24_where_the_kernel_cannot_copy_ranges_they_are_read_and_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int | None, after: int
) -> None:
    """Whether it refuses, stops in the middle or meets the end of the file (None): the same bytes and digests."""
    store = Store(tmp_path)
    [held] = store.put("in", bytes(range(200)))
    wanted = [OutputTensor("a", "U8", (200,), (held,))]
    whole = store.build(wanted, tmp_path / "whole", None)
    copy = os.copy_file_range

    def few(source: int, target: int, count: int, *offsets: int) -> int:
        if offsets[0] >= held.offset + after:
            if code is None:
                return 0
            raise OSError(code, os.strerror(code))
        return copy(source, target, 1, *offsets)

    monkeypatch.setattr(os, "copy_file_range", few)
    assert store.build(wanted, tmp_path / "out", None) == whole
    assert (tmp_path / "out").read_bytes() == (tmp_path / "whole").read_bytes()


def test_untouched_ranges_never_enter_this_process_but_for_their_digest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel copies them, and what has arrived is read back."""
    store = Store(tmp_path)
    [held] = store.put("in", bytes(range(200)))
    monkeypatch.setattr(OpenInputs, "read_into", failing(errno.EIO))
    built = store.build([OutputTensor("a", "U8", (200,), (held,))], tmp_path / "out", None)
    assert built.tensors[0].digest == built.tensors[0].source_digest == bytes_digest(bytes(range(200)), "xxh3_128")


def test_an_input_of_another_size_is_an_error(tmp_path: Path) -> None:
    """A source that grew or shrank since the plan was made is named, with both sizes."""
    store = Store(tmp_path)
    [held] = store.put("in", b"0123456789")
    (tmp_path / "in").write_bytes(b"0123")
    with pytest.raises(BrokenInput, match=r"org/in@000000000000/in: 4 bytes now, expected 23") as caught:
        store.build([OutputTensor("a", "U8", (10,), (held,))], tmp_path / "out", None)
    assert caught.value.code == "input-changed"
    assert not (tmp_path / "out").exists()


def test_an_input_that_shrinks_while_it_is_read_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading meets the end of the file: an error, never zeros or a hang."""
    store = Store(tmp_path)
    first, second = store.put("in", b"01234567", b"89abcdef")
    monkeypatch.setattr(os, "copy_file_range", failing(errno.ENOSYS))
    read = os.preadv

    def shrink(descriptor: int, buffers: list[memoryview], offset: int) -> int:
        count = read(descriptor, buffers, offset)
        (tmp_path / "in").write_bytes(b"")
        return count

    monkeypatch.setattr(os, "preadv", shrink)
    with pytest.raises(BrokenInput, match="0 bytes now, expected 29"):
        store.build(
            [OutputTensor("a", "U8", (8,), (first,)), OutputTensor("b", "U8", (8,), (second,))],
            tmp_path / "out",
            None,
            jobs=1,
        )
    assert not (tmp_path / "out").exists()


def test_a_disk_that_cannot_read_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An input/output error of the source names the file and the byte."""
    store = Store(tmp_path)
    [held] = store.put("in", b"01234567")
    monkeypatch.setattr(os, "copy_file_range", failing(errno.EIO))
    monkeypatch.setattr(os, "preadv", failing(errno.EIO))
    with pytest.raises(BrokenInput, match="cannot be read at byte 13") as caught:
        store.build([OutputTensor("a", "U8", (8,), (held,))], tmp_path / "out", None)
    assert caught.value.code == "unreadable"


def test_a_missing_input_is_not_here(tmp_path: Path) -> None:
    """An input that is gone has the status of something that must be fetched."""
    store = Store(tmp_path)
    [held] = store.put("in", b"01234567")
    (tmp_path / "in").unlink()
    with pytest.raises(NotHere):
        store.build([OutputTensor("a", "U8", (8,), (held,))], tmp_path / "out", None)
    assert not (tmp_path / "out").exists()


def test_an_interrupt_leaves_nothing(tmp_path: Path) -> None:
    """Ctrl-C between two units removes the partial file and ends the workers."""

    def interrupt(_: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Store(tmp_path).build(TENSORS, tmp_path / "out", None, progress=interrupt)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("jobs", "memory", "count"), [(2, 2**30, 2), (16, 2**30, 16), (64, 2**30, 17), (4, 1, 1), (4, 460 * 2**20, 2)]
)
def test_memory_bounds_the_workers(jobs: int, memory: int, count: int) -> None:
    """Scratch and buffers of all workers stay below the budget, down to one worker."""
    found = Workers(None, jobs, memory).count
    assert found == count
    taken = workers._OWN_MEMORY + found * (workers._WORKER_SCRATCH + workers._BUFFER)
    assert found == 1 or taken <= memory
