"""How released servers are fetched: the very wheels, the modules that matter, once."""

from __future__ import annotations

import hashlib
import zipfile
from typing import TYPE_CHECKING

import fetch_servers
import pytest
from fetch_servers import STAMP, Wheel, fetch, is_there
from support import servers

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.no_torch

MEMBERS = {"pkg/__init__.py": "import torch", "pkg/a.py": "A = 1", "pkg/native.so": "x"}


@pytest.fixture
def wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Wheel:
    """A wheel of which one module is wanted, and a pip that hands it over."""
    file = tmp_path / "pkg-1.0-py3-none-any.whl"
    with zipfile.ZipFile(file, "w") as archive:
        for name, text in MEMBERS.items():
            archive.writestr(name, text)

    def download(_wheel: Wheel, work: Path) -> Path:
        (work / file.name).write_bytes(file.read_bytes())
        return work / file.name

    monkeypatch.setattr(fetch_servers, "_download", download)
    return Wheel("pkg", "1.0", hashlib.sha256(file.read_bytes()).hexdigest(), ("pkg/a.py",))


def test_only_the_named_modules_are_unpacked(wheel: Wheel, tmp_path: Path) -> None:
    """Nothing else of the wheel stays, and what is there is known again."""
    folder = tmp_path / "servers"
    folder.mkdir()
    assert not is_there(wheel, folder)
    fetch(wheel, folder)
    assert is_there(wheel, folder)
    assert {path.name for path in folder.iterdir()} == {"pkg-1.0"}
    assert {path.name for path in (folder / "pkg-1.0").rglob("*") if path.is_file()} == {"a.py", STAMP}


def test_what_was_unpacked_for_another_list_is_replaced(wheel: Wheel, tmp_path: Path) -> None:
    """A module more, and the folder counts as missing."""
    fetch(wheel, tmp_path)
    more = Wheel("pkg", "1.0", wheel.sha256, ("pkg/*.py",))
    assert not is_there(more, tmp_path)
    fetch(more, tmp_path)
    assert is_there(more, tmp_path)
    assert (tmp_path / "pkg-1.0/pkg/__init__.py").is_file()


def test_another_file_of_that_name_is_refused(wheel: Wheel, tmp_path: Path) -> None:
    """The digest is the wheel's, whatever the index hands out; nothing is left."""
    folder = tmp_path / "servers"
    folder.mkdir()
    with pytest.raises(SystemExit, match="expected 0000"):
        fetch(Wheel("pkg", "1.0", "0" * 64, ("pkg/a.py",)), folder)
    assert not list(folder.iterdir())


def test_a_missing_server_fails_the_test_with_what_to_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is no reason to skip."""
    monkeypatch.setattr(servers, "_FOLDER", tmp_path)
    with pytest.raises(pytest.fail.Exception, match=r"tools/fetch_servers\.py"):
        servers.unpacked("sglang", servers.SGLANG_RELEASES[-1])
