"""Nothing is lost by an adoption: neither what comes into the folder meanwhile nor a good file for a bad object."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import time
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from support.children import in_child
from support.faults import check_sound
from support.models import VDN
from support.server_trees import CARRIED, FUSED, MARKER, ServerFolder, place_server_tree, require_sound_objects

import overlay.cache.replacing
import overlay.cache.store
import overlay.materialization.adoption.adopt
import overlay.materialization.sinks
from overlay.errors import CannotWrite, OverlayError, TryAgain
from overlay.materialization.adoption.adopt import adopt, plan_adoption
from overlay.materialization.materialize import materialize
from overlay.materialization.survey import Counters
from overlay.materialization.verify import verify

if TYPE_CHECKING:
    from conftest import Built


def die(*_: Any, **__: Any) -> Any:
    """In the place of what must not be reached."""
    os.kill(os.getpid(), signal.SIGKILL)


# What the cache holds is not believed


def damage(path: Path) -> None:
    """Flip the last bit in place, so that every name of the inode has it; the size stays."""
    path.chmod(0o644)
    with path.open("r+b") as file:
        file.seek(-1, os.SEEK_END)
        last = file.read(1)[0]
        file.seek(-1, os.SEEK_END)
        file.write(bytes([last ^ 1]))


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("path", [FUSED, CARRIED, "text_encoder/config.json", "licenses"])
def test_a_damaged_object_does_not_take_the_place_of_a_good_file(
    built: Built, plain_tree: Path, path: str, *, known: bool
) -> None:
    """It is read, dropped, and made of the folder's file, whether its key is known or not; and it is said."""
    location = built.location
    tree = built.tree
    file = (
        next(item for item in (tree / "licenses").rglob("*") if item.is_file()) if path == "licenses" else tree / path
    )
    [found] = [item for item in built.objects() if item.read_bytes() == file.read_bytes()]
    shutil.rmtree(built.tree)
    location.unlink()
    damage(found)
    if not known:
        shutil.rmtree(built.root / ".overlay/actions")
    place_server_tree(plain_tree, built.root, location.name)
    done = adopt(VDN, built.options())
    assert any(found.name in note and "dropped" in note for note in done.notes)
    assert location.is_symlink()
    assert verify(location, "sha256").ok
    check_sound(built.root)


@pytest.mark.parametrize("path", [FUSED, "text_encoder/config.json", "model_index.json", MARKER])
def test_a_damaged_tree_does_not_take_the_place_of_a_good_folder(built: Built, plain_tree: Path, path: str) -> None:
    """One that is published by the name is read, and moved aside; nothing tells it by names and sizes."""
    location, tree = built.location, built.tree
    damage(tree / path)
    location.unlink()
    place_server_tree(plain_tree, built.root, location.name)
    done = adopt(VDN, built.options())
    assert done.path == tree
    assert any(str(tree) in note and "damaged" in note for note in done.notes)
    assert verify(location, "sha256").ok
    check_sound(built.root)


# What comes into the folder while it is adopted


def coming(served: ServerFolder, path: str) -> Path:
    """Something that a user or a server leaves there."""
    if path.endswith("/"):
        (served.folder / path).mkdir()
    else:
        (served.folder / path).parent.mkdir(exist_ok=True)
        (served.folder / path).write_text("precious")
    return served.folder / path


@pytest.mark.parametrize("path", ["lora/mine.safetensors", "notes.txt", "text_encoder/config.json", "lora/"])
@pytest.mark.parametrize("moment", ["comparing", "publishing"])
def test_what_comes_before_the_exchange_stops_it(
    served: ServerFolder, monkeypatch: pytest.MonkeyPatch, path: str, moment: str
) -> None:
    """The folder stays as it is, with what came."""
    if moment == "comparing":
        where, name = overlay.materialization.adoption.adopt, "sha256_of_blobs"
    else:
        where, name = overlay.materialization.sinks, "place_tree"
    real = getattr(where, name)

    def then(*args: Any, **named: Any) -> Any:
        coming(served, path)
        return real(*args, **named)

    monkeypatch.setattr(where, name, then)
    with pytest.raises(TryAgain) as caught:
        adopt(VDN, served.options())
    assert caught.value.code == "input-changed"
    assert Path(path).parts[0] in caught.value.message
    assert not served.folder.is_symlink()
    assert (served.folder / path).exists()
    monkeypatch.undo()
    require_sound_objects(served.root)


@pytest.mark.parametrize("path", ["lora/mine.safetensors", "notes.txt", "text_encoder/config.json", "lora/"])
@pytest.mark.parametrize("swap", ["exchange", "two renames"])
def test_what_comes_at_the_exchange_keeps_the_folder(
    served: ServerFolder, monkeypatch: pytest.MonkeyPatch, path: str, swap: str
) -> None:
    """It is put beside the location, and the notes name it; the tree is published."""
    exchange = overlay.cache.replacing._exchange

    def then(a: Path, b: Path) -> bool:
        coming(served, path)
        return swap == "exchange" and exchange(a, b)

    monkeypatch.setattr(overlay.cache.replacing, "_exchange", then)
    done = adopt(VDN, served.options())
    kept = served.folder.with_name(f"{served.folder.name}.kept-1")
    assert any(str(kept) in note and Path(path).parts[0] in note for note in done.notes)
    assert (kept / path).exists()
    assert (kept / FUSED).samefile(served.folder / FUSED)
    assert verify(served.folder).ok
    assert list(served.root.glob(".overlay/staging/*")) == []


def test_a_kept_folder_that_cannot_be_put_beside_is_put_back(
    served: ServerFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever fails, it is not removed."""
    exchange, rename = overlay.cache.replacing._exchange, Path.rename
    calls = iter(range(9))

    def then(a: Path, b: Path) -> bool:
        if next(calls) == 0:
            coming(served, "notes.txt")
        return exchange(a, b)

    def refuse(self: Path, target: Path) -> Any:
        if ".kept-" in str(target):
            raise OSError(errno.EACCES, os.strerror(errno.EACCES), str(target))
        return rename(self, target)

    monkeypatch.setattr(overlay.cache.replacing, "_exchange", then)
    monkeypatch.setattr(Path, "rename", refuse)
    with pytest.raises(CannotWrite):
        adopt(VDN, served.options())
    assert not served.folder.is_symlink()
    assert (served.folder / "notes.txt").read_text() == "precious"


def test_a_copy_of_what_is_rewritten_at_that_moment_is_no_object(
    served: ServerFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A small file, of its own size and with its old time: the copy itself is read."""
    link_object, path = overlay.cache.store.Cache.link_object, served.folder / "text_encoder/config.json"
    before = path.read_bytes()

    def change_then_link(self: Any, source: Path, *args: Any, **named: Any) -> Any:
        if source == path:
            status = path.stat()
            path.write_bytes(before.replace(b"{", b"[", 1))
            os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
        return link_object(self, source, *args, **named)

    monkeypatch.setattr(overlay.cache.store.Cache, "link_object", change_then_link)
    with pytest.raises(TryAgain) as caught:
        adopt(VDN, served.options())
    assert caught.value.code == "input-changed"
    monkeypatch.undo()
    require_sound_objects(served.root)
    path.write_bytes(before)
    assert adopt(VDN, served.options()).result == "adopted"
    assert verify(served.folder, "sha256").ok


def test_no_tree_is_left_of_what_is_written_into_before_the_exchange(
    served: ServerFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would hold, under a good name, what was written."""
    publish_tree = overlay.cache.store.Cache.publish_tree

    def publish_then_change(self: Any, *args: Any, **named: Any) -> Any:
        found = publish_tree(self, *args, **named)
        damage(served.folder / FUSED)
        os.utime(served.folder / FUSED, ns=(1, time.time_ns()))
        return found

    monkeypatch.setattr(overlay.cache.store.Cache, "publish_tree", publish_then_change)
    with pytest.raises(TryAgain):
        adopt(VDN, served.options())
    assert list(served.root.glob(".overlay/trees/*")) == []
    assert (served.folder / FUSED).stat().st_nlink == 1
    monkeypatch.undo()
    require_sound_objects(served.root)


# Others


def test_whoever_waited_for_the_lock_looks_again(served: ServerFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    """The loser of two compares nothing."""
    real = overlay.materialization.adoption.adopt.building

    def other_first(root: Any) -> Any:
        monkeypatch.undo()
        assert in_child(adopt_without_lock) == "adopted"
        monkeypatch.setattr(overlay.materialization.adoption.adopt, "compare_small", die)
        return real(root)

    def adopt_without_lock() -> str:
        overlay.cache.store.Cache.lock = lambda *_, **__: nullcontext()  # type: ignore[method-assign] - a child
        return adopt(VDN, served.options()).result

    monkeypatch.setattr(overlay.materialization.adoption.adopt, "building", other_first)
    assert adopt(VDN, served.options()).result == "present"


@pytest.mark.parametrize("place", ["folder", "locations", "sticky"])
def test_a_folder_that_may_not_be_replaced_is_refused_before_it_is_read(
    served: ServerFolder, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    """By its modes, or another's folder in a place where only owners remove."""
    locations = served.folder.parent
    if place == "sticky":
        locations.chmod(0o1777)
        monkeypatch.setattr(os, "geteuid", lambda: served.folder.stat().st_uid + 1234)
    else:
        access, refused = os.access, {"folder": served.folder, "locations": locations}[place]
        monkeypatch.setattr(os, "access", lambda path, mode: path != refused and access(path, mode))
    monkeypatch.setattr(overlay.materialization.adoption.adopt, "compare_small", die)
    before = served.seen()
    for function in (plan_adoption, adopt):
        with pytest.raises(CannotWrite) as caught:
            function(VDN, served.options())
        assert caught.value.code == "not-permitted"
    assert served.seen() == before


def test_what_could_not_be_removed_is_said(served: ServerFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder in it that belongs to somebody else."""
    rmtree = shutil.rmtree

    def fail(path: Any, *args: Any, **named: Any) -> None:
        if not Path(path, served.folder.name).is_dir():
            rmtree(path, *args, **named)

    monkeypatch.setattr(shutil, "rmtree", fail)
    done = adopt(VDN, served.options())
    [left] = served.root.glob(".overlay/staging/*")
    assert any(str(left) in note for note in done.notes)


def test_a_folder_that_cannot_be_listed_is_refused(served: ServerFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    """What nobody saw must not be removed."""
    hidden, scandir = served.folder / "hidden", os.scandir
    hidden.mkdir()

    def refuse(path: Any) -> Any:
        if path == hidden:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refuse)
    with pytest.raises(OverlayError, match="hidden"):
        adopt(VDN, served.options())


def test_the_room_covers_what_is_written(served: ServerFolder) -> None:
    """Records, entries and folders too, not copies alone."""
    planned = plan_adoption(VDN, served.options())
    assert planned is not None
    weights = {path.stat().st_ino for path in served.folder.rglob("*.safetensors")}
    adopt(VDN, served.options())
    places = [path for path in served.root.rglob("*") if not path.is_symlink()]
    written = {path.stat().st_ino: path.stat().st_blocks * 512 for path in places if path.stat().st_ino not in weights}
    assert sum(written.values()) <= planned.work.room


def test_a_kill_between_the_two_renames_loses_nothing(served: ServerFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    """The folder lies beside the location, and a build has nothing to do but to link."""
    before = served.seen()
    with monkeypatch.context() as patch:
        patch.setattr(overlay.cache.replacing, "_exchange", lambda _a, _b: False)
        rename = Path.rename
        patch.setattr(Path, "rename", lambda self, to: die() if self.is_symlink() else rename(self, to))
        assert in_child(lambda: adopt(VDN, served.options())) == signal.SIGKILL
    assert not os.path.lexists(served.folder)
    kept = served.folder.with_name(f"{served.folder.name}.kept-1")
    assert {str(path.relative_to(kept)) for path in kept.rglob("*") if path.is_file()} == before.keys()
    done = materialize(VDN, served.options())
    assert (done.result, done.counters) == ("reused", Counters())
    assert verify(served.folder).ok
