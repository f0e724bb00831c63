"""The digest memo: when a remembered sha256 may be believed."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from support.intruders import INTRUDERS, put_in_place
from support.users import other_user

from overlay.errors import BrokenInput, NotHere, TryAgain
from overlay.fingerprint import BLOCK, DigestMemo, Digests, bytes_digest, memo
from overlay.fingerprint.entries import entry_bytes

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.no_torch

SETTLED = 10 * 10**9


class Clock:
    """Real time plus an offset, and a count of the files that were hashed."""

    def __init__(self) -> None:
        self.offset = SETTLED
        self.hashed = 0

    def time_ns(self) -> int:
        return time.time_ns() + self.offset


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Files made by a test count as ten seconds old, unless it sets the offset."""
    clock = Clock()
    compute = memo.descriptor_digests

    def counted(*arguments: object) -> Digests:
        clock.hashed += 1
        return compute(*arguments)

    monkeypatch.setattr(memo, "time", clock)
    monkeypatch.setattr(memo, "descriptor_digests", counted)
    return clock


def _sha256(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def _file(path: Path, data: bytes = b"weights!") -> Path:
    path.write_bytes(data)
    return path


def test_a_file_is_hashed_once(tmp_path: Path, clock: Clock) -> None:
    """One memo remembers in memory, the next one from the folder."""
    path = _file(tmp_path / "x")
    first = DigestMemo(tmp_path / "memo" / "digests")

    assert [first.sha256(path), first.sha256(path)] == [_sha256(b"weights!")] * 2
    assert DigestMemo(tmp_path / "memo" / "digests").sha256(path) == _sha256(b"weights!")
    assert clock.hashed == 1


def test_links_share_the_entry_of_their_target(tmp_path: Path, clock: Clock) -> None:
    """A snapshot's link and the blob are one file."""
    path = _file(tmp_path / "blob")
    (tmp_path / "link").symlink_to("blob")
    digests = DigestMemo(tmp_path / "memo")

    assert digests.sha256(tmp_path / "link") == digests.sha256(path)
    assert clock.hashed == 1
    assert len(list((tmp_path / "memo").iterdir())) == 1


@pytest.mark.parametrize(("age_ns", "hashed"), [(2 * 10**9, 1), (2 * 10**9 - 1, 2), (0, 2), (-(10**9), 2)])
def test_a_file_younger_than_two_seconds_is_not_remembered(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch, age_ns: int, hashed: int
) -> None:
    """Its timestamps could not tell the next change; nor could those of a file from the future."""
    path = _file(tmp_path / "x")
    now = path.stat().st_ctime_ns + age_ns
    monkeypatch.setattr(clock, "time_ns", lambda: now)

    for _ in range(2):
        assert DigestMemo(tmp_path / "memo").sha256(path) == _sha256(b"weights!")

    assert clock.hashed == hashed
    assert (tmp_path / "memo").exists() is (hashed == 1)


def test_a_young_mtime_counts_as_well_as_a_young_ctime(tmp_path: Path, clock: Clock) -> None:
    """A modification time set into the future is no sign of rest."""
    path = _file(tmp_path / "x")
    ahead = time.time_ns() + 60 * 10**9
    os.utime(path, ns=(ahead, ahead))
    digests = DigestMemo(tmp_path / "memo")

    assert digests.sha256(path) == digests.sha256(path) == _sha256(b"weights!")
    assert clock.hashed == 2


def test_a_young_ctime_counts_under_an_old_mtime(tmp_path: Path, clock: Clock) -> None:
    """A file that was just unpacked has its old modification time and may still be written to."""
    clock.offset = 0
    path = _file(tmp_path / "x")
    os.utime(path, ns=(0, 0))
    digests = DigestMemo(tmp_path / "memo")

    assert digests.sha256(path) == digests.sha256(path) == _sha256(b"weights!")
    assert clock.hashed == 2


def test_without_help_a_new_file_is_hashed_each_time_until_it_rests(tmp_path: Path, clock: Clock) -> None:
    """The same with the real clock: nothing is believed about a file that was just written."""
    clock.offset = 0
    path = _file(tmp_path / "x")
    digests = DigestMemo(tmp_path / "memo")

    assert digests.sha256(path) == _sha256(b"weights!")
    path.write_bytes(b"weights?")
    assert digests.sha256(path) == _sha256(b"weights?")
    assert clock.hashed == 2


def test_a_replaced_file_is_seen_by_its_inode(tmp_path: Path, clock: Clock) -> None:
    """Another file renamed over the first, same size and mtime."""
    path, other = _file(tmp_path / "x"), _file(tmp_path / "y", b"weights?")
    os.utime(other, ns=(path.stat().st_atime_ns, path.stat().st_mtime_ns))
    digests = DigestMemo(tmp_path / "memo")
    digests.sha256(path)

    other.replace(path)

    assert digests.sha256(path) == DigestMemo(tmp_path / "memo").sha256(path) == _sha256(b"weights?")
    assert clock.hashed == 2


def test_changed_content_with_size_and_mtime_restored_is_seen_by_its_ctime(tmp_path: Path, clock: Clock) -> None:
    """What rsync --inplace --times or a careful editor leaves behind."""
    path = _file(tmp_path / "x")
    before = path.stat()
    digests = DigestMemo(tmp_path / "memo")
    digests.sha256(path)

    time.sleep(0.02)  # more than the granularity of timestamps
    path.write_bytes(b"weights?")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))

    after = path.stat()
    assert (after.st_ino, after.st_size, after.st_mtime_ns) == (before.st_ino, before.st_size, before.st_mtime_ns)
    assert digests.sha256(path) == DigestMemo(tmp_path / "memo").sha256(path) == _sha256(b"weights?")
    assert clock.hashed == 2


@pytest.mark.parametrize("field", range(4), ids=["inode", "size", "mtime", "ctime"])
def test_every_part_of_the_identity_counts(tmp_path: Path, clock: Clock, field: int) -> None:
    """An entry that differs from the file in one number is not believed."""
    path = _file(tmp_path / "x")
    DigestMemo(tmp_path / "memo").sha256(path)
    (entry,) = (tmp_path / "memo").iterdir()
    found = path.stat()
    identity = [found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns]
    assert json.loads(entry.read_bytes())["entry"]["identity"] == identity
    identity[field] += 1
    entry.write_bytes(_edited(entry.read_bytes(), identity=identity, digest=_sha256(b"of another time")))

    assert DigestMemo(tmp_path / "memo").sha256(path) == _sha256(b"weights!")
    assert clock.hashed == 2


def test_an_entry_is_replaced_and_never_rewritten(tmp_path: Path, clock: Clock) -> None:
    """Whoever reads the old entry meanwhile reads it whole."""
    path = _file(tmp_path / "x")
    DigestMemo(tmp_path / "memo").sha256(path)
    (entry,) = (tmp_path / "memo").iterdir()

    with entry.open("rb") as old:
        path.write_bytes(b"other content")
        DigestMemo(tmp_path / "memo").sha256(path)
        assert json.loads(old.read())["entry"]["digest"] == _sha256(b"weights!")

    assert json.loads(entry.read_bytes())["entry"]["digest"] == _sha256(b"other content")
    assert clock.hashed == 2


def test_without_a_folder_it_remembers_in_memory(tmp_path: Path, clock: Clock) -> None:
    """Nothing is written anywhere, and nothing outlives the memo."""
    path = _file(tmp_path / "x")
    digests = DigestMemo(None)

    assert digests.sha256(path) == digests.sha256(path)
    assert clock.hashed == 1
    assert DigestMemo(None).sha256(path) == _sha256(b"weights!")
    assert clock.hashed == 2
    assert list(tmp_path.iterdir()) == [path]


def test_a_folder_that_cannot_be_made_costs_nothing_but_time(tmp_path: Path, clock: Clock) -> None:
    """A cache root that is a file, or on no filesystem at all, does not stop a digest."""
    path = _file(tmp_path / "x")

    for folder in (path / "memo", Path("/proc/memo")):
        digests = DigestMemo(folder)
        assert digests.sha256(path) == digests.sha256(path) == _sha256(b"weights!")
    assert clock.hashed == 2


def test_a_read_only_folder_is_read_and_not_written(clock: Clock) -> None:
    """A hit works on somebody else's cache; a miss is computed and kept in memory."""
    with tempfile.TemporaryDirectory(dir="/tmp") as name:  # pytest's own folders are closed to other users
        world = Path(name)
        world.chmod(0o755)
        known, new, folder = _file(world / "known"), _file(world / "new", b"other"), world / "memo"
        DigestMemo(folder).sha256(known)
        folder.chmod(0o555)
        for entry in folder.iterdir():
            entry.chmod(0o444)
        before = sorted(folder.iterdir())

        with other_user():
            digests = DigestMemo(folder)
            assert digests.sha256(known) == _sha256(b"weights!")
            assert clock.hashed == 1
            assert digests.sha256(new) == digests.sha256(new) == _sha256(b"other")
            with pytest.raises(PermissionError):
                (folder / "probe").touch()

        assert clock.hashed == 2
        assert sorted(folder.iterdir()) == before
        folder.chmod(0o755)


def test_entries_have_the_mode_of_the_umask(tmp_path: Path, clock: Clock) -> None:
    """Other users of one cache root can read what was remembered."""
    before = os.umask(0o022)
    try:
        DigestMemo(tmp_path / "memo").sha256(_file(tmp_path / "x"))
    finally:
        os.umask(before)

    (entry,) = (tmp_path / "memo").iterdir()
    assert (entry.stat().st_mode & 0o777, clock.hashed) == (0o644, 1)


def _edited(entry: bytes, **changes: object) -> bytes:
    """An entry that is whole, and says something else."""
    document = json.loads(entry)
    return entry_bytes(1, document["key"], {**document["entry"], **changes})


DAMAGE = {
    "cut": lambda entry: entry[:-10],
    "list": lambda _: b"[]",
    "one digit": lambda entry: entry.replace(_sha256(b"weights!")[-9:].encode(), b"012345678"),
    "other path": lambda entry: entry_bytes(1, "/x", json.loads(entry)["entry"]),
    "other version": lambda entry: entry_bytes(2, json.loads(entry)["key"], json.loads(entry)["entry"]),
    "another form": lambda entry: entry_bytes(1, json.loads(entry)["key"], [1]),
    "no identity": lambda entry: _edited(entry, identity=None),
    "short identity": lambda entry: _edited(entry, identity=[1, 2]),
    "no digest": lambda entry: _edited(entry, digest=None),
    "bad digest": lambda entry: _edited(entry, digest="sha256:../x"),
    "other algorithm": lambda entry: _edited(entry, digest="sha1-git:" + "0a" * 20),
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_a_damaged_entry_is_as_good_as_none_and_is_repaired(tmp_path: Path, clock: Clock, damage: object) -> None:
    """Whatever stands in the folder, the digest is right."""
    path = _file(tmp_path / "x")
    DigestMemo(tmp_path / "memo").sha256(path)
    (entry,) = (tmp_path / "memo").iterdir()
    whole = entry.read_bytes()
    entry.write_bytes(damage(whole))

    assert DigestMemo(tmp_path / "memo").sha256(path) == _sha256(b"weights!")
    assert clock.hashed == 2
    assert entry.read_bytes() == whole


def test_concurrent_writers_of_one_memo(tmp_path: Path, clock: Clock) -> None:
    """Many memos over one folder at once: every answer is right, every entry whole, nothing left over."""
    files = {_file(tmp_path / f"{n}", bytes([n]) * 1000): _sha256(bytes([n]) * 1000) for n in range(8)}

    def work(_: int) -> None:
        for path, digest in files.items():
            assert DigestMemo(tmp_path / "memo").sha256(path) == digest

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(32)))

    entries = list((tmp_path / "memo").iterdir())
    assert {json.loads(entry.read_bytes())["key"] for entry in entries} == {str(path) for path in files}
    assert len(entries) == len(files) <= clock.hashed < 32 * len(files)


def test_a_file_that_changes_while_it_is_read_has_no_digest(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A download still running is transient, and nothing is remembered."""
    path = _file(tmp_path / "x")

    def growing(descriptor: int, *_: object) -> Digests:
        assert (os.fstat(descriptor).st_size, clock.hashed) == (8, 0)
        with path.open("ab") as file:
            file.write(b"more")
        return Digests(_sha256(b"weights!"), "xxh3_128:" + "0" * 32)

    monkeypatch.setattr(memo, "descriptor_digests", growing)

    with pytest.raises(TryAgain, match="x: changed while it was read"):
        DigestMemo(tmp_path / "memo").sha256(path)
    assert not (tmp_path / "memo").exists()


def test_a_file_that_is_linked_while_it_is_read_has_a_digest(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another run that links the same blob does not stop this one; only the digest is not kept."""
    path = _file(tmp_path / "x")
    compute = memo.descriptor_digests

    def linking(*arguments: object) -> Digests:
        time.sleep(0.02)  # more than the granularity of timestamps
        (tmp_path / f"link{clock.hashed}").hardlink_to(path)
        return compute(*arguments)

    monkeypatch.setattr(memo, "descriptor_digests", linking)

    digests = DigestMemo(tmp_path / "memo")
    assert digests.sha256(path) == digests.sha256(path) == _sha256(b"weights!")
    assert clock.hashed == 2
    assert not (tmp_path / "memo").exists()


def test_files_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    """Absent, dangling and special files have their usual errors; a remembered file that is gone does too."""
    (tmp_path / "link").symlink_to("gone")

    with pytest.raises(NotHere, match="none: no such file"):
        DigestMemo(None).sha256(tmp_path / "none")
    with pytest.raises(BrokenInput, match="link: link to gone, which is not there"):
        DigestMemo(None).sha256(tmp_path / "link")
    with pytest.raises(BrokenInput, match="found a folder"):
        DigestMemo(None).sha256(tmp_path)


@pytest.mark.usefixtures("clock")
def test_a_memo_that_must_not_write_uses_what_is_kept_and_keeps_nothing(tmp_path: Path) -> None:
    """A dry run profits from earlier runs and leaves the cache as it was."""
    old, new = tmp_path / "old", tmp_path / "new"
    for path in (old, new):
        path.write_bytes(path.name.encode())
    DigestMemo(tmp_path / "memo").sha256(old)
    before = sorted((tmp_path / "memo").iterdir())
    reader = DigestMemo(tmp_path / "memo", write=False)
    assert reader.sha256(new) == f"sha256:{hashlib.sha256(b'new').hexdigest()}"
    assert reader.sha256(old) == f"sha256:{hashlib.sha256(b'old').hexdigest()}"
    assert sorted((tmp_path / "memo").iterdir()) == before


LARGE = bytes(BLOCK)
EQUAL = Digests(_sha256(LARGE), bytes_digest(LARGE, "xxh3_128"))


def test_one_pass_takes_both_digests(tmp_path: Path, clock: Clock) -> None:
    """The xxh3_128 of what was hashed for its sha256 is known by that sha256, also to the next memo."""
    digests = DigestMemo(tmp_path / "memo")
    assert digests.xxh3_of(EQUAL.sha256) is None

    assert digests.sha256(_file(tmp_path / "x", LARGE)) == EQUAL.sha256

    assert digests.xxh3_of(EQUAL.sha256) == EQUAL.xxh3_128
    assert DigestMemo(tmp_path / "memo").xxh3_of(EQUAL.sha256) == EQUAL.xxh3_128
    assert clock.hashed == 1


def test_equal_digests_are_a_fact_about_content_not_about_a_file(tmp_path: Path, clock: Clock) -> None:
    """They are kept of a file that is too young for its own digest to be, and outlive it."""
    clock.offset = 0
    path = _file(tmp_path / "x", LARGE)
    DigestMemo(tmp_path / "memo").sha256(path)
    path.unlink()

    assert DigestMemo(tmp_path / "memo").xxh3_of(EQUAL.sha256) == EQUAL.xxh3_128
    assert [entry.suffix for entry in (tmp_path / "memo").iterdir()] == [".equal"]


def test_equal_digests_of_small_content_are_not_kept(tmp_path: Path) -> None:
    """Taking them again costs less than looking them up."""
    digests = DigestMemo(tmp_path / "memo")
    digests.remember_equal(EQUAL, BLOCK - 1)
    assert digests.xxh3_of(EQUAL.sha256) is None
    assert not (tmp_path / "memo").exists()
    digests.remember_equal(EQUAL, BLOCK)
    assert digests.xxh3_of(EQUAL.sha256) == EQUAL.xxh3_128


EQUAL_DAMAGE = {
    "list": b"[]",
    "one digit": entry_bytes(1, EQUAL.sha256, EQUAL.xxh3_128).replace(EQUAL.xxh3_128[-9:].encode(), b"012345678"),
    "of another content": entry_bytes(1, _sha256(b""), EQUAL.xxh3_128),
    "no digest": entry_bytes(1, EQUAL.sha256, None),
    "bad digest": entry_bytes(1, EQUAL.sha256, "xxh3_128:00"),
    "another kind": entry_bytes(1, EQUAL.sha256, EQUAL.sha256),
}


@pytest.mark.parametrize("data", EQUAL_DAMAGE.values(), ids=EQUAL_DAMAGE)
def test_a_damaged_pair_of_equal_digests_is_as_good_as_none_and_is_repaired(tmp_path: Path, data: bytes) -> None:
    """It is not believed, and the next pass writes it anew."""
    DigestMemo(tmp_path / "memo").remember_equal(EQUAL, BLOCK)
    (entry,) = (tmp_path / "memo").iterdir()
    whole = entry.read_bytes()
    entry.write_bytes(data)
    digests = DigestMemo(tmp_path / "memo")

    assert digests.xxh3_of(EQUAL.sha256) is None
    digests.remember_equal(EQUAL, BLOCK)
    assert digests.xxh3_of(EQUAL.sha256) == EQUAL.xxh3_128
    assert entry.read_bytes() == whole


@pytest.mark.parametrize("intruder", INTRUDERS)
def test_what_is_no_entry_at_all_is_as_good_as_none(tmp_path: Path, clock: Clock, intruder: str) -> None:
    """A folder, a pipe, a link: nothing hangs, the digests are right, and nothing is written through a link."""
    path = _file(tmp_path / "x")
    DigestMemo(tmp_path / "memo").sha256(path)
    DigestMemo(tmp_path / "memo").remember_equal(EQUAL, BLOCK)
    for entry in (tmp_path / "memo").iterdir():
        put_in_place(entry, intruder)

    assert DigestMemo(tmp_path / "memo").sha256(path) == _sha256(b"weights!")
    assert DigestMemo(tmp_path / "memo").xxh3_of(EQUAL.sha256) is None
    assert clock.hashed == 2


def test_a_wrong_pair_is_replaced_by_a_right_one(tmp_path: Path) -> None:
    """Whoever found that it does not fit says what does."""
    wrong = Digests(EQUAL.sha256, "xxh3_128:" + "0" * 32)
    DigestMemo(tmp_path / "memo").remember_equal(wrong, BLOCK)
    digests = DigestMemo(tmp_path / "memo")
    assert digests.xxh3_of(EQUAL.sha256) == wrong.xxh3_128
    digests.remember_equal(EQUAL, BLOCK)
    assert DigestMemo(tmp_path / "memo").xxh3_of(EQUAL.sha256) == EQUAL.xxh3_128


@pytest.mark.parametrize("memo_of", [lambda _: DigestMemo(None), lambda folder: DigestMemo(folder, write=False)])
def test_equal_digests_without_writing_are_remembered_in_memory(tmp_path: Path, memo_of: object) -> None:
    """As the digests of files are."""
    digests = memo_of(tmp_path / "memo")
    assert digests.xxh3_of(EQUAL.sha256) is None
    digests.remember_equal(EQUAL, BLOCK)
    assert digests.xxh3_of(EQUAL.sha256) == EQUAL.xxh3_128
    assert list(tmp_path.iterdir()) == []


def test_what_sees_the_bytes_sees_all_of_them(tmp_path: Path, clock: Clock) -> None:
    """In order, also where the digest is remembered."""
    path, seen = _file(tmp_path / "x", b"ab" * 2**20), bytearray()
    digests = DigestMemo(tmp_path / "memo")
    digests.sha256(path)
    assert digests.sha256(path, see=seen.extend) == _sha256(b"ab" * 2**20)
    assert bytes(seen) == b"ab" * 2**20
    assert clock.hashed == 2


def _objects(tmp_path: Path) -> Callable[[str], Path]:
    return lambda digest: tmp_path / digest.removeprefix("sha256:")


def test_a_file_that_was_linked_as_an_object_is_not_hashed_again(tmp_path: Path, clock: Clock) -> None:
    """Our own link changes its ctime, as do the trees that get the object and those that are removed."""
    path = _file(tmp_path / "blob")
    objects = _objects(tmp_path)
    digests = DigestMemo(tmp_path / "memo", objects=objects)
    digest = digests.sha256(path)
    before = path.stat().st_ctime_ns

    time.sleep(0.02)  # more than the granularity of timestamps
    objects(digest).hardlink_to(path)
    (tmp_path / "tree").hardlink_to(path)
    (tmp_path / "tree").unlink()

    assert path.stat().st_ctime_ns != before
    assert digests.sha256(path) == DigestMemo(tmp_path / "memo", objects=objects).sha256(path) == digest
    assert digests.knows(path)
    assert clock.hashed == 1
    assert DigestMemo(tmp_path / "memo").sha256(path) == digest
    assert clock.hashed == 2


@pytest.mark.parametrize("change", ["mtime", "size", "another object", "no object"])
def test_an_object_excuses_a_new_ctime_and_nothing_else(tmp_path: Path, clock: Clock, change: str) -> None:
    """A file that was written to, or that is no longer the object, is hashed again."""
    path = _file(tmp_path / "blob")
    objects = _objects(tmp_path)
    digest = DigestMemo(tmp_path / "memo", objects=objects).sha256(path)
    before = path.stat()
    objects(digest).hardlink_to(path)

    time.sleep(0.02)  # more than the granularity of timestamps
    data = b"weights!more" if change == "size" else b"weights?"
    path.write_bytes(data)
    if change != "mtime":
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    if change.endswith("object"):
        objects(digest).unlink()
    if change == "another object":
        objects(digest).write_bytes(b"weights!")

    assert DigestMemo(tmp_path / "memo", objects=objects).sha256(path) == _sha256(data)
    assert clock.hashed == 2
