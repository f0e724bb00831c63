"""What a server that is given a name looks up in the Hub's cache, and what there keeps it from its directory.

The one place that decides it: a check reports what it says, staging mends or refuses it, and a start warns of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from overlay.consumers.sglang.asked import asked_of
from overlay.consumers.sglang.fingerprint import extra_files
from overlay.errors import NotHere
from overlay.formats.overlay_repo import is_metadata
from overlay.formats.wording import named, shown, some
from overlay.hub import HubRepo
from overlay.hub.serving import Branch, not_in_snapshot, require_listing, require_unchanged
from overlay.registry import COMMIT, LOCAL

if TYPE_CHECKING:
    from collections.abc import Iterator

    from overlay.consumers.sglang.asked import Asked
    from overlay.formats.manifest import Manifest
    from overlay.hub import Repo
    from overlay.registry import Pin, Resolution

__all__ = [
    "Elsewhere",
    "Extras",
    "Lacking",
    "Lookup",
    "NotAsked",
    "Obstacle",
    "OtherCommit",
    "Part",
    "extra_in_snapshot",
]


@dataclass(frozen=True, slots=True)
class Extras:
    """The overlay's snapshot holds more than a server fetches, and it hashes all that it finds there."""

    overlay: HubRepo
    files: tuple[str, ...]

    def said(self, server: object) -> str:  # noqa: ARG002 - it is so for each
        """In words."""
        return (
            f"{self.overlay.snapshot} holds more than a server fetches ({named(self.files)}): one that finds them there"
            " looks for another directory"
        )


@dataclass(frozen=True, slots=True)
class NotAsked:
    """Files that the manifest requires are not among those asked for: a server fetches all anew, and gives up."""

    source: HubRepo
    missing: tuple[str, ...]

    def said(self, server: object) -> str:
        """In words."""
        return (
            f"{self.source.name}: no {named(self.missing)} among the files that {server} asks for, but the overlay's"
            " manifest requires them"
        )


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """A branch that is asked for leads to another commit than is pinned.

    Attributes:
        found: What it says; None where that cannot be read.
    """

    pin: Pin
    branch: Branch
    found: str | None

    def said(self, server: object) -> str:
        """In words."""
        says = "is no file that can be read" if self.found is None else f"says {shown(self.found[:40]) or 'nothing'}"
        return (
            f"{self.branch.file} {says}, and the entry pins {self.pin}: without a connection {server} takes"
            f" {self.pin.repo} from there"
        )


@dataclass(frozen=True, slots=True)
class OtherCommit:
    """Another commit is asked for than is pinned."""

    pin: Pin
    asked: str

    def said(self, server: object) -> str:
        """In words."""
        return (
            f"{self.pin}: {server} asks for {self.asked}, which is what it was told or what the overlay's manifest says"
        )


@dataclass(frozen=True, slots=True)
class Lacking:
    """Something is not there, which staging would bring."""

    text: str

    def said(self, server: object) -> str:  # noqa: ARG002 - as above
        """In words."""
        return self.text


Obstacle = Extras | NotAsked | Elsewhere | OtherCommit | Lacking
"""What keeps a server from its directory, or has it look for another one; ``said`` takes the server's name."""


@dataclass(frozen=True, slots=True)
class Part:
    """One repo: the files that are asked for, and the branch that must lead to its commit, where one is asked for.

    Attributes:
        asked: The revision as the server names it.
    """

    repo: HubRepo
    paths: tuple[str, ...]
    asked: str

    @property
    def branch(self) -> Branch | None:
        """The branch that is asked for; None where a commit is."""
        return None if COMMIT.fullmatch(self.asked) else Branch(self.repo.repo, self.asked)

    @property
    def is_complete(self) -> bool:
        """Whether a server finds all of it."""
        return not self.lacks() and (self.branch is None or self.branch.commit() == self.repo.revision)

    def lacks(self) -> str:
        """What a server would ask the Hub for, in words; empty where there is nothing.

        Of a branch, only that it leads somewhere is looked at.
        """
        try:
            require_listing(self.repo)
            missing = not_in_snapshot(self.repo, self.paths)
        except NotHere as error:  # there is no listing, or a file has another size
            return error.message
        if missing:
            return f"{len(missing)} of the {len(self.paths)} files of {self.repo.name} are not there: {some(missing)}"
        branch = self.branch
        return f"{branch.file} is not there" if branch and branch.commit() is None else ""


@dataclass(frozen=True, slots=True)
class Lookup:
    """What a server looks up before its directory.

    Attributes:
        resolution: Its entry has an overlay, and says what the server is told.
        manifest: Of the overlay.
        overlay: At its pin; None where its files are not to be looked at.
        source: Likewise.
    """

    resolution: Resolution
    manifest: Manifest
    overlay: Repo | None
    source: Repo | None

    @property
    def asked(self) -> Asked:
        """What the server asks for."""
        if self.resolution.entry.server is None:
            raise ValueError(f"{self.resolution.model} is looked up by no server")
        return asked_of(self.resolution.entry.server, self.manifest)

    @property
    def parts(self) -> tuple[Part, ...]:
        """What must be in the Hub's cache, first of the overlay; nothing of what a folder stands in for."""
        asked, parts = self.asked, []
        if isinstance(self.overlay, HubRepo):
            parts.append(Part(self.overlay, _fetched(self.overlay), asked.overlay))
        if isinstance(self.source, HubRepo):
            paths = tuple(path for path in self.source.paths() if asked.wants(path))
            parts.append(Part(self.source, paths, asked.source))
        return tuple(parts)

    def obstacles(self) -> Iterator[Obstacle]:
        """What keeps the server from its directory, what staging mends last. A changed file is fetched once more.

        Raises:
            NotHere: A file of the overlay is changed, and there is no connection (``damaged-in-hub-cache``).
            OverlayError: As the repos raise.
        """
        if isinstance(self.overlay, HubRepo):
            require_unchanged(self.overlay, _fetched(self.overlay))
            if extras := extra_in_snapshot(self.overlay):
                yield Extras(self.overlay, extras)
        parts = self.parts
        for part in parts:
            if part.repo is self.source and (missing := _not_among(part.paths, self.asked.required)):
                yield NotAsked(part.repo, missing)
        yield from self._led_elsewhere()
        yield from (Lacking(lacks) for part in parts if (lacks := part.lacks()))

    def _led_elsewhere(self) -> Iterator[Obstacle]:
        entry, asked = self.resolution.entry, self.asked
        source = entry.source if self.resolution.source_folder is None else None
        for pin, revision in ((entry.overlay, asked.overlay), (source, asked.source)):
            if pin is None or pin.revision in (None, LOCAL, revision):
                continue
            if COMMIT.fullmatch(revision):
                yield OtherCommit(pin, revision)
                continue
            branch = Branch(pin.repo, revision)
            if (found := branch.commit()) not in (None, pin.revision):
                yield Elsewhere(pin, branch, found)


def extra_in_snapshot(overlay: HubRepo) -> tuple[str, ...]:
    """What lies in the overlay's snapshot beside what a server fetches, and has it look for another directory."""
    return extra_files(overlay.in_snapshot(), _fetched(overlay))


def _fetched(overlay: HubRepo) -> tuple[str, ...]:
    return tuple(path for path in overlay.paths() if is_metadata(path))


def _not_among(paths: tuple[str, ...], required: tuple[str, ...]) -> tuple[str, ...]:
    """Those files and folders of ``required`` that are none of the files, and hold none of them."""
    there = {path[:end] for path in paths for end, char in enumerate(f"{path}/") if char == "/"}
    return tuple(path for path in required if path not in there)
