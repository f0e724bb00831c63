"""Where finished files go: into a cache's objects, and from there into a tree; or straight into a new folder."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from overlay.cache import is_small
from overlay.cache.disk import fsync, make_folder, share_with_group, writing
from overlay.cache.links import link_file, ways
from overlay.errors import OverlayError
from overlay.fingerprint import file_digest
from overlay.materialization.build import Carried, recorded
from overlay.materialization.inputs import file_identity, input_changed
from overlay.materialization.lookup import remember
from overlay.materialization.record import RECORD_NAME
from overlay.planning.outputs import AliasFile, CarriedFile, GeneratedFile

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from concurrent.futures import Future
    from pathlib import Path

    from overlay.cache import Cache, LinkMode
    from overlay.cache.links import How, LinkResult
    from overlay.fusion.build import BuiltFile
    from overlay.hub import Repo
    from overlay.materialization.build import Linked, Made, Write
    from overlay.materialization.inputs import Checks, Inputs
    from overlay.materialization.links import Fallback
    from overlay.materialization.survey import Step, Work
    from overlay.planning.outputs import Input

__all__ = ["CacheSink", "FolderSink", "place_tree", "shared_with_sources"]


@dataclass(frozen=True, slots=True)
class CacheSink:
    """Every file is an object, and found again by the next run, the moment it is finished and proven.

    Attributes:
        shared: Inputs that objects share their inodes with: the digest of each, and what told, before it was read for
            that, whether it is still the same.
    """

    cache: Cache
    inputs: Inputs
    repos: Mapping[str, Repo]
    checks: Checks
    fallback: Fallback
    shared: list[tuple[Step, Input, str, tuple[int, ...]]] = field(default_factory=list)

    def build(self, step: Step, write: Write) -> BuiltFile:
        """See :class:`Sink`."""
        # A folder a file, so that a hit makes none: it works on a root that cannot be written.
        with self.cache.staging() as staging:
            built = write(staging / "built.safetensors")
            self.checks.wait(step)
            self.cache.adopt_file(staging / "built.safetensors", built.digest)
        remember(self.cache, step.output, step.found, recorded(step.output.path, built))
        return built

    def carry(self, step: Step, source: Input) -> Carried:
        """See :class:`Sink`."""
        path = self.inputs.path(source)
        seen = file_identity(path)
        self.checks.wait(step)
        digest = source.digest if source.digest.startswith("sha256:") else file_digest(path, "sha256")
        shared = self.repos[source.repo].shared_store

        def link(mode: LinkMode) -> LinkResult:
            return self.cache.link_object(path, digest, mode, shared_store=shared, check=check)

        def check(_file: Path, how: How) -> None:
            if how == "hardlink":  # a link moves the time by which the digest of a folder's file is remembered
                self._require_same(source, seen)
            else:
                self.checks.wait(step)

        linked = self.fallback.bring(step, path, link)
        if linked.how == "hardlink":
            self.shared.append((step, source, digest, seen))
        if step.found.action:
            self.cache.put_action(step.found.action, {"digest": digest, "size": source.size})
        return Carried(linked.how, digest, linked.path)

    def is_last_reader(self, source: Input) -> bool:
        """See :class:`Sink`."""
        return self.checks.is_done(source)

    def forget_written(self) -> list[OverlayError]:
        """Drop the objects of inputs into which somebody wrote since they were read; gives what to say of each."""
        errors = []
        for step, source, digest, seen in self.shared:
            try:
                self._require_same(source, seen)
            except OverlayError as error:
                errors.append(error)
                if step.found.action:
                    self.cache.drop_action(step.found.action, "its file was changed while it was taken")
                self.cache.drop_object(digest)
        return errors

    def _require_same(self, source: Input, seen: tuple[int, ...]) -> None:
        if file_identity(self.inputs.path(source)) != seen:
            where = self.repos[source.repo].where(source.path)
            raise input_changed(where, "another file, size or time than at first", source.path)


@dataclass(frozen=True, slots=True)
class FolderSink:
    """Files of a new folder that nobody else knows yet.

    Attributes:
        digests: Of the inputs that are carried, by path; they are taken beside the build.
    """

    folder: Path
    locate: Callable[[Input], Path]
    digests: Mapping[str, Future[str]]
    fallback: Fallback

    def build(self, step: Step, write: Write) -> BuiltFile:
        """See :class:`Sink`."""
        return write(self._place(step))

    def carry(self, step: Step, source: Input) -> Carried:
        """See :class:`Sink`."""
        target = self._place(step)
        place = self.locate(source).resolve()

        def link(mode: LinkMode) -> How:
            return link_file(place, target, ways(mode, shared_store=False, size=step.size))

        how = self.fallback.bring(step, place, link)
        fsync(target)
        return Carried(how, self.digests[source.path].result(), target)

    def is_last_reader(self, source: Input) -> bool:
        """See :class:`Sink`."""
        return source.path not in self.digests

    def _place(self, step: Step) -> Path:
        target = self.folder / step.output.path
        target.parent.mkdir(parents=True, exist_ok=True)
        return target


def shared_with_sources(work: Work, made: Made, repos: Mapping[str, Repo], cache: Cache) -> dict[str, Linked]:
    """Which carried files share the inode of their source, by output path; also of those that were here before."""
    found: dict[str, Linked] = {}
    for step in work.steps:
        if isinstance(step.output, CarriedFile):
            source = step.output.input
            with suppress(OSError):  # not here, or damaged: then it is not what the object is
                place = repos[source.repo].local(source.path)
                if place and place.samefile(cache.object_path(made.files[step.output.path].digest)):
                    found[step.output.path] = "hardlink"
    return found


def place_tree(work: Work, made: Made, cache: Cache, tree: Path, record: bytes) -> None:
    """Link the tree from objects and write its generated files and its record."""
    for step in work.steps:
        output = step.output
        if isinstance(output, GeneratedFile):
            _write(tree / output.path, output.data, cache)
        elif not isinstance(output, AliasFile):
            file = made.files[output.path]
            cache.place_file(cache.object_path(file.digest), tree / file.path, is_small(file.path, file.size))
    for step in work.steps:
        if isinstance(step.output, AliasFile):
            path = tree / step.output.path
            with writing(cache.root, f"hardlink/reflink/copy {step.output.path}"):
                make_folder(path.parent, cache.root, durable=False)
                link_file(tree / step.output.of, path, ("hardlink", "reflink", "copy"))
    _write(tree / RECORD_NAME, record, cache)


def _write(path: Path, data: bytes, cache: Cache) -> None:
    with writing(cache.root, f"write {path.name}"):
        make_folder(path.parent, cache.root, durable=False)
        path.write_bytes(data)
        share_with_group(path, cache.root)
