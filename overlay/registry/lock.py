"""``registry.lock``: what the pins of a registry were found to contain. Written by ``overlay lock``, read by the rest.

The lock in force lies beside the registry in force and has its name with ``.lock`` for ``.yaml``. It is JSON with one
file or tensor a line, in a stable order, so that a review shows what a bump changed.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from overlay.errors import InvalidRegistry
from overlay.formats.files import safe_path
from overlay.formats.strict_json import parse_object

if TYPE_CHECKING:
    from collections.abc import Mapping

    from overlay.registry.entries import Entry

__all__ = [
    "Expected",
    "ExpectedFile",
    "Lock",
    "LockedAdapter",
    "LockedFile",
    "LockedModel",
    "LockedRepo",
    "LockedScript",
    "dump_lock",
    "lock_path",
    "read_lock",
]

LOCK_VERSION: Literal[1] = 1
MAX_BYTES = 64 * 2**20
_DIGEST = re.compile(r"[a-z0-9_]+:[0-9a-f]{32,64}")
_SHA256 = re.compile(r"[0-9a-f]{64}")


def _check_path(path: str) -> str:
    return safe_path(path, "path")


def _check_sha256(text: str) -> str:
    if not _SHA256.fullmatch(text):
        raise ValueError(f"{text[:80]!r} is no sha256; expected 64 lower-case hex digits")
    return text


def _check_digest(text: str) -> str:
    if not _DIGEST.fullmatch(text):
        raise ValueError(f"{text[:80]!r} is no digest; expected algorithm:hex")
    return text


RepoPath = Annotated[str, AfterValidator(_check_path)]
Sha256 = Annotated[str, AfterValidator(_check_sha256)]
Digest = Annotated[str, AfterValidator(_check_digest)]


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True, populate_by_name=True)


class LockedFile(_Section):
    """One file of a repo.

    Attributes:
        size: Bytes.
        sha256: Of its content.
        tensors: Of a safetensors file: how many tensors it has.
        header: Of a safetensors file: digest of the names, dtypes and shapes of its tensors, whatever their order.
        source: Where the fact is from, if not from the repo itself.
    """

    size: Annotated[int, Field(ge=0, strict=True)]
    sha256: Sha256
    tensors: Annotated[int, Field(ge=0, strict=True)] | None = None
    header: Digest | None = None
    source: str | None = None


class LockedRepo(_Section):
    """One repo at its commit.

    Attributes:
        complete: Whether ``files`` are all that the model needs of it; else they are those that are known.
        source: Where the facts are from, if not from the repo itself.
        files: By path.
        licenses: Paths of its licence files.
    """

    revision: str
    complete: bool = True
    source: str | None = None
    components: tuple[str, ...] = ()
    licenses: tuple[RepoPath, ...] = ()
    files: dict[RepoPath, LockedFile]


class LockedAdapter(_Section):
    """What an adapter was found to mean.

    Attributes:
        kind: Layout that it was read as: openvdn, peft, kohya or bare.
        weights: ``org/name/path`` of its safetensors file; ``spec`` likewise of the JSON beside it, None without one.
        scales: Distinct float32 scales, ascending.
        meaning: Digest of target, rank and scale of every pair, in the order of targets.
    """

    name: str
    kind: str
    weights: str
    spec: str | None = None
    pairs: int
    ranks: tuple[int, ...]
    scales: tuple[float, ...]
    meaning: Digest


class LockedScript(_Section):
    """The overlay's own Python."""

    path: RepoPath
    sha256: Sha256


class ExpectedFile(_Section):
    """One output file.

    Attributes:
        digest: As a record names it.
        sha256: Of the whole file.
        tensors: Digest of each tensor that was written, by name.
    """

    size: Annotated[int, Field(ge=0, strict=True)]
    digest: Digest
    sha256: Sha256
    tensors: dict[str, Digest] | None = None


class Expected(_Section):
    """The output that somebody built and verified.

    Attributes:
        writer_version: Of the program's writer; another one may write other bytes.
        files: By output path.
    """

    rule: str
    writer_version: int
    files: dict[RepoPath, ExpectedFile]


class LockedModel(_Section):
    """One entry of the registry.

    Attributes:
        recipe: Its name and options.
        location: Directory under ``materialized_models`` where a server looks.
        repos: By repo id.
        expected: None until somebody has built it and locked from that build.
    """

    recipe: dict[str, Any]
    location: str
    repos: dict[str, LockedRepo]
    adapters: tuple[LockedAdapter, ...] = ()
    script: LockedScript | None = None
    expected: Expected | None = None

    def differences(self, entry: Entry) -> tuple[str, ...]:
        """What the registry says otherwise than when this was locked, one sentence each; empty: the lock is current."""
        found = []
        pins = {pin.repo: pin for pin in entry.pins}
        for repo in sorted(self.repos.keys() | pins.keys()):
            if repo not in pins:
                found.append(f"{repo} is not in the entry any more")
            elif repo not in self.repos:
                found.append(f"{repo} is new in the entry")
            elif pins[repo].revision not in (None, self.repos[repo].revision):
                found.append(f"{repo} is locked at {self.repos[repo].revision[:12]}, pinned at {pins[repo]}")
        components = {need.pin.repo: need.components for need in entry.needs}
        found += [
            f"{repo}: locked with the components {', '.join(locked.components) or 'none'}"
            for repo, locked in self.repos.items()
            if repo in pins and locked.components != components.get(repo, ())
        ]
        if self.recipe != recipe_json(entry):
            found.append(f"locked with the recipe {json.dumps(self.recipe)}")
        return tuple(found)


class Lock(_Section):
    """A whole lock file."""

    lock_version: Literal[1] = LOCK_VERSION
    models: dict[str, LockedModel] = {}


def recipe_json(entry: Entry) -> dict[str, Any]:
    """The recipe of an entry as a lock and a record have it."""
    return json.loads(json.dumps({"name": entry.recipe.name, **entry.recipe.options}))  # type: ignore[no-any-return]  # an object


def lock_path(registry: str | Path) -> Path:
    """Where the lock of a registry file lies."""
    return Path(registry).with_suffix(".lock")


def read_lock(path: Path) -> Lock | None:
    """The lock at ``path``; None where there is none.

    Raises:
        InvalidRegistry: It cannot be read, or is no lock of this version.
    """
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise InvalidRegistry(
            f"{path}: cannot be read: {error.strerror}", code="lock-unreadable", hint=f"ls -l {path}", where=str(path)
        ) from error
    if len(data) > MAX_BYTES:
        raise _invalid(path, f"has more than {MAX_BYTES} bytes")
    if b"<<<<<<<" in data and b">>>>>>>" in data:
        raise _invalid(path, "holds the markers of a merge conflict")
    document = parse_object(data, str(path))
    if document.get("lock_version") != LOCK_VERSION:
        raise _invalid(
            path, f"lock_version is {str(document.get('lock_version'))[:40]}; this program reads {LOCK_VERSION}"
        )
    try:
        return Lock.model_validate(document)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise _invalid(path, f"{'.'.join(map(str, first['loc']))}: {first['msg']}") from error


def _invalid(path: Path, problem: str) -> InvalidRegistry:
    return InvalidRegistry(
        f"{path}: {problem}",
        code="lock-invalid",
        hint="it is written by a program, not by hand: overlay lock",
        where=str(path),
    )


def dump_lock(lock: Lock) -> bytes:
    """The file's bytes: keys sorted, one file or tensor a line, newline at the end."""
    document = lock.model_dump(mode="json", exclude_none=True)
    return (_dump(document, "") + "\n").encode()


def _dump(value: Any, indent: str) -> str:
    """Like ``json.dumps`` with an indent, but what holds only plain values stands on one line."""
    if not isinstance(value, dict) or not any(isinstance(item, dict | list) for item in value.values()):
        if isinstance(value, list) and any(isinstance(item, dict) for item in value):
            items = ",\n".join(f"{indent} {_dump(item, indent + ' ')}" for item in value)
            return f"[\n{items}\n{indent}]"
        return json.dumps(value, ensure_ascii=False) if not _is_table(value) else _rows(value, indent)
    return _rows(value, indent)


def _is_table(value: Any) -> bool:
    """A mapping from names to digests: each gets a line of its own."""
    return isinstance(value, dict) and bool(value) and all(isinstance(v, str) and ":" in v for v in value.values())


def _rows(value: Mapping[str, Any], indent: str) -> str:
    rows = ",\n".join(
        f"{indent} {json.dumps(key, ensure_ascii=False)}: {_dump(value[key], indent + ' ')}" for key in sorted(value)
    )
    return f"{{\n{rows}\n{indent}}}" if rows else "{}"
