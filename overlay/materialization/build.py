"""Making the files of a plan, wherever they go: the cache, or a folder of somebody's own."""

from __future__ import annotations

from collections import Counter
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal, Protocol

from overlay.formats.header import read_header
from overlay.materialization.record import RecordedFile, RecordedTensor, carried_tensors
from overlay.materialization.survey import making_order
from overlay.planning.outputs import AliasFile, CarriedFile, SafetensorsFile

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

    from overlay.fusion.build import BuiltFile
    from overlay.fusion.engine import Engine
    from overlay.fusion.output import OpenOutput
    from overlay.fusion.workers import Workers
    from overlay.materialization.request import Phase
    from overlay.materialization.survey import Step
    from overlay.planning.outputs import Input

__all__ = ["Builder", "Carried", "Linked", "Made", "Sink", "Write", "recorded", "require_device", "start_engine"]


Linked = Literal["present", "reflink", "hardlink", "copy"]

_FILES_AT_A_TIME = 2
"""While one is synced, or waits for the digests of its inputs, the other keeps the workers busy."""


@dataclass(frozen=True, slots=True)
class Carried:
    """How a file was taken over (``present``: it was there), its digest, and where it is now."""

    how: Linked
    digest: str
    path: Path


class Write(Protocol):
    """Makes the bytes of one file."""

    def __call__(self, place: Path, into: OpenOutput = ...) -> BuiltFile:
        """Writes them to the new file ``place``, unless ``into`` has another use for them."""


class Sink(Protocol):
    """Where finished files go, from any thread. A file is there when the call returns, whole and proven."""

    def build(self, step: Step, write: Write) -> BuiltFile:
        """Have a new file written, and take it."""

    def carry(self, step: Step, source: Input) -> Carried:
        """Take over an input as it is."""

    def is_last_reader(self, source: Input) -> bool:
        """Whether nobody but a build will read this input, so that it may leave the page cache behind it."""


@dataclass(slots=True)
class Made:
    """What a run did.

    Attributes:
        files: By output path.
        built: By output path: the files that were written here.
        links: By output path: how a carried file came over.
    """

    files: dict[str, RecordedFile] = field(default_factory=dict)
    built: dict[str, BuiltFile] = field(default_factory=dict)
    links: dict[str, Linked] = field(default_factory=dict)

    @property
    def kernels(self) -> Counter[str]:
        """Values of all D made, by kernel."""
        return sum((Counter(file.kernels) for file in self.built.values()), Counter())


def start_engine(steps: Iterable[Step], device: str, *, ordered: bool = False) -> Engine | None:
    """The arithmetic on its device, self-tested; None where nothing has to be fused.

    Args:
        ordered: As for ``Engine.start``.
    """
    outputs = [step.output for step in steps if step.how == "build"]
    if not any(isinstance(output, SafetensorsFile) and output.is_fused for output in outputs):
        return None
    from overlay.fusion.engine import Engine

    return Engine.start(device, ordered=ordered)


def require_device(device: str) -> None:
    """Refuse the name of a device that is not there.

    Raises:
        InvalidUsage: It is not.
    """
    if device not in ("auto", "cpu"):  # these are everywhere, and a dry run needs no torch
        from overlay.fusion.engine import find_device

        find_device(device)


@dataclass(frozen=True, slots=True)
class Builder:
    """Makes what is not there yet.

    Attributes:
        locate: Where on this host an input lies.
        engine: None where nothing is fused.
        jobs: Worker threads; None for as many as pay.
        memory: Bytes that a build may take.
    """

    locate: Callable[[Input], Path]
    sink: Sink
    engine: Engine | None
    rule: str
    jobs: int | None
    memory: int

    def run(self, steps: Iterable[Step], label: str, phase: Phase) -> Made:
        """Every output, in about the order of ``making_order``."""
        made = Made()
        steps = making_order(steps)
        moving = [step for step in steps if step.moves_bytes]
        if moving:
            with phase(label, sum(step.size for step in moving)) as update:
                self._make_all(moving, made, update)
        for step in steps:
            if step.found.entry is not None and not step.moves_bytes:
                made.files[step.output.path] = step.found.entry
        for step in steps:
            if isinstance(step.output, AliasFile):
                made.files[step.output.path] = replace(made.files[step.output.of], path=step.output.path)
        return made

    def _make_all(self, steps: Sequence[Step], made: Made, update: Callable[[int], None]) -> None:
        from overlay.fusion.workers import Workers

        with ExitStack() as stack:
            files = ThreadPoolExecutor(_FILES_AT_A_TIME, "overlay-file")
            stack.callback(files.shutdown, cancel_futures=True)
            # Left first, so that a failure ends the blocks that the files wait for.
            workers = stack.enter_context(Workers(self.engine, self.jobs, self.memory))
            futures = [files.submit(self._make, step, workers, made, update) for step in steps]
            done, _ = wait(futures, return_when=FIRST_EXCEPTION)
            for future in futures:
                if future in done:
                    future.result()

    def _make(self, step: Step, workers: Workers, made: Made, update: Callable[[int], None]) -> None:
        if isinstance(step.output, SafetensorsFile):
            made.files[step.output.path] = self._build(step, step.output, workers, made, update)
        elif isinstance(step.output, CarriedFile):
            made.files[step.output.path] = self._carry(step, step.output, made)
            update(step.size)

    def _build(
        self, step: Step, output: SafetensorsFile, workers: Workers, made: Made, update: Callable[[int], None]
    ) -> RecordedFile:
        from overlay.fusion.build import build_safetensors
        from overlay.fusion.output import PartialFile

        def write(place: Path, into: OpenOutput = PartialFile) -> BuiltFile:
            return build_safetensors(
                output,
                place,
                open_input=self.locate,
                workers=workers,
                rule=self.rule,
                is_last_reader=self.sink.is_last_reader,
                progress=update,
                into=into,
            )

        built = made.built[output.path] = self.sink.build(step, write)
        return recorded(output.path, built)

    def _carry(self, step: Step, output: CarriedFile, made: Made) -> RecordedFile:
        carried = self.sink.carry(step, output.input)
        made.links[output.path] = carried.how
        is_weights = output.input.path.endswith(".safetensors")
        tensors = carried_tensors(read_header(carried.path)) if is_weights else None
        return RecordedFile(output.path, carried.digest, step.size, tensors)


def recorded(path: str, built: BuiltFile) -> RecordedFile:
    """A built file as the record has it."""
    tensors = tuple(RecordedTensor(item.name, item.dtype, item.shape, item.digest) for item in built.tensors)
    return RecordedFile(path, built.digest, built.size, tensors)
