"""Adoptions that meet others, a disk that refuses, or their end: a model is there all the time."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from support.children import end_child, in_child, start_child
from support.faults import fail_from
from support.models import VDN
from support.server_trees import (
    FUSED,
    ServerFolder,
    flip,
    place_server_tree,
)

import overlay.cache.links
import overlay.cache.replacing
import overlay.cache.store
import overlay.materialization.adoption.adopt
import overlay.materialization.sinks
from overlay.errors import CannotWrite, CheckFailed, NotHere, TryAgain
from overlay.materialization.adoption.adopt import adopt, plan_adoption
from overlay.materialization.materialize import plan
from overlay.materialization.resolve import resolve
from overlay.materialization.verify import verify

if TYPE_CHECKING:
    from collections.abc import Callable


def test_another_run_on_the_model_is_waited_for(served: ServerFolder) -> None:
    """No longer than was asked for."""
    cache = overlay.cache.store.Cache.open(served.root, create=True)
    with (
        cache.lock(served.folder.name, timeout=0),
        pytest.raises(TryAgain) as caught,
    ):
        adopt(VDN, served.options(lock_timeout=0.0))
    assert caught.value.code == "lock-busy"


def test_two_adoptions_at_once_end_in_one_tree(served: ServerFolder) -> None:
    """Whoever comes second finds it published."""
    chosen = served.options()  # writes the registry, which both read
    children = [start_child(lambda: adopt(VDN, chosen).result) for _ in range(2)]
    outcomes = []
    for child in children:
        try:
            outcomes.append(end_child(*child))
        except (TryAgain, NotHere) as error:
            outcomes.append(error.code)
    assert "adopted" in outcomes
    assert verify(served.folder).ok
    assert list(served.root.glob(".overlay/staging/*")) == []


def test_what_is_written_into_meanwhile_is_not_taken(served: ServerFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    """A change after the comparison is seen before anything is linked."""
    compare = overlay.materialization.adoption.adopt.compare_computed

    def compare_then_change(*args: Any) -> Any:
        found = compare(*args)
        flip(served.folder / FUSED, -1)
        os.utime(served.folder / FUSED, ns=(1, time.time_ns()))
        return found

    monkeypatch.setattr(overlay.materialization.adoption.adopt, "compare_computed", compare_then_change)
    with pytest.raises(TryAgain) as caught:
        adopt(VDN, served.options())
    assert caught.value.code == "input-changed"
    assert not served.folder.is_symlink()
    assert served.objects == []


def test_no_object_is_left_of_what_is_written_into_while_it_is_linked(
    served: ServerFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An object of the server's inode would hold other bytes than its name says."""
    link_object, path = overlay.cache.store.Cache.link_object, served.folder / FUSED

    def link_then_change(self: Any, source: Path, *args: Any, **named: Any) -> Any:
        found = link_object(self, source, *args, **named)
        if source == path:
            last = path.read_bytes()[-1]
            with path.open("r+b") as file:  # in place, as no server does
                file.seek(-1, os.SEEK_END)
                file.write(bytes([last ^ 1]))
            os.utime(path, ns=(1, time.time_ns()))
        return found

    monkeypatch.setattr(overlay.cache.store.Cache, "link_object", link_then_change)
    with pytest.raises(TryAgain) as caught:
        adopt(VDN, served.options())
    assert caught.value.code == "input-changed"
    assert not served.folder.is_symlink()
    assert path.stat().st_nlink == 1
    monkeypatch.undo()
    with pytest.raises(CheckFailed):
        adopt(VDN, served.options())


def test_a_folder_that_was_built_anew_meanwhile_stays(
    served: ServerFolder, plain_tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is not the one that was compared."""
    place_tree = overlay.materialization.sinks.place_tree

    def place_then_replace(*args: Any) -> None:
        place_tree(*args)
        served.folder.rename(served.root / "was")
        place_server_tree(plain_tree, served.root, served.folder.name)

    monkeypatch.setattr(overlay.materialization.sinks, "place_tree", place_then_replace)
    with pytest.raises(TryAgain) as caught:
        adopt(VDN, served.options())
    assert caught.value.code == "location-changed"
    assert not served.folder.is_symlink()
    monkeypatch.undo()
    assert adopt(VDN, served.options()).result == "adopted"


def no_exchange(*_: Any) -> bool:
    """A kernel or a filesystem without ``RENAME_EXCHANGE``."""
    return False


def test_without_an_exchange_two_renames_do(served: ServerFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    """And it is said."""
    monkeypatch.setattr(overlay.cache.replacing, "_exchange", no_exchange)
    done = adopt(VDN, served.options())
    assert any("two renames" in note for note in done.notes)
    assert verify(served.folder).ok
    assert list(served.root.glob(".overlay/staging/*")) == []


def test_a_second_rename_that_fails_puts_the_folder_back(served: ServerFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server keeps what it had."""
    monkeypatch.setattr(overlay.cache.replacing, "_exchange", no_exchange)
    before, rename = served.seen(), type(served.folder).rename

    def refuse_the_link(self: Path, target: Path) -> Any:
        if self.is_symlink():
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(target))
        return rename(self, target)

    monkeypatch.setattr(type(served.folder), "rename", refuse_the_link)
    with pytest.raises(CannotWrite):
        adopt(VDN, served.options())
    assert not served.folder.is_symlink()
    assert served.seen() == before


def test_an_exchange_that_the_system_refuses_is_an_error(served: ServerFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only a lack of the operation leads to two renames."""

    class Refusing:
        def renameat2(self, *_: Any) -> int:
            overlay.cache.replacing.ctypes.set_errno(errno.EACCES)
            return -1

    monkeypatch.setattr(overlay.cache.replacing, "_LIBC", Refusing())
    with pytest.raises(CannotWrite) as caught:
        adopt(VDN, served.options())
    assert caught.value.code == "not-permitted"
    assert not served.folder.is_symlink()


def die(*_: Any, **__: Any) -> Any:
    os.kill(os.getpid(), signal.SIGKILL)


def after(times: int, real: Callable[..., Any]) -> Callable[..., Any]:
    """In the place of a function: killed at its call number ``times``, from 0."""
    calls = iter(range(1 << 30))
    return lambda *args, **named: die() if next(calls) == times else real(*args, **named)


def killed_with(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
    """In the place of ``rmtree``: killed when it is to remove the folder that the server built."""
    return lambda path, **named: die() if Path(path, name).is_dir() else real(path, **named)


@pytest.mark.parametrize(
    "moment", ["compared", "first-object", "third-object", "tree", "publish", "exchange", "exchanged", "removal"]
)
def test_a_kill_at_a_chosen_moment_leaves_a_model(
    served: ServerFolder, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """The server's folder or our tree, and the next run ends as if there had been no kill."""
    cache, replacing = overlay.cache.store.Cache, overlay.cache.replacing
    with monkeypatch.context() as patch:
        match moment:
            case "compared":
                patch.setattr(overlay.materialization.adoption.adopt, "sha256_of_blobs", die)
            case "first-object" | "third-object":
                patch.setattr(cache, "link_object", after(0 if moment == "first-object" else 2, cache.link_object))
            case "tree":
                patch.setattr(overlay.materialization.sinks, "place_tree", die)
            case "publish":
                patch.setattr(cache, "publish_tree", die)
            case "exchange":
                patch.setattr(replacing, "_exchange", die)
            case "exchanged":
                exchange = replacing._exchange
                patch.setattr(replacing, "_exchange", lambda a, b: exchange(a, b) and die())
            case "removal":
                patch.setattr(shutil, "rmtree", killed_with(served.folder.name, shutil.rmtree))
        before = served.seen()
        outcome = in_child(lambda: adopt(VDN, served.options()))
    assert outcome == signal.SIGKILL
    is_ours = moment in ("exchanged", "removal")
    assert served.folder.is_symlink() == is_ours
    if is_ours:
        assert verify(served.folder).ok
        assert resolve(VDN, served.options()).state.name == "present"
    else:
        assert served.seen() == before
    done = adopt(VDN, served.options())
    assert done.result == ("present" if is_ours else "adopted")
    assert done.path.name == served.built.tree.name
    assert verify(served.folder).ok


@pytest.mark.slow
@pytest.mark.parametrize("swap", ["exchange", "two renames"])
def test_a_disk_that_refuses_from_some_step_on_leaves_a_model(
    served: ServerFolder, monkeypatch: pytest.MonkeyPatch, swap: str
) -> None:
    """Whichever step it is: the server's folder as it was, or our tree, whole; and an error that says what to do."""
    if swap != "exchange":
        monkeypatch.setattr(overlay.cache.replacing, "_exchange", no_exchange)
    before = served.seen()

    def fail(step: int) -> str:
        failing = fail_from(step, errno.ENOSPC)
        try:
            return f"{adopt(VDN, served.options()).result} {failing.hits}"
        except CannotWrite as error:
            return error.code

    step, outcomes = 0, []
    while not served.folder.is_symlink():
        outcomes.append(in_child(lambda at=step: fail(at)))
        if not served.folder.is_symlink():
            assert served.seen() == before
        step += 17
    assert verify(served.folder).ok
    assert len(outcomes) > 5
    assert set(outcomes[:-1]) <= {"no-room", "link-impossible"}  # by the link that is tried first


def test_no_room_is_said_before_anything_is_compared(served: ServerFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    """Copies of small files need some."""
    monkeypatch.setattr(overlay.cache.store, "free_room", lambda _path: 10)
    before = served.seen()
    with pytest.raises(CannotWrite) as caught:
        adopt(VDN, served.options())
    assert caught.value.code == "no-room"
    served.require_untouched(before)


def test_a_dry_run_writes_nothing(served: ServerFolder) -> None:
    """Not even a folder of this program."""
    before = served.seen()
    planned = plan_adoption(VDN, served.options())
    assert planned is not None
    assert planned.ways[FUSED] == "hardlink"
    assert planned.work.counters.written == 0
    assert served.seen() == before
    assert not (served.root / ".overlay").exists()
    flip(served.folder / FUSED, -1)
    assert plan_adoption(VDN, served.options()) is not None
    (served.folder / FUSED).unlink()
    with pytest.raises(CheckFailed):
        plan_adoption(VDN, served.options())


def test_a_plan_of_a_build_names_the_adoption(served: ServerFolder) -> None:
    """Also the dry run of the other command says what is in the way."""
    with pytest.raises(CannotWrite) as caught:
        plan(VDN, served.options())
    assert str(caught.value.hint).startswith("overlay adopt ")
