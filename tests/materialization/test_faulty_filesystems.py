"""Filesystems that lack an operation: the same tree by another way, or a plain refusal and nothing published."""

from __future__ import annotations

import errno
import itertools
import shutil
from typing import TYPE_CHECKING, Any

import pytest
from support.children import in_child
from support.faults import OPERATIONS, check_sound, fail_from, fail_operation, input_digests, objects_of
from support.models import VDN, options

from overlay.cache import Cache
from overlay.errors import OverlayError
from overlay.materialization.materialize import materialize
from overlay.materialization.verify import verify

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from conftest import Built
    from support.faults import Failing

    from overlay.materialization.request import Options

FALLS_BACK = {"link", "copy_file_range", "reflink", "flock"}
NUMBERS = (errno.ENOSYS, errno.EXDEV, errno.EPERM, errno.EOPNOTSUPP, errno.EINVAL)
USUAL = {"rename": errno.EXDEV, "link": errno.EPERM, "reflink": errno.EOPNOTSUPP, "symlink": errno.EPERM}
CODES = {
    errno.ENOSYS: "operation-missing",
    errno.EOPNOTSUPP: "operation-missing",
    errno.EINVAL: "operation-missing",
    errno.EXDEV: "other-filesystem",
    errno.EPERM: "not-permitted",
}


def rows() -> list[Any]:
    """Every operation with every errno, in a root that is new and in one that is there; the usual ones always run."""
    found = []
    for operation, number, there in itertools.product(OPERATIONS, NUMBERS, (False, True)):
        always = number == USUAL.get(operation, errno.ENOSYS) and (operation == "rename" or not there)
        name = f"{operation}-{errno.errorcode[number]}-{'old' if there else 'new'}"
        found.append(pytest.param(operation, number, there, id=name, marks=[] if always else pytest.mark.slow))
    return found


def attempt(chosen: Options, break_it: Callable[[], Failing]) -> tuple[int, Any]:
    """How often the fault was met, and the published tree's name or the error, of a run in a child of its own."""

    def work() -> tuple[int, Any]:
        failing = break_it()
        try:
            done = materialize(VDN, chosen)
        except OverlayError as error:
            return failing.hits, error
        assert done.path is not None
        return failing.hits, done.path.name

    return in_child(work)


def check_next_run(built: Built, chosen: Options, kept: dict[Path, tuple[int, int]]) -> None:
    """Without the fault the right tree comes about, and what had been finished is not made again."""
    done = materialize(VDN, chosen)
    assert done.path is not None
    assert done.path.name == built.tree.name
    assert verify(done.path, "full").ok
    assert chosen.cache_root is not None
    now = objects_of(chosen.cache_root)
    assert {path: now[path] for path in kept} == kept


@pytest.mark.parametrize(("operation", "number", "there"), rows())
def test_h24_an_operation_that_always_fails(
    shared_build: Built, tmp_path: Path, operation: str, number: int, *, there: bool
) -> None:
    """Either the very same tree, or status 4 that names operation, place and next step; nothing half-made is left."""
    root = tmp_path / "root"
    chosen = options(shared_build.hub, root)
    if there:
        Cache.open(root, create=True)
    before = input_digests(shared_build.hub.root)

    hits, outcome = attempt(chosen, lambda: fail_operation(operation, number))

    assert hits > 0
    check_sound(root)
    if operation in FALLS_BACK:
        assert outcome == shared_build.tree.name
    else:
        assert (outcome.exit_status, outcome.code) == (4, CODES[number])
        assert operation in outcome.message
        assert str(root) in outcome.message
        assert "--cache-root" in outcome.hint
        assert not list(root.glob("materialized_models/*"))
        assert not list(root.glob(".overlay/staging/*"))
        assert not list(root.rglob("*.tmp"))
    check_next_run(shared_build, chosen, objects_of(root))
    assert input_digests(shared_build.hub.root) == before


@pytest.mark.parametrize("operation", ["rename", "symlink"])
def test_h24_a_root_that_cannot_publish_is_refused_before_the_work(
    shared_build: Built, tmp_path: Path, operation: str
) -> None:
    """What publishing ends with is tried when the root is made, not found missing after hours of work."""
    chosen = options(shared_build.hub, tmp_path / "root")

    _, error = attempt(chosen, lambda: fail_operation(operation, errno.EPERM))

    assert operation in error.message
    assert not list((tmp_path / "root/.overlay").glob("objects/*"))


def test_h24_no_hardlinks_and_no_reflinks_at_all(shared_build: Built, tmp_path: Path) -> None:
    """A FAT or a cloud disk: everything is copied, the tree is the same, and shares no inode with the objects."""
    root = tmp_path / "root"

    def nothing_links() -> Failing:
        fail_operation("reflink", errno.EOPNOTSUPP)
        fail_operation("copy_file_range", errno.EXDEV)
        return fail_operation("link", errno.EPERM)

    hits, name = attempt(options(shared_build.hub, root), nothing_links)

    assert hits > 0
    assert name == shared_build.tree.name
    check_sound(root)
    inodes = {inode for inode, _ in objects_of(root).values()}
    assert not [path for path in (root / ".overlay/trees" / name).rglob("*") if path.stat().st_ino in inodes]


@pytest.mark.parametrize(
    ("number", "stride"),
    [
        pytest.param(errno.ENOSPC, 67, id="ENOSPC"),
        # A run has some 700 steps, most of a few kinds; the others differ from ENOSPC in what is said alone.
        pytest.param(errno.ENOSPC, 11, id="ENOSPC-often", marks=pytest.mark.slow),
        pytest.param(errno.EDQUOT, 47, id="EDQUOT", marks=pytest.mark.slow),
        pytest.param(errno.EIO, 53, id="EIO", marks=pytest.mark.slow),
    ],
)
@pytest.mark.timeout(900)
def test_h22_a_disk_that_refuses_from_any_step_on(
    shared_build: Built, tmp_path: Path, number: int, stride: int
) -> None:
    """Full, over quota or broken before the first, the tenth, the last step: status 4, and the work done is kept."""
    code = {errno.ENOSPC: "no-room", errno.EDQUOT: "quota-exceeded", errno.EIO: "disk-error"}[number]
    kept_some, step = 0, 0
    while True:
        root = tmp_path / f"root-{step}"
        chosen = options(shared_build.hub, root)
        hits, outcome = attempt(chosen, lambda step=step: fail_from(step, number))
        check_sound(root)
        if not hits:
            break
        if outcome != shared_build.tree.name:  # what only saves work may fail without a word
            assert (outcome.exit_status, outcome.code) == (4, code)
            assert str(root) in outcome.message
            assert outcome.hint
        kept = objects_of(root)
        kept_some += bool(kept)
        check_next_run(shared_build, chosen, kept)
        shutil.rmtree(root)
        step += stride
    assert kept_some > step // stride // 3
    assert step > 150
