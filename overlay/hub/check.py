"""Holding downloaded bytes against the digests that the Hub gives for them."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from typing import TYPE_CHECKING

from overlay.errors import BrokenInput
from overlay.fingerprint import git_blob_digest

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from overlay.fingerprint import DigestMemo
    from overlay.hub.repo import Repo

__all__ = ["check_sha256"]


def check_sha256(repo: Repo, files: Mapping[str, Path], memo: DigestMemo) -> Future[None]:
    """Hold files against their digests on a thread of their own, which reads each inode once and remembers it.

    The name of a blob proves nothing: in the Hub's shared store it is no digest of the content. Nothing is deleted.
    The thread does not keep the process alive.

    Args:
        repo: Gives the digests.
        files: Where each path of the repo lies, as ``fetch`` returned it.
        memo: Remembers digests of files whose stat has not changed.

    Returns:
        A future whose result raises :class:`BrokenInput` naming every file that is not what the Hub says.
    """
    future: Future[None] = Future()

    def work() -> None:
        try:
            _check(repo, files, memo)
        except BaseException as error:  # noqa: BLE001  # whoever waits for the future gets it
            future.set_exception(error)
        else:
            future.set_result(None)

    threading.Thread(target=work, name="overlay-sha256", daemon=True).start()
    return future


def _check(repo: Repo, files: Mapping[str, Path], memo: DigestMemo) -> None:
    wrong: dict[str, dict[str, str]] = {}
    known: dict[tuple[int, int, str], str] = {}
    for path, file in files.items():
        expected = repo.digest(path)
        algorithm, stat = expected.partition(":")[0], file.stat()
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
