"""What a plan will cost on this host: which outputs the cache holds, and the bytes that the others move."""

from __future__ import annotations

from collections import Counter as Occurrences
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from overlay.fingerprint import bytes_digest
from overlay.formats.header import read_header
from overlay.formats.wording import counted
from overlay.materialization.links import Links
from overlay.materialization.lookup import Found, Lookup, layout_of
from overlay.materialization.record import RecordedFile, carried_tensors
from overlay.materialization.room import room_for, room_of_tree
from overlay.planning.outputs import AliasFile, CarriedFile, GeneratedFile, SafetensorsFile, ScriptedFile
from overlay.planning.plan import inputs_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from overlay.cache import Cache, LinkMode
    from overlay.cache.tensors import TensorDigests
    from overlay.formats.files import Files
    from overlay.hub import Repo
    from overlay.materialization.build import Linked
    from overlay.materialization.links import Way
    from overlay.planning.outputs import Input, OutputFile
    from overlay.planning.plan import Plan

__all__ = [
    "Counters",
    "Fill",
    "How",
    "Step",
    "Work",
    "as_linked",
    "built_step",
    "carried_step",
    "components",
    "counters_of",
    "downloading_counters",
    "learning_counters",
    "making_order",
    "survey",
]

How = Literal["generate", "alias", "present", "pull", "build", "script", "reflink", "hardlink", "copy"]
Fill = Callable[[tuple["Step", ...], "Mapping[str, Repo]"], tuple["Step", ...]]
"""Given the steps and the repos, the steps as a store changes them: ``pull`` where it has the file."""


@dataclass(frozen=True, slots=True)
class Counters:
    """Bytes of tensor payload, each output file counted once; headers, indexes and JSON do not count.

    Attributes:
        downloaded: Brought from the Hub or a store.
        read: Into this process, or by a copy inside the kernel.
        written: To the cache.
        linked: Shared with what was there already, by a hardlink or by a reflink.
    """

    downloaded: int = 0
    read: int = 0
    written: int = 0
    linked: int = 0

    def __add__(self, other: Counters) -> Counters:
        return Counters(
            self.downloaded + other.downloaded,
            self.read + other.read,
            self.written + other.written,
            self.linked + other.linked,
        )

    def __sub__(self, other: Counters) -> Counters:
        return Counters(
            self.downloaded - other.downloaded,
            self.read - other.read,
            self.written - other.written,
            self.linked - other.linked,
        )


@dataclass(frozen=True, slots=True)
class Step:
    """One output file and how it comes about on this host.

    Attributes:
        found: Its action keys, and what the cache holds for it, or with ``pull`` the store, if it does.
        payload: Bytes of its tensors; 0 for other files.
        size: Bytes of the file.
        why: Of a file that is carried over: what keeps it from a cheaper way.
        tried: Whether ``how`` was found by trying; else the run takes the cheapest that works.
        links_take_room: Whether it needs the room of a copy though it is linked.
    """

    output: OutputFile
    how: How
    found: Found
    payload: int
    size: int
    why: str = ""
    tried: bool = True
    links_take_room: bool = False

    @property
    def room(self) -> int:
        """Bytes that it needs where it goes; in a cache, its place in the tree aside."""
        return self.size if self.links_take_room or self.how in ("build", "pull", "copy", "generate") else 0

    @property
    def moves_bytes(self) -> bool:
        """Whether it takes inputs: neither here already nor made of what the plan holds."""
        return self.how in ("build", "reflink", "hardlink", "copy")

    @property
    def bytes_read(self) -> int:
        """Tensor payload that it reads."""
        if isinstance(self.output, SafetensorsFile) and self.how == "build":
            return sum(tensor.bytes_read for tensor in self.output.tensors)
        return self.payload if self.how == "copy" else 0


@dataclass(frozen=True, slots=True)
class Work:
    """A plan held against a cache.

    Attributes:
        missing: Inputs that are not on this host, in the order of the plan.
        unlearned: Adapters to read before it is known whether the cache holds what is made of them.
        counters: What a run will count; with ``is_most`` at most.
        room: Bytes that the cache root's filesystem needs: what is written or copied, into the objects and from there
            into the tree, and downloads that land there.
        notes: Whether the tree takes the room of its weights once more; what is not known yet.
        is_most: Whether some of it may turn out to be there, once the unlearned adapters were read.
        is_present: Whether the model is published already, so that a run would do nothing.
    """

    plan: Plan
    steps: tuple[Step, ...]
    missing: tuple[Input, ...]
    counters: Counters
    room: int
    unlearned: tuple[Input, ...] = ()
    notes: tuple[str, ...] = ()
    is_most: bool = False
    is_present: bool = False

    @property
    def is_done(self) -> bool:
        """Whether the cache holds everything."""
        return self.plan.script is None and not any(
            step.moves_bytes or step.how in ("pull", "script") for step in self.steps
        )

    @property
    def pulled(self) -> tuple[RecordedFile, ...]:
        """Files that come from a store."""
        return tuple(step.found.entry for step in self.steps if step.how == "pull" and step.found.entry)

    @property
    def result(self) -> Literal["built", "pulled", "reused"]:
        """What a run that did this has done."""
        if self.is_done:
            return "reused"
        made = self.plan.script is not None or any(step.moves_bytes or step.how == "script" for step in self.steps)
        return "built" if made else "pulled"


def survey(
    plan: Plan,
    repos: Mapping[str, Repo],
    cache: Cache,
    mode: LinkMode,
    tensors: TensorDigests,
    *,
    publishes: bool = True,
    fill: Fill | None = None,
) -> Work:
    """Hold a plan against the cache. Reads headers and metadata only, writes nothing that stays.

    Args:
        repos: By repo id, as in the plan's inputs.
        mode: How unchanged files may come into the cache.
        tensors: Digests of the adapters' tensors, as far as they are known.
        publishes: Whether a tree will be made of the files.
        fill: Finds in a store what the cache does not hold.

    Raises:
        CannotWrite: Files cannot be linked as ``mode`` asks.
    """
    links, lookup = Links(cache.root, mode, repos.values()), Lookup(cache, plan.rule, tensors)
    steps = tuple(_step(output, repos, cache, lookup, links) for output in plan.outputs)
    links.require_possible()
    steps = fill(steps, repos) if fill is not None else steps
    wanted = [source for step in steps if step.moves_bytes for source in inputs_of(step.output)]
    wanted += plan.given if plan.script is not None else ()
    distinct = {(i.repo, i.path): i for i in wanted}
    missing = tuple(i for i in distinct.values() if repos[i.repo].local(i.path) is None)
    undecided = [step for step in steps if step.found.unlearned]
    unlearned = tuple(dict.fromkeys(source for step in undecided for source in step.found.unlearned))
    # What was never learned here was never the key of an object here; a store's were learned elsewhere.
    is_most = bool(unlearned) and (fill is not None or not tensors.is_empty())
    return Work(
        plan,
        steps,
        missing,
        counters_of(steps)
        + learning_counters(unlearned, repos)
        + downloading_counters(missing, repos)
        + (_pulled_at_most(undecided, steps, missing, repos) if fill is not None else Counters()),
        sum(step.room for step in steps)
        + (room_of_tree(steps, links) if publishes else 0)
        + room_for(missing, repos, cache)
        + ((plan.script.limits.disk or 0) if plan.script is not None else 0),
        unlearned,
        (*links.notes(), *([_at_most(undecided, unlearned)] if is_most else [])),
        is_most,
    )


def _at_most(undecided: Sequence[Step], unlearned: Sequence[Input]) -> str:
    adapters = " and ".join(source.path for source in unlearned)
    verb = "is" if len(unlearned) == 1 else "are"
    return f"at most: which of {counted(len(undecided), 'shard')} change is known once {adapters} {verb} read"


def _pulled_at_most(
    undecided: Sequence[Step], steps: Sequence[Step], missing: Iterable[Input], repos: Mapping[str, Repo]
) -> Counters:
    """What comes if a store has all of these files, beyond what would be fetched for each of them alone."""
    needed = {step.output.path: set(inputs_of(step.output)) for step in steps if step.moves_bytes}
    shares = Occurrences(source for sources in needed.values() for source in sources)
    learned = {source for step in undecided for source in step.found.unlearned}
    spared = {source: _payload(repos[source.repo], source) for source in missing if source not in learned}
    return Counters(
        downloaded=sum(
            max(0, step.payload - sum(spared.get(s, 0) for s in needed[step.output.path] if shares[s] == 1))
            for step in undecided
        )
    )


def downloading_counters(missing: Iterable[Input], repos: Mapping[str, Repo]) -> Counters:
    """What fetching these files moves."""
    return Counters(downloaded=sum(_payload(repos[i.repo], i) for i in missing))


def learning_counters(adapters: Iterable[Input], repos: Mapping[str, Repo]) -> Counters:
    """What reading these adapters once moves, beside what the outputs read of them."""
    return Counters(read=sum(_payload(repos[i.repo], i) for i in adapters))


def as_linked(work: Work, links: Mapping[str, Linked]) -> Work:
    """The work as it was done: where a link failed, the file was copied.

    Args:
        links: By output path: how a carried file came over.
    """
    found = {path: how for path, how in links.items() if how != "present"}
    steps = tuple(replace(step, how=found.get(step.output.path, step.how)) for step in work.steps)
    return replace(work, steps=steps, counters=work.counters - counters_of(work.steps) + counters_of(steps))


def making_order(steps: Iterable[Step]) -> list[Step]:
    """The order of the plan, but carried files last: the builds leave the time to check them."""
    return sorted(steps, key=lambda step: isinstance(step.output, CarriedFile))


def counters_of(steps: Iterable[Step]) -> Counters:
    """What making these files moves."""
    steps = tuple(steps)
    return Counters(
        downloaded=sum(step.payload for step in steps if step.how == "pull"),
        read=sum(step.bytes_read for step in steps),
        written=sum(step.payload for step in steps if step.how in ("build", "pull", "script", "copy")),
        linked=sum(step.payload for step in steps if step.how in ("reflink", "hardlink")),
    )


def built_step(output: SafetensorsFile, lookup: Lookup | None = None) -> Step:
    """The step of a file that is written here.

    Args:
        lookup: Finds what a cache holds; None where there is no cache.
    """
    layout = layout_of(output)
    found = lookup.written(output, layout) if lookup else Found()
    payload = layout.file_size - len(layout.header)
    return Step(output, "present" if found.entry else "build", found, payload, layout.file_size)


def carried_step(output: CarriedFile, files: Files, way: Way, found: Found | None = None) -> Step:
    """The step of a file that is taken over from ``files``."""
    payload = _payload(files, output.input)
    return Step(output, way.how, found or Found(), payload, output.input.size, way.why, way.tried, way.takes_room)


def _step(output: OutputFile, repos: Mapping[str, Repo], cache: Cache, lookup: Lookup, links: Links) -> Step:
    match output:
        case GeneratedFile():
            made = RecordedFile(output.path, bytes_digest(output.data, "sha256"), len(output.data))
            return Step(output, "generate", Found(entry=made), 0, len(output.data))
        case AliasFile():
            return Step(output, "alias", Found(), 0, 0)
        case CarriedFile():
            repo = repos[output.input.repo]
            found = lookup.carried(output, repo)
            if found.entry:
                return Step(output, "present", found, _payload(repo, output.input), output.input.size)
            return carried_step(output, repo, links.of_repo(repo, output.input.path, output.input.size), found)
        case SafetensorsFile():
            return built_step(output, lookup)
        case ScriptedFile():
            return _scripted_step(output, cache)


def _scripted_step(output: ScriptedFile, cache: Cache) -> Step:
    """The step of a file that is an object already; what its tensors are, its header says."""
    header = read_header(cache.object_path(output.digest)) if output.path.endswith(".safetensors") else None
    tensors = carried_tensors(header) if header else None
    entry = RecordedFile(output.path, output.digest, output.size, tensors)
    payload = output.size - header.data_start if header else 0
    how: How = "script" if output.is_new else "present"
    return Step(output, how, Found(entry=entry, why="same script and inputs"), payload, output.size)


def _payload(files: Files, source: Input) -> int:
    if not source.path.endswith(".safetensors"):
        return 0
    return source.size - files.header(source.path).data_start


def components(outputs: Iterable[OutputFile]) -> tuple[str, ...]:
    """First folders of the output paths, sorted."""
    return tuple(sorted({output.path.split("/", 1)[0] for output in outputs if "/" in output.path}))
