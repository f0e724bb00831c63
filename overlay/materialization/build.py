"""Doing the work: fetch what is missing, make each object, link the tree, seal it with its record."""

from __future__ import annotations

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Self

from overlay.cache import is_small
from overlay.cache.disk import make_folder, share_with_group, writing
from overlay.errors import BrokenInput
from overlay.fingerprint import file_digest
from overlay.formats.header import read_header
from overlay.hub import check_digests
from overlay.materialization.record import RECORD_NAME
from overlay.planning.outputs import AliasFile, CarriedFile, GeneratedFile, SafetensorsFile
from overlay.planning.plan import inputs_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from concurrent.futures import Future
    from pathlib import Path

    from overlay.cache import Cache
    from overlay.fingerprint import DigestMemo
    from overlay.fusion.engine import Engine
    from overlay.hub import Repo
    from overlay.materialization.request import Options, Phase
    from overlay.materialization.survey import Step, Work
    from overlay.planning.outputs import Input

__all__ = ["Builder", "Checks", "Inputs", "Made", "fetch", "needs_engine", "place_tree", "start_engine"]


@dataclass(frozen=True, slots=True)
class Inputs:
    """Where every input of the work lies on this host."""

    paths: Mapping[tuple[str, str], Path]

    def path(self, source: Input) -> Path:
        """Local path of one input."""
        return self.paths[source.repo, source.path]


class Checks:
    """The digests of the plan held against the bytes of the inputs.

    Files of the Hub are read for that on a thread of its own, beside the build. A folder's digests were taken from its
    bytes, but people edit those in place: they are asked for once more, which costs a look at an unchanged file.

    Args:
        work: Its inputs are checked in the order in which they are needed.
        memo: Remembers what was checked before.
    """

    def __init__(self, work: Work, inputs: Inputs, repos: Mapping[str, Repo], memo: DigestMemo) -> None:
        self._repos = repos
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="overlay-sha256")
        self._results: dict[tuple[str, str], Future[None]] = {}
        for step in work.steps:
            for source in _needed(step):
                repo, key = repos[source.repo], (source.repo, source.path)
                if repo.shared_store and key not in self._results:
                    files = {source.path: inputs.path(source)}
                    self._results[key] = self._thread.submit(check_digests, repo, files, memo)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.shutdown(cancel_futures=True)

    def wait(self, step: Step) -> None:
        """Until the inputs of one output, which were read, are proven; before that no object may be made of them.

        Raises:
            BrokenInput: One is not what the Hub says, or was changed since the plan was made.
        """
        for source in dict.fromkeys(_needed(step)):
            if result := self._results.get((source.repo, source.path)):
                result.result()
            elif (found := self._repos[source.repo].digest(source.path)) != source.digest:
                raise BrokenInput(
                    f"{self._repos[source.repo].where(source.path)}: {found}, expected {source.digest}: "
                    "it was changed while this ran",
                    code="input-changed",
                    hint="let whatever writes it finish, then run the same command again",
                    path=source.path,
                )


@dataclass(slots=True)
class Made:
    """What a run did, beside the files: for the record.

    Attributes:
        entries: By output path: ``digest``, ``size`` and, for safetensors, ``tensors``.
        links: By output path: how a carried file came into the cache.
        kernels: Fused chunks by kernel.
    """

    entries: dict[str, dict[str, Any]] = field(default_factory=dict)
    links: dict[str, str] = field(default_factory=dict)
    kernels: Counter[str] = field(default_factory=Counter)


def _needed(step: Step) -> Iterator[Input]:
    """Inputs that making one output reads; none where the cache holds it."""
    if step.how not in ("present", "generate", "alias"):
        yield from inputs_of(step.output)


def needs_engine(work: Work) -> bool:
    """Whether anything has to be fused."""
    return any(
        isinstance(step.output, SafetensorsFile) and step.output.is_fused for step in work.steps if step.how == "build"
    )


def start_engine(options: Options) -> Engine:
    """The arithmetic on its device, self-tested."""
    from overlay.fusion.engine import Engine

    return Engine.start(options.device)


def fetch(work: Work, repos: Mapping[str, Repo], phase: Phase) -> Inputs:
    """Bring what is missing and find the rest."""
    by_repo: dict[str, set[str]] = {}
    for step in work.steps:
        for source in _needed(step):
            by_repo.setdefault(source.repo, set()).add(source.path)
    total = sum(source.size for source in work.missing)
    with phase("download", total) if total else nullcontext(None) as update:
        paths = {
            (name, path): local
            for name, wanted in sorted(by_repo.items())
            for path, local in repos[name].fetch(sorted(wanted), update).items()
        }
    return Inputs(paths)


@dataclass(frozen=True, slots=True)
class Builder:
    """Makes what the cache lacks. Every file is an object, and found again, the moment it is finished and proven."""

    inputs: Inputs
    checks: Checks
    cache: Cache
    repos: Mapping[str, Repo]
    options: Options
    engine: Engine | None

    def run(self, work: Work, phase: Phase) -> Made:
        """One object for each output that is no generated file and no alias."""
        made = Made()
        # Carried files last: what is built meanwhile leaves the time to check them.
        steps = sorted(work.steps, key=lambda step: isinstance(step.output, CarriedFile))
        total = sum(step.size for step in steps if step.how in ("build", "reflink", "hardlink", "copy"))
        with phase("build", total) if total else nullcontext(_ignore) as update:
            for step in steps:
                if step.how == "build":
                    # A folder a file, so that a hit makes none: it works on a root that cannot be written.
                    with self.cache.staging() as staging:
                        entry = self._build(step, staging / "built.safetensors", made, update)
                    made.entries[step.output.path] = entry
                elif isinstance(step.output, CarriedFile):
                    made.entries[step.output.path] = self._carry(step, step.output.input, made, update)
                elif step.entry is not None:
                    made.entries[step.output.path] = dict(step.entry)
        for step in steps:
            if isinstance(step.output, AliasFile):
                made.entries[step.output.path] = made.entries[step.output.of]
        return made

    def _build(self, step: Step, staged: Path, made: Made, update: Callable[[int], None]) -> dict[str, Any]:
        from overlay.fusion.build import build_safetensors, default_jobs

        assert isinstance(step.output, SafetensorsFile)  # noqa: S101 - nothing else is built; tells the type checker
        built = build_safetensors(
            step.output,
            staged,
            open_input=self.inputs.path,
            engine=self.engine if step.output.is_fused else None,
            rule=self.options.rule,
            jobs=self.options.jobs or default_jobs(self.engine),
            memory=self.options.memory,
            progress=update,
        )
        self.checks.wait(step)
        self.cache.adopt_file(staged, built.digest)
        made.kernels.update(built.kernels)
        entry = {"digest": built.digest, "size": built.size, "tensors": [asdict(tensor) for tensor in built.tensors]}
        if step.action:
            self.cache.put_action(step.action, entry)
        return entry

    def _carry(self, step: Step, source: Input, made: Made, update: Callable[[int], None]) -> dict[str, Any]:
        if step.entry is not None:
            digest = step.entry["digest"]
        else:
            path = self.inputs.path(source)
            self.checks.wait(step)
            digest = source.digest if source.digest.startswith("sha256:") else file_digest(path, "sha256")
            shared = self.repos[source.repo].shared_store
            link = self.cache.link_object(
                path, digest, self.options.link, shared_store=shared, check=lambda: self.checks.wait(step)
            )
            made.links[step.output.path] = link.how
            if step.action:
                self.cache.put_action(step.action, {"digest": digest, "size": source.size})
            update(step.size)
        entry: dict[str, Any] = {"digest": digest, "size": source.size}
        if source.path.endswith(".safetensors"):
            header = read_header(self.cache.object_path(digest))
            entry["tensors"] = [
                {"name": info.name, "dtype": info.dtype, "shape": list(info.shape)} for info in header.tensors.values()
            ]
        return entry


def _ignore(_nbytes: int) -> None:
    """Progress of nothing."""


def place_tree(work: Work, made: Made, cache: Cache, tree: Path, record: bytes) -> None:
    """Link the tree from objects and write its generated files and its record."""
    for step in work.steps:
        output = step.output
        if isinstance(output, GeneratedFile):
            _write(tree / output.path, output.data, cache)
        elif not isinstance(output, AliasFile):
            entry = made.entries[output.path]
            small = is_small(output.path, entry["size"])
            cache.place_file(cache.object_path(entry["digest"]), tree / output.path, small)
    for step in work.steps:
        if isinstance(step.output, AliasFile):
            path = tree / step.output.path
            with writing(cache.root, f"hardlink {step.output.path}"):
                make_folder(path.parent, cache.root, durable=False)
                path.hardlink_to(tree / step.output.of)
    _write(tree / RECORD_NAME, record, cache)


def _write(path: Path, data: bytes, cache: Cache) -> None:
    with writing(cache.root, f"write {path.name}"):
        make_folder(path.parent, cache.root, durable=False)
        path.write_bytes(data)
        share_with_group(path, cache.root)
