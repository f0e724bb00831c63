"""The fuse alone: what it refuses, and that an OUT is whole or not there."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING, Any

import pytest
from support.children import as_plain_user, in_child
from support.models import readable_by_all
from support.published_rule import files_of
from support.small_models import small_adapter, write_base, write_peft

import overlay.materialization.fuse
import overlay.materialization.out_folder
import overlay.materialization.sinks
from overlay.errors import BrokenInput, CannotWrite, InvalidUsage, NotHere
from overlay.materialization.fuse import fuse
from overlay.materialization.verify import verify

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def base(tmp_path: Path) -> Path:
    """A base in three shards."""
    return write_base(tmp_path / "base")


@pytest.fixture
def adapter(tmp_path: Path) -> Path:
    """A PEFT adapter of rank 2, alpha 2."""
    return write_peft(tmp_path / "adapter", small_adapter())


def test_an_existing_out_is_never_written_into(base: Path, adapter: Path, tmp_path: Path) -> None:
    """Folder, file, empty folder, dangling link."""
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_text("mine")
    (tmp_path / "dangling").symlink_to("nowhere")
    for name in ("folder", "file", "dangling"):
        with pytest.raises(InvalidUsage, match="exists") as caught:
            fuse(base, [adapter], tmp_path / name)
        assert caught.value.code == "out-exists"
    assert list((tmp_path / "folder").iterdir()) == []
    assert (tmp_path / "file").read_text() == "mine"


def test_missing_parents_of_out_are_made(base: Path, adapter: Path, tmp_path: Path) -> None:
    """By a run, not by a dry run."""
    fuse(base, [adapter], tmp_path / "new/style/out", dry_run=True)
    assert not (tmp_path / "new").exists()
    assert verify(fuse(base, [adapter], tmp_path / "new/style/out").path).ok


def test_a_failed_fuse_takes_the_parents_that_it_made_with_it(
    base: Path, adapter: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was there before stays, and so does a folder that somebody put something into."""

    def failing(_staged: Path, out: Path) -> None:
        if out.name == "crowded":
            (tmp_path / "there/made/theirs").touch()
        raise NotHere("gone", code="input-gone")

    (tmp_path / "there").mkdir()
    monkeypatch.setattr(overlay.materialization.out_folder, "rename_new", failing)
    with pytest.raises(NotHere, match="gone"):
        fuse(base, [adapter], tmp_path / "there/made/deep/out")
    assert list((tmp_path / "there").iterdir()) == []
    with pytest.raises(NotHere, match="gone"):
        fuse(base, [adapter], tmp_path / "there/made/deep/crowded")
    assert [path.name for path in (tmp_path / "there/made").iterdir()] == ["theirs"]


def test_missing_base_and_adapter_are_named(base: Path, adapter: Path, tmp_path: Path) -> None:
    """Nothing is written."""
    with pytest.raises(NotHere, match="nobase"):
        fuse(tmp_path / "nobase", [adapter], tmp_path / "out")
    with pytest.raises(NotHere, match="noadapter"):
        fuse(base, [tmp_path / "noadapter"], tmp_path / "out")
    with pytest.raises(InvalidUsage, match="no adapter"):
        fuse(base, [], tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_no_room_is_refused_before_the_first_write(
    base: Path, adapter: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Needed and free, and where."""
    needed = fuse(base, [adapter], tmp_path / "out", dry_run=True).room
    monkeypatch.setattr(overlay.materialization.out_folder, "free_room", lambda _path: needed - 1)
    with pytest.raises(CannotWrite, match="free") as caught:
        fuse(base, [adapter], tmp_path / "out")
    assert (caught.value.code, caught.value.data["needed"]) == ("no-room", needed)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["adapter", "base"]


@pytest.mark.parametrize("inside", ["out", "new/out"])
def test_a_folder_that_cannot_be_written_is_an_error_of_ours(
    base: Path, adapter: Path, tmp_path: Path, inside: str
) -> None:
    """The folder, and what to do."""
    (tmp_path / "closed").mkdir(mode=0o555)
    readable_by_all(tmp_path)
    with pytest.raises(CannotWrite) as caught:
        as_plain_user(lambda: fuse(base, [adapter], tmp_path / "closed" / inside))
    assert caught.value.code == "not-permitted"
    assert str(tmp_path / "closed") in caught.value.message
    assert "--out" in str(caught.value.hint)
    assert "--cache-root" not in str(caught.value.hint)


@pytest.mark.parametrize("at", ["first", "middle", "last"])
def test_an_error_half_way_leaves_nothing(
    base: Path, adapter: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    """Neither OUT nor the hidden folder beside it; an error keeps its own class."""
    number = {"first": 0, "middle": 1, "last": 3}[at]
    real, calls = overlay.materialization.fuse.fsync, []

    def failing(path: Path) -> None:
        calls.append(path)
        if len(calls) > number:
            raise NotHere(f"{path}: is gone", code="input-gone")
        real(path)

    for module in (overlay.materialization.fuse, overlay.materialization.sinks, overlay.materialization.out_folder):
        monkeypatch.setattr(module, "fsync", failing)
    with pytest.raises(NotHere, match="is gone"):
        fuse(base, [adapter], tmp_path / "out")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["adapter", "base"]


def test_h20_a_kill_leaves_no_out(base: Path, adapter: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SIGKILL before the last rename: OUT is not there, and the next run makes it."""
    monkeypatch.setattr(
        overlay.materialization.out_folder, "rename_new", lambda _s, _o: os.kill(os.getpid(), signal.SIGKILL)
    )
    assert in_child(lambda: fuse(base, [adapter], tmp_path / "out")) == signal.SIGKILL
    assert not (tmp_path / "out").exists()
    [left] = [path for path in tmp_path.iterdir() if path.name.startswith(".")]
    monkeypatch.undo()
    fuse(base, [adapter], tmp_path / "another")
    assert left.is_dir()  # of another OUT
    assert verify(fuse(base, [adapter], tmp_path / "out").path).ok
    assert not left.exists()


def test_somebody_makes_out_meanwhile(
    base: Path, adapter: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What they made stays, and it is said."""
    real = overlay.materialization.out_folder.rename_new

    def late(staged: Path, out: Path) -> None:
        out.mkdir()
        (out / "theirs").write_text("theirs")
        real(staged, out)

    monkeypatch.setattr(overlay.materialization.out_folder, "rename_new", late)
    with pytest.raises(InvalidUsage, match="meanwhile") as caught:
        fuse(base, [adapter], tmp_path / "out")
    assert caught.value.code == "out-exists"
    assert files_of(tmp_path / "out") == {"theirs": b"theirs"}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["adapter", "base", "out"]


def test_modes_come_from_the_umask(base: Path, adapter: Path, tmp_path: Path) -> None:
    """Files and folder."""
    before = os.umask(0o027)
    try:
        done = fuse(base, [adapter], tmp_path / "out")
    finally:
        os.umask(before)
    assert done.path.stat().st_mode & 0o777 == 0o750
    assert {path.stat().st_mode & 0o777 for path in done.path.iterdir()} == {0o640}


def test_a_name_as_long_as_a_name_can_be(base: Path, adapter: Path, tmp_path: Path) -> None:
    """255 bytes: the hidden folder beside it needs no more."""
    assert verify(fuse(base, [adapter], tmp_path / ("o" * 255)).path).ok


@pytest.mark.parametrize("inside", ["out", "new/out", "../link/out"])
def test_an_out_inside_the_base_is_refused(base: Path, adapter: Path, tmp_path: Path, inside: str) -> None:
    """The base stays as it is; also where a link leads into it."""
    (tmp_path / "link").symlink_to(base)
    before = files_of(base)
    with pytest.raises(InvalidUsage, match="lies in") as caught:
        fuse(base, [adapter], base / inside)
    assert caught.value.code == "out-inside-base"
    assert files_of(base) == before


@pytest.mark.parametrize(
    "path",
    ["base/a.safetensors", "base/c.safetensors", "adapter/adapter_model.safetensors", "adapter/adapter_config.json"],
)
@pytest.mark.parametrize("touch", ["rewritten", "replaced"])
def test_an_input_that_is_edited_meanwhile_is_noticed(
    base: Path, adapter: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str, touch: str
) -> None:
    """Same size and sound bytes, but who knows which of them were read: nothing is sealed."""
    real = overlay.materialization.fuse.start_engine
    edited = tmp_path / path

    def meanwhile(*args: Any) -> Any:
        data = edited.read_bytes()
        if touch == "replaced":
            status = edited.stat()
            (tmp_path / "new").write_bytes(data)
            os.utime(tmp_path / "new", ns=(status.st_atime_ns, status.st_mtime_ns))
            (tmp_path / "new").rename(edited)
        else:
            edited.write_bytes(data)
            os.utime(edited, ns=(1, 1))
        return real(*args)

    monkeypatch.setattr(overlay.materialization.fuse, "start_engine", meanwhile)
    with pytest.raises(BrokenInput, match=edited.name) as caught:
        fuse(base, [adapter], tmp_path / "out")
    assert caught.value.code == "input-changed"
    assert not (tmp_path / "out").exists()


def test_a_dry_run_refuses_a_device_that_is_not_there(base: Path, adapter: Path, tmp_path: Path) -> None:
    """As the run would."""
    for dry_run in (True, False):
        with pytest.raises(InvalidUsage, match="cuda:99") as caught:
            fuse(base, [adapter], tmp_path / "out", device="cuda:99", dry_run=dry_run)
        assert caught.value.code == "no-such-device"
