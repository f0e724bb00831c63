"""The small files of an OpenVDN stage."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from overlay.errors import BrokenInput
from overlay.formats.files import Files, Folder
from overlay.formats.vdn import read_linear_branch, read_stage_metadata

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = pytest.mark.no_torch

BRANCH = {"type": "hybrid_attention", "version": 2, "config": {"softmax_attention": {"chunk": 5, "radius": 1}}}
METADATA = {"checkpoint_format_version": 2, "kind": "weights", "metadata": {"step": 250}}


def _read(reader: Callable[[Files, str], dict[str, Any]], folder: Path, document: Any) -> dict[str, Any]:
    (folder / "x.json").write_text(json.dumps(document))
    return reader(Folder(folder), "x.json")


def test_documents_come_back_whole(tmp_path: Path) -> None:
    """The provenance record holds them as they are."""
    assert _read(read_linear_branch, tmp_path, BRANCH) == BRANCH
    assert _read(read_stage_metadata, tmp_path, METADATA) == METADATA


@pytest.mark.parametrize(
    ("reader", "document", "text"),
    [
        (read_linear_branch, {**BRANCH, "type": "lora"}, "type is 'lora', expected 'hybrid_attention'"),
        (read_linear_branch, {**BRANCH, "version": 1}, "version is 1, expected 2"),
        (read_linear_branch, {**BRANCH, "version": 2.0}, "version is 2.0, expected 2"),
        (read_linear_branch, {**BRANCH, "version": "2"}, "version is '2', expected 2"),
        (read_linear_branch, {"config": {}}, "type is None"),
        (read_linear_branch, {**BRANCH, "config": None}, "config is None, expected an object"),
        (read_linear_branch, [], "expected an object"),
        (
            read_stage_metadata,
            {**METADATA, "checkpoint_format_version": 3},
            "checkpoint_format_version is 3, expected 2",
        ),
        (read_stage_metadata, {**METADATA, "kind": "optimizer"}, "kind is 'optimizer', expected 'weights'"),
    ],
)
def test_another_version_is_refused(
    tmp_path: Path, reader: Callable[[Files, str], dict[str, Any]], document: Any, text: str
) -> None:
    """What this program does not know it does not guess at; file, found and expected are named."""
    with pytest.raises(BrokenInput) as caught:
        _read(reader, tmp_path, document)

    assert str(caught.value).startswith(f"{tmp_path}/x.json: ")
    assert text in str(caught.value)
