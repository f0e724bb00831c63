"""Stamps that say that a base already holds adapters."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from overlay.errors import BrokenInput
from overlay.formats.adapters import Stamp, fused_adapters
from overlay.formats.files import Folder

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.no_torch

ONE, TWO = "1" * 64, "2" * 64
PREFUSED = {
    "adapters": [{"name": "default", "adapter_model_sha256": ONE}, {"name": "turbo", "adapter_model_sha256": TWO}]
}
RECORD = {"inputs": [{"role": "base", "digest": f"sha256:{TWO}"}, {"role": "adapter", "digest": f"sha256:{ONE}"}]}
DIGESTS = (f"sha256:{ONE}", f"sha256:{TWO}")

CASES = {
    "nothing": ({}, ()),
    "prefused": ({"transformer/sglang_vdn_prefused.json": PREFUSED}, (DIGESTS,)),
    "prefused-above": ({"sglang_vdn_prefused.json": PREFUSED}, (DIGESTS,)),
    "record": ({"transformer/overlay_record.json": RECORD}, (DIGESTS[:1],)),
    "record-above": ({"overlay_record.json": RECORD}, (DIGESTS[:1],)),
    "record-without-adapters": ({"overlay_record.json": {"inputs": RECORD["inputs"][:1]}}, ()),
    "record-without-digests": ({"overlay_record.json": {"inputs": [{"role": "adapter", "digest": ""}]}}, ((),)),
    "marker": ({".sglang_overlay_materialized.json": {}}, ((),)),
    "marker-inside": ({"transformer/.sglang_overlay_materialized.json": {}}, ((),)),
    "marker-and-record": (
        {".sglang_overlay_materialized.json": {}, "transformer/sglang_vdn_prefused.json": PREFUSED},
        (DIGESTS,),
    ),
    "two": (
        {"overlay_record.json": RECORD, "transformer/sglang_vdn_prefused.json": PREFUSED},
        (DIGESTS, DIGESTS[:1]),
    ),
    "elsewhere": ({"other/sglang_vdn_prefused.json": PREFUSED}, ()),
}


def write(folder: Path, documents: dict[str, Any]) -> Folder:
    (folder / "transformer").mkdir()
    for path, document in documents.items():
        (folder / path).parent.mkdir(exist_ok=True)
        (folder / path).write_text(document if isinstance(document, str) else json.dumps(document))
    return Folder(folder)


@pytest.mark.parametrize(("documents", "digests"), CASES.values(), ids=CASES)
def test_stamps_of_a_folder_and_the_one_above(
    tmp_path: Path, documents: dict[str, Any], digests: tuple[tuple[str, ...], ...]
) -> None:
    """Every known stamp is found, with the digests of the adapters' weights where it has them."""
    stamps = fused_adapters(write(tmp_path, documents), "transformer")

    assert tuple(stamp.digests for stamp in stamps) == digests
    assert {stamp.path for stamp in stamps} <= set(documents)


def test_stamp_beside_weights_at_the_root(tmp_path: Path) -> None:
    """The root of a repo has no folder above it."""
    files = write(tmp_path, {"overlay_record.json": RECORD})

    assert fused_adapters(files, "") == (Stamp("overlay_record.json", DIGESTS[:1]),)


@pytest.mark.parametrize("text", ["{", "[]", ""])
def test_unreadable_stamp_is_an_error(tmp_path: Path, text: str) -> None:
    """A stamp that cannot be read may say that the base is fused."""
    with pytest.raises(BrokenInput, match=r"sglang_vdn_prefused\.json"):
        fused_adapters(write(tmp_path, {"sglang_vdn_prefused.json": text}), "transformer")
