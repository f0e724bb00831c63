"""Making the files of a plan, one after the other, wherever they go: the cache, or a folder of somebody's own."""

from __future__ import annotations

from collections import Counter
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal, Protocol

from overlay.formats.header import read_header
from overlay.materialization.record import RecordedFile, RecordedTensor, carried_tensors
from overlay.materialization.survey import making_order
from overlay.planning.outputs import AliasFile, CarriedFile, SafetensorsFile

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from overlay.fusion.build import BuiltFile
    from overlay.fusion.engine import Engine
    from overlay.materialization.request import Phase
    from overlay.materialization.survey import Step
    from overlay.planning.outputs import Input

__all__ = ["Builder", "Carried", "Made", "Sink", "recorded", "require_device", "start_engine"]


Linked = Literal["present", "reflink", "hardlink", "copy"]


@dataclass(frozen=True, slots=True)
class Carried:
    """How a file was taken over (``present``: it was there), its digest, and where it is now."""

    how: Linked
    digest: str
    path: Path


class Sink(Protocol):
    """Where finished files go. A file is there when the call returns, whole and proven."""

    def build(self, step: Step, write: Callable[[Path], BuiltFile]) -> BuiltFile:
        """Have a new file written, and take it."""

    def carry(self, step: Step, source: Input) -> Carried:
        """Take over an input as it is."""


@dataclass(slots=True)
class Made:
    """What a run did.

    Attributes:
        files: By output path.
        links: By output path: how a carried file came over.
        kernels: Fused chunks by kernel.
    """

    files: dict[str, RecordedFile] = field(default_factory=dict)
    links: dict[str, Linked] = field(default_factory=dict)
    kernels: Counter[str] = field(default_factory=Counter)


def start_engine(steps: Iterable[Step], device: str) -> Engine | None:
    """The arithmetic on its device, self-tested; None where nothing has to be fused."""
    outputs = [step.output for step in steps if step.how == "build"]
    if not any(isinstance(output, SafetensorsFile) and output.is_fused for output in outputs):
        return None
    from overlay.fusion.engine import Engine

    return Engine.start(device)


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
        """Every output, in the order of ``making_order``."""
        made = Made()
        steps = making_order(steps)
        total = sum(step.size for step in steps if step.moves_bytes)
        with phase(label, total) if total else nullcontext(_ignore) as update:
            for step in steps:
                if isinstance(step.output, SafetensorsFile) and step.how == "build":
                    made.files[step.output.path] = self._build(step, step.output, made, update)
                elif isinstance(step.output, CarriedFile) and step.moves_bytes:
                    made.files[step.output.path] = self._carry(step, step.output, made)
                    update(step.size)
                elif step.found.entry is not None:
                    made.files[step.output.path] = step.found.entry
        for step in steps:
            if isinstance(step.output, AliasFile):
                made.files[step.output.path] = replace(made.files[step.output.of], path=step.output.path)
        return made

    def _build(self, step: Step, output: SafetensorsFile, made: Made, update: Callable[[int], None]) -> RecordedFile:
        from overlay.fusion.build import build_safetensors, default_jobs

        def write(place: Path) -> BuiltFile:
            return build_safetensors(
                output,
                place,
                open_input=self.locate,
                engine=self.engine if output.is_fused else None,
                rule=self.rule,
                jobs=self.jobs or default_jobs(self.engine),
                memory=self.memory,
                progress=update,
            )

        built = self.sink.build(step, write)
        made.kernels.update(built.kernels)
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


def _ignore(_nbytes: int) -> None:
    """Progress of nothing."""
