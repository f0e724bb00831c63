"""What a server that is given a model's name asks the Hub's cache for, before it looks for a materialization."""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from overlay.consumers.sglang.versions import release_of

if TYPE_CHECKING:
    from overlay.formats.manifest import Manifest
    from overlay.registry.entries import ServerSpec

__all__ = ["Asked", "asked_of", "is_fetched"]

_NEVER = ("*.onnx", "*.msgpack")
_MAIN = "main"


@dataclass(frozen=True, slots=True)
class Asked:
    """Revisions and files of one model.

    Attributes:
        overlay: Revision of the overlay, as the server names it: a commit, or a branch that the Hub's cache resolves.
        source: Likewise of the source.
        patterns: Of files of the source, see :func:`is_fetched`; None for all.
        required: Files and folders that the source must have, or the server fetches the whole source again.
    """

    overlay: str
    source: str
    patterns: tuple[str, ...] | None
    required: tuple[str, ...]

    def wants(self, path: str) -> bool:
        """Whether this file of the source must be in the Hub's cache."""
        return is_fetched(path, self.patterns)


def is_fetched(path: str, patterns: tuple[str, ...] | None) -> bool:
    """Whether a server fetches a file of the source, by the rule of the Hub's client.

    Args:
        path: In the source.
        patterns: Of the manifest; none for all files. ``*`` crosses ``/``, and a folder stands for what is below it.
    """
    if any(fnmatchcase(path, pattern) for pattern in _NEVER):
        return False
    return not patterns or any(
        fnmatchcase(path, f"{pattern}*" if pattern.endswith("/") else pattern) for pattern in patterns
    )


def asked_of(spec: ServerSpec, manifest: Manifest) -> Asked:
    """What a server that was told this asks for.

    Args:
        manifest: Of the overlay; its ``source_revision`` stands in where the server was told none.
    """
    release = release_of(spec.version)
    # Those that do not hash the source's revision do not pass it on either, whatever they are told.
    told = (spec.source_revision or manifest.source_revision) if release.hashes_source_revision else None
    return Asked(
        overlay=spec.overlay_revision,
        source=told or _MAIN,
        patterns=(manifest.source_allow_patterns or None) if release.narrows_source else None,
        required=manifest.required_source_files,
    )
