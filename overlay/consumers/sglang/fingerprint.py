"""sglang's fingerprint of an overlay: which of its files are hashed, in which order (0.5.12 to 0.5.23)."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import TYPE_CHECKING

from overlay.errors import BrokenInput
from overlay.formats.local import explain_os_error

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

__all__ = ["enters_fingerprint", "extra_files", "overlay_fingerprint"]

_WEIGHT_SUFFIXES = (".safetensors", ".bin", ".pth", ".pt")


def enters_fingerprint(path: str) -> bool:
    """Whether this file of an overlay folder is hashed: weights and two kinds of generated folders are not."""
    *folders, name = path.split("/")
    generated = any(folder == "__pycache__" or folder.endswith(".egg-info") for folder in folders)
    return not generated and not name.endswith(_WEIGHT_SUFFIXES)


def extra_files(there: Iterable[str], fetched: Collection[str]) -> tuple[str, ...]:
    """Files of a snapshot that are hashed but that the server itself never downloads, sorted.

    One that was once fetched whole holds such files (``.gitattributes``, LICENSE, pictures), and so does one where
    somebody left notes; a server on the same Hub cache then looks for another directory than a fresh one.

    Args:
        there: Every file of the snapshot's folder.
        fetched: Those of the commit that the server downloads.
    """
    return tuple(sorted(path for path in there if enters_fingerprint(path) and path not in fetched))


def overlay_fingerprint(overlay: Path | Iterable[tuple[str, bytes]]) -> str:
    """SHA-256 over the paths and contents of an overlay's small files: 64 hex digits.

    For each file, in order: its POSIX path in UTF-8, then the 32 bytes of the SHA-256 of its content. In each folder
    the files come first, sorted, then the sub-folders, sorted. Links to files are followed, links to folders are not.

    Args:
        overlay: A folder that is served in place (a direct overlay), hashed with everything in it; or the files that
            the server downloads of a repo, as pairs of path and content in any order.

    Raises:
        BrokenInput: A file of the folder is a dangling link, or no regular file, or its name is not UTF-8.
    """
    files: Iterable[tuple[str, bytes | Path]] = _walk(overlay) if isinstance(overlay, Path) else overlay
    whole = hashlib.sha256()
    for path, content in sorted(files, key=lambda file: _walk_order(file[0])):
        if enters_fingerprint(path):
            whole.update(_utf8(path))
            whole.update(_sha256(content))
    return whole.hexdigest()


def _walk(root: Path) -> Iterator[tuple[str, Path]]:
    def refuse(error: OSError) -> None:
        raise explain_os_error(Path(error.filename), error) from error

    for folder, _, names in os.walk(root, onerror=refuse):
        for name in names:
            file = Path(folder, name)
            yield file.relative_to(root).as_posix(), file


def _utf8(path: str) -> bytes:
    try:
        return path.encode()
    except UnicodeEncodeError as error:
        raise BrokenInput(f"the file name {path!r} is not UTF-8", code="unsafe-path", where=repr(path)) from error


def _sha256(content: bytes | Path) -> bytes:
    if isinstance(content, bytes):
        return hashlib.sha256(content).digest()
    if not content.is_file():
        raise BrokenInput(
            f"{content}: expected a file, found a dangling link or a special file",
            code="not-a-file",
            hint="download the overlay again, or remove the link",
            where=str(content),
        )
    try:
        with content.open("rb") as stream:
            return hashlib.file_digest(stream, "sha256").digest()
    except OSError as error:
        raise explain_os_error(content, error) from error


def _walk_order(path: str) -> tuple[tuple[bool, str], ...]:
    *folders, name = path.split("/")
    return (*((True, folder) for folder in folders), (False, name))
