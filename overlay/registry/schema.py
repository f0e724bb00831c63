"""The shape of a registry file, checked by pydantic.

Every field of an entry may be missing here: an override names only what it changes. What an entry must have once all
files are laid over each other is checked in :mod:`overlay.registry.merge`.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Discriminator, Field, Tag, model_validator

from overlay.errors import BrokenInput
from overlay.formats.files import safe_path
from overlay.registry.entries import COMMIT, CONSUMERS, repo_id_problem
from overlay.registry.fields import Fields, Word, check_printable, wrong
from overlay.registry.launch_fields import LaunchFields, ServerName  # noqa: TC001  # pydantic reads the annotations
from overlay.registry.script_fields import PythonFields, WheelFields

__all__ = [
    "ComposeFields",
    "EntryFields",
    "Fields",
    "LoraFields",
    "MappingsFields",
    "NeedFields",
    "OutputFields",
    "OverlayFields",
    "PartFields",
    "PinFields",
    "PlaceFields",
    "PythonFields",
    "RegistryFile",
    "VdnH3Fields",
    "check_commit",
    "check_repo",
]

_HEX = re.compile(r"[0-9a-fA-F]{4,64}")
_FINGERPRINT = re.compile(r"[0-9a-f]{64}")


def check_repo(repo: str) -> str:
    """The repo id as given, if it is one: ``org/name``.

    Raises:
        PydanticCustomError: It is none; a ValueError, as validators raise.
    """
    if problem := repo_id_problem(repo):
        raise wrong("invalid-repo-id", problem)
    return repo


def check_commit(revision: str) -> str:
    """The revision as given, if it is a commit: 40 lower-case hex digits.

    Raises:
        PydanticCustomError: It is none; a ValueError, as validators raise.
    """
    if COMMIT.fullmatch(revision):
        return revision
    if COMMIT.fullmatch(revision.lower()):
        raise wrong(
            "not-a-commit", f"{revision} has upper-case digits; expected lower case", f"write {revision.lower()}"
        )
    if _HEX.fullmatch(revision):
        raise wrong(
            "not-a-commit",
            f"{revision} has {len(revision)} hex digits; a commit has 40",
            "copy all 40 digits: git ls-remote https://huggingface.co/{repo}",
        )
    raise wrong(
        "not-a-commit",
        f"{revision!r} is no commit but a name that moves; expected 40 hex digits",
        "pin the commit it stands for: git ls-remote https://huggingface.co/{repo}; "
        'or give floating: "<reason>" in place of revision',
    )


def _check_fingerprint(fingerprint: str) -> str:
    if not _FINGERPRINT.fullmatch(fingerprint):
        raise wrong("not-a-fingerprint", f"{fingerprint!r} is no fingerprint; expected 64 lower-case hex digits")
    return fingerprint


def _check_reason(reason: str) -> str:
    text = " ".join(reason.split())
    if not text or text.lower() in ("true", "yes", "on"):
        raise wrong("no-reason", "floating needs the reason why there is no commit", 'floating: "<reason>"')
    return check_printable(text)


def _check_path(path: str) -> str:
    try:
        return safe_path(path, "path")
    except BrokenInput as error:
        raise wrong(error.code, error.message.removeprefix("path: ")) from error


def _check_place(path: str) -> str:
    return "" if path in ("", ".") else _check_path(path)


def _check_folder(folder: str) -> str:
    if "/" in _check_path(folder):
        raise wrong("unsafe-path", f"{folder!r} is a path; expected the name of a folder")
    return folder


RepoId = Annotated[str, AfterValidator(check_repo)]
Commit = Annotated[str, AfterValidator(check_commit)]
Fingerprint = Annotated[str, AfterValidator(_check_fingerprint)]
Reason = Annotated[str, AfterValidator(_check_reason)]
PlacePath = Annotated[str, AfterValidator(_check_place)]
FolderName = Annotated[str, AfterValidator(_check_folder)]


class PinFields(Fields):
    """Where files come from: a repo, and its commit or the reason why there is none."""

    repo: RepoId | None = None
    revision: Commit | None = None
    floating: Reason | None = None

    @model_validator(mode="after")
    def _one_of_two(self) -> PinFields:
        if self.revision and self.floating:
            raise wrong("pinned-and-floating", "revision and floating are both given", "remove one of the two")
        return self


class OverlayFields(PinFields):
    """The overlay repo, and what is known of its manifest and its metadata files."""

    fingerprint: Fingerprint | None = None
    materializer_version: Word | None = None


class NeedFields(PinFields):
    """A secondary repo of the recipe."""

    components: tuple[FolderName, ...] = ()


def _kind_of_need(need: Any) -> str:
    is_wheel = "wheel" in need if isinstance(need, dict) else isinstance(need, WheelFields)
    return "need-wheel" if is_wheel else "need-repo"


# The tags stand in the place of a problem, so they are no keys of the file.
AnyNeed = Annotated[
    Annotated[NeedFields, Tag("need-repo")] | Annotated[WheelFields, Tag("need-wheel")], Discriminator(_kind_of_need)
]


class PlaceFields(Fields):
    """A folder or a file: of the source, or of a need where ``repo`` is given; of its root where ``path`` is not."""

    repo: RepoId | None = None
    path: PlacePath = ""


class VdnH3Fields(Fields):
    """VDN-H3: base, linear branch and the adapters of one stage."""

    name: Literal["vdn-h3"]
    stage: FolderName


class OutputFields(Fields):
    """How the fused weights are laid out, where not as the base was: MiniMax's own names, beside a release's files."""

    layout: Literal["native"]
    folder: Literal["FL2VA", "Ref2VA"]
    siblings: PlaceFields


def _check_adapters(adapters: tuple[PlaceFields, ...]) -> tuple[PlaceFields, ...]:
    if not adapters:
        raise wrong("empty-list", "adapters is empty; expected at least one")
    return adapters


class LoraFields(Fields):
    """A base checkpoint with LoRA adapters folded in, in order; everything else of the source is carried over."""

    name: Literal["lora"]
    base: PlaceFields
    adapters: Annotated[tuple[PlaceFields, ...], AfterValidator(_check_adapters)]
    output: OutputFields | None = None


class PartFields(PlaceFields):
    """A folder or a file that is taken to ``to``; where ``same_as`` is given, it has to be equal to that one."""

    to: PlacePath | None = None
    same_as: PlaceFields | None = None


def _check_parts(parts: tuple[PartFields, ...]) -> tuple[PartFields, ...]:
    if not parts:
        raise wrong("empty-list", "parts is empty; expected at least one")
    return parts


class ComposeFields(Fields):
    """Parts of the source and of needs, each taken to its place."""

    name: Literal["compose"]
    parts: Annotated[tuple[PartFields, ...], AfterValidator(_check_parts)]


class MappingsFields(Fields):
    """The file mappings of the overlay's manifest."""

    name: Literal["mappings"]


RecipeFields = Annotated[
    VdnH3Fields | LoraFields | ComposeFields | MappingsFields | PythonFields, Field(discriminator="name")
]


def _check_consumers(consumers: tuple[str, ...]) -> tuple[str, ...]:
    problem = next((f"{name!r} is no consumer" for name in consumers if name not in CONSUMERS), None)
    if len(set(consumers)) < len(consumers):
        problem = problem or "a consumer is named twice"
    if problem or not consumers:
        raise wrong("unknown-consumer", f"{problem or 'no consumer is named'}; expected some of {', '.join(CONSUMERS)}")
    return consumers


class EntryFields(Fields):
    """What one file says about one model."""

    source: PinFields | None = None
    overlay: OverlayFields | None = None
    needs: tuple[AnyNeed, ...] | None = None
    recipe: RecipeFields | None = None
    consumers: Annotated[tuple[str, ...], AfterValidator(_check_consumers)] | None = None
    serve: dict[ServerName, LaunchFields] | None = None


class RegistryFile(Fields):
    """A whole file."""

    schema_version: Literal["1"]
    models: dict[RepoId, EntryFields]
