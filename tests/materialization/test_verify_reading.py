"""How verify reads: on several threads, by the fast digest where it is known, and what it remembers of it."""

from __future__ import annotations

import hashlib
import json
import os
import re
import threading
from typing import TYPE_CHECKING, Any

import pytest
from support.models import VDN, options, readable_by_all
from support.users import other_user

from overlay.cache.verified import last_verified, root_of
from overlay.fingerprint import BLOCK, DigestMemo, bytes_digest, digests, file_digest, memo
from overlay.fingerprint.entries import entry_bytes
from overlay.materialization import content
from overlay.materialization import verify as verify_module
from overlay.materialization.materialize import materialize
from overlay.materialization.record import RECORD_NAME, read_record
from overlay.materialization.repair import repair
from overlay.materialization.verify import verify

if TYPE_CHECKING:
    from pathlib import Path

    from conftest import Built


@pytest.fixture
def _all_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """Equal digests are kept of the tiny files of a test, too."""
    monkeypatch.setattr(memo, "BLOCK", 1)


@pytest.fixture
def hashed(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Files that were read by sha256 in a verify."""
    seen: list[Path] = []
    real = content.file_digests

    def counted(path: Path, progress: Any = None) -> digests.Digests:
        seen.append(path)
        return real(path, progress)

    monkeypatch.setattr(content, "file_digests", counted)
    return seen


def by_sha256(tree: Path) -> set[Path]:
    record = read_record(tree)
    assert record is not None
    return {tree / item.path for item in record.outputs if item.algorithm == "sha256"}


def entry_of(built: Built, digest: str) -> Path:
    return built.root / f".overlay/digests/{digest.removeprefix('sha256:')}.equal"


def carried(tree: Path) -> Path:
    """A weight file that the record knows by sha256."""
    return min(path for path in by_sha256(tree) if path.suffix == ".safetensors")


def rewrite(path: Path, data: bytes) -> None:
    path.unlink()
    path.write_bytes(data)


def sparse(folder: Path, size: int, digest: str | None = None) -> Path:
    """A folder with a record of one file of zeros."""
    path = folder / "weights.bin"
    with path.open("wb") as file:
        file.truncate(size)
    output = {"path": path.name, "size": size, "digest": digest or file_digest(path, "xxh3_128")}
    (folder / RECORD_NAME).write_text(json.dumps({"schema_version": 1, "outputs": [output]}))
    return path


@pytest.mark.usefixtures("_all_count")
def test_what_a_run_hashed_is_read_by_the_fast_digest(built: Built, tmp_path: Path, hashed: list[Path]) -> None:
    """The pass that takes the sha256 of an input takes both, so not even the first verify takes one."""
    root = tmp_path / "other"
    tree = materialize(VDN, options(built.hub, root)).path
    assert any(path.suffix == ".safetensors" for path in by_sha256(tree))
    assert verify(tree).ok
    assert [path for path in hashed if path.suffix == ".safetensors"] == []


@pytest.mark.usefixtures("_all_count")
def test_carried_files_are_read_by_sha256_once(built: Built, hashed: list[Path]) -> None:
    """Where their fast digest is not known yet; from then on it is."""
    tree = built.tree
    first = verify(tree)
    assert first.ok
    assert {path.stat().st_ino for path in hashed} == {path.stat().st_ino for path in by_sha256(tree)}
    hashed.clear()
    again = verify(tree)
    assert again == first
    assert hashed == []


def test_of_small_files_nothing_is_kept(built: Built) -> None:
    """Thousands of entries would save nothing."""
    assert verify(built.tree).ok
    assert list((built.root / ".overlay/digests").glob("*.equal")) == []


@pytest.mark.usefixtures("_all_count")
def test_level_sha256_reads_by_sha256_whatever_is_known(built: Built, hashed: list[Path]) -> None:
    """And what the record has no sha256 of, by what it has."""
    verify(built.tree)
    hashed.clear()
    found = verify(built.tree, "sha256")
    assert (found.ok, found.level) == (True, "sha256")
    assert {path.stat().st_ino for path in hashed} == {path.stat().st_ino for path in by_sha256(built.tree)}


@pytest.mark.usefixtures("_all_count")
def test_a_file_that_was_made_to_pass_is_found_by_sha256(built: Built) -> None:
    """Whoever may write into the root can make `full` believe another file, and the other level not."""
    path = carried(built.tree)
    assert verify(built.tree).ok
    sha256 = file_digest(path, "sha256")
    forged = bytes(reversed(path.read_bytes()))
    rewrite(path, forged)
    entry_of(built, sha256).write_bytes(entry_bytes(1, sha256, bytes_digest(forged, "xxh3_128")))
    assert verify(built.tree).ok
    [problem] = verify(built.tree, "sha256").problems
    assert built.tree / problem.path == path


@pytest.mark.usefixtures("_all_count")
def test_damage_found_by_the_fast_digest_is_told_by_that_of_the_record(built: Built) -> None:
    """Found and expected are of one kind, and can be checked by sha256sum."""
    verify(built.tree)
    path = carried(built.tree)
    expected = file_digest(path, "sha256")
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    rewrite(path, data)
    [problem] = verify(built.tree).problems
    assert (built.tree / problem.path, problem.kind) == (path, "content")
    found = f"sha256:{hashlib.sha256(data).hexdigest()}"
    assert re.findall(r"sha256:[0-9a-f]{64}", problem.what) == [found, expected]


@pytest.mark.usefixtures("_all_count")
def test_a_wrong_entry_is_no_damage_of_the_file(built: Built, hashed: list[Path]) -> None:
    """The record's own digest decides, and the entry is set right."""
    verify(built.tree)
    path = carried(built.tree)
    sha256 = file_digest(path, "sha256")
    entry = entry_of(built, sha256)
    right = entry.read_bytes()
    entry.write_bytes(entry_bytes(1, sha256, "xxh3_128:" + "0" * 32))
    hashed.clear()
    assert verify(built.tree).ok
    assert [place.stat().st_ino for place in hashed] == [path.stat().st_ino]
    assert entry.read_bytes() == right


def test_one_large_file_is_read_by_several_threads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its blocks wait for each other here, so one thread alone would never end."""
    sparse(tmp_path, 3 * BLOCK + 1)
    meeting = threading.Barrier(4, timeout=20)
    real = content.block_digest

    def meet(path: Path, start: int, nbytes: int) -> bytes:
        meeting.wait()
        return real(path, start, nbytes)

    monkeypatch.setattr(content, "block_digest", meet)
    found = verify(tmp_path, jobs=4)
    assert found.ok
    assert found.bytes_read == 3 * BLOCK + 1


@pytest.mark.parametrize("offset", [0, BLOCK - 1, BLOCK, 2 * BLOCK, 3 * BLOCK])
@pytest.mark.parametrize("jobs", [1, 4])
def test_a_changed_byte_in_any_block_is_found(tmp_path: Path, offset: int, jobs: int) -> None:
    """First and last of a block, first and only one of the last block."""
    path = sparse(tmp_path, 3 * BLOCK + 1)
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(b"\1")
    [problem] = verify(tmp_path, jobs=jobs).problems
    assert file_digest(path, "xxh3_128") in problem.what


def test_two_swapped_blocks_are_found(tmp_path: Path) -> None:
    """Each block is right, its place is not."""
    path = sparse(tmp_path, 2 * BLOCK)
    one, two = b"\1" * BLOCK, bytes(BLOCK)
    sparse(tmp_path, 2 * BLOCK, bytes_digest(one + two, "xxh3_128"))
    path.write_bytes(one + two)
    assert verify(tmp_path).ok
    path.write_bytes(two + one)
    assert not verify(tmp_path).ok


def test_a_file_that_vanishes_meanwhile_is_a_problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the look at its name and the reading of its bytes."""
    path = sparse(tmp_path, BLOCK)
    look = verify_module.quick_problems
    monkeypatch.setattr(verify_module, "quick_problems", lambda *given: (look(*given), path.unlink())[0])
    [problem] = verify(tmp_path).problems
    assert (problem.path, problem.kind) == (path.name, "unreadable")


def test_a_failure_of_the_caller_ends_the_reading(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An interrupted verify does not go on with what is left of 150 GB."""
    from contextlib import contextmanager

    sparse(tmp_path, 20 * BLOCK)
    read: list[Any] = []
    real = content.block_digest
    monkeypatch.setattr(content, "block_digest", lambda *block: (read.append(block), real(*block))[1])

    @contextmanager
    def phase(_label: str, _total: int) -> Any:
        def update(_nbytes: int) -> None:
            raise KeyboardInterrupt

        yield update

    with pytest.raises(KeyboardInterrupt):
        verify(tmp_path, jobs=1, phase=phase)
    assert len(read) < 20


def test_a_sound_tree_is_remembered_and_a_damaged_one_is_not(built: Built) -> None:
    """Full or by sha256, not quick; taken back when damage is found; never inside the tree."""
    root = root_of(built.tree)
    assert root is not None
    names = sorted(built.tree.rglob("*"))
    verify(built.tree, "quick")
    assert last_verified(root, built.tree) is None
    for level in ("full", "sha256"):
        verify(built.location, level)
        found = last_verified(root, built.tree)
        assert found is not None
        assert found.level == level
    assert sorted(built.tree.rglob("*")) == names
    path = built.tree / "tokenizer/merges.txt"
    rewrite(path, path.read_bytes()[:-1] + b"?")
    verify(built.tree, "quick")
    assert last_verified(root, built.tree) is not None
    assert not verify(built.tree).ok
    assert last_verified(root, built.tree) is None


def contents(folder: Path) -> dict[str, tuple[int, int]]:
    return {
        str(path): (path.lstat().st_ino, path.lstat().st_mtime_ns)
        for path in [folder, *folder.rglob("*")]
        if not path.is_symlink()
    }


@pytest.mark.usefixtures("_all_count")
def test_a_dry_repair_and_a_verify_that_must_not_remember_write_nothing(built: Built) -> None:
    """They read as much and leave the root as it was."""
    before = contents(built.root)
    assert [item.result for item in repair(options=built.options(), dry_run=True)] == ["sound"]
    assert verify(built.tree, remember=False).ok
    assert contents(built.root) == before
    assert [item.result for item in repair(options=built.options())] == ["sound"]
    root = root_of(built.tree)
    assert root is not None
    assert last_verified(root, built.tree) is not None


@pytest.mark.usefixtures("_all_count")
def test_a_root_that_cannot_be_written_is_verified(built: Built) -> None:
    """By sha256 each time, with the same outcome; what another user kept there is used."""
    readable_by_all(built.root)
    before = contents(built.root)
    with other_user():
        assert verify(built.tree).ok
        if os.geteuid() != 0:
            with pytest.raises(PermissionError):
                (built.root / ".overlay/probe").touch()
    assert contents(built.root) == before


def test_a_folder_that_is_no_tree_of_a_cache_is_left_as_it_is(tmp_path: Path) -> None:
    """What `overlay fuse` made, or a copy on another disk: read by what the record has, and nothing is written."""
    path = sparse(tmp_path, BLOCK)
    sparse(tmp_path, BLOCK, file_digest(path, "sha256"))
    before = contents(tmp_path)
    assert verify(tmp_path).ok
    assert contents(tmp_path) == before


def test_a_root_of_a_newer_layout_is_verified_without_notes(built: Built) -> None:
    """Its trees can be read, and nothing is written where another version knows better."""
    (built.root / ".overlay/version").write_text("99\n")
    before = contents(built.root)
    assert verify(built.tree).ok
    assert contents(built.root) == before


def test_the_memo_of_the_root_is_the_one_that_runs_use(built: Built) -> None:
    """What a verify learns, a run knows, and the other way round."""
    digest = digests.Digests(f"sha256:{1:064x}", f"xxh3_128:{2:032x}")
    root = root_of(built.tree)
    assert root is not None
    DigestMemo(root.digests).remember_equal(digest, BLOCK)
    assert entry_of(built, digest.sha256).is_file()


@pytest.mark.parametrize("claimed", [None, 7, "README.md", {}, [7, None, "no/such"], [["README.md"]]])
def test_a_record_that_claims_nonsense_claims_nothing(built: Built, claimed: Any) -> None:
    """What a run reports is no part of the identity, so anything may stand there."""
    file = built.tree / RECORD_NAME
    file.write_text(json.dumps({**json.loads(file.read_bytes()), "run": {"claimed": claimed}}))
    record = read_record(built.tree)
    assert record is not None
    assert record.claimed == ()
    file.write_text(json.dumps({**json.loads(file.read_bytes()), "run": claimed}))
    record = read_record(built.tree)
    assert record is not None
    assert record.claimed == ()
