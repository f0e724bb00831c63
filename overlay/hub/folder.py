"""Folders of this host in the place of a repo: ``--hub DIR``, a source given by path, an overlay folder."""

from __future__ import annotations

from typing import TYPE_CHECKING

from overlay.errors import InvalidUsage, NotHere
from overlay.formats.files import Folder
from overlay.formats.local import file_stat
from overlay.formats.wording import counted
from overlay.hub.repo import matches
from overlay.registry import COMMIT, LOCAL

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence
    from pathlib import Path

    from overlay.fingerprint import DigestMemo
    from overlay.hub.repo import Progress
    from overlay.registry import Pin

__all__ = ["FolderRepo", "open_in_hub_folder"]

_BY_TOOLS = (".cache/huggingface/", ".git/")
"""What ``hf download --local-dir`` and ``git clone`` leave in a folder beside the files of the repo."""


class FolderRepo(Folder):
    """A folder in the place of a repo.

    Args:
        root: The folder.
        repo: Repo id that it stands for, or the absolute folder.
        revision: 40-hex commit, or ``local``.
        memo: Remembers the digests of its files.
        only: Patterns of the files that count; None for all.

    Raises:
        NotHere: There is no such folder.
    """

    shared_store = False

    def __init__(
        self, root: Path, *, repo: str, revision: str, memo: DigestMemo, only: Sequence[str] | None = None
    ) -> None:
        super().__init__(root)
        self.repo = repo
        self.revision = revision
        self._memo = memo
        self._only = only

    def paths(self) -> Sequence[str]:
        """Every file that counts, sorted: of the repo, not of the tool that brought it."""
        return [path for path in super().paths() if matches(path, self._only) and not path.startswith(_BY_TOOLS)]

    def digest(self, path: str) -> str:
        """``sha256:<hex>``, computed unless it is remembered."""
        return self._memo.sha256(self._at(path))

    def local(self, path: str) -> Path | None:
        """The file itself, links resolved."""
        try:
            file_stat(self._at(path))
        except NotHere:
            return None
        return self._at(path).resolve()

    def fetch(self, paths: Collection[str], progress: Progress | None = None) -> Mapping[str, Path]:  # noqa: ARG002  # nothing moves
        """Say where the files are.

        Raises:
            NotHere: Some are missing; all of them are named.
        """
        found = {path: self.local(path) for path in paths}
        missing = sorted(path for path, place in found.items() if place is None)
        if missing:
            raise NotHere(
                f"{self.name}: {counted(len(missing), 'file')} missing: {', '.join(missing)}",
                code="no-such-file",
                hint="copy them there, or leave --hub away to download them",
                where=self.name,
                missing=missing,
            )
        return {path: place for path, place in found.items() if place is not None}


def open_in_hub_folder(hub: Path, pin: Pin, memo: DigestMemo, only: Sequence[str] | None) -> FolderRepo:
    """The folder ``<hub>/<org>/<name>/<revision>`` of a pin; for a floating one, the only revision there, or ``main``.

    Raises:
        NotHere: It is not there; the message lists what is.
        InvalidUsage: Several revisions, and nothing says which.
    """
    folder = hub / pin.repo
    found = sorted(path for path in folder.iterdir() if path.is_dir()) if folder.is_dir() else []
    names = [path.name for path in found]
    if pin.revision is not None:
        chosen = [path for path in found if path.name == pin.revision]
    else:
        chosen = [path for path in found if path.name == "main"] or (found if len(found) == 1 else [])
    if chosen:
        return FolderRepo(chosen[0], repo=pin.repo, revision=_revision_of(chosen[0]), memo=memo, only=only)
    if pin.revision is None and names:
        raise InvalidUsage(
            f"{folder}: {pin.repo} floats and {len(names)} revisions are there ({', '.join(names)}), expected one",
            code="several-revisions",
            hint="pin the repo in the registry, or name the revision to take: ln -s REVISION main",
            repo=pin.repo,
            where=str(folder),
            revisions=names,
        )
    expected = pin.revision or "main"
    raise NotHere(
        f"{folder}: no folder {expected} of {pin.repo}; found {', '.join(names) or 'no revision at all'}",
        code="revision-not-here",
        hint=f"put the files of the repo into {folder / (pin.revision or 'main')}",
        repo=pin.repo,
        where=str(folder),
        revision=pin.revision,
        revisions=names,
    )


def _revision_of(folder: Path) -> str:
    """The commit that the folder is named for, also through a link ``main`` to it."""
    return next((path.name for path in (folder, folder.resolve()) if COMMIT.fullmatch(path.name)), LOCAL)
