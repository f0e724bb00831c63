"""The probes tell the truth about a filesystem, and leave nothing behind."""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from support.caches import TREE, build
from support.children import NOBODY, as_plain_user, in_child, mount_read_only, mount_tmpfs, own_mounts

from overlay.cache import Cache, CacheRoot
from overlay.cache import probe as module
from overlay.cache.probe import filesystem_of, probe_root

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.no_torch

NAMES = {
    "write",
    "reflink",
    "hardlink",
    "rename",
    "rename over existing",
    "symlink",
    "flock",
    "fsync",
    "ftruncate",
    "copy_file_range",
}


def fail(code: int) -> Callable[..., Any]:
    def function(*_: Any, **__: Any) -> Any:
        raise OSError(code, os.strerror(code))

    return function


def answers(root: CacheRoot, hub: Path | None = None) -> dict[str, tuple[bool | None, str]]:
    return {probe.name: (probe.ok, probe.why) for probe in probe_root(root, hub).probes}


@pytest.fixture
def root(tmp_path: Path) -> CacheRoot:
    return Cache.open(tmp_path / "root", create=True).root


def test_everything_is_tried(root: CacheRoot) -> None:
    """On an ordinary filesystem all works but, on some, shared blocks; a second time too."""
    for _ in range(2):
        found = answers(root)

        assert found.keys() == NAMES
        assert [name for name, (ok, _) in found.items() if not ok and name != "reflink"] == []
    assert list(root.staging.iterdir()) == []


def test_a_root_that_does_not_exist_stays_so(tmp_path: Path) -> None:
    """What is asked of a root that is not made yet is tried where it would be, and nothing is left there."""
    report = probe_root(CacheRoot(tmp_path / "not" / "yet", "OVERLAY_CACHE_ROOT"))

    assert (report.exists, report.decided_by) == (False, "OVERLAY_CACHE_ROOT")
    assert report.probes[0].ok
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("function", "name"),
    [
        ("link", "hardlink"),
        ("rename", "rename"),
        ("replace", "rename over existing"),
        ("symlink", "symlink"),
        ("copy_file_range", "copy_file_range"),
        ("fsync", "fsync"),
    ],
)
def test_h24_what_is_missing_is_named(
    root: CacheRoot, monkeypatch: pytest.MonkeyPatch, function: str, name: str
) -> None:
    """An operation that fails is a plain no with the system's words, and does not hide the others."""
    monkeypatch.setattr(os, function, fail(errno.ENOSYS))

    found = answers(root)

    assert found[name] == (False, "Function not implemented (ENOSYS)")
    assert found["ftruncate"][0]
    assert list(root.staging.iterdir()) == []


def test_h21_locks_that_do_nothing_are_seen(root: CacheRoot, monkeypatch: pytest.MonkeyPatch) -> None:
    """A flock that lets a second holder in is a no, though it never fails."""
    monkeypatch.setattr(fcntl, "flock", lambda *_: None)

    assert answers(root)["flock"] == (False, "two holders at once: locks do nothing here")


def test_reflinks_are_seen(root: CacheRoot, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the filesystem shares blocks, the answer is yes."""
    monkeypatch.setattr(fcntl, "ioctl", lambda *_: 0)

    assert answers(root)["reflink"] == (True, "")


def test_links_from_another_place(root: CacheRoot, tmp_path: Path) -> None:
    """A file of the given folder is linked for real, and that folder is left as it was, times of the file excepted."""
    hub = tmp_path / "hub"
    (hub / "blobs").mkdir(parents=True)
    assert answers(root, hub)["hardlink from hub"] == (None, f"no file under {hub} to try with")
    (hub / "blobs" / "big").write_bytes(b"x" * 1000)
    (hub / "blobs" / "small").write_bytes(b"x")
    (hub / "empty").touch()
    (hub / "snapshot").symlink_to("blobs/big")
    before = (hub / "blobs" / "big").stat().st_ctime_ns

    assert answers(root, hub)["hardlink from hub"] == (True, "")
    assert (hub / "blobs" / "small").stat().st_nlink == 1
    assert before == (hub / "blobs" / "big").stat().st_ctime_ns


def test_files_of_another_owner_are_tried_too(tmp_path: Path, plain_folder: Path) -> None:
    """A store filled by two users: an answer for this one's files, and one for those of the other."""
    if os.geteuid() != 0:
        pytest.skip("files of another owner are made by root only")
    hub = plain_folder / "hub"
    hub.mkdir()
    (hub / "mine").write_bytes(b"x")
    (hub / "theirs").write_bytes(b"x")
    os.chown(hub / "mine", NOBODY, NOBODY)
    (plain_folder / "place").mkdir()
    os.chown(plain_folder / "place", NOBODY, NOBODY)

    found = as_plain_user(lambda: answers(CacheRoot(plain_folder / "place/root"), hub))

    assert found["hardlink from hub"][0]
    if Path("/proc/sys/fs/protected_hardlinks").read_text().strip() == "1":
        assert found["hardlink from hub, of uid 0"][0] is False
        assert "belongs to uid 0" in found["hardlink from hub, of uid 0"][1]


def test_another_filesystem_is_seen(tmp_path: Path) -> None:
    """Between two filesystems there are no hardlinks, whatever their names; the mount is named."""
    (tmp_path / "hub").mkdir()
    (tmp_path / "hub" / "file").write_text("x")
    (tmp_path / "small root").mkdir()

    def work() -> Any:
        if not own_mounts():
            return None
        mount_tmpfs(tmp_path / "small root", "1m")
        root = Cache.open(tmp_path / "small root", create=True).root
        report = probe_root(root, tmp_path / "hub")
        return report.filesystem, {probe.name: probe for probe in report.probes}["hardlink from hub"]

    outcome = in_child(work)
    if outcome is None:
        pytest.skip("may not mount; the same is tested with a failing link")
    filesystem, hardlink = outcome
    assert (filesystem.kind, filesystem.mount_point) == ("tmpfs", str(tmp_path / "small root"))
    assert (filesystem.total, filesystem.read_only, filesystem.container_layer) == (2**20, False, False)
    assert (hardlink.ok, hardlink.why) == (False, "another filesystem (EXDEV)")


def test_a_read_only_root_says_so(tmp_path: Path) -> None:
    """On a read-only mount the answers are: not writable, and the rest unknown. No error, nothing touched."""
    build(tmp_path / "root")

    def work() -> Any:
        if not own_mounts():
            return None
        mount_read_only(tmp_path / "root")
        report = probe_root(CacheRoot(tmp_path / "root"), tmp_path)
        return report.filesystem.read_only, report.probes

    outcome = in_child(work)
    if outcome is None:
        pytest.skip("may not mount; the same is tested with permissions")
    read_only, probes = outcome
    assert read_only
    assert probes[0].ok is False
    assert "Read-only file system" in probes[0].why
    assert {probe.ok for probe in probes[1:]} == {None}
    assert {probe.name for probe in probes} == {*NAMES, "reflink from hub", "hardlink from hub"}


@pytest.mark.parametrize("mode", [0o555, 0o000])
def test_a_root_of_somebody_else_says_so(plain_folder: Path, mode: int) -> None:
    """A root that this user may not write, or not even enter, is an answer too."""
    build(plain_folder / "root")
    staging = plain_folder / "root/.overlay/staging"
    staging.chmod(0o555)
    (plain_folder / "root/.overlay").chmod(mode)

    probes = as_plain_user(lambda: probe_root(CacheRoot(plain_folder / "root")).probes)

    assert (probes[0].name, probes[0].ok) == ("write", False)
    assert "Permission denied" in probes[0].why


TABLE = rb"""22 1 0:21 / / rw,relatime - overlay overlay rw,lowerdir=/l
23 22 8:1 / /data rw,relatime shared:1 - xfs /dev/sda1 rw
24 22 8:2 / /data/my\040disk ro - ext4 /dev/sdb1 ro
25 23 0:30 / /data rw - nfs4 server:/x rw
26 22 0:31 / /merged rw - overlay overlay rw
"""


@pytest.mark.parametrize(
    ("place", "kind", "point", "layer"),
    [
        ("/root/.cache", "overlay", "/", True),
        ("/data/cache", "nfs4", "/data", False),
        ("/data/my disk/cache", "ext4", "/data/my disk", False),
        ("/database", "overlay", "/", True),
        ("/merged/x", "overlay", "/merged", False),
    ],
)
def test_the_mount_is_found(monkeypatch: pytest.MonkeyPatch, place: str, kind: str, point: str, *, layer: bool) -> None:
    """The deepest mount counts, the last of equal ones, by whole names; only a container's root is its own layer."""
    monkeypatch.setattr(module, "existing", lambda path: path)
    monkeypatch.setattr(Path, "read_bytes", lambda _: TABLE)
    monkeypatch.setattr(Path, "resolve", lambda path: path)
    monkeypatch.setattr(os, "statvfs", lambda _, real=os.statvfs: real("/"))

    found = filesystem_of(Path(place))

    assert (kind, point, layer) == (found.kind, found.mount_point, found.container_layer)


def test_without_proc_the_kind_is_unknown(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A missing mount table costs the name of the filesystem only."""
    monkeypatch.setattr(Path, "read_bytes", fail(errno.ENOENT))

    found = filesystem_of(tmp_path)

    assert found.kind == "unknown"
    assert 0 < found.free < found.total


def test_probing_a_root_in_use_leaves_it(tmp_path: Path) -> None:
    """A root with a materialization is the same afterwards."""
    build(tmp_path)
    before = set(tmp_path.rglob("*"))

    probe_root(CacheRoot(tmp_path), tmp_path / ".overlay/trees" / TREE)

    assert before == set(tmp_path.rglob("*"))
