"""A file that the system does not let be read is an error with its name and advice, wherever reading it fails."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING, Any

import pytest

from overlay.errors import BrokenInput, CannotWrite, NotHere, OverlayError, Refused
from overlay.fingerprint import DigestMemo, file_digest
from overlay.formats.files import Folder
from overlay.formats.os_errors import cannot_write

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = pytest.mark.no_torch

READERS: dict[str, Callable[[Path], object]] = {
    "small file": lambda path: Folder(path.parent).read_bytes(path.name),
    "range": lambda path: Folder(path.parent).read_range(path.name, 8, 8),
    "header": lambda path: Folder(path.parent).header(path.name),
    "digest": lambda path: file_digest(path, "sha256"),
    "memo": lambda path: DigestMemo(None).sha256(path),
}
CASES = [
    (errno.EIO, BrokenInput, "unreadable", "dmesg"),
    (errno.ESTALE, BrokenInput, "unreadable", "dmesg"),
    (errno.EMFILE, CannotWrite, "too-many-open-files", "ulimit -n"),
    (errno.ENFILE, CannotWrite, "too-many-open-files", "ulimit -n"),
    (errno.ENOMEM, CannotWrite, "out-of-memory", "--memory"),
    (errno.ELOOP, BrokenInput, "link-loop", "remove the link"),
    (errno.ENAMETOOLONG, BrokenInput, "name-too-long", "shorter"),
    (errno.EACCES, Refused, "unreadable", "ls -l"),
    (errno.ENOENT, NotHere, "no-such-file", "ls"),
]


def failing(number: int, real: Callable[..., Any], name: str, *, after: int) -> Callable[..., Any]:
    """A system call that fails for one file, or for every descriptor, from its ``after``-th call on."""
    calls = iter(range(10**6))

    def call(first: Any, *args: Any, **options: Any) -> Any:
        if (isinstance(first, int) or os.fspath(first).endswith(name)) and next(calls) >= after:
            raise OSError(number, os.strerror(number), *([] if isinstance(first, int) else [os.fspath(first)]))
        return real(first, *args, **options)

    return call


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize(("number", "kind", "code", "advice"), CASES)
@pytest.mark.parametrize("calls", [["open"], ["pread", "readv"]], ids=["open", "read"])
def test_each_failure_names_the_file(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    reader: str,
    number: int,
    kind: type[OverlayError],
    code: str,
    advice: str,
    calls: list[str],
) -> None:
    """Opening or reading: class, code, name and advice, never a bare OSError."""
    path = tmp_path / "weights.safetensors"
    path.write_bytes((2).to_bytes(8, "little") + b"{}" + bytes(64))
    for call in calls:
        monkeypatch.setattr(os, call, failing(number, getattr(os, call), path.name, after=0))

    with pytest.raises(OverlayError) as caught:
        READERS[reader](path)

    error = caught.value
    assert (type(error), error.code, error.data["where"]) == (kind, code, str(path))
    assert error.message.startswith(f"{path}: ")
    assert advice in (error.hint or "")


def test_a_disk_that_fails_in_the_middle_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second read of a file fails: the file is named, and no digest of its first part is given."""
    path = tmp_path / "large"
    path.write_bytes(bytes(3 * 2**20))
    monkeypatch.setattr(os, "readv", failing(errno.EIO, os.readv, path.name, after=1))

    with pytest.raises(BrokenInput, match=f"{path}: cannot be read: Input/output error"):
        file_digest(path, "sha256")


def test_names_that_no_filesystem_takes(tmp_path: Path) -> None:
    """A name of 300 characters is refused by the real system, too."""
    with pytest.raises(BrokenInput) as caught:
        Folder(tmp_path).read_bytes("a" * 300)

    assert caught.value.code == "name-too-long"


def test_a_failure_of_another_file_is_not_blamed_on_this_one(tmp_path: Path) -> None:
    """What fails inside with a file name of its own keeps it."""
    from overlay.formats.local import open_file

    (tmp_path / "one").touch()

    with pytest.raises(FileNotFoundError) as caught, open_file(tmp_path / "one"):
        (tmp_path / "other").read_bytes()

    assert caught.value.filename == str(tmp_path / "other")


@pytest.mark.parametrize(
    ("number", "hint"),
    [
        (errno.ENOSPC, "free some room there (collect), or move it"),
        (errno.EROFS, "mount it so that it can be written, because it is read-only now, or move it"),
        (errno.EBADF, "look at that disk, or move it"),
    ],
)
def test_the_place_adds_its_own_advice(number: int, hint: str) -> None:
    """What makes room is said only where room lacks; how the place is moved always."""
    error = cannot_write(OSError(number, "x"), "/place", "write", first="collect", elsewhere="move it", why="test")

    assert (error.message, error.hint) == ("/place: write: x", hint)
    assert (error.data["where"], error.data["why"]) == ("/place", "test")
