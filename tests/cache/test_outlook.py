"""Whether files can be linked is found by linking one, and what is found is what linking then does."""

from __future__ import annotations

import errno
import fcntl
import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from support.children import (
    NOBODY,
    as_plain_user,
    in_child,
    mount_again,
    mount_read_only,
    mount_tmpfs,
    open_to_all,
    own_mounts,
)

from overlay.cache import SMALL_FILE, Cache, CacheRoot, links
from overlay.cache.links import ways, ways_into_tree
from overlay.cache.outlook import LinkOutlook, link_outlook, outlook_within, sample_of, scratch

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.no_torch

STORE = ("reflink", "hardlink", "copy")


def fail(code: int) -> Callable[..., Any]:
    def function(*_: Any, **__: Any) -> Any:
        raise OSError(code, os.strerror(code))

    return function


def reflink_by_copying(dest: int, _: int, source: int) -> int:
    return os.pwrite(dest, os.pread(source, 100, 0), 0)


@pytest.fixture
def root(tmp_path: Path) -> CacheRoot:
    return Cache.open(tmp_path / "root", create=True).root


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "hub/blobs/blob"
    path.parent.mkdir(parents=True)
    path.write_bytes(b"x" * 100)
    return path


@pytest.mark.parametrize(
    ("mode", "shared_store", "size", "expected"),
    [
        ("auto", True, SMALL_FILE, ("reflink", "hardlink", "copy")),
        ("auto", True, SMALL_FILE - 1, ("reflink", "copy")),
        ("auto", False, SMALL_FILE, ("reflink", "copy")),
        ("hardlink", False, 1, ("hardlink",)),
        ("reflink", True, 1, ("reflink",)),
        ("copy", True, SMALL_FILE, ("copy",)),
    ],
)
def test_what_may_come_in_how(mode: Any, shared_store: bool, size: int, expected: tuple[str, ...]) -> None:  # noqa: FBT001 - a column
    """By themselves hardlinks are made of large files of a store only; what is asked for is all that is done."""
    assert ways(mode, shared_store=shared_store, size=size) == expected


@pytest.mark.parametrize(
    ("path", "small", "expected"),
    [
        ("a/model.safetensors", False, ("hardlink", "reflink", "copy")),
        ("a/config.json", True, ("reflink", "copy")),
        ("a/huge.json", False, ("reflink", "hardlink", "copy")),
    ],
)
def test_what_may_go_into_a_tree_how(path: str, small: bool, expected: tuple[str, ...]) -> None:  # noqa: FBT001 - a column
    """Our own safetensors share their inode; what a program may rewrite never does."""
    assert ways_into_tree(path, small=small) == expected


@pytest.mark.parametrize(
    ("mode", "shared_store", "large", "works", "expected"),
    [
        ("auto", True, True, {"reflink", "link"}, ("reflink", "")),
        ("auto", True, True, {"link"}, ("hardlink", "reflink: ")),
        ("auto", True, True, set(), ("copy", "hardlink: ")),
        ("auto", True, False, {"reflink", "link"}, ("reflink", "")),
        ("auto", True, False, {"link"}, ("copy", "reflink: ")),
        ("auto", False, True, {"link"}, ("copy", "reflink: ")),
        ("hardlink", False, False, {"link"}, ("hardlink", "")),
        ("hardlink", True, True, set(), (None, "hardlink: ")),
        ("reflink", True, True, {"link"}, (None, "reflink: ")),
        ("copy", True, True, {"reflink", "link"}, ("copy", "")),
    ],
)
def test_the_outlook_is_what_linking_does(
    root: CacheRoot,
    source: Path,
    monkeypatch: pytest.MonkeyPatch,
    mode: Any,
    works: set[str],
    expected: tuple[str | None, str],
    *,
    shared_store: bool,
    large: bool,
) -> None:
    """The plan's word on links equals what the run then does, and says what did not work."""
    monkeypatch.setattr(links, "SMALL_FILE", 100 if large else 101)
    monkeypatch.setattr(fcntl, "ioctl", reflink_by_copying if "reflink" in works else fail(errno.EOPNOTSUPP))
    if "link" not in works:
        monkeypatch.setattr(os, "link", fail(errno.EXDEV))
    how, why = expected

    outlook = link_outlook(root, source, ways(mode, shared_store=shared_store, size=100))

    assert (how, True) == (outlook.how, outlook.tried)
    assert why in outlook.why
    assert bool(why) == bool(outlook.why)
    assert source.stat().st_nlink == 1
    assert list(root.staging.iterdir()) == []
    if how is not None:
        cache = Cache.open(root.path, create=False)
        assert how == cache.link_object(source, "sha256:" + "0" * 64, mode, shared_store=shared_store).how


@pytest.mark.parametrize("code", [errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.EACCES, errno.EIO])
def test_a_network_like_source_is_copied_and_the_system_says_why(
    root: CacheRoot, source: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    """FAT, SMB and FUSE answer one of these where a file would be linked."""
    monkeypatch.setattr(os, "link", fail(code))
    monkeypatch.setattr(fcntl, "ioctl", fail(errno.EOPNOTSUPP))

    outlook = link_outlook(root, source, STORE)

    assert outlook.how == "copy"
    assert outlook.why.endswith(f"hardlink: {os.strerror(code)} ({errno.errorcode[code]})")
    assert link_outlook(root, source, ("hardlink",)).how is None


def with_mounts(work: Callable[[], Any]) -> Any:
    """What the work gives in a child with mounts of its own."""

    def mounted() -> Any:
        return work() if own_mounts() else None

    outcome = in_child(mounted)
    if outcome is None:
        pytest.skip("the kernel lets this user have no mounts of its own")
    return outcome


def test_two_mounts_of_one_disk_are_seen_though_the_device_is_the_same(tmp_path: Path) -> None:
    """A container gets the Hub's cache and the root as two bind mounts: equal numbers, and no hardlink."""
    for name in ("disk/hub", "disk/root", "hub", "root"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "disk/hub/blob").write_bytes(b"x")

    def work() -> Any:
        for name in ("hub", "root"):
            mount_again(tmp_path / "disk" / name, tmp_path / name)
        root = Cache.open(tmp_path / "root", create=True).root
        same = (tmp_path / "hub/blob").stat().st_dev == root.path.stat().st_dev
        return same, link_outlook(root, tmp_path / "hub/blob", ("hardlink", "copy"))

    same, outlook = with_mounts(work)
    assert same
    assert outlook == LinkOutlook("copy", "hardlink: another mount or project quota of one disk (EXDEV)")
    beside = link_outlook(CacheRoot(tmp_path / "disk/root"), tmp_path / "disk/hub/blob", ("hardlink", "copy"))
    assert beside == LinkOutlook("hardlink", "")


def test_a_root_on_a_tmpfs_is_another_filesystem(tmp_path: Path, source: Path) -> None:
    """Memory shares no inode with a disk, while files within it are linked."""
    (tmp_path / "memory").mkdir()

    def work() -> Any:
        mount_tmpfs(tmp_path / "memory", "1m")
        root = Cache.open(tmp_path / "memory/root", create=True).root
        return link_outlook(root, source, ("hardlink", "copy")), outlook_within(root, ("hardlink", "copy"))

    from_disk, within = with_mounts(work)
    assert from_disk == LinkOutlook("copy", "hardlink: another filesystem (EXDEV)")
    assert within == LinkOutlook("hardlink", "")


def test_a_source_that_is_mounted_read_only(root: CacheRoot, source: Path) -> None:
    """A baked image layer, a shared volume: files of it cannot be hardlinked."""

    def work() -> Any:
        mount_read_only(source.parent)
        outlook = link_outlook(root, source, ("hardlink", "copy"))
        made = Cache.open(root.path, create=False).link_object(source, "sha256:" + "0" * 64, "auto", shared_store=True)
        return outlook, made.how

    outlook, how = with_mounts(work)
    assert outlook == LinkOutlook("copy", "hardlink: another mount or project quota of one disk (EXDEV)")
    assert how in ("reflink", "copy")  # blocks are shared between mounts too, where the filesystem can


def test_files_of_another_owner_are_protected(plain_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A blob that this user may read and not write is not hardlinked by it; the owner is named. One's own is."""
    theirs, ours = plain_folder / "theirs", plain_folder / "hub/ours"
    theirs.write_bytes(b"x")
    theirs.chmod(0o644)
    ours.parent.mkdir()
    ours.write_bytes(b"x")
    is_root = os.geteuid() == 0
    is_real = is_root and Path("/proc/sys/fs/protected_hardlinks").read_text().strip() == "1"
    if is_root:
        os.chown(ours, NOBODY, NOBODY)
    open_to_all(plain_folder)
    owner = theirs.stat().st_uid
    if not is_real:
        real = os.link
        monkeypatch.setattr(
            os, "link", lambda a, b, **named: fail(errno.EPERM)() if Path(a) == theirs else real(a, b, **named)
        )
    if not is_root:
        monkeypatch.setattr(os, "geteuid", lambda: owner + 1)

    def work() -> Any:
        root = CacheRoot(plain_folder / "root")
        return link_outlook(root, theirs, ("hardlink", "copy")), link_outlook(root, ours, ("hardlink", "copy"))

    of_theirs, of_ours = as_plain_user(work)
    assert of_ours == LinkOutlook("hardlink", "")
    assert of_theirs.how == "copy"
    assert f"belongs to uid {owner}" in of_theirs.why
    assert "protected_hardlinks" in of_theirs.why


def test_the_smallest_file_beside_it_stands_for_a_file(source: Path) -> None:
    """Of the same owner and mode, neither empty nor a link; alike are those files, and no others."""
    folder = source.parent
    for name, size, mode in (("small", 3, 0o644), ("private", 2, 0o600), ("empty", 0, 0o644)):
        (folder / name).write_bytes(b"x" * size)
        (folder / name).chmod(mode)
    source.chmod(0o644)
    (folder / "link").symlink_to("small")

    sample, alike = sample_of(source)

    assert sample == folder / "small"
    assert sample_of(folder / "small")[1] == alike
    assert sample_of(folder / "private")[0] == folder / "private"
    assert sample_of(folder / "private")[1] != alike


def test_a_file_of_many_links_stands_for_itself(source: Path) -> None:
    """Whether it may have one more is told by no other file."""
    (source.parent / "small").write_bytes(b"x")
    names = source.parent.parent / "names"
    names.mkdir()
    for number in range(1000):
        (names / str(number)).hardlink_to(source)

    assert sample_of(source)[0] == source
    assert sample_of(source.parent / "small")[0] == source.parent / "small"


def test_nothing_can_be_tried_where_nothing_can_be_written(plain_folder: Path, source: Path) -> None:
    """That is no answer about links; the first write says what is wrong."""
    (plain_folder / "closed").mkdir(mode=0o555)
    source.chmod(0o644)

    outlook = as_plain_user(lambda: link_outlook(CacheRoot(plain_folder / "closed/root"), source, STORE))

    assert (outlook.how, outlook.tried) == (None, False)
    assert "Permission denied" in outlook.why


def test_what_a_killed_probe_left_goes_with_the_next_one(tmp_path: Path, source: Path) -> None:
    """Where there is no root yet, nothing else would collect it."""
    root = CacheRoot(tmp_path / "place/root")
    root.path.parent.mkdir()

    def killed() -> None:
        with scratch(root) as folder:
            os.link(source, folder / "probe")
            os.kill(os.getpid(), signal.SIGKILL)

    assert in_child(killed) == signal.SIGKILL
    assert len(list(root.path.parent.iterdir())) == 1
    link_outlook(root, source, STORE)
    assert list(root.path.parent.iterdir()) == []
    assert source.stat().st_nlink == 1
