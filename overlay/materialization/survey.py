"""What a plan will cost on this host: which outputs the cache holds, and the bytes that the others move."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from overlay.cache.disk import existing, free_room
from overlay.cache.links import ways
from overlay.cache.probe import LinkOutlook, link_outlook
from overlay.errors import BrokenInput, CannotWrite
from overlay.fingerprint import bytes_digest, parse_digest
from overlay.formats.layout import canonical_layout
from overlay.formats.wording import format_bytes
from overlay.hub import HubRepo
from overlay.materialization.record import RecordedFile, RecordedTensor, carried_tensors
from overlay.planning.actions import action_of
from overlay.planning.outputs import AliasFile, CarriedFile, GeneratedFile, SafetensorsFile
from overlay.planning.plan import inputs_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from overlay.cache import Cache, LinkMode
    from overlay.formats.files import Files
    from overlay.formats.layout import Layout
    from overlay.hub import Repo
    from overlay.planning.outputs import Input, OutputFile
    from overlay.planning.plan import Plan

__all__ = [
    "Counters",
    "How",
    "Step",
    "Work",
    "built_step",
    "carried_step",
    "components",
    "counters_of",
    "making_order",
    "require_room_for_downloads",
    "survey",
]

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
        entry: What the cache holds for it, if it does.
        payload: Bytes of its tensors; 0 for other files.
        size: Bytes of the file.
    """

    output: OutputFile
    how: How
    action: str | None
    entry: RecordedFile | None
    payload: int
    size: int

    @property
    def moves_bytes(self) -> bool:
        """Whether it takes inputs: neither here already nor made of what the plan holds."""
        return self.how in ("build", "reflink", "hardlink", "copy")

    @property
    def bytes_read(self) -> int:
        """Tensor payload that it reads."""
        if isinstance(self.output, SafetensorsFile) and self.how == "build":
            return sum(piece.bytes_read for tensor in self.output.tensors for piece in tensor.pieces)
        return self.payload if self.how == "copy" else 0


@dataclass(frozen=True, slots=True)
class Work:
    """A plan held against a cache.

    Attributes:
        missing: Inputs that are not on this host, in the order of the plan.
        counters: What a run will count.
        room: Bytes that the cache root's filesystem needs: what is written or copied, and downloads that land there.
        notes: Why files are copied, where nobody asked for that.
        is_present: Whether the model is published already, so that a run would do nothing.
    """

    plan: Plan
    steps: tuple[Step, ...]
    missing: tuple[Input, ...]
    counters: Counters
    room: int
    notes: tuple[str, ...] = ()
    is_present: bool = False

    @property
    def is_done(self) -> bool:
        """Whether the cache holds everything."""
        return not any(step.moves_bytes for step in self.steps)


def survey(plan: Plan, repos: Mapping[str, Repo], cache: Cache, mode: LinkMode) -> Work:
    """Hold a plan against the cache. Reads headers and metadata only, writes nothing that stays.

    Args:
        repos: By repo id, as in the plan's inputs.
        mode: How unchanged files may come into the cache.
    """
    links = _Links(cache, mode, repos.values())
    steps = tuple(_step(output, plan.rule, repos, cache, links) for output in plan.outputs)
    wanted = [source for step in steps if step.moves_bytes for source in inputs_of(step.output)]
    distinct = {(i.repo, i.path): i for i in wanted}
    missing = tuple(i for i in distinct.values() if repos[i.repo].local(i.path) is None)
    counters = counters_of(steps, downloaded=sum(_payload(repos[i.repo], i) for i in missing))
    room = sum(step.size for step in steps if step.how in ("build", "copy", "generate"))
    room += sum(i.size for i in missing if _same_filesystem(repos[i.repo], cache))
    return Work(plan, steps, missing, counters, room, links.notes())


def making_order(steps: Iterable[Step]) -> list[Step]:
    """The order of the plan, but carried files last: the builds leave the time to check them."""
    return sorted(steps, key=lambda step: isinstance(step.output, CarriedFile))


def counters_of(steps: Iterable[Step], downloaded: int = 0) -> Counters:
    """What making these files moves."""
    steps = tuple(steps)
    return Counters(
        downloaded=downloaded,
        read=sum(step.bytes_read for step in steps),
        written=sum(step.payload for step in steps if step.how in ("build", "copy")),
        linked=sum(step.payload for step in steps if step.how in ("reflink", "hardlink")),
    )


def built_step(output: SafetensorsFile, action: str | None = None, held: Mapping[str, Any] | None = None) -> Step:
    """The step of a file that is written here.

    Args:
        held: What a cache remembers of the action; it is believed only if it can be of a file of this layout.
    """
    layout = canonical_layout([(t.name, t.dtype, t.shape) for t in output.tensors], output.metadata)
    entry = _entry_of(output.path, layout, held)
    payload = layout.file_size - len(layout.header)
    return Step(output, "present" if entry else "build", action, entry, payload, layout.file_size)


def carried_step(
    output: CarriedFile, files: Files, how: How, action: str | None = None, entry: RecordedFile | None = None
) -> Step:
    """The step of a file that is taken over from ``files``."""
    return Step(output, how, action, entry, _payload(files, output.input), output.input.size)


def _step(output: OutputFile, rule: str, repos: Mapping[str, Repo], cache: Cache, links: _Links) -> Step:
    match output:
        case GeneratedFile():
            made = RecordedFile(output.path, bytes_digest(output.data, "sha256"), len(output.data))
            return Step(output, "generate", None, made, 0, len(output.data))
        case AliasFile():
            return Step(output, "alias", None, None, 0, 0)
        case CarriedFile():
            return _carried_step(output, rule, repos[output.input.repo], cache, links)
        case SafetensorsFile():
            action = action_of(output, rule)
            return built_step(output, action, cache.find_action(action) if action else None)


def _entry_of(path: str, layout: Layout, entry: Mapping[str, Any] | None) -> RecordedFile | None:
    if entry is None:
        return None
    expected = [(tensor.name, tensor.dtype, tensor.shape) for tensor in layout.tensors]
    try:
        tensors = tuple(
            RecordedTensor(item["name"], item["dtype"], tuple(item["shape"]), item["digest"])
            for item in entry["tensors"]
        )
        for digest in (entry["digest"], *(tensor.digest for tensor in tensors)):
            parse_digest(digest)
        found = [(tensor.name, tensor.dtype, tensor.shape) for tensor in tensors]
        if entry["size"] != layout.file_size or found != expected:
            return None
        return RecordedFile(path, entry["digest"], entry["size"], tensors)
    except (KeyError, TypeError, BrokenInput):
        return None


def _carried_step(output: CarriedFile, rule: str, repo: Repo, cache: Cache, links: _Links) -> Step:
    source = output.input
    action = action_of(output, rule)
    digest: str | None = None
    if source.digest.startswith("sha256:"):
        digest = source.digest if cache.has_object(source.digest, source.size) else None
    elif action and (held := cache.find_action(action)):
        digest = held["digest"]
    entry = None
    if digest is not None:
        tensors = carried_tensors(repo.header(source.path)) if source.path.endswith(".safetensors") else None
        entry = RecordedFile(output.path, digest, source.size, tensors)
    return carried_step(output, repo, "present" if entry else links.way_from(repo), action, entry)


def _payload(files: Files, source: Input) -> int:
    if not source.path.endswith(".safetensors"):
        return 0
    return source.size - files.header(source.path).data_start


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


def require_room_for_downloads(work: Work, repos: Mapping[str, Repo], cache: Cache) -> None:
    """Refuse a job whose downloads do not fit where the Hub's cache lies, if that is another disk than the root's.

    Raises:
        CannotWrite: Less is free there than is to be downloaded.
    """
    elsewhere = [source for source in work.missing if not _same_filesystem(repos[source.repo], cache)]
    stores = [repo.snapshot for repo in repos.values() if isinstance(repo, HubRepo)]
    if not elsewhere or not stores:
        return
    needed, free = sum(source.size for source in elsewhere), free_room(stores[0])
    if free < needed:
        where = existing(stores[0])
        raise CannotWrite(
            f"{where}: {format_bytes(needed)} to download, {format_bytes(free)} free",
            code="no-room",
            hint="free some room there (hf cache ls), or move the Hub's cache with HF_HOME or HF_HUB_CACHE",
            where=str(where),
            needed=needed,
            free=free,
        )


def components(outputs: Iterable[OutputFile]) -> tuple[str, ...]:
    """First folders of the output paths, sorted."""
    return tuple(sorted({output.path.split("/", 1)[0] for output in outputs if "/" in output.path}))
