"""A file as it was at a revision of the git repository that it lies in."""

from __future__ import annotations

import os
import re
import subprocess
from typing import TYPE_CHECKING

from overlay.errors import InvalidUsage, TryAgain

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

__all__ = ["commit_of", "file_at"]

_SECONDS = 60
_OF_REMOTE = re.compile(r"origin/([\w./-]+)")
_ENVIRONMENT = {"LC_ALL": "C", "GIT_TERMINAL_PROMPT": "0", "GIT_OPTIONAL_LOCKS": "0"}


def commit_of(folder: Path, revision: str) -> str:
    """The commit that a revision names in the repository of a folder.

    Args:
        revision: As a user gives it: a branch, a tag, a commit.

    Raises:
        InvalidUsage: There is no git, no repository, or no such revision in it.
        TryAgain: git does not answer.
    """
    if not revision or revision.startswith("-") or ":" in revision or not revision.isprintable():
        raise InvalidUsage(
            f"{revision!r} is no revision; expected a branch, a tag or a commit",
            code="bad-revision",
            hint="for example: --base origin/main",
        )
    inside = _git(folder, ["rev-parse", "--git-dir"])
    if inside.returncode:
        said = inside.stderr.decode(errors="replace").strip().splitlines()
        owned = any("dubious ownership" in line for line in said)
        raise InvalidUsage(
            f"{folder}: {'git does not trust its owner' if owned else 'is in no git repository'},"
            f" so it has no revision {revision}",
            code="not-a-repository",
            hint=f"git config --global --add safe.directory {folder}"
            if owned
            else "name a file to compare with: --against FILE",
            where=str(folder),
        )
    # --end-of-options: whatever it looks like, it is a revision.
    found = _git(folder, ["rev-parse", "--verify", "--quiet", "--end-of-options", f"{revision}^{{commit}}"])
    if found.returncode:
        raise InvalidUsage(
            f"{folder}: git knows no revision {revision}",
            code="unknown-revision",
            hint=_fetch(folder, revision),
            where=str(folder),
            revision=revision,
        )
    return found.stdout.decode("ascii").strip()


def _fetch(folder: Path, revision: str) -> str:
    """How a revision that is not there may come to be: with the branch of the remote, or a deeper clone."""
    is_shallow = _git(folder, ["rev-parse", "--is-shallow-repository"]).stdout.strip() == b"true"
    of_remote = _OF_REMOTE.match(revision)
    branch = f" origin {of_remote[1]}:refs/remotes/origin/{of_remote[1]}" if of_remote else ""
    if is_shallow:
        return f"the clone is shallow: git fetch --unshallow{branch}"
    return f"git fetch{branch}" if branch else "see which there are: git log --oneline; git branch --all"


def file_at(path: Path, commit: str) -> bytes | None:
    """A file's bytes at a commit; None where the commit does not have it.

    Raises:
        TryAgain: git does not answer.
    """
    # A blob is sent as it is stored: no filter and no program that an attribute names runs.
    found = _git(path.parent, ["cat-file", "blob", f"{commit}:./{path.name}"])
    return found.stdout if found.returncode == 0 else None


def _git(folder: Path, arguments: Sequence[str]) -> subprocess.CompletedProcess[bytes]:
    command = ["git", "-C", str(folder), *arguments]
    try:
        return subprocess.run(  # noqa: S603  # no shell, and what a user gave is checked
            command, capture_output=True, check=False, timeout=_SECONDS, env={**os.environ, **_ENVIRONMENT}
        )
    except FileNotFoundError as error:
        raise InvalidUsage(
            f"{folder}: git is not installed, so its revisions cannot be read",
            code="no-git",
            hint="install git, or name a file to compare with: --against FILE",
        ) from error
    except subprocess.TimeoutExpired as error:
        raise TryAgain(
            f"{folder}: git did not answer within {_SECONDS} seconds",
            code="timeout",
            hint="run the same command again",
            where=str(folder),
        ) from error
