"""Model indexes: components, absent ones, and options."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from overlay.errors import BrokenInput, NotHere
from overlay.formats.files import Folder
from overlay.formats.model_index import ModelIndex, read_model_index

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.no_torch

STAMP = {"_class_name": "VDNH3Pipeline", "_diffusers_version": "0.42.0"}


def _read(folder: Path, document: Any) -> ModelIndex:
    (folder / "model_index.json").write_text(json.dumps(document))
    return read_model_index(Folder(folder))


def test_components_absent_ones_and_options_are_told_apart(tmp_path: Path) -> None:
    """A pair with a class is a component, null or two nulls is absent, anything else an option."""
    index = _read(
        tmp_path,
        {
            **STAMP,
            "transformer": ["diffusers", "MiniMaxH3Transformer3DModel"],
            "vae": [None, "CustomVAE"],
            "scheduler": None,
            "image_encoder": [None, None],
            "requires_safety_checker": False,
            "three": ["a", "b", {}],
            "numbers": [1, 2],
            "_minimax_h3": {"schema_version": 1},
        },
    )

    assert (index.class_name, index.diffusers_version) == ("VDNH3Pipeline", "0.42.0")
    assert index.components == {
        "transformer": ("diffusers", "MiniMaxH3Transformer3DModel"),
        "vae": (None, "CustomVAE"),
    }
    assert index.absent == ("scheduler", "image_encoder")
    assert index.document["_minimax_h3"] == {"schema_version": 1}


@pytest.mark.parametrize("key", STAMP)
@pytest.mark.parametrize("value", [None, 3])
def test_what_sglang_requires_is_required(tmp_path: Path, key: str, value: Any) -> None:
    """An index without class or version raises in the server; it is refused here first."""
    found = f"has no {key}" if value is None else f"{key} is {value}"
    with pytest.raises(BrokenInput, match=rf"model_index\.json: {found}, expected a string"):
        _read(tmp_path, {**STAMP, key: value})


def test_an_index_must_be_an_object_that_is_there(tmp_path: Path) -> None:
    """Absence and damage are told apart."""
    with pytest.raises(NotHere):
        read_model_index(Folder(tmp_path))
    with pytest.raises(BrokenInput, match="expected an object"):
        _read(tmp_path, [])
