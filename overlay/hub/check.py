"""Holding downloaded bytes against the digests that the Hub gives for them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from overlay.errors import BrokenInput
from overlay.fingerprint import git_blob_digest
from overlay.formats.local import file_stat

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from overlay.fingerprint import DigestMemo
    from overlay.hub.repo import Repo

__all__ = ["check_digests"]


def check_digests(repo: Repo, files: Mapping[str, Path], memo: DigestMemo) -> None:
    """Hold files against their digests, each inode once.

    The name of a blob proves nothing: in the Hub's shared store it is no digest of the content. Nothing is deleted.

    Args:
        repo: Gives the digests.
        files: Where each path of the repo lies, as ``fetch`` returned it.
        memo: Remembers digests of files whose stat has not changed.

    Raises:
        BrokenInput: Names every file that is not what the Hub says.
        OverlayError: One cannot be read (``formats.local``).
    """
    wrong: dict[str, dict[str, str]] = {}
    known: dict[tuple[int, int, str], str] = {}
    for path, file in files.items():
        expected = repo.digest(path)
        algorithm, stat = expected.partition(":")[0], file_stat(file)
        inode = (stat.st_dev, stat.st_ino, algorithm)
        if inode not in known:
            known[inode] = memo.sha256(file) if algorithm == "sha256" else git_blob_digest(file.read_bytes())
        if known[inode] != expected:
            wrong[path] = {"found": known[inode], "expected": expected}
    if wrong:
        blobs = sorted({str(files[path]) for path in wrong})
        raise BrokenInput(
            "; ".join(
                f"{repo.where(path)}: {digests['found']} in {files[path]}, expected {digests['expected']} by the Hub"
                for path, digests in wrong.items()
            ),
            code="digest-mismatch",
            hint=f"remove the damaged blob and fetch again: rm {' '.join(blobs)}",
            files=wrong,
        )
