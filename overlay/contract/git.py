"""A file as it was at a revision of the git repository that it lies in."""

from __future__ import annotations

import os
import posixpath
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
_MOST_LINKS = 10
_LINK = "120000"
_ENVIRONMENT = {"LC_ALL": "C", "GIT_TERMINAL_PROMPT": "0", "GIT_OPTIONAL_LOCKS": "0", "GIT_LITERAL_PATHSPECS": "1"}
# Which repository a file lies in is told by where it lies; a hook has these set, and relative to another folder.
_OF_THE_CALLER = {"GIT_DIR", "GIT_WORK_TREE", "GIT_COMMON_DIR", "GIT_INDEX_FILE", "GIT_PREFIX"}


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
    """A file's bytes at a commit; None where the commit does not have it. Links are followed as they were then.

    Raises:
        InvalidUsage: It was a link that led out of the repository, or in a circle.
        TryAgain: git cannot read it now, as in a partial clone whose remote is out of reach; or it does not answer.
    """
    folder = path.parent
    name = os.fsdecode(_read(folder, ["rev-parse", "--show-prefix"], path, commit).removesuffix(b"\n")) + path.name
    for _ in range(_MOST_LINKS):
        listed = _read(folder, ["ls-tree", "-z", "--full-tree", commit, "--", name], path, commit)
        mode, kind, digest = listed.partition(b"\t")[0].decode("ascii").split() or ("", "", "")
        if kind != "blob":
            return None
        # A blob is sent as it is stored: no filter and no program that an attribute names runs.
        data = _read(folder, ["cat-file", "blob", digest], path, commit)
        if mode != _LINK:
            return data
        name = posixpath.normpath(posixpath.join(posixpath.dirname(name), os.fsdecode(data)))
        if name.startswith(("/", "../")):
            break
    raise InvalidUsage(
        f"{path}: at {commit[:12]} it is a link that leads to no file of the repository, so what it said is not known",
        code="leads-out-of-the-repository",
        hint="name a file to compare with: --against FILE",
        where=str(path),
    )


def _read(folder: Path, arguments: Sequence[str], path: Path, commit: str) -> bytes:
    """What git prints; that it fails never means that something is not there."""
    done = _git(folder, arguments)
    if done.returncode:
        said = " ".join(done.stderr.decode(errors="replace").split())
        raise TryAgain(
            f"{path}: git cannot read it at {commit[:12]}: {said[:500] or f'status {done.returncode}'}",
            code="git-failed",
            hint="a partial clone needs its remote: see whether git fetch works; else see what is damaged: git fsck",
            where=str(path),
            commit=commit,
        )
    return done.stdout


def _git(folder: Path, arguments: Sequence[str]) -> subprocess.CompletedProcess[bytes]:
    command = ["git", "-C", str(folder), *arguments]
    environment = {name: value for name, value in os.environ.items() if name not in _OF_THE_CALLER} | _ENVIRONMENT
    try:
        return subprocess.run(  # noqa: S603  # no shell, and what a user gave is checked
            command, capture_output=True, check=False, timeout=_SECONDS, env=environment
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
