"""Modes come from the umask and from a root that its group shares; plain users read, hit and are refused plainly."""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING, Any

import pytest
from support.caches import FILES, LOCATION, TREE, add_object, build, digest_of, is_whole
from support.children import as_plain_user, in_child

from overlay.cache import Cache
from overlay.cache.tensors import TensorDigests
from overlay.errors import CannotWrite
from overlay.fingerprint import BLOCK, DigestMemo, file_digests

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = pytest.mark.no_torch

GROUP = 65533


def modes(root: Path) -> tuple[set[int], set[int]]:
    """Modes of the folders below a root, and of the files."""
    folders, files = set(), set()
    for path in root.rglob("*"):
        mode = path.lstat().st_mode
        if stat.S_ISDIR(mode):
            folders.add(stat.S_IMODE(mode))
        elif stat.S_ISREG(mode):
            files.add(stat.S_IMODE(mode))
    return folders, files


@pytest.mark.parametrize(
    ("umask", "of_root", "folder", "file"),
    [
        (0o022, 0o755, 0o755, 0o644),
        (0o077, 0o700, 0o700, 0o600),
        (0o077, 0o755, 0o700, 0o600),
        (0o002, 0o755, 0o775, 0o664),
        (0o000, 0o777, 0o777, 0o666),
        (0o022, 0o2755, 0o2755, 0o644),
        (0o022, 0o2775, 0o2775, 0o664),
        (0o077, 0o2770, 0o2770, 0o660),
        (0o022, 0o775, 0o775, 0o664),
    ],
    ids=lambda mode: f"{mode:o}",
)
def test_modes(tmp_path: Path, umask: int, of_root: int, folder: int, file: int) -> None:
    """Everything made has the umask's modes, setgid passes down, and a root that its group may write stays so."""
    root = tmp_path / "root"
    root.mkdir()
    root.chmod(of_root)

    def work() -> tuple[set[int], set[int]]:
        os.umask(umask)
        build(root)
        with Cache.open(root, create=True).lock("x", timeout=0):
            return modes(root)

    folders, files = in_child(work)

    assert {folder} == folders
    assert {file} == files
    assert of_root == stat.S_IMODE(root.stat().st_mode)


def test_no_chmod_is_fatal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A filesystem that refuses every chmod costs the group's bits and nothing else."""
    root = tmp_path / "root"
    root.mkdir()
    root.chmod(0o2775)

    def chmod(*_: object, **__: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "chmod", chmod)

    assert build(root).result == "built"


def test_another_user_has_a_hit(plain_folder: Path) -> None:
    """A root that belongs to somebody else and may only be read is as good as one's own, on a hit."""
    root = plain_folder / "root"
    build(root)
    for path in (root, *root.rglob("*")):
        if not path.is_symlink():
            path.chmod(0o555 if path.is_dir() else 0o444)

    def work() -> tuple[object, ...]:
        cache = Cache.open(root, create=True)
        target = cache.location_target(LOCATION)
        with pytest.raises(CannotWrite) as caught:
            add_object(cache, b"new")
        with pytest.raises(CannotWrite, match="staging"):
            cache.swing_location("other", TREE)
        return target, is_whole(cache.location_path(LOCATION)), caught.value.code, cache.notes

    outcome = as_plain_user(work)

    assert outcome == (root / ".overlay/trees" / TREE, True, "not-permitted", [])


def test_a_poisoned_entry_that_cannot_be_dropped(plain_folder: Path) -> None:
    """On a root of somebody else a bad entry is a miss with a note, not an error."""
    root = plain_folder / "root"
    build(root)
    entry = next((root / ".overlay/actions").glob("*/*.json"))
    entry.write_text("poison")
    entry.parent.chmod(0o555)

    def work() -> tuple[object, int]:
        cache = Cache.open(root, create=False)
        return cache.find_action(entry.stem), len(cache.notes)

    outcome = as_plain_user(work)

    assert outcome == (None, 1)
    assert entry.exists()


@pytest.fixture
def group_root(plain_folder: Path) -> Path:
    """A root of a group whose members are those of :func:`as_member`."""
    root = plain_folder / "root"
    root.mkdir()
    try:
        os.chown(root, -1, GROUP)
        in_child(lambda: os.setresuid(65531, 65531, 65531))
    except PermissionError:
        pytest.skip("may not become two users")
    root.chmod(0o2775)
    build(plain_folder / "other")  # imports what is imported late: the members may not be able to read this Python
    return root


def as_member(uid: int, work: Callable[[], Any]) -> Any:
    """Run the work as one member of the group."""

    def become_and_work() -> Any:
        os.setgroups([GROUP])
        os.setresuid(uid, uid, uid)
        os.umask(0o022)
        return work()

    return in_child(become_and_work)


def test_users_of_one_group_share_a_root(group_root: Path) -> None:
    """What one member made, another adopts, links and extends."""

    def built_by(uid: int) -> str:
        def work() -> str:
            extra = {**FILES, f"{uid}.json": b"{}"}
            build(group_root, tree=f"tree-{uid}", location=f"at-{uid}", files=extra)
            return build(group_root).result

        return as_member(uid, work)

    assert [built_by(65531), built_by(65532)] == ["built", "adopted"]
    assert {path.stat().st_gid for path in group_root.rglob("*")} == {GROUP}


def test_users_of_one_group_share_what_is_remembered(group_root: Path, plain_folder: Path) -> None:
    """One member's digests of files are no obstacle to another's digests of tensors."""
    file = plain_folder / "weights"
    file.write_bytes(b"w")
    os.utime(file, (0, 0))

    def remember_file() -> None:
        DigestMemo(Cache.open(group_root, create=True).root.digests).remember_equal(file_digests(file), BLOCK)

    def remember_tensors() -> bool:
        root = Cache.open(group_root, create=True).root
        TensorDigests(root).keep(digest_of(b"w"), {(0, 1): digest_of(b"w")})
        return not TensorDigests(root).is_empty()

    as_member(65531, remember_file)

    assert list((group_root / ".overlay/digests").glob("*.equal"))
    assert as_member(65532, remember_tensors)
