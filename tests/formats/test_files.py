"""Local folders as ``Files``: links, limits, and paths that stay inside."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.tensors import lfs_pointer, u8, write_tensors
from support.users import other_user

from overlay.errors import BrokenInput, NotHere, Refused
from overlay.formats.files import MAX_RANGE, MAX_SMALL_FILE, Folder, safe_path

pytestmark = pytest.mark.no_torch


@pytest.mark.parametrize(
    ("path", "plain"),
    [("a", "a"), ("a/b.c", "a/b.c"), ("./a//b/.", "a/b"), ("a/", "a"), ("..a/b..", "..a/b.."), (".git/x", ".git/x")],
)
def test_paths_inside_are_normalised(path: str, plain: str) -> None:
    """Names may hold dots; empty and ``.`` parts go."""
    assert plain == safe_path(path, "index")


@pytest.mark.parametrize(
    ("path", "problem"),
    [
        ("/etc/passwd", "is absolute"),
        ("//a", "is absolute"),
        ("..", "leads out of its folder with '..'"),
        ("../../other/x.safetensors", "leads out of its folder with '..'"),
        ("a/../b", "leads out of its folder with '..'"),
        ("a/..", "leads out of its folder with '..'"),
        ("", "is empty"),
        (".", "is empty"),
        ("./", "is empty"),
        ("a\0b", "has a NUL or a backslash"),
        ("..\\x", "has a NUL or a backslash"),
        ("C:\\x", "has a NUL or a backslash"),
    ],
)
def test_paths_that_reach_outside_are_refused(path: str, problem: str) -> None:
    """The message names the place and the path."""
    with pytest.raises(BrokenInput) as caught:
        safe_path(path, "index")

    assert caught.value.code == "unsafe-path"
    assert str(caught.value).startswith(f"index: {path!r} {problem}, expected a relative POSIX path")


@given(st.text(st.sampled_from("./a\\\0"), max_size=8))
def test_a_safe_path_never_leaves_its_folder(path: str) -> None:
    """Whatever passes, joined to a folder, is below that folder."""
    try:
        plain = safe_path(path, "x")
    except BrokenInput:
        return
    assert os.path.normpath(f"/root/{plain}") == f"/root/{plain}"
    assert plain == safe_path(plain, "x")


def test_every_file_is_listed_sorted(tmp_path: Path) -> None:
    """Hidden files and sub-folders too; empty folders are nothing."""
    for path in ("b/x.json", "a.json", "a/z", ".hidden", "B"):
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_text(path)
    (tmp_path / "empty").mkdir()

    files = Folder(tmp_path)

    assert list(files.paths()) == [".hidden", "B", "a.json", "a/z", "b/x.json"]
    assert files.size("b/x.json") == 8
    assert files.read_bytes("./b/x.json") == b"b/x.json"
    assert str(tmp_path) == files.name
    assert f"{tmp_path}/a/z" == files.where("a/z")


def test_a_snapshot_of_the_hub_cache_is_read_through_its_links(tmp_path: Path) -> None:
    """Links to blobs outside of the folder are how the Hub's cache looks."""
    snapshot = tmp_path / "models--o--n" / "snapshots" / "abc" / "transformer"
    snapshot.mkdir(parents=True)
    write_tensors(tmp_path / "models--o--n" / "blobs" / "58558fef", {"a": u8(1, 2)})
    (snapshot / "model.safetensors").symlink_to("../../../blobs/58558fef")

    files = Folder(snapshot.parent)

    assert list(files.paths()) == ["transformer/model.safetensors"]
    assert set(files.header("transformer/model.safetensors").tensors) == {"a"}
    assert files.size("transformer/model.safetensors") == files.header("transformer/model.safetensors").file_size


def test_a_link_to_a_folder_is_followed(tmp_path: Path) -> None:
    """A component kept on another disk is part of the folder; the folder's own name may be a link too."""
    (tmp_path / "disk").mkdir()
    (tmp_path / "disk" / "config.json").write_text("{}")
    (tmp_path / "hub").mkdir()
    (tmp_path / "hub" / "transformer").symlink_to(tmp_path / "disk")
    (tmp_path / "link").symlink_to(tmp_path / "hub")

    files = Folder(tmp_path / "link")

    assert list(files.paths()) == ["transformer/config.json"]
    assert f"{tmp_path}/link" == files.name


def test_a_link_to_a_folder_above_is_refused_by_name(tmp_path: Path) -> None:
    """A circle is an error and not an endless listing."""
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "up").symlink_to(tmp_path)

    with pytest.raises(BrokenInput, match="a/up: link to a folder above it"):
        Folder(tmp_path).paths()


@pytest.mark.parametrize(
    ("target", "code", "words"),
    [
        pytest.param("gone", "dangling-link", "link to gone, which is not there", id="dangling"),
        pytest.param("self.json", "link-loop", "cannot be read: Too many levels of symbolic links", id="circle"),
    ],
)
def test_a_dangling_link_is_listed_and_refused_when_read(tmp_path: Path, target: str, code: str, words: str) -> None:
    """Whatever touches the file gets its name and what is wrong with the link; the rest of the folder stays usable."""
    (tmp_path / "self.json").symlink_to(target)
    (tmp_path / "good.json").write_text("{}")
    files = Folder(tmp_path)

    assert list(files.paths()) == ["good.json", "self.json"]
    for read in (files.size, files.read_bytes, files.header, lambda path: files.read_range(path, 0, 1)):
        with pytest.raises(BrokenInput, match=rf"self\.json: {words}") as caught:
            read("self.json")
        assert caught.value.code == code
    assert files.read_bytes("good.json") == b"{}"


def test_absent_files_and_folders_are_not_here(tmp_path: Path) -> None:
    """Absence is told apart from damage; a file used as a folder is absence too."""
    (tmp_path / "file").write_text("x")
    files = Folder(tmp_path)

    for path in ("none.json", "none/none.json", "file/none.json"):
        with pytest.raises(NotHere, match="no such file"):
            files.size(path)
    for folder in (tmp_path / "none", tmp_path / "file"):
        with pytest.raises(NotHere, match="no such folder"):
            Folder(folder)


@pytest.mark.parametrize("path", ["../x", "/etc/passwd", "a/../../x"])
def test_paths_are_contained(tmp_path: Path, path: str) -> None:
    """No method reads outside of the folder."""
    (tmp_path / "x").write_text("secret")
    (tmp_path / "folder").mkdir()
    files = Folder(tmp_path / "folder")

    for read in (files.size, files.read_bytes, files.header, lambda path: files.read_range(path, 0, 1)):
        with pytest.raises(BrokenInput) as caught:
            read(path)
        assert caught.value.code == "unsafe-path"


def test_special_files_are_refused_without_waiting(tmp_path: Path) -> None:
    """A pipe would block its reader for ever."""
    os.mkfifo(tmp_path / "pipe.json")
    (tmp_path / "folder.json").mkdir()
    files = Folder(tmp_path)

    with pytest.raises(BrokenInput, match=r"pipe\.json: found a special file, expected a regular file"):
        files.read_bytes("pipe.json")
    with pytest.raises(BrokenInput, match=r"folder\.json: found a folder, expected a regular file"):
        files.read_bytes("folder.json")


def test_large_files_are_not_read_whole(tmp_path: Path) -> None:
    """The limit guards memory; a file of exactly the limit passes."""
    for name, size in (("at", MAX_SMALL_FILE), ("over", MAX_SMALL_FILE + 1)):
        with (tmp_path / name).open("wb") as file:
            file.truncate(size)
    files = Folder(tmp_path)

    assert len(files.read_bytes("at")) == MAX_SMALL_FILE
    with pytest.raises(BrokenInput, match=f"over: {MAX_SMALL_FILE + 1} bytes, expected at most {MAX_SMALL_FILE}"):
        files.read_bytes("over")


def test_h14_a_small_file_that_is_a_git_lfs_pointer_is_refused(tmp_path: Path) -> None:
    """JSON kept in LFS is named as a pointer, not as bad JSON."""
    (tmp_path / "tokenizer.json").write_bytes(lfs_pointer(7_031_645))

    with pytest.raises(BrokenInput, match=r"tokenizer\.json: found a Git LFS pointer .* \(7031645 bytes\)"):
        Folder(tmp_path).read_bytes("tokenizer.json")


def test_ranges_are_exact(tmp_path: Path) -> None:
    """A range is read to the byte, and one beyond the end is damage."""
    (tmp_path / "x").write_bytes(bytes(range(100)))
    files = Folder(tmp_path)

    assert bytes(range(10, 14)) == files.read_range("x", 10, 4)
    assert files.read_range("x", 100, 0) == b""
    with pytest.raises(BrokenInput, match="x: 100 bytes, expected at least 101"):
        files.read_range("x", 97, 4)
    for start, nbytes in ((0, MAX_RANGE + 1), (-1, 4), (0, -1)):
        with pytest.raises(ValueError, match="is not within"):
            files.read_range("x", start, nbytes)


def test_headers_are_read_once(tmp_path: Path) -> None:
    """The second look at a header costs nothing."""
    write_tensors(tmp_path / "x.safetensors", {"a": u8(1)})
    files = Folder(tmp_path)

    assert files.header("x.safetensors") is files.header("x.safetensors")


def test_a_name_that_is_not_utf8_is_refused(tmp_path: Path) -> None:
    """Such a name could not be written into a record."""
    (Path(os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9"))).write_text("x")

    with pytest.raises(BrokenInput, match="is not UTF-8"):
        Folder(tmp_path).paths()


def test_what_may_not_be_read_is_refused_by_name() -> None:
    """Folders and files of another user are named, in the listing and when they are read."""
    with tempfile.TemporaryDirectory(dir="/tmp") as name:  # pytest's own folders are closed to other users
        world = Path(name)
        world.chmod(0o755)
        (world / "closed").mkdir(mode=0o700)
        (world / "open").mkdir()
        (world / "open" / "x.json").write_text("{}")
        (world / "open" / "x.json").chmod(0)
        (world / "closed").chmod(0)

        with other_user():
            with pytest.raises(Refused, match="closed: no permission to read it"):
                Folder(world).paths()
            with pytest.raises(Refused, match=r"open/x\.json: no permission to read it"):
                Folder(world).read_bytes("open/x.json")

        (world / "closed").chmod(0o700)
