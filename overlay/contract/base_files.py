"""The base of a recipe: where it is, what its small files say, and how like another folder of weights it is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from overlay.contract.reading import MOST_DATA, is_broken, shown
from overlay.errors import OverlayError
from overlay.formats.checkpoint import read_checkpoint
from overlay.formats.strict_json import parse_object
from overlay.planning.fuse import base_tensors

if TYPE_CHECKING:
    from collections.abc import Mapping

    from overlay.contract.subject import Subject
    from overlay.formats.checkpoint import Checkpoint
    from overlay.hub import Repo

__all__ = [
    "BaseFiles",
    "compare",
    "config_of",
    "facts_of",
    "listed_digest",
    "read_base",
    "read_document",
    "words_of",
]

_LONGEST = 2000

Likeness = Literal["same", "other bytes", "unlike", "unknown"]


@dataclass(frozen=True, slots=True)
class BaseFiles:
    """The checkpoint that adapters are folded into, and where it lies."""

    repo: Repo
    folder: str
    checkpoint: Checkpoint

    @property
    def where(self) -> str:
        """The folder, for messages."""
        return self.repo.where(self.folder) if self.folder else self.repo.name

    def digest(self, shard: str) -> str | None:
        """sha256 of a shard, where its listing tells."""
        return listed_digest(self.repo, self.checkpoint.path(shard))


def read_base(subject: Subject) -> BaseFiles | None:
    """The base of a recipe; None where it has none, or none that can be read: other checks say why."""
    if subject.base is None:
        return None
    repo, folder = subject.base
    try:
        return BaseFiles(repo, folder, read_checkpoint(repo, folder))
    except OverlayError as error:
        if not is_broken(error):
            raise
        return None


def config_of(base: BaseFiles) -> Mapping[str, Any]:
    """``config.json`` of the base; empty where there is none that can be read."""
    return read_document(base.repo, f"{base.folder}/config.json".lstrip("/"))


def compare(base: BaseFiles, repo: Repo, folder: str, theirs: Checkpoint | None = None) -> Likeness:
    """How a base is like another folder's, by listing first and headers second."""
    ours = {base.digest(shard) for shard in base.checkpoint.shards}
    if None in ours:
        return "unknown"
    listed = {listed_digest(repo, path) for path in repo.paths() if path.endswith(".safetensors")}
    if ours <= listed:
        return "same"
    try:
        theirs = theirs or read_checkpoint(repo, folder)
    except OverlayError as error:
        if not is_broken(error):
            raise
        return "unlike"
    if _shapes(theirs) != _shapes(base.checkpoint):
        return "unlike"
    if None in listed or theirs.weight_map != base.checkpoint.weight_map:  # cut otherwise, so no file can be equal
        return "unknown"
    return "other bytes"


def _shapes(checkpoint: Checkpoint) -> dict[str, tuple[str, tuple[int, ...]]]:
    return {name: (info.dtype, info.shape) for name, info in base_tensors(checkpoint).items()}


def listed_digest(repo: Repo, path: str) -> str | None:
    """sha256 of a file by its listing; None where it has none, and for a folder, whose file would be read whole."""
    digest = repo.digest(path) if repo.shared_store else ""
    return digest if digest.startswith("sha256:") else None


def read_document(repo: Repo, path: str) -> Mapping[str, Any]:
    """A JSON object of a repo; empty where there is none that can be read."""
    try:
        return parse_object(repo.read_bytes(path), repo.where(path))
    except OverlayError as error:
        if not is_broken(error):
            raise
        return {}


def words_of(error: OverlayError) -> str:
    """A reader's message, on one line and not endless: the names in it may be those of a hostile file."""
    return " ".join(filter(None, (shown(word) for word in error.message[:_LONGEST].split(" "))))


def facts_of(error: OverlayError) -> dict[str, Any]:
    """A reader's code and data, no name in it endless."""
    return {"code": error.code, **{key: _cut(value) for key, value in error.data.items()}}


def _cut(value: Any) -> Any:
    if isinstance(value, list):
        return [_cut(item) for item in value[:MOST_DATA]]
    return shown(value) if isinstance(value, str) else value
