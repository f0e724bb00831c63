"""What a plan will cost on this host: which outputs the cache holds, and the bytes that the others move."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from overlay.cache.disk import existing
from overlay.cache.links import ways
from overlay.cache.probe import LinkOutlook, link_outlook
from overlay.errors import BrokenInput
from overlay.fingerprint import bytes_digest, parse_digest
from overlay.formats.layout import canonical_layout
from overlay.hub import HubRepo
from overlay.planning.actions import action_of
from overlay.planning.outputs import AliasFile, CarriedFile, Fused, GeneratedFile, Range, SafetensorsFile
from overlay.planning.plan import inputs_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from overlay.cache import Cache, LinkMode
    from overlay.formats.layout import Layout
    from overlay.hub import Repo
    from overlay.planning.outputs import Input, OutputFile
    from overlay.planning.plan import Plan

__all__ = ["Counters", "How", "Step", "Work", "components", "read_bytes_of", "survey"]

How = Literal["generate", "alias", "present", "build", "reflink", "hardlink", "copy"]


@dataclass(frozen=True, slots=True)
class Counters:
    """Bytes of tensor payload, each output file counted once; headers, indexes and JSON do not count.

    Attributes:
        downloaded: Brought from the Hub.
        read: Into this process, or by a copy inside the kernel.
        written: To the cache.
        linked: Shared with what was there already, by a hardlink or by a reflink.
    """

    downloaded: int = 0
    read: int = 0
    written: int = 0
    linked: int = 0


@dataclass(frozen=True, slots=True)
class Step:
    """One output file and how it comes about on this host.

    Attributes:
        action: Its action key; None for what is made anew each time.
        entry: What the cache holds for it (``digest``, ``size``, ``tensors``), if it does.
        payload: Bytes of its tensors; 0 for other files.
        size: Bytes of the file.
    """

    output: OutputFile
    how: How
    action: str | None
    entry: Mapping[str, Any] | None
    payload: int
    size: int


@dataclass(frozen=True, slots=True)
class Work:
    """A plan held against a cache.

    Attributes:
        missing: Inputs that are not on this host, in the order of the plan.
        counters: What a run will count.
        room: Bytes that the cache root's filesystem needs: what is written or copied, and downloads that land there.
        notes: Why files are copied, where nobody asked for that.
    """

    plan: Plan
    steps: tuple[Step, ...]
    missing: tuple[Input, ...]
    counters: Counters
    room: int
    notes: tuple[str, ...] = ()

    @property
    def is_done(self) -> bool:
        """Whether the cache holds everything."""
        return all(step.how in ("present", "generate", "alias") for step in self.steps)


def survey(plan: Plan, repos: Mapping[str, Repo], cache: Cache, mode: LinkMode) -> Work:
    """Hold a plan against the cache. Reads headers and metadata only, writes nothing that stays.

    Args:
        repos: By repo id, as in the plan's inputs.
        mode: How unchanged files may come into the cache.
    """
    links = _Links(cache, mode, repos.values())
    steps = tuple(_step(output, plan.rule, repos, cache, links) for output in plan.outputs)
    wanted = [i for step in steps if step.how not in ("present", "generate", "alias") for i in inputs_of(step.output)]
    distinct = {(i.repo, i.path): i for i in wanted}
    missing = tuple(i for i in distinct.values() if repos[i.repo].local(i.path) is None)
    counters = Counters(
        downloaded=sum(_payload(repos[i.repo], i) for i in missing),
        read=sum(_read_bytes(step) for step in steps),
        written=sum(step.payload for step in steps if step.how in ("build", "copy")),
        linked=sum(step.payload for step in steps if step.how in ("reflink", "hardlink")),
    )
    room = sum(step.size for step in steps if step.how in ("build", "copy", "generate"))
    room += sum(i.size for i in missing if _same_filesystem(repos[i.repo], cache))
    return Work(plan, steps, missing, counters, room, links.notes())


def _step(output: OutputFile, rule: str, repos: Mapping[str, Repo], cache: Cache, links: _Links) -> Step:
    match output:
        case GeneratedFile():
            made = {"digest": bytes_digest(output.data, "sha256"), "size": len(output.data)}
            return Step(output, "generate", None, made, 0, len(output.data))
        case AliasFile():
            return Step(output, "alias", None, None, 0, 0)
        case CarriedFile():
            return _carried_step(output, rule, repos[output.input.repo], cache, links)
        case SafetensorsFile():
            action = action_of(output, rule)
            layout = canonical_layout([(t.name, t.dtype, t.shape) for t in output.tensors], output.metadata)
            entry = _entry_of(layout, cache.find_action(action) if action else None)
            payload = layout.file_size - len(layout.header)
            return Step(output, "present" if entry else "build", action, entry, payload, layout.file_size)


def _entry_of(layout: Layout, entry: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """What the plan needs of an entry, if it can be of a file of this layout: one of another file is not believed."""
    fields = ("name", "dtype", "shape", "digest")
    try:
        if entry is None or entry["size"] != layout.file_size:
            return None
        tensors = [{field: item[field] for field in fields} for item in entry["tensors"]]
        for item in tensors:
            parse_digest(item["digest"])
    except (KeyError, TypeError, BrokenInput):
        return None
    if [[*item.values()][:3] for item in tensors] != [[t.name, t.dtype, list(t.shape)] for t in layout.tensors]:
        return None
    return {"digest": entry["digest"], "size": entry["size"], "tensors": tensors}


def _carried_step(output: CarriedFile, rule: str, repo: Repo, cache: Cache, links: _Links) -> Step:
    source = output.input
    action = action_of(output, rule)
    entry: Mapping[str, Any] | None = None
    if source.digest.startswith("sha256:"):
        if cache.has_object(source.digest, source.size):
            entry = {"digest": source.digest, "size": source.size}
    elif action:
        entry = cache.find_action(action)
    how: How = "present" if entry else links.way_from(repo)
    return Step(output, how, action, entry, _payload(repo, source), source.size)


def _payload(repo: Repo, source: Input) -> int:
    if not source.path.endswith(".safetensors"):
        return 0
    return source.size - repo.header(source.path).data_start


def _read_bytes(step: Step) -> int:
    if step.how == "copy":
        return step.payload
    if step.how != "build" or not isinstance(step.output, SafetensorsFile):
        return 0
    return read_bytes_of(step.output)


def read_bytes_of(output: SafetensorsFile) -> int:
    """Bytes of input tensors that building one file reads."""
    total = 0
    for tensor in output.tensors:
        for piece in tensor.pieces:
            if isinstance(piece, Range):
                total += piece.nbytes
            elif isinstance(piece, Fused):
                total += piece.nbytes + sum(term.a.nbytes + term.b.nbytes for term in piece.terms)
    return total


class _Links:
    """How files can come into the cache, found with one that is here: once a folder, once for the Hub's store.

    Of a repo nothing may be here yet, but small files of another one are: a plan has read them.
    """

    def __init__(self, cache: Cache, mode: LinkMode, repos: Iterable[Repo]) -> None:
        self._root = cache.root
        self._mode: LinkMode = mode
        self._in_store = [repo for repo in repos if repo.shared_store]
        self._known: dict[str, LinkOutlook] = {}

    def way_from(self, repo: Repo) -> How:
        key = "" if repo.shared_store else repo.repo
        if key not in self._known:
            self._known[key] = self._outlook(self._in_store if repo.shared_store else [repo])
        # Where nothing works, the run says so, at its first write.
        return self._known[key].how or ways(self._mode, shared_store=repo.shared_store)[-1]

    def notes(self) -> tuple[str, ...]:
        """Why files are copied, where nobody asked for that."""
        return tuple(
            f"files of {repo or 'the Hub cache'} are copied ({outlook.why})"
            for repo, outlook in self._known.items()
            if outlook.how == "copy" and self._mode != "copy"
        )

    def _outlook(self, repos: list[Repo]) -> LinkOutlook:
        here = (path for repo in repos for name in repo.paths() if (path := repo.local(name)) is not None)
        sample = next(here, None)
        if sample is None:
            return LinkOutlook(None, "no file is here yet to try with")
        return link_outlook(self._root, sample, self._mode, shared_store=repos[0].shared_store)


def _same_filesystem(repo: Repo, cache: Cache) -> bool:
    store = repo.snapshot if isinstance(repo, HubRepo) else cache.root.path
    return existing(store).stat().st_dev == existing(cache.root.path).stat().st_dev


def components(outputs: Iterable[OutputFile]) -> tuple[str, ...]:
    """First folders of the output paths, sorted."""
    return tuple(sorted({output.path.split("/", 1)[0] for output in outputs if "/" in output.path}))
