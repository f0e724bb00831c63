"""The record: the JSON in a materialization that says what it was made of, by which rule, and what its files hold.

Everything outside ``run`` is a function of the inputs alone, the same wherever it was built, and is what a tree is
named by. ``run`` holds what this one run did: kernels, versions, counters, seconds, links.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from overlay.errors import BrokenInput, NotHere, OverlayError
from overlay.fingerprint import action_key, parse_digest
from overlay.formats.files import Folder, safe_path
from overlay.formats.materialized import LARGEST_RECORD, RECORD_NAME
from overlay.formats.strict_json import parse_object

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from overlay.formats.header import Header

__all__ = [
    "RECORD_NAME",
    "SCHEMA_VERSION",
    "Record",
    "RecordedFile",
    "RecordedInput",
    "RecordedRepo",
    "RecordedTensor",
    "carried_tensors",
    "parse_record",
    "read_record",
    "record_bytes",
    "tree_name",
]

SCHEMA_VERSION = 1


@dataclass(frozen=True, slots=True)
class RecordedTensor:
    """One tensor of a file; ``digest`` is that of its bytes, None for a file that was carried over."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    digest: str | None = None

    def to_json(self) -> dict[str, Any]:
        """As it stands in a record."""
        document: dict[str, Any] = {"name": self.name, "dtype": self.dtype, "shape": list(self.shape)}
        return document if self.digest is None else {**document, "digest": self.digest}


@dataclass(frozen=True, slots=True)
class RecordedFile:
    """One output file; ``tensors`` is None for one that is not safetensors."""

    path: str
    digest: str
    size: int
    tensors: tuple[RecordedTensor, ...] | None = None

    @property
    def algorithm(self) -> str:
        """What its digest was taken by: xxh3_128, safetensors_xxh3_128 or sha256."""
        return parse_digest(self.digest)[0]

    def to_json(self) -> dict[str, Any]:
        """As it stands in a record."""
        return {"path": self.path, **self.content_json()}

    def content_json(self) -> dict[str, Any]:
        """The same without its path: what the cache remembers of an action."""
        document = {"digest": self.digest, "size": self.size}
        return document if self.tensors is None else {**document, "tensors": [item.to_json() for item in self.tensors]}


@dataclass(frozen=True, slots=True)
class RecordedRepo:
    """One repo that took part."""

    repo: str
    revision: str
    components: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class RecordedInput:
    """One file that took part."""

    repo: str
    path: str
    size: int
    digest: str


@dataclass(frozen=True, slots=True)
class Record:
    """A record as it was read.

    Attributes:
        model: Registry key; for a fused folder the name of its base.
        repos: Source, overlay (where there is one) and needs, in this order; empty for a fused folder, and where the
            record's pins make no sense.
        recipe: Name and options.
        inputs: Every file that took part; empty where the record's own make no sense.
        claimed: Outputs whose bytes came by a link or a copy, so their digests are those of their sources.
        tree: Name of the tree; None for a fused folder, which has no such name.
        is_intact: Whether it still is the record that its tree was named by.
        writer_version: Of the program's writer; None where the record does not say.
    """

    model: str | None
    rule: str | None
    repos: tuple[RecordedRepo, ...]
    recipe: Mapping[str, Any]
    inputs: tuple[RecordedInput, ...]
    outputs: tuple[RecordedFile, ...]
    claimed: tuple[RecordedFile, ...]
    tree: str | None
    is_intact: bool
    writer_version: int | None


def carried_tensors(header: Header) -> tuple[RecordedTensor, ...]:
    """The tensors of a file that was taken over as it is: nothing read their bytes."""
    return tuple(RecordedTensor(info.name, info.dtype, info.shape) for info in header.tensors.values())


def tree_name(label: str, identity: Mapping[str, Any], outputs: Sequence[Mapping[str, Any]]) -> str:
    """``<org>__<name>-<16 hex>``: named by everything in the record but the run.

    Args:
        outputs: As they stand in the record.
    """
    digest = action_key({**identity, "outputs": list(outputs)})
    return f"{label.replace('/', '__')}-{digest[:16]}"


def record_bytes(record: Mapping[str, Any]) -> bytes:
    """The record as it lies on disk: readable, keys in the order of the story, newline at the end."""
    return (json.dumps(record, indent=1, ensure_ascii=False) + "\n").encode()


def read_record(folder: Path) -> Record | None:
    """The record of a materialization; None where there is none.

    Raises:
        BrokenInput: There is one, but it is not a record that this version reads.
    """
    path = folder / RECORD_NAME
    try:
        data = Folder(folder).read_bytes(RECORD_NAME, LARGEST_RECORD)
    except NotHere:
        return None
    except OverlayError as error:
        raise _unreadable(error, str(path)) from error
    return parse_record(data, str(path))


def parse_record(data: bytes, where: str) -> Record:
    """The record in these bytes.

    Args:
        where: Names them in messages.

    Raises:
        BrokenInput: They are not a record that this version reads.
    """
    try:
        document = parse_object(data, where)
    except OverlayError as error:
        raise _unreadable(error, where) from error
    version = document.get("schema_version")
    try:
        return _record(document, where)
    except (TypeError, KeyError, AttributeError, BrokenInput) as error:
        raise BrokenInput(
            f"{where}: not a record of schema {SCHEMA_VERSION} (found {str(version)[:80]!r})",
            code="record-unreadable",
            hint="it was written by another version of this program, or edited",
            path=where,
        ) from error


def _unreadable(error: OverlayError, where: str) -> BrokenInput:
    return BrokenInput(error.message, code="record-unreadable", hint=error.hint, path=where)


def _record(document: Mapping[str, Any], where: str) -> Record:
    """Typed; whatever is of another kind than it must be raises TypeError, KeyError or BrokenInput."""
    if document["schema_version"] != SCHEMA_VERSION:
        raise TypeError("schema_version")
    outputs = tuple(_file(item, where) for item in _list(document["outputs"]))
    model, rule, tree = (_text(document.get(key)) for key in ("model", "rule", "tree"))
    recipe = document.get("recipe")
    return Record(
        model=model,
        rule=rule,
        repos=_repos(document.get("pins")),
        recipe=recipe if isinstance(recipe, dict) else {},
        inputs=_inputs(document.get("inputs"), where),
        outputs=outputs,
        claimed=_claimed(document.get("run"), outputs),
        tree=tree,
        is_intact=tree is None or tree == _name_of(document),
        writer_version=writer if type(writer := document.get("writer_version")) is int else None,
    )


def _claimed(run: Any, outputs: tuple[RecordedFile, ...]) -> tuple[RecordedFile, ...]:
    claimed = run.get("claimed") if isinstance(run, dict) else None
    return tuple(item for item in outputs if item.path in claimed) if isinstance(claimed, list) else ()


def _name_of(document: Mapping[str, Any]) -> str:
    identity = {key: value for key, value in document.items() if key not in ("tree", "location", "outputs", "run")}
    return tree_name(str(document.get("model")), identity, document["outputs"])


def _file(item: Any, where: str) -> RecordedFile:
    if not _is_count(item["size"]):
        raise TypeError("size")
    parse_digest(item["digest"])
    if safe_path(item["path"], where) != item["path"]:
        raise TypeError("path")
    tensors = item.get("tensors")
    if "tensors" in item:
        tensors = tuple(_tensor(tensor) for tensor in _list(tensors))
    return RecordedFile(item["path"], item["digest"], item["size"], tensors)


def _tensor(item: Any) -> RecordedTensor:
    if "digest" in item:
        parse_digest(item["digest"])
    if not (isinstance(item["name"], str) and isinstance(item["dtype"], str)):
        raise TypeError("tensor")
    if not all(_is_count(extent) for extent in _list(item["shape"])):
        raise TypeError("shape")
    return RecordedTensor(item["name"], item["dtype"], tuple(item["shape"]), item.get("digest"))


def _inputs(inputs: Any, where: str) -> tuple[RecordedInput, ...]:
    try:
        return tuple(
            RecordedInput(str(item["repo"]), safe_path(item["path"], where), int(item["size"]), str(item["digest"]))
            for item in _list(inputs)
        )
    except (TypeError, KeyError, ValueError):  # a BrokenInput is one, too
        return ()


def _is_count(value: Any) -> bool:
    return type(value) is int and value >= 0


def _list(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise TypeError("list")
    return value


def _text(value: Any) -> str | None:
    if value is not None and not isinstance(value, str):
        raise TypeError("text")
    return value


def _repos(pins: Any) -> tuple[RecordedRepo, ...]:
    try:
        named = [pins["source"], *([pins["overlay"]] if pins.get("overlay") else []), *_list(pins["needs"])]
        return tuple(
            RecordedRepo(str(item["repo"]), str(item["revision"]), tuple(item.get("components", ()))) for item in named
        )
    except (TypeError, KeyError, AttributeError):
        return ()
