"""Files as they were while they had their name, held against files that are there now. No weights are read for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from overlay.errors import BrokenInput, NotHere
from overlay.fingerprint import bytes_digest
from overlay.formats.adapters.find import parse_description
from overlay.formats.files import MAX_CHECKED_FILE, MAX_SMALL_FILE
from overlay.formats.strict_json import parse_json, parse_object
from overlay.formats.wording import format_bytes

if TYPE_CHECKING:
    from overlay.formats.files import Files
    from overlay.hub import Repo

__all__ = ["Former", "is_description", "json_of", "same_content", "size_of"]


@dataclass(frozen=True, slots=True)
class Former:
    """What is known of a file from when it had its name.

    Attributes:
        size: Bytes.
        digest: ``sha256:<hex>``, where a record of it is all that is left.
        repo: The repo that still has it under its name, where it can be read.
    """

    size: int
    digest: str | None = None
    repo: Repo | None = None


def size_of(files: Files, path: str) -> int | None:
    """Bytes of a file; None where that cannot be told."""
    try:
        return files.size(path)
    except (BrokenInput, NotHere):  # a dangling link, or a size that only a connection would tell
        return None


def same_content(repo: Repo, path: str, former_path: str, then: Former) -> str | None:
    """The evidence that a file of the former one's size has its content; None where it has another."""
    size = format_bytes(then.size) if then.size >= 10**5 else f"{then.size} bytes"
    by_reading = not all(place.shared_store for place in (repo, then.repo) if place)
    if then.size > MAX_SMALL_FILE and by_reading:  # nobody hashes weights for a name
        return f"same size and tensors, {size}" if _same_tensors(repo, path, former_path, then) else None
    try:
        before = then.digest or (then.repo.digest(former_path) if then.repo else None)
        now = repo.digest(path)
        if before and now.partition(":")[0] != before.partition(":")[0] and then.size <= MAX_CHECKED_FILE:
            now = bytes_digest(repo.read_bytes(path, MAX_CHECKED_FILE), "sha256")
            if not before.startswith("sha256:") and then.repo:
                before = bytes_digest(then.repo.read_bytes(former_path, MAX_CHECKED_FILE), "sha256")
    except (BrokenInput, NotHere):
        return None
    return f"same content, {size}" if now == before else None


def _same_tensors(repo: Repo, path: str, former_path: str, then: Former) -> bool:
    if then.repo is None or not path.endswith(".safetensors"):
        return False
    try:
        return repo.header(path).tensors == then.repo.header(former_path).tensors
    except (BrokenInput, NotHere):
        return False


def json_of(files: Files, path: str) -> object:
    """What a small JSON file says; None where it cannot be read."""
    try:
        return parse_json(files.read_bytes(path, MAX_CHECKED_FILE), path)
    except (BrokenInput, NotHere):
        return None


def is_description(files: Files, path: str) -> bool:
    """Whether a small file reads as the description of an adapter."""
    try:
        parse_description(parse_object(files.read_bytes(path, MAX_CHECKED_FILE), path), path)
    except (BrokenInput, NotHere):
        return False
    return True
