"""What the disk refuses is said with the root, the operation, the numbers, and what to do."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from support.caches import LOCATION, TREE, add_object, build, digest_of, key_of
from support.children import as_plain_user, in_child, mount_read_only, mount_tmpfs, own_mounts

from overlay.cache import Cache, CacheRoot, cannot_write, choose_root, free_room, writing
from overlay.errors import CannotWrite, NotHere

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.no_torch


def fail(code: int, name: str) -> Callable[..., Any]:
    def function(*_: Any, **__: Any) -> Any:
        raise OSError(code, os.strerror(code), name)

    return function


@pytest.mark.parametrize(
    ("number", "code", "advice"),
    [
        (errno.ENOSPC, "no-room", "overlay cache gc"),
        (errno.EDQUOT, "quota-exceeded", "quota"),
        (errno.EROFS, "read-only", "mount it so that it can be written"),
        (errno.EACCES, "not-permitted", "run as a user who may"),
        (errno.EPERM, "not-permitted", "run as a user who may"),
        (errno.EXDEV, "other-filesystem", "one filesystem"),
        (errno.ENOSYS, "operation-missing", "a local disk"),
        (errno.EOPNOTSUPP, "operation-missing", "a local disk"),
        (errno.EMLINK, "too-many-links", "--link copy"),
        (errno.EIO, "disk-error", "dmesg"),
    ],
)
def test_h24_each_refusal_has_its_advice(tmp_path: Path, number: int, code: str, advice: str) -> None:
    """Every error of the system becomes one that names root, operation, cause, advice, and the variable to change."""
    root = CacheRoot(tmp_path, "SGLANG_DIFFUSION_CACHE_ROOT")

    with pytest.raises(CannotWrite) as caught, writing(root, "ftruncate a shard"):
        raise OSError(number, os.strerror(number), "/some/file")

    error = caught.value
    assert str(error).startswith(f"{tmp_path}: ftruncate a shard: {os.strerror(number)}")
    assert code == error.code
    assert error.exit_status == 4
    assert advice in error.hint
    assert "OVERLAY_CACHE_ROOT" in error.hint
    assert "comes from SGLANG_DIFFUSION_CACHE_ROOT" in error.hint
    assert error.data["path"] == "/some/file"
    assert error.data["operation"] == "ftruncate a shard"
    assert ("free" in error.data) == (number == errno.ENOSPC)


def test_errors_of_our_own_pass(tmp_path: Path) -> None:
    """An error that already says what to do is not wrapped, although it is an OSError too."""
    with pytest.raises(NotHere), writing(CacheRoot(tmp_path), "x"):
        raise NotHere("x", code="x")


def test_an_error_without_a_number(tmp_path: Path) -> None:
    """Even a bare OSError gives a whole message."""
    error = cannot_write(OSError("odd"), CacheRoot(tmp_path), "read")

    assert str(error) == f"{tmp_path}: read: odd"
    assert error.data["errno"] == "unknown"


@pytest.mark.parametrize(
    ("function", "step"),
    [("rename", "publish"), ("replace", "adopt"), ("mkdir", "stage"), ("fsync", "adopt"), ("symlink", "swing")],
)
@pytest.mark.parametrize("number", [errno.ENOSYS, errno.EPERM, errno.EROFS, errno.EDQUOT])
def test_h24_a_missing_operation_stops_the_build(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, function: str, step: str, number: int
) -> None:
    """A root without rename, mkdir or symlink is named with the operation; nothing is published, nothing stays."""
    cache = Cache.open(tmp_path, create=True)
    monkeypatch.setattr(os, "link", fail(number, ""))
    monkeypatch.setattr(os, function, fail(number, ""))
    if (function, number) == ("fsync", errno.ENOSYS):
        build(tmp_path)  # a filesystem that cannot sync is used as it is
        return

    with pytest.raises(CannotWrite, match=str(tmp_path)) as caught:
        build(tmp_path)

    assert caught.value.data["errno"] == errno.errorcode[number]
    assert cache.location_target(LOCATION) is None
    if step != "swing":
        assert not cache.tree_path(TREE).exists()
    assert not cache.root.staging.exists() or list(cache.root.staging.iterdir()) == []


def test_h22_room_is_asked_for_before_the_start(tmp_path: Path) -> None:
    """More than there is free is refused with needed, free, where, and the variable; a root need not exist."""
    root = tmp_path / "not" / "yet"
    cache = Cache.open(root, create=False, decided_by="OVERLAY_CACHE_ROOT")
    free = free_room(root)

    cache.require_room(free // 2)
    with pytest.raises(CannotWrite, match=r"needed, .* GB free") as caught:
        cache.require_room(10**18)

    data = caught.value.data
    assert (data["needed"], data["where"], data["decided_by"]) == (10**18, str(root), "OVERLAY_CACHE_ROOT")
    assert 0 < data["free"] < 10**18
    assert caught.value.code == "no-room"
    assert not root.exists()


def test_h22_no_room_in_the_middle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that fills up while an input is copied: an error with the free bytes, and no half file anywhere.

    On a real filesystem of 1 MiB where this process may mount one, else with a copy that fails like one.
    """
    source = tmp_path / "big.safetensors"
    source.write_bytes(os.urandom(2 * 2**20))
    root = tmp_path / "root"
    root.mkdir()

    def work() -> tuple[str, dict[str, Any], list[str], bool]:
        if own_mounts():
            mount_tmpfs(root, "1m")
        else:
            monkeypatch.setattr(os, "copy_file_range", fail(errno.ENOSPC, str(source)))
        cache = Cache.open(root, create=True)
        add_object(cache, b"small")
        try:
            cache.link_object(source, "sha256:" + "0" * 64, "copy", shared_store=False)
        except CannotWrite as error:
            left = [path.name for path in cache.root.staging.rglob("*")]
            return error.code, error.data, left, cache.has_object(digest_of(b"small"), 5)
        raise AssertionError("2 MiB fit into 1 MiB")

    code, data, left, earlier_work = in_child(work)

    assert code == "no-room"
    assert data["where"] == str(root)
    assert data["free"] >= 0
    assert left == []
    assert earlier_work


def test_a_hit_on_a_read_only_root(tmp_path: Path) -> None:
    """Looking up trees, locations, objects and actions works on a read-only mount; writing there says so."""
    root = tmp_path / "root"
    build(root)
    key = key_of("config.json" + digest_of(b'{"one": 1}'))

    def work() -> tuple[Any, ...] | None:
        if not own_mounts():
            return None
        mount_read_only(root)
        for create in (False, True):
            cache = Cache.open(root, create=create)
        found = cache.location_target(LOCATION), cache.find_action(key), list(cache.notes)
        cache.swing_location(LOCATION, TREE)
        codes = []
        for attempt in (
            lambda: add_object(cache, b"new"),
            lambda: cache.put_action(key, {}),
            lambda: cache.swing_location("other", TREE),
        ):
            try:
                attempt()
            except CannotWrite as error:
                codes.append(error.code)
        with cache.lock("new", timeout=0) as held:
            return found, codes, held

    outcome = in_child(work)
    if outcome is None:
        pytest.skip("may not mount; the same is tested with permissions")
    assert outcome == (
        (root / ".overlay/trees" / TREE, {"digest": digest_of(b'{"one": 1}'), "size": 10}, []),
        ["read-only"] * 3,
        False,
    )


def test_h23_an_unwritable_home_is_named(tmp_path: Path) -> None:
    """A home where nothing can be made: the message has the root, and that HOME led there."""
    (tmp_path / "home").write_text("not a folder")
    chosen = choose_root(None, {"HOME": str(tmp_path / "home")})

    with pytest.raises(CannotWrite) as caught:
        Cache.open(chosen.path, create=True, decided_by=chosen.decided_by)

    assert str(tmp_path / "home/.cache/sgl_diffusion") in str(caught.value)
    assert "comes from HOME" in caught.value.hint


def test_h23_a_home_of_somebody_else_is_named(plain_folder: Path) -> None:
    """A home that this user may not write in, or not even look into, leads to the same message."""

    def work() -> tuple[str, str, int]:
        home = plain_folder / "home"
        home.mkdir()
        home.chmod(0o500)
        chosen = choose_root(None, {"HOME": str(home)})
        with pytest.raises(CannotWrite) as caught:
            Cache.open(chosen.path, create=True, decided_by=chosen.decided_by)
        home.chmod(0)
        room = free_room(chosen.path)
        home.chmod(0o700)
        return caught.value.code, caught.value.hint, room

    code, hint, room = as_plain_user(work)

    assert code == "not-permitted"
    assert "comes from HOME" in hint
    assert room > 0


def test_free_room_is_what_the_system_says() -> None:
    """Free room counts what this user may write."""
    room = os.statvfs("/proc")

    assert room.f_bavail * room.f_frsize == free_room(Path("/proc"))
