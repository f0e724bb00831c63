"""Doing the work: fetch what is missing, make each object, link the tree, seal it with its record."""

from __future__ import annotations

from collections import Counter
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from overlay.cache import is_small
from overlay.cache.disk import make_folder, share_with_group, writing
from overlay.fingerprint import file_digest
from overlay.formats.header import read_header
from overlay.materialization.record import RECORD_NAME
from overlay.planning.outputs import AliasFile, CarriedFile, GeneratedFile, SafetensorsFile
from overlay.planning.plan import inputs_of

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from overlay.cache import Cache
    from overlay.fusion.engine import Engine
    from overlay.hub import Repo
    from overlay.materialization.request import Options, Phase
    from overlay.materialization.survey import Step, Work
    from overlay.planning.outputs import Input

__all__ = ["Inputs", "Made", "fetch", "make_objects", "needs_engine", "place_tree", "start_engine"]


@dataclass(frozen=True, slots=True)
class Inputs:
    """Where every input of the work lies on this host."""

    paths: Mapping[tuple[str, str], Path]

    def path(self, source: Input) -> Path:
        """Local path of one input."""
        return self.paths[source.repo, source.path]


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
        if step.how not in ("present", "generate", "alias"):
            for source in inputs_of(step.output):
                by_repo.setdefault(source.repo, set()).add(source.path)
    total = sum(source.size for source in work.missing)
    with phase("download", total) if total else nullcontext(None) as update:
        paths = {
            (name, path): local
            for name, wanted in sorted(by_repo.items())
            for path, local in repos[name].fetch(sorted(wanted), update).items()
        }
    return Inputs(paths)


def make_objects(
    work: Work,
    inputs: Inputs,
    cache: Cache,
    repos: Mapping[str, Repo],
    options: Options,
    engine: Engine | None,
    phase: Phase,
) -> Made:
    """Make what the cache lacks; every file is an object, and found again, the moment it is finished."""
    made = Made()
    total = sum(step.size for step in work.steps if step.how in ("build", "reflink", "hardlink", "copy"))
    with cache.staging() as staging, phase("build", total) if total else nullcontext(lambda _n: None) as update:
        for number, step in enumerate(work.steps):
            match step.output:
                case SafetensorsFile():
                    if step.entry is None:
                        entry = _build(
                            step, staging / f"{number}.safetensors", inputs, cache, options, engine, made, update
                        )
                    else:
                        entry = dict(step.entry)
                case CarriedFile():
                    entry = _carry(step, inputs, cache, repos, options, made)
                    if step.how != "present":
                        update(step.size)
                case GeneratedFile():
                    entry = dict(step.entry or {})
                case AliasFile():
                    continue
            made.entries[step.output.path] = entry
    for step in work.steps:
        if isinstance(step.output, AliasFile):
            made.entries[step.output.path] = made.entries[step.output.of]
    return made


def _build(
    step: Step,
    staged: Path,
    inputs: Inputs,
    cache: Cache,
    options: Options,
    engine: Engine | None,
    made: Made,
    update: Any,
) -> dict[str, Any]:
    from overlay.fusion.build import build_safetensors, default_jobs

    assert isinstance(step.output, SafetensorsFile)  # noqa: S101 - the caller matched it; tells the type checker
    built = build_safetensors(
        step.output,
        staged,
        open_input=inputs.path,
        engine=engine if step.output.is_fused else None,
        rule=options.rule,
        jobs=options.jobs or default_jobs(),
        memory=options.memory,
        progress=update,
    )
    cache.adopt_file(staged, built.digest)
    made.kernels.update(built.kernels)
    tensors = [{"name": t.name, "dtype": t.dtype, "shape": list(t.shape), "digest": t.digest} for t in built.tensors]
    entry = {"digest": built.digest, "size": built.size, "tensors": tensors}
    if step.action:
        cache.put_action(step.action, entry)
    return entry


def _carry(
    step: Step, inputs: Inputs, cache: Cache, repos: Mapping[str, Repo], options: Options, made: Made
) -> dict[str, Any]:
    assert isinstance(step.output, CarriedFile)  # noqa: S101 - as in _build
    source = step.output.input
    entry: dict[str, Any]
    if step.entry is not None:
        entry = {"digest": step.entry["digest"], "size": step.entry["size"]}
    else:
        path = inputs.path(source)
        digest = source.digest if source.digest.startswith("sha256:") else file_digest(path, "sha256")
        link = cache.link_object(path, digest, options.link, shared_store=repos[source.repo].shared_store)
        made.links[step.output.path] = link.how
        entry = {"digest": digest, "size": source.size}
        if step.action:
            cache.put_action(step.action, entry)
    if step.output.path.endswith(".safetensors"):
        header = read_header(cache.object_path(entry["digest"]))
        entry["tensors"] = [
            {"name": info.name, "dtype": info.dtype, "shape": list(info.shape)} for info in header.tensors.values()
        ]
    return entry


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
                make_folder(path.parent, cache.root)
                path.hardlink_to(tree / step.output.of)
    _write(tree / RECORD_NAME, record, cache)


def _write(path: Path, data: bytes, cache: Cache) -> None:
    with writing(cache.root, f"write {path.name}"):
        make_folder(path.parent, cache.root)
        path.write_bytes(data)
        share_with_group(path, cache.root)
