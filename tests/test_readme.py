"""What the README shows is what the program does."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from support.demo_hub import MODEL, make_world

from overlay.cli._main import run

if TYPE_CHECKING:
    import pytest

README = Path(__file__).parent.parent / "README.md"


def test_readme_example_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The example of the README does what it says, on the demo's checkpoint."""
    make_world(tmp_path)
    monkeypatch.chdir(tmp_path)
    (example,) = re.findall(r"^```python\n(.*?)^```", README.read_text(), re.DOTALL | re.MULTILINE)

    exec(compile(example, "README.md", "exec"), {})  # noqa: S102  # it is this project's own

    result, path, sound = capsys.readouterr().out.split()
    assert (result, sound) == ("built", "True")
    assert Path(path).is_dir()


def test_readme_shows_what_resolve_prints(capsys: pytest.CaptureFixture[str]) -> None:
    """Every row, in order; only the folders of the host are its own."""
    [shown] = re.findall(rf"^\$ overlay resolve {MODEL}\n(.*?)\n\n", README.read_text(), re.DOTALL | re.MULTILINE)

    assert run(["resolve", MODEL]) == 0
    printed = capsys.readouterr().out.rstrip()

    assert without_folders(shown) == without_folders(printed)


def without_folders(text: str) -> str:
    """The text with the last part alone of each absolute path."""
    return re.sub(r" /\S*/", " ", text)
