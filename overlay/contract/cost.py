"""What a change costs a host that has the model as it was: two plans compared by their action keys."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from overlay.formats.layout import canonical_layout
from overlay.formats.wording import counted, format_bytes
from overlay.planning.actions import action_of, factors_of
from overlay.planning.outputs import CarriedFile, GeneratedFile, Input, SafetensorsFile
from overlay.planning.plan import inputs_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from overlay.planning.outputs import OutputFile
    from overlay.planning.plan import Plan

__all__ = ["Compared", "Cost", "compared", "cost"]


_WEIGHTY = 1_000_000
"""Bytes of other files that are worth a word."""


@dataclass(frozen=True, slots=True)
class Compared:
    """What a plan was made of, counted: LoRA pairs, adapter specs, and shards of weights that are written."""

    pairs: int
    specs: int
    shards: int

    def __str__(self) -> str:
        """``571 pairs, 2 specs, 14 shards``."""
        return ", ".join(counted(getattr(self, name), name.removesuffix("s")) for name in ("pairs", "specs", "shards"))


@dataclass(frozen=True, slots=True)
class Cost:
    """Bytes that a host with the model as it was moves for the change; tensor payload, as a run counts it.

    Attributes:
        rebuilt: Output files that are written anew.
        downloaded: From the Hub.
        read: Into the process, adapters that are new once more: only their tensors tell what is to be rebuilt.
        written: To the cache.
        linked: Files taken over from the Hub's cache. Where no link is possible they are copied.
        room: Bytes that the disk needs for what is downloaded and written, whole files.
        others: Bytes of new files that hold no tensors (tokenizers, configs), which no counter of a run counts.
        is_most: It may be less: which shards change is known once the new adapters are read.
    """

    rebuilt: tuple[str, ...]
    downloaded: int
    read: int
    written: int
    linked: int
    room: int
    others: int = 0
    is_most: bool = False

    def __str__(self) -> str:
        """``0 bytes``, or what is moved and the room that it takes."""
        if not self.rebuilt and not self.downloaded and not self.linked:
            weighty = self.others >= _WEIGHTY
            return f"0 bytes of weights, {format_bytes(self.others)} of other files" if weighty else "0 bytes"
        moved = {"download": self.downloaded, "write": self.written, "link": self.linked, "room": self.room}
        text = " · ".join(f"{name} {format_bytes(nbytes)}" for name, nbytes in moved.items() if nbytes)
        rebuilt = f", {counted(len(self.rebuilt), 'file')} to rebuild" if self.rebuilt else ""
        return f"{'at most ' if self.is_most else ''}{text}{rebuilt}"


def compared(plan: Plan) -> Compared:
    """What a plan was made of."""
    return Compared(
        pairs=sum(use.num_pairs for use in plan.adapters),
        specs=sum(use.spec is not None for use in plan.adapters),
        shards=sum(isinstance(output, SafetensorsFile) and output.is_fused for output in plan.outputs),
    )


def cost(before: Plan, plan: Plan, payload: Callable[[Input], int]) -> Cost:
    """What the outputs of ``plan`` cost where all inputs and outputs of ``before`` are.

    Args:
        payload: Tensor bytes of an input file; 0 for other files.
    """
    had = {source.digest for source in before.inputs()}
    held = {action_of(output, before.rule) for output in before.outputs} - {None}
    adapters = {use.weights.digest for use in before.adapters}
    made = [o for o in plan.outputs if (key := action_of(o, plan.rule)) is not None and key not in held]
    built = [output for output in made if isinstance(output, SafetensorsFile)]
    carried = [output for output in made if isinstance(output, CarriedFile)]
    new = {source.digest: source for output in made for source in inputs_of(output) if source.digest not in had}
    unread = {f.input.digest: f.input for o in built for f in factors_of(o) if f.input.digest not in adapters}
    layouts = [canonical_layout([(t.name, t.dtype, t.shape) for t in o.tensors], o.metadata) for o in built]
    read = sum(tensor.bytes_read for output in built for tensor in output.tensors)
    generated = sum(len(output.data) for output in plan.outputs if isinstance(output, GeneratedFile))
    return Cost(
        rebuilt=tuple(output.path for output in built),
        downloaded=sum(payload(source) for source in new.values()),
        read=read + sum(payload(source) for source in unread.values()),
        written=sum(layout.file_size - len(layout.header) for layout in layouts),
        linked=sum(payload(source) for source in {output.input.digest: output.input for output in carried}.values()),
        others=sum(source.size for source in new.values() if not source.path.endswith(".safetensors")),
        room=sum(layout.file_size for layout in layouts) + sum(s.size for s in new.values()) + generated,
        is_most=any(_may_be_there(output, had, unread.keys()) for output in built),
    )


def _may_be_there(output: OutputFile, had: set[str], unread: Collection[str]) -> bool:
    """Whether it is made of a base that was there, and only adapters that nobody has read may tell it from before."""
    sources = {source.digest for source in inputs_of(output)}
    return not sources.isdisjoint(unread) and sources - had <= set(unread)
