"""Why a server would not take a folder for a model. tests/servers asks the released servers the same."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from overlay.consumers import sglang
from overlay.formats.materialized import MARKER_NAME

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.no_torch

PAIR = ["diffusers", "X"]
HEAD = {"_class_name": "P", "_diffusers_version": "0"}
WHOLE = {"transformer": PAIR, "vae": PAIR, "tokenizer": PAIR, "scheduler": None}
FILES = ("transformer/a.safetensors", "vae/source/b.safetensors", "vae/b.safetensors", "tokenizer/t.json", MARKER_NAME)


def tree(root: Path, index: Any, *files: str) -> Path:
    for file in files:
        (root / file).parent.mkdir(parents=True, exist_ok=True)
        (root / file).write_text("x")
    (root / "model_index.json").write_text(json.dumps(index))
    return root


def reasons(folder: Path, *version: int, by_path: bool = False) -> str:
    found = sglang.why_incomplete(folder, sglang.release_of(version or None), by_path=by_path)  # type: ignore[arg-type]
    return "; ".join(found)


@pytest.mark.parametrize("patch", range(10, 24))
def test_a_whole_tree_is_taken_by_every_release(patch: int, tmp_path: Path) -> None:
    """By path and by name; a null is no component."""
    folder = tree(tmp_path, HEAD | WHOLE, *FILES)
    assert reasons(folder, 0, 5, patch) == reasons(folder, 0, 5, patch, by_path=True) == ""


@pytest.mark.parametrize(
    ("gone", "since", "reason"),
    [
        (MARKER_NAME, 10, "no marker"),
        ("tokenizer", 10, "tokenizer: there is no such component"),
        ("vae", 10, "vae: there is no such component"),
        ("model_index.json", 10, "model_index.json"),
        ("transformer/a.safetensors", 14, "transformer: has no weights below it"),
        ("vae/b.safetensors", 16, "vae: has no weights at its top"),
    ],
)
def test_what_is_missing_is_named(gone: str, since: int, reason: str, tmp_path: Path) -> None:
    """From the release on that looks for it."""
    folder = tree(tmp_path / "here", HEAD | WHOLE, *FILES)
    (folder / gone).rename(tmp_path / "gone")
    assert reason in reasons(folder, 0, 5, since)
    if since > 10:
        assert not reasons(folder, 0, 5, since - 1)


@pytest.mark.parametrize(
    ("component", "files", "reason"),
    [
        ({"image_encoder": [None, None]}, (), "image_encoder: is no folder"),
        ({"tokenizer_3": PAIR}, ("tokenizer_3/t.json",), "tokenizer_3: has no weights below it"),
        ({"audio_scheduler": PAIR}, ("audio_scheduler/c.json",), "audio_scheduler: has no weights below it"),
        ({"vocoder": PAIR}, ("vocoder/model.ckpt",), "vocoder: has no weights below it"),
    ],
)
def test_trees_that_load_well_but_are_built_again_at_every_start(
    component: dict[str, Any], files: tuple[str, ...], reason: str, tmp_path: Path
) -> None:
    """The two tests of the server disagree; served by path these trees are taken."""
    folder = tree(tmp_path, HEAD | WHOLE | component, *FILES, *files)
    assert reasons(folder, by_path=True) == ""
    assert reason in reasons(folder)
    assert reasons(folder, 0, 5, 13) == ""


@pytest.mark.parametrize("key", ["_class_name", "_diffusers_version"])
def test_an_index_that_makes_the_server_fail(key: str, tmp_path: Path) -> None:
    """Without these the server does not build again, it raises."""
    folder = tree(tmp_path, {name: value for name, value in (HEAD | WHOLE).items() if name != key}, *FILES)
    assert f"has no {key}" in reasons(folder)


def test_modular_index_is_read_from_0_5_21_on(tmp_path: Path) -> None:
    """By path; under a key the other index is needed all the same."""
    folder = tree(tmp_path, HEAD | WHOLE, *FILES)
    (folder / "model_index.json").rename(folder / "modular_model_index.json")
    assert "model_index.json" in reasons(folder, 0, 5, 20, by_path=True)
    assert reasons(folder, 0, 5, 21, by_path=True) == ""
    assert "model_index.json" in reasons(folder)


def test_private_entries_are_components_up_to_0_5_21(tmp_path: Path) -> None:
    """A pair under a name that starts with ``_`` asked for a folder."""
    folder = tree(tmp_path, HEAD | WHOLE | {"_extra": PAIR}, *FILES)
    assert "_extra" in reasons(folder, 0, 5, 21)
    assert reasons(folder, 0, 5, 22) == ""


def test_a_bracket_in_the_path_hides_weights(tmp_path: Path) -> None:
    """The server looks with a glob and does not escape the folder's own name."""
    folder = tree(tmp_path / "root [a]", HEAD | WHOLE, *FILES)
    assert "[" in reasons(folder)
    assert reasons(folder, 0, 5, 15) == ""


@pytest.mark.parametrize("content", ["", "{", "[]", '{"a": 1, "a": 2}'])
def test_an_unreadable_index_is_a_reason_not_an_error(content: str, tmp_path: Path) -> None:
    """Whatever is in the file."""
    folder = tree(tmp_path, HEAD | WHOLE, *FILES)
    (folder / "model_index.json").write_text(content)
    assert str(folder / "model_index.json") in reasons(folder)
