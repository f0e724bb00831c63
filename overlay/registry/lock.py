"""``registry.lock``: what the pins of a registry were found to contain. Written by ``overlay lock``, read by the rest.

The lock in force lies beside the registry in force and has its name with ``.lock`` for ``.yaml``. It is JSON with one
file or tensor a line, in a stable order, so that a review shows what a bump changed.
"""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from overlay.errors import InvalidRegistry, NotHere, OverlayError
from overlay.fingerprint import parse_digest
from overlay.formats.files import safe_path
from overlay.formats.local import read_small_file
from overlay.formats.strict_json import parse_object
from overlay.formats.wording import counted
from overlay.registry.entries import COMMIT, repo_id_problem
from overlay.registry.recipe_words import recipe_text

if TYPE_CHECKING:
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
    "parse_lock",
    "read_lock",
    "recipe_json",
]

LOCK_VERSION: Literal[1] = 1
MAX_BYTES = 64 * 2**20
_SHA256 = re.compile(r"[0-9a-f]{64}")
_CONFLICT = re.compile(rb"^(<<<<<<<|=======|>>>>>>>)", re.MULTILINE)


def _check_path(path: str) -> str:
    if safe_path(path, "path") != path:
        raise ValueError(f"{path[:200]!r} is not in plain form; expected {safe_path(path, 'path')[:200]!r}")
    return path


def _check_location(name: str) -> str:
    if "/" in _check_path(name) or name.startswith("."):
        raise ValueError(f"{name[:200]!r} is no name of a folder")
    return name


def _check_repo(repo: str) -> str:
    if problem := repo_id_problem(repo):
        raise ValueError(problem[:200])
    return repo


def _check_commit(text: str) -> str:
    if not COMMIT.fullmatch(text):
        raise ValueError(f"{text[:80]!r} is no commit; expected 40 lower-case hex digits")
    return text


def _check_sha256(text: str) -> str:
    if not _SHA256.fullmatch(text):
        raise ValueError(f"{text[:80]!r} is no sha256; expected 64 lower-case hex digits")
    return text


def _check_digest(text: str) -> str:
    parse_digest(text)
    return text


Count = Annotated[int, Field(ge=0)]
RepoId = Annotated[str, AfterValidator(_check_repo)]
Commit = Annotated[str, AfterValidator(_check_commit)]
RepoPath = Annotated[str, AfterValidator(_check_path)]
Location = Annotated[str, AfterValidator(_check_location)]
Sha256 = Annotated[str, AfterValidator(_check_sha256)]
Digest = Annotated[str, AfterValidator(_check_digest)]


class _Section(BaseModel):
    # Importing this reads no lock yet, so nothing is built.
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False, defer_build=True)


class LockedFile(_Section):
    """One file of a repo.

    Attributes:
        size: Bytes.
        sha256: Of its content.
        tensors: Of a safetensors file: how many tensors it has.
        header: Of a safetensors file: digest of the names, dtypes and shapes of its tensors, whatever their order.
        source: Where the fact is from, if not from the repo itself.
    """

    size: Count
    sha256: Sha256
    tensors: Count | None = None
    header: Digest | None = None
    source: str | None = None

    @property
    def digest(self) -> str:
        """``sha256:<hex>``, as repos name it."""
        return f"sha256:{self.sha256}"

    def difference(self, size: int, digest: str) -> str:
        """What a file of this size and digest has otherwise; empty where nothing is, as far as a digest tells.

        Args:
            digest: ``algorithm:hex``; one of another algorithm than sha256 tells nothing.
        """
        if size != self.size:
            return f"{counted(size, 'byte')}, locked with {self.size}"
        if digest.startswith("sha256:") and digest != self.digest:
            return f"{digest}, locked as {self.digest}"
        return ""


class LockedRepo(_Section):
    """One repo at its commit.

    Attributes:
        complete: Whether ``files`` are all that the model needs of it; else they are those that are known.
        source: Where the facts are from, if not from the repo itself.
        files: By path.
        licenses: Paths of its licence files.
    """

    revision: Commit
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
        source: Where the facts are from, if not from the repo itself.
    """

    name: str
    kind: str
    weights: str
    spec: str | None = None
    pairs: Count
    ranks: tuple[Count, ...]
    scales: tuple[float, ...]
    meaning: Digest
    source: str | None = None


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

    size: Count
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
    writer_version: Count
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
    location: Location
    repos: dict[RepoId, LockedRepo]
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
                locked, now = self.repos[repo].revision[:12], str(pins[repo].revision)[:12]
                found.append(f"{repo} is locked at {locked}, pinned at {now}")
        components = {need.pin.repo: need.components for need in entry.needs}
        found += [
            f"{repo}: locked with the components {', '.join(locked.components) or 'none'}"
            for repo, locked in self.repos.items()
            if repo in pins and locked.components != components.get(repo, ())
        ]
        if self.recipe != recipe_json(entry):
            options = {name: value for name, value in self.recipe.items() if name != "name"}
            now = recipe_text(entry.recipe.name, entry.recipe.options)
            found.append(f"locked with the recipe {recipe_text(str(self.recipe.get('name')), options)}, it is {now}")
        return tuple(found)


class Lock(_Section):
    """A whole lock file."""

    lock_version: Literal[1] = LOCK_VERSION
    models: dict[RepoId, LockedModel] = {}


def recipe_json(entry: Entry) -> dict[str, Any]:
    """The recipe of an entry as a lock and a record have it."""
    document: dict[str, Any] = json.loads(json.dumps({"name": entry.recipe.name, **entry.recipe.options}))
    return document


def lock_path(registry: str | Path) -> Path:
    """Where the lock of a registry file lies."""
    return Path(registry).with_suffix(".lock")


def read_lock(path: Path) -> Lock | None:
    """The lock at ``path``; None where there is none.

    Raises:
        InvalidRegistry: It cannot be read (``lock-unreadable``), or is no lock of this version (``lock-invalid``).
    """
    try:
        data = read_small_file(path, MAX_BYTES)
    except NotHere:
        return None
    except OverlayError as error:
        raise InvalidRegistry(
            error.message,
            code="lock-unreadable",
            hint=error.hint or f"ls -l {path}",
            where=str(path),
        ) from error
    return parse_lock(data, str(path))


def parse_lock(data: bytes, where: str) -> Lock:
    """A lock out of its bytes, which may be those of another revision of the project.

    Args:
        where: Name of the file, for messages.

    Raises:
        InvalidRegistry: It is no lock of this version.
    """
    if conflict := _CONFLICT.search(data):
        line = data.count(b"\n", 0, conflict.start()) + 1
        raise _invalid(
            where,
            f"line {line}: a merge conflict was left in the file",
            "take either side (git checkout --theirs -- FILE), then write it anew: overlay lock",
        )
    try:
        document = parse_object(data, where)
    except OverlayError as error:
        raise _invalid(where, error.message.removeprefix(f"{where}: ")) from error
    found = document.get("lock_version")
    if type(found) is not int or found != LOCK_VERSION:
        raise _invalid(
            where,
            f"lock_version is {json.dumps(found)[:40]}; this program reads {LOCK_VERSION}",
            f"a newer lock needs a newer program; to write one with this one instead: rm {shlex.quote(where)}, then:"
            " overlay lock",
        )
    try:
        return Lock.model_validate_json(data)  # as JSON: lists become tuples, and nothing else becomes anything
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        at = " > ".join(str(part)[:200] for part in first["loc"])
        raise _invalid(where, f"{at}: {first['msg'].removeprefix('Value error, ')}") from error


def _invalid(where: str, problem: str, hint: str | None = None) -> InvalidRegistry:
    return InvalidRegistry(
        f"{where}: {problem}",
        code="lock-invalid",
        hint=hint
        or "a program writes this file: restore it (git checkout -- FILE), or remove it and run: overlay lock",
        where=where,
    )


def dump_lock(lock: Lock) -> bytes:
    """The file's bytes: names sorted, one file or tensor a line, newline at the end."""
    document = lock.model_dump(mode="json", exclude_none=True)
    return (_dump(document, "") + "\n").encode()


def _dump(value: Any, indent: str) -> str:
    """Like ``json.dumps`` with an indent, but what holds only plain values stands on one line."""
    if isinstance(value, dict) and (_is_table(value) or any(isinstance(item, dict | list) for item in value.values())):
        order = sorted(value, key=lambda key: (isinstance(value[key], dict), key))  # the short ones first
        rows = (f"{indent} {_plain(key)}: {_dump(value[key], indent + ' ')}" for key in order)
        return "{\n" + ",\n".join(rows) + f"\n{indent}}}"
    if isinstance(value, list) and any(isinstance(item, dict) for item in value):
        rows = (f"{indent} {_dump(item, indent + ' ')}" for item in value)
        return "[\n" + ",\n".join(rows) + f"\n{indent}]"
    return _plain(value)


def _is_table(value: dict[str, Any]) -> bool:
    """Names with a digest each: every one gets a line."""
    return bool(value) and all(isinstance(item, str) and ":" in item for item in value.values())


def _plain(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False)
