"""What the reader of an adapter hands on."""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from overlay.formats.header import Header, TensorInfo

__all__ = ["MOST_NAMED", "Adapter", "Kind", "Pair", "Scaling", "float32", "number"]

MOST_NAMED = 1000
"""Names of modules that the data of one error holds; its message holds the first few."""

Kind = Literal["openvdn", "peft", "kohya", "bare"]


@dataclass(frozen=True, slots=True)
class Pair:
    """One LoRA pair and the base weight that it changes: W [out, in] += scale * B @ A.

    Attributes:
        target: Name of the base tensor.
        module: The module as the adapter spells it.
        a: Tensor [rank, in]; ``b`` is [out, rank].
        alpha: As given, or the rank where none was given.
        rslora: The scale is alpha/sqrt(rank), not alpha/rank.
        scale: Divided in float64, rounded once to float32; held as a float.
        scale_origin: Where the scale comes from, for people and the record.
    """

    target: str
    module: str
    a: TensorInfo
    b: TensorInfo
    rank: int
    alpha: float
    rslora: bool
    scale: float
    scale_origin: str


@dataclass(frozen=True, slots=True)
class Adapter:
    """A LoRA adapter of which every tensor was found to have its place in the base.

    Attributes:
        weights: Path of the safetensors file; ``spec`` that of the JSON beside it, None where there is none.
        dtype: Stored dtype of every A and B: BF16, F16 or F32.
        pairs: Sorted by target.
        pattern_rule: How targets and per-module ranks and alphas were matched.
    """

    name: str
    kind: Kind
    weights: str
    spec: str | None
    dtype: str
    pairs: tuple[Pair, ...]
    pattern_rule: str
    header: Header


@dataclass(frozen=True, slots=True)
class Scaling:
    """What a description says of one module.

    Attributes:
        rank: The rank that the tensors must have; None where only the tensors tell.
        alpha: None where none is given; the scale is then 1.
        source: Where the numbers stand.
    """

    rank: int | None
    alpha: float | None
    rslora: bool
    source: str

    def scale(self, rank: int) -> tuple[float, float, str]:
        """Alpha, scale (a float32 value) and its origin, for tensors of this rank."""
        if self.alpha is None:
            return float(rank), 1.0, f"1 ({self.source})"
        scale = self.alpha / (math.sqrt(rank) if self.rslora else rank)
        divisor = f"sqrt(rank {rank})" if self.rslora else f"rank {rank}"
        return self.alpha, float32(scale), f"alpha {number(self.alpha)} / {divisor} ({self.source})"


def float32(value: float) -> float:
    """The float32 nearest to a float64, ties to even; infinity where it is too large."""
    try:
        rounded: float = struct.unpack("<f", struct.pack("<f", value))[0]
    except OverflowError:
        return math.inf
    return rounded


def number(value: float) -> str:
    """A number for people: integers without a point."""
    return str(int(value)) if value == int(value) and abs(value) < 2**53 else repr(value)
