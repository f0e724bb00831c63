"""Modes come from the umask and from a root that its group shares; plain users read, hit and are refused plainly."""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING

import pytest
from support.caches import FILES, LOCATION, TREE, add_object, build, is_whole
from support.children import as_plain_user, in_child

from overlay.cache import Cache
from overlay.errors import CannotWrite

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.no_torch


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


def test_users_of_one_group_share_a_root(plain_folder: Path) -> None:
    """What one member made, another adopts, links and extends."""
    root = plain_folder / "root"
    root.mkdir()
    try:
        os.chown(root, -1, 65533)
        in_child(lambda: os.setresuid(65531, 65531, 65531))
    except PermissionError:
        pytest.skip("may not become two users")
    root.chmod(0o2775)

    def as_member(uid: int) -> str:
        def work() -> str:
            os.setgroups([65533])
            os.setresuid(uid, uid, uid)
            os.umask(0o022)
            extra = {**FILES, f"{uid}.json": b"{}"}
            build(root, tree=f"tree-{uid}", location=f"at-{uid}", files=extra)
            return build(root).result

        return in_child(work)

    assert [as_member(65531), as_member(65532)] == ["built", "adopted"]
    assert {path.stat().st_gid for path in root.rglob("*")} == {65533}
