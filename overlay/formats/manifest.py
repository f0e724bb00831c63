"""``_overlay/overlay_manifest.json``: how an overlay repo says what to take from its source.

SGLang joins the paths of a manifest to its folders as they come; here every path must stay inside its folder. Fields
that are not known are kept and allowed, as SGLang does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Discriminator, Tag, ValidationError

from overlay.errors import BrokenInput
from overlay.formats.files import safe_path
from overlay.formats.overlay_repo import MANIFEST_PATH
from overlay.formats.strict_json import parse_json

if TYPE_CHECKING:
    from overlay.formats.files import Files

__all__ = ["FileMapping", "GlobMapping", "Manifest", "SourceMapping", "TreeMapping", "read_manifest"]


def _contained(path: str) -> str:
    return safe_path(path, "manifest path")


def _contained_folder(path: str) -> str:
    return "" if path.strip("/") == "." else _contained(path)


def _none_is_absent(value: Any) -> Any:
    return () if value is None else value


def _given(value: Any) -> Any:
    if value is None:
        raise ValueError("null, which a server takes for the name None; leave it out instead")
    return value


_NullIsAbsent = BeforeValidator(_none_is_absent)
_NotNull = BeforeValidator(_given)
_Path = Annotated[str, AfterValidator(_contained)]
_FolderPath = Annotated[str, AfterValidator(_contained_folder)]


class _Allowing(BaseModel):
    model_config = ConfigDict(extra="allow", frozen=True, defer_build=True)  # importing this reads no manifest yet


class FileMapping(_Allowing):
    """One file ``src`` of the source becomes ``dst`` of the output; by default the last part of its name."""

    type: Literal["file"] = "file"
    src: _Path
    dst: Annotated[_Path | None, _NotNull] = None
    dst_dir: None = None

    @property
    def destination(self) -> str:
        """``dst`` with its default filled in."""
        return self.dst or self.src.rpartition("/")[2]


class GlobMapping(_Allowing):
    """Every file of the source that matches ``src`` (``*`` within a part, ``**`` across parts) keeps its path."""

    type: Literal["glob"]
    src: _Path
    dst: None = None
    dst_dir: None = None


class TreeMapping(_Allowing):
    """Every file below the folder ``src`` of the source goes below ``dst_dir`` (default: ``src``); empty: the root."""

    type: Literal["tree"]
    src: _FolderPath
    dst: None = None
    dst_dir: Annotated[_FolderPath | None, _NotNull] = None

    @property
    def destination(self) -> str:
        """``dst_dir`` with its default filled in."""
        return self.src if self.dst_dir is None else self.dst_dir


def _kind(value: Any) -> Any:
    return value.get("type", "file") if isinstance(value, dict) else getattr(value, "type", None)


SourceMapping = Annotated[
    Annotated[FileMapping, Tag("file")] | Annotated[GlobMapping, Tag("glob")] | Annotated[TreeMapping, Tag("tree")],
    Discriminator(_kind, custom_error_type="unknown_mapping", custom_error_message="type should be file, glob or tree"),
]


class Manifest(_Allowing):
    """An overlay manifest.

    Attributes:
        source_allow_patterns: Files of the source that are fetched; None: all that the caller wants.
        required_source_files: Files that the source must have.
        custom_materializer: Python file of the overlay that builds what mappings cannot.
        materializer_version: Enters the name of the output's folder, as text whatever its type.
    """

    source_model_id: str | None = None
    source_revision: str | None = None
    source_allow_patterns: tuple[str, ...] | None = None
    required_source_files: Annotated[tuple[_Path, ...], _NullIsAbsent] = ()
    file_mappings: Annotated[tuple[SourceMapping, ...], _NullIsAbsent] = ()
    custom_materializer: _Path | None = None
    materializer_version: Annotated[str, BeforeValidator(str)] = "v1"


def read_manifest(files: Files, path: str = MANIFEST_PATH) -> Manifest:
    """Reads and checks the manifest of an overlay repo.

    Raises:
        NotHere: There is none.
        BrokenInput: Not JSON, a field of the wrong type, an unknown mapping type, or a path that leaves its folder.
    """
    where = files.where(path)
    document = parse_json(files.read_bytes(path), where)
    try:
        return Manifest.model_validate(document)
    except ValidationError as error:
        problems = error.errors(include_url=False, include_input=False)
        causes = [problem.get("ctx", {}).get("error") for problem in problems]
        unsafe = any(isinstance(cause, BrokenInput) for cause in causes)
        listed = [
            f"{'.'.join(map(str, problem['loc'])) or 'document'}: {cause or problem['msg']}"
            for problem, cause in zip(problems, causes, strict=True)
        ]
        raise BrokenInput(
            f"{where}: {'; '.join(listed)}",
            code="unsafe-path" if unsafe else "bad-manifest",
            hint="correct the overlay's manifest, or pin a revision whose manifest is sound",
            where=where,
            problems=listed,
        ) from error
