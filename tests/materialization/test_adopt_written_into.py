"""What is written into in place after it was compared, or read for its digest: the cache shares none of it."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING, Any

import pytest
from support.mapped_hub import MAPPED, mapped_hub, mapped_source
from support.models import VDN
from support.server_trees import FUSED, ServerFolder, require_sound_objects

import overlay.cache.replacing
import overlay.materialization.adoption.adopt
from overlay.cache.store import Cache
from overlay.errors import BrokenInput, CannotWrite, TryAgain
from overlay.materialization.adoption.adopt import adopt
from overlay.materialization.materialize import materialize
from overlay.materialization.verify import verify

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def write_into(path: Path, *, restore: bool) -> None:
    """Flip the last bit in place; the time of it can be set back, as a tool does that copies times."""
    before = path.stat()
    path.chmod(0o644)
    with path.open("r+b") as file:
        file.seek(-1, os.SEEK_END)
        last = file.read(1)[0]
        file.seek(-1, os.SEEK_END)
        file.write(bytes([last ^ 1]))
    os.utime(path, ns=(1, before.st_mtime_ns if restore else before.st_mtime_ns + 1))


def before_call(patch: pytest.MonkeyPatch, where: Any, name: str, act: Callable[[], object]) -> None:
    """Do something each first time that a function is called."""
    real, acts = getattr(where, name), [act]

    def then(*args: Any, **named: Any) -> Any:
        if acts:
            acts.pop()()
        return real(*args, **named)

    patch.setattr(where, name, then)


def require_put_back(served: ServerFolder, error: TryAgain) -> None:
    """The folder is where it was, alone, the file is named, and the cache shows nothing of it."""
    assert (error.code, error.exit_status) == ("input-changed", 5)
    assert str(served.folder / FUSED) in error.message
    assert not served.folder.is_symlink()
    assert [path.name for path in served.folder.parent.iterdir()] == [served.folder.name]
    for place in ("trees", "staging"):
        assert list(served.root.glob(f".overlay/{place}/*")) == []
    inode = (served.folder / FUSED).stat().st_ino
    assert all(path.stat().st_ino != inode for path in served.objects)
    require_sound_objects(served.root)


@pytest.mark.parametrize("restore", [False, True])
@pytest.mark.parametrize("swap", ["exchange", "two renames"])
def test_what_is_written_into_at_the_exchange_is_not_shown(
    served: ServerFolder, monkeypatch: pytest.MonkeyPatch, swap: str, *, restore: bool
) -> None:
    """The folder comes back, with what was written; once that is undone, it is adopted."""
    if swap == "two renames":
        monkeypatch.setattr(overlay.cache.replacing, "_exchange", lambda _a, _b: False)
    with monkeypatch.context() as patch:
        path = served.folder / FUSED
        before_call(patch, overlay.cache.replacing, "_exchange", lambda: write_into(path, restore=restore))
        with pytest.raises(TryAgain) as caught:
            adopt(VDN, served.options())
    require_put_back(served, caught.value)
    write_into(served.folder / FUSED, restore=False)
    assert adopt(VDN, served.options()).result == "adopted"
    assert verify(served.folder, "sha256").ok


@pytest.mark.parametrize("restore", [False, True])
def test_an_object_that_an_earlier_run_linked_is_dropped_too(
    served: ServerFolder, monkeypatch: pytest.MonkeyPatch, *, restore: bool
) -> None:
    """A run that was stopped left it, of the same inode; the next one finds it present."""

    def stop(*_: Any) -> Any:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(overlay.materialization.adoption.adopt, "publish", stop)
        with pytest.raises(KeyboardInterrupt):
            adopt(VDN, served.options())
    path = served.folder / FUSED
    assert path.stat().st_nlink == 2
    before_call(monkeypatch, overlay.cache.replacing, "_exchange", lambda: write_into(path, restore=restore))
    with pytest.raises(TryAgain) as caught:
        adopt(VDN, served.options())
    require_put_back(served, caught.value)


@pytest.mark.parametrize("was", ["nothing", "a dangling link of ours"])
def test_what_is_written_into_a_folder_elsewhere_is_not_shown(
    served: ServerFolder, monkeypatch: pytest.MonkeyPatch, was: str
) -> None:
    """The location leads nowhere, as before."""
    elsewhere = served.folder.rename(served.root / "elsewhere")
    if was != "nothing":
        served.folder.symlink_to("../.overlay/trees/gone")
    path = elsewhere / FUSED
    before_call(monkeypatch, overlay.cache.replacing, "swing_location", lambda: write_into(path, restore=True))
    with pytest.raises(TryAgain) as caught:
        adopt(str(elsewhere), served.options())
    assert str(path) in caught.value.message
    assert not os.path.lexists(served.folder)
    assert list(served.root.glob(".overlay/trees/*")) == []
    assert path.stat().st_nlink == 1
    require_sound_objects(served.root)


def test_what_is_written_into_between_look_and_link_becomes_no_object(
    served: ServerFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the time that no program sets back."""
    path = served.folder / FUSED
    before_call(
        monkeypatch,
        overlay.materialization.adoption.adopt,
        "sha256_of_blobs",
        lambda: write_into(path, restore=True),
    )
    with pytest.raises(TryAgain) as caught:
        adopt(VDN, served.options())
    require_put_back(served, caught.value)


@pytest.mark.parametrize("where", ["sha256_of_blobs", "_exchange"])
def test_a_link_that_another_program_makes_is_no_change(
    served: ServerFolder, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    """It moves the same time; the bytes decide."""
    module = overlay.cache.replacing if where == "_exchange" else overlay.materialization.adoption.adopt
    other, path = served.root / "other.safetensors", served.folder / FUSED
    before_call(monkeypatch, module, where, lambda: other.hardlink_to(path))
    done = adopt(VDN, served.options())
    assert done.result == "adopted"
    assert (done.path / FUSED).samefile(other)


def test_a_folder_that_cannot_be_put_back_is_kept_beside(served: ServerFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    """It does not go with the folder that took it."""
    exchange, calls = overlay.cache.replacing._exchange, iter(range(9))

    def then(a: Path, b: Path) -> bool:
        if next(calls) == 0:
            write_into(served.folder / FUSED, restore=False)
            return exchange(a, b)
        raise OSError(errno.EIO, os.strerror(errno.EIO), str(b))

    monkeypatch.setattr(overlay.cache.replacing, "_exchange", then)
    with pytest.raises(CannotWrite):
        adopt(VDN, served.options())
    kept = served.folder.with_name(f"{served.folder.name}.kept-1")
    assert (kept / FUSED).is_file()
    require_sound_objects(served.root)


@pytest.mark.parametrize("moment", ["linking", "building on"])
def test_a_build_forgets_what_is_written_into_after_it_was_linked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """An input that was hardlinked, as asked: no object shares its bytes, nothing is published."""
    chosen, link_object = mapped_hub(tmp_path, link="hardlink"), Cache.link_object
    path = mapped_source(chosen, "unet/w.safetensors")

    def link(self: Any, source: Path, *args: Any, **named: Any) -> Any:
        is_it = source.samefile(path)
        if is_it and moment == "linking":
            write_into(path, restore=False)
        found = link_object(self, source, *args, **named)
        if is_it and moment == "building on":
            write_into(path, restore=False)
        return found

    with monkeypatch.context() as patch:
        patch.setattr(Cache, "link_object", link)
        with pytest.raises(BrokenInput, match=r"unet/w\.safetensors") as caught:
            materialize(MAPPED, chosen)
    assert caught.value.code == "input-changed"
    assert path.stat().st_nlink == 1
    assert list((tmp_path / "root/.overlay/trees").glob("*")) == []
    require_sound_objects(tmp_path / "root")
    done = materialize(MAPPED, chosen)
    assert done.path is not None
    assert (done.path / "unet/w.safetensors").samefile(path)
    assert verify(done.path, "sha256").ok
