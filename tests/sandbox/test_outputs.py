"""What may be in an output folder, where a script could put things that its sandbox did not let it make."""

from __future__ import annotations

import os
import shutil
import socket
from typing import TYPE_CHECKING

import pytest

from overlay.errors import BrokenInput
from overlay.formats.materialized import MARKER_NAME
from overlay.sandbox import outputs
from overlay.sandbox.outputs import checked_output, make_removable

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.no_torch


@pytest.fixture
def output(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("output", "input", "elsewhere"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "good").write_text("x")
    monkeypatch.chdir(tmp_path / "output")  # a socket's path must be short
    return tmp_path / "output"


def put_socket(folder: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("a")


def put_repository(folder: Path) -> None:
    for name in ("HEAD", "objects/a", "refs/a"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("x")


PUT = {
    "socket": put_socket,
    "pipe": lambda folder: os.mkfifo(folder / "a"),
    "hard link out": lambda folder: os.link(folder / "../elsewhere/good", folder / "a"),
    "link out": lambda folder: (folder / "a").symlink_to("../elsewhere/good"),
    "dangling link": lambda folder: (folder / "a").symlink_to("a"),
    "link to no file": lambda folder: (folder / "a").symlink_to("../input"),
    "special mode": lambda folder: (folder / "good").chmod(0o2755),
    "pickle": lambda folder: (folder / "Model.PT").write_text("x"),
    "bad name": lambda folder: (folder / "a\nb").write_text("x"),
    "hidden": lambda folder: (folder / ".envrc").write_text("x"),
    "git repository": lambda folder: put_repository(folder / "vae"),
    "too many files": lambda folder: [(folder / str(i)).write_text("") for i in range(9)],
}


@pytest.mark.parametrize("found", PUT)
def test_it_is_refused(output: Path, found: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each thing by its name, with a place that a terminal can show."""
    monkeypatch.setattr(outputs, "MAX_ENTRIES", 8)
    PUT[found](output)

    with pytest.raises(BrokenInput) as caught:
        checked_output(output, [output.parent / "input"])

    assert (caught.value.code, caught.value.data["found"]) == ("script-output", found)
    assert str(caught.value).isprintable()


@pytest.mark.parametrize("name", [".git", "a/.GIT", ".vscode", f"a/{MARKER_NAME}", ".a"])
def test_hidden_folders_are_refused(output: Path, name: str) -> None:
    """At any depth, empty ones too; the server's marker alone may lie at the top."""
    (output / MARKER_NAME).write_text("x")
    assert [file.path for file in checked_output(output, [])] == [MARKER_NAME, "good"]
    (output / name).mkdir(parents=True)
    with pytest.raises(BrokenInput, match="hidden") as caught:
        checked_output(output, [])
    assert caught.value.data["where"] == name


@pytest.mark.parametrize("name", ["m.bin ", "m.PT.", "m.ckpt. ."])
def test_a_pickle_is_one_with_blanks_behind_its_name(output: Path, name: str) -> None:
    """Some filesystems and readers drop them."""
    (output / name).write_text("x")
    with pytest.raises(BrokenInput) as caught:
        checked_output(output, [])
    assert caught.value.data["found"] == "pickle"


def test_an_error_names_the_place_in_the_output(output: Path) -> None:
    """Nobody can look at the folder of a run that is over."""
    (output / "deep").mkdir()
    (output / "deep/a").symlink_to(output / "absent")
    with pytest.raises(BrokenInput, match=r"^deep/a: the script left"):
        checked_output(output, [])


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads every folder")
def test_a_closed_folder_is_refused(output: Path) -> None:
    """What cannot be looked into may hold anything."""
    (output / "closed").mkdir(mode=0)

    with pytest.raises(BrokenInput, match="cannot be read"):
        checked_output(output, [])


def test_hard_links_among_its_own_files_are_fine(output: Path) -> None:
    """All names of the file are in the output."""
    (output / "a").hardlink_to(output / "good")

    assert [(file.path, file.kind) for file in checked_output(output, [])] == [("a", "file"), ("good", "file")]


def test_folders_without_end_can_be_removed(output: Path) -> None:
    """They are brought near the top, with what they hold."""
    for _ in range(3000):
        os.mkdir("a" * 200)  # noqa: PTH102 - by a path of its own it would be too long
        os.chdir("a" * 200)
    os.chdir(output)

    make_removable(output)
    shutil.rmtree(output)

    assert not output.exists()
