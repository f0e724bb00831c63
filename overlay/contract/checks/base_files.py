"""The base of a recipe: where it is, what its small files say, and how like another folder of weights it is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from overlay.contract.reading import unless_broken
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
    "listed_digest",
    "read_base",
    "read_document",
]

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
    checkpoint = unless_broken(read_checkpoint, repo, folder)
    return BaseFiles(repo, folder, checkpoint) if checkpoint is not None else None


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
    theirs = theirs or unless_broken(read_checkpoint, repo, folder)
    if theirs is None or _shapes(theirs) != _shapes(base.checkpoint):
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
    return unless_broken(lambda: parse_object(repo.read_bytes(path), repo.where(path))) or {}
