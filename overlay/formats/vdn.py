"""The small JSON files of an OpenVDN checkpoint stage, checked to be the versions that are understood here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from overlay.errors import BrokenInput
from overlay.formats.strict_json import parse_object

if TYPE_CHECKING:
    from overlay.formats.files import Files

__all__ = ["read_linear_branch", "read_stage_metadata"]


def read_linear_branch(files: Files, path: str) -> dict[str, Any]:
    """``linear_branch/config.json``, whole; its ``config`` object is what the runtime's config is extended by.

    Raises:
        BrokenInput: Not ``type`` "hybrid_attention" of ``version`` 2 with a ``config`` object.
    """
    document = parse_object(files.read_bytes(path), files.where(path))
    _expect(document, {"type": "hybrid_attention", "version": 2}, files.where(path))
    if not isinstance(document.get("config"), dict):
        raise BrokenInput(
            f"{files.where(path)}: config is {document.get('config')!r}, expected an object",
            code="bad-linear-branch",
            hint="download the file again",
            where=files.where(path),
        )
    return document


def read_stage_metadata(files: Files, path: str) -> dict[str, Any]:
    """``metadata.json`` of a stage, whole.

    Raises:
        BrokenInput: Not ``checkpoint_format_version`` 2 of ``kind`` "weights".
    """
    document = parse_object(files.read_bytes(path), files.where(path))
    _expect(document, {"checkpoint_format_version": 2, "kind": "weights"}, files.where(path))
    return document


def _expect(document: dict[str, Any], wanted: dict[str, Any], where: str) -> None:
    for key, value in wanted.items():
        found = document.get(key)
        if type(found) is not type(value) or found != value:
            raise BrokenInput(
                f"{where}: {key} is {found!r}, expected {value!r}",
                code="unknown-version",
                hint="this revision of the checkpoint needs a newer release of this program",
                where=where,
                key=key,
            )
