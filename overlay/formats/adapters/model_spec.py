"""A VDN stage's ``model_spec.json`` repeats the specs of its adapters; the two must agree."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from overlay.errors import BrokenInput
from overlay.formats.adapters.find import parse_description
from overlay.formats.strict_json import parse_object

if TYPE_CHECKING:
    from collections.abc import Sequence

    from overlay.formats.files import Files

__all__ = ["check_model_spec"]


class Described(Protocol):
    """What this needs of an adapter."""

    @property
    def name(self) -> str:
        """What messages call it."""

    @property
    def spec(self) -> str | None:
        """Path of its description; None leaves it out."""


def check_model_spec(files: Files, stage_folder: str, adapters: Sequence[Described]) -> None:
    """Compare the specs of a stage's adapters with those in its ``model_spec.json``; nothing to do where it has none.

    Args:
        files: The repo or folder.
        stage_folder: Of the stage inside it.
        adapters: All adapters of the stage, in order, read from ``files``.

    Raises:
        BrokenInput: Another number of adapters, or one that differs.
    """
    path = f"{stage_folder}/model_spec.json" if stage_folder else "model_spec.json"
    if path not in files.paths():
        return
    where = files.where(path)
    entries = parse_object(files.read_bytes(path), where).get("adapters")
    if entries is None:
        return
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise BrokenInput(
            f"{where}: adapters is no list of objects; expected the spec of each adapter",
            code="model-spec-invalid",
            hint="download the file again",
            where=where,
        )
    if len(entries) != len(adapters):
        raise BrokenInput(
            f"{where}: lists {len(entries)} adapters; expected {len(adapters)}: {', '.join(a.name for a in adapters)}",
            code="model-spec-differs",
            hint="use the stage as it was published, all its files of one commit",
            where=where,
        )
    for index, (entry, adapter) in enumerate(zip(entries, adapters, strict=True)):
        if adapter.spec is None:
            continue
        spec = parse_object(files.read_bytes(adapter.spec), files.where(adapter.spec))
        place = f"{where}: adapters[{index}]"
        if parse_description(entry, place) != parse_description(spec, files.where(adapter.spec)):
            raise BrokenInput(
                f"{place} and {files.where(adapter.spec)} do not say the same; expected equal content",
                code="model-spec-differs",
                hint="use the stage as it was published, all its files of one commit",
                where=where,
                adapter=adapter.name,
            )
