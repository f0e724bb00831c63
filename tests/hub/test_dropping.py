"""Commits taken out of the Hub's cache: nothing is lost that somebody needs, whatever happens between two steps."""

from __future__ import annotations

import errno
import os
import threading
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from huggingface_hub import constants, scan_cache_dir

from overlay.errors import CannotWrite, TryAgain
from overlay.hub.dropping import Drop, drop, look

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = pytest.mark.no_torch

REPO = "org/name"
GONE, OTHER, NEW = "1" * 40, "2" * 40, "3" * 40


class Store:
    """A Hub cache made by hand, with one repo of a commit; and of another one where that is asked for."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "hub"
        self.repo = self.path / "models--org--name"
        self.linking = folder / "linking"
        self.linking.mkdir()
        self.add(GONE, own="of the first", shared="of both")
        self.write("refs/main", GONE)
        self.write(f"trees/{GONE}.json", "[]")
        self.write(f".no_exist/{GONE}/absent.json", "")

    def write(self, name: str, text: str) -> Path:
        """A file of the repo."""
        path = self.repo / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def add(self, commit: str, **files: str) -> None:
        """A commit, as a download leaves it: a blob that is there is linked."""
        for name, text in files.items():
            if not (self.repo / "blobs" / name).exists():
                self.write(f"blobs/{name}", text)
            link = self.repo / "snapshots" / commit / "deep" / name
            link.parent.mkdir(parents=True, exist_ok=True)
            if not link.is_symlink():
                link.symlink_to(f"../../../blobs/{name}")

    def drop(self, step: Callable[[], None] = lambda: None, timeout: float = 5) -> Drop:
        """The first commit."""
        return drop({REPO: {GONE}}, self.linking, nullcontext(step), timeout=timeout)

    def files(self) -> dict[str, str]:
        """What a reader finds: no link leads nowhere."""
        paths = [path for path in self.repo.rglob("*") if path.is_symlink() or path.is_file()]
        return {str(path.relative_to(self.repo)): path.read_text() for path in paths}

    def aside(self) -> list[Path]:
        """Folders of drops."""
        return sorted(self.path.glob("*--overlay-*"))


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    """In force."""
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    return Store(tmp_path)


@contextmanager
def hooked(before: Callable[[Path, Path], object], after: Callable[[Path, Path], object]) -> Iterator[None]:
    """Something happens around each rename."""
    real = Path.rename

    def rename(path: Path, to: Path) -> Path:
        before(path, to)
        done = real(path, to)
        after(path, to)
        return done

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Path, "rename", rename)
        yield


def nothing(_path: Path, _to: Path) -> None:
    """Nothing happens."""


def once(what: Callable[[], object], which: Callable[[Path, Path], bool]) -> Callable[[Path, Path], None]:
    """Something happens at the first rename that is meant."""
    done: list[object] = []

    def happens(path: Path, to: Path) -> None:
        if not done and which(path, to):
            done.append(what())

    return happens


def test_files_of_others_stay(store: Store) -> None:
    """Among the blobs, too: the client names those by their digests, and one that no commit has goes with them."""
    for name in ("mine.bin", "notes", "A" * 40, "a" * 39):
        store.write(f"blobs/{name}", "mine")
    store.write(f"blobs/{'a' * 64}", "of no commit")
    store.drop()
    assert set(store.files()) == {f"blobs/{name}" for name in ("mine.bin", "notes", "A" * 40, "a" * 39)}


@pytest.mark.parametrize("another", [False, True])
def test_what_was_seen_goes_and_nothing_else(store: Store, *, another: bool) -> None:
    """Also what the client knows of the commit; the other commit stays whole."""
    if another:
        store.add(OTHER, shared="of both", other="of the second")
        store.write(f"trees/{OTHER}.json", "[]")
    seen = look({REPO: {GONE}}, store.linking)
    assert store.drop() == seen
    assert seen.commits == (f"{REPO}@{GONE}",)
    left = {"blobs/shared", "blobs/other", f"trees/{OTHER}.json"}
    left |= {f"snapshots/{OTHER}/deep/{name}" for name in ("shared", "other")}
    assert set(store.files()) == (left if another else set())
    assert store.repo.exists() is another
    assert store.aside() == []
    assert scan_cache_dir(store.path).warnings == []


CAME = {
    "a commit links a blob": lambda store: store.add(NEW, own="of the first"),
    "a download": lambda store: store.write("blobs/x.incomplete", ""),
    "another repo links a blob": lambda store: _elsewhere(store, store.path / "models--a--b/snapshots" / NEW),
    "a server's tree links a blob": lambda store: _elsewhere(store, store.linking / "tree"),
    "a further file of the commit": lambda store: store.add(GONE, more="of the first, too"),
    "a file of somebody's own": lambda store: store.write(f"snapshots/{GONE}/deep/mine.txt", "mine"),
}


def _elsewhere(store: Store, folder: Path) -> None:
    folder.mkdir(parents=True)
    (folder / "own").symlink_to(store.repo / "blobs/own")


@pytest.mark.parametrize("another", [False, True])
@pytest.mark.parametrize("came", CAME)
def test_what_begins_before_the_first_move_keeps_all(store: Store, came: str, *, another: bool) -> None:
    """After the look; what was aside is back, and so a next drop finds what is needed."""
    if another:
        store.add(OTHER, shared="of both", other="of the second")
    before = store.files()
    with hooked(once(lambda: CAME[came](store), lambda *_: True), nothing), pytest.raises(TryAgain) as caught:
        store.drop()
    assert caught.value.code == "download-unfinished"
    found = store.files()
    assert {name: found[name] for name in before} == before
    assert all(path.exists() for path in (*store.path.rglob("own"), *store.linking.rglob("own")))
    assert store.aside() == []


@pytest.mark.parametrize("came", ["a commit links a blob", "a download", "a commit comes again"])
def test_what_begins_after_the_last_move_gets_all_back(store: Store, came: str) -> None:
    """A folder that is there again is filled; what is there again in it, and no link to nothing, stays."""
    before = store.files()

    def comes() -> None:
        if came == "a download":
            CAME[came](store)
            return
        folder = store.repo / "snapshots" / (GONE if came == "a commit comes again" else NEW) / "deep"
        folder.mkdir(parents=True)
        (folder / "own").symlink_to("../../../blobs/own")
        (store.repo / "blobs/own").symlink_to("leads nowhere")
        store.write("refs/main", NEW)

    last = once(comes, lambda path, _to: path.name == "shared")
    with hooked(nothing, last), pytest.raises(TryAgain) as caught:
        store.drop()
    assert caught.value.code == "download-unfinished"
    found = store.files()
    assert found["refs/main"] == (GONE if came == "a download" else NEW)
    assert {name: found[name] for name in before} == before | {"refs/main": found["refs/main"]}
    assert store.aside() == []


def test_a_commit_that_comes_meanwhile_stays_with_its_blobs(store: Store) -> None:
    """What was not seen is not moved; also where the commit that goes was the only one."""
    with hooked(once(lambda: store.add(NEW, new="of the third"), lambda *_: True), nothing):
        store.drop()
    assert store.files() == {"blobs/new": "of the third", f"snapshots/{NEW}/deep/new": "of the third"}


@pytest.mark.parametrize("moment", range(5))
def test_a_step_that_refuses_keeps_all(store: Store, moment: int) -> None:
    """It is asked before each move, that is of the branch, the commit, what is known of it, and its blobs."""
    before, steps = store.files(), iter(range(100))

    def step() -> None:
        if next(steps) == moment:
            raise TryAgain("stopped", code="collector-stopped")

    with pytest.raises(TryAgain) as caught:
        store.drop(step)
    assert caught.value.code == "collector-stopped"
    assert store.files() == before
    assert store.aside() == []


def test_the_turn_is_over_before_anything_is_removed(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """A removal may last."""
    held: list[bool] = []

    @contextmanager
    def turn() -> Iterator[Callable[[], None]]:
        held.append(True)
        yield lambda: None
        held.clear()

    strategy = type(scan_cache_dir(store.path).delete_revisions())
    execute = strategy.execute

    def removing(self: object) -> None:
        assert not held
        execute(self)

    monkeypatch.setattr(strategy, "execute", removing)
    drop({REPO: {GONE}}, store.linking, turn(), timeout=5)
    assert not store.repo.exists()


def _refuse(path: Path, to: Path) -> None:
    if "--overlay-dropping-" in str(path) and "--overlay-" not in str(to):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))


def test_what_cannot_be_put_back_is_named_and_never_removed(store: Store) -> None:
    """Not by the next drop either, as long as it cannot put it back; then it does."""
    before = store.files()
    refused = once(lambda: CAME["a download"](store), lambda *_: True)

    def both(path: Path, to: Path) -> None:
        refused(path, to)
        _refuse(path, to)

    with hooked(both, nothing), pytest.raises(CannotWrite) as caught:
        store.drop()
    [aside] = store.aside()
    assert caught.value.code == "not-put-back"
    assert caught.value.data["where"] == str(aside)
    assert str(aside) in caught.value.message
    (store.repo / "blobs/x.incomplete").unlink()
    with hooked(_refuse, nothing):
        assert store.drop().left == (aside,)
    assert store.aside() == [aside]
    assert drop({REPO: {NEW}}, store.linking, nullcontext(lambda: None), timeout=5) == Drop()
    assert store.files() == before
    assert store.aside() == []


def test_only_what_is_marked_is_removed(store: Store) -> None:
    """Of what killed drops left: the one had not begun to remove, the other had."""
    store.add(OTHER, other="of the second")
    before = store.files()
    kept = store.path / f"{store.repo.name}--overlay-dropping-0123456789ab"
    for part in ("snapshots", "blobs"):
        (kept / part).mkdir(parents=True)
    (store.repo / "snapshots" / OTHER).rename(kept / "snapshots" / OTHER)
    (store.repo / "blobs/other").rename(kept / "blobs/other")
    doomed = store.path / f"{store.repo.name}--overlay-dropped-0123456789ab"
    (doomed / "blobs").mkdir(parents=True)
    (doomed / "blobs/x").write_text("12345")
    dropped = drop({REPO: {NEW}}, store.linking, nullcontext(lambda: None), timeout=5)
    assert dropped == Drop((), 5, 5)
    assert store.files() == before
    assert store.aside() == []


def test_a_link_in_the_place_of_a_folder_aside_is_not_followed(store: Store, tmp_path: Path) -> None:
    """Nor is what somebody else planted there moved or removed."""
    (tmp_path / "precious/blobs").mkdir(parents=True)
    (tmp_path / "precious/blobs/mine").write_text("mine")
    for kind in ("dropping", "dropped"):
        (store.path / f"{store.repo.name}--overlay-{kind}-0123456789ab").symlink_to(tmp_path / "precious")
    store.drop()
    assert (tmp_path / "precious/blobs/mine").read_text() == "mine"


def test_where_nothing_is_there_no_lock_is_needed(store: Store) -> None:
    """A cache that may only be read has nothing to drop, and says so."""
    (store.path / ".locks").write_text("in the way")
    assert drop({"org/absent": {GONE}}, store.linking, nullcontext(lambda: None), timeout=5) == Drop()
    with pytest.raises(CannotWrite) as caught:
        store.drop()
    assert caught.value.data["where"] == str(store.path / ".locks/overlay-dropping.lock")


def test_what_a_folder_has_taken_the_place_of_stays_aside(store: Store) -> None:
    """A branch whose name begins like that of the one that goes, for instance."""
    came = once(lambda: store.write("refs/main/sub", GONE), lambda path, _to: path.name == "main")
    with hooked(nothing, came), pytest.raises(CannotWrite) as caught:
        store.drop()
    assert caught.value.code == "not-put-back"
    [aside] = store.aside()
    assert (aside / "refs/main").read_text() == GONE
    assert {"blobs/own", f"snapshots/{GONE}/deep/own"} <= set(store.files())


@pytest.mark.parametrize("kind", ["dropping", "dropped"])
def test_what_a_drop_of_another_user_left_is_named_and_does_not_matter(
    store: Store, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """It can be neither put back nor removed."""
    aside = store.path / f"{store.repo.name}--overlay-{kind}-0123456789ab"
    (aside / "blobs").mkdir(parents=True)
    (aside / "blobs/x").write_text("12345")
    access = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != aside and access(path, mode))
    with hooked(_refuse, nothing):
        dropped = store.drop()
    assert (dropped.commits, dropped.left) == ((f"{REPO}@{GONE}",), (aside,))
    assert (aside / "blobs/x").read_text() == "12345"
    assert store.files() == {}


def test_two_drops_exclude_each_other(store: Store) -> None:
    """Whatever cache roots they are of; the second finds nothing left to do, and nothing of the first is put back."""
    seconds: list[Drop | TryAgain] = []
    waiting = threading.Event()

    def run(timeout: float) -> None:
        try:
            turn = nullcontext(lambda: None)
            found = drop({REPO: {GONE}}, store.linking, turn, timeout=timeout, on_wait=lambda _: waiting.set())
            seconds.append(found)
        except TryAgain as error:
            seconds.append(error)

    patient = threading.Thread(target=run, args=(5.0,))

    def meet() -> None:
        hasty = threading.Thread(target=run, args=(0.0,))
        hasty.start()
        hasty.join()
        waiting.clear()
        patient.start()
        assert waiting.wait(5)

    with hooked(once(meet, lambda path, _to: path.name == "shared"), nothing):
        assert store.drop().commits == (f"{REPO}@{GONE}",)
    patient.join()
    busy, done = seconds
    assert isinstance(busy, TryAgain)
    assert busy.code == "lock-busy"
    assert done == Drop()
    assert store.aside() == []
