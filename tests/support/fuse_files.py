"""Small fused files for tests: stored bytes on disk, and the output that is to be built from them."""

from __future__ import annotations

import random
import struct
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from support.fuse_oracle import SIZES, Pair, fuse

from overlay.fusion.build import BuiltFile, build_safetensors
from overlay.fusion.workers import Workers
from overlay.planning.outputs import Fused, Input, OutputTensor, Range, SafetensorsFile, Term

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from overlay.fusion.engine import Engine

MEMORY = 2**30


@dataclass
class Weight:
    """A weight and its pairs, as stored bytes."""

    name: str
    dtype: str
    rows: int
    cols: int
    data: bytes
    pairs: list[Pair] = field(default_factory=list)

    def expected(self, rule: str) -> bytes:
        """What the oracle makes of it."""
        return fuse(self.data, self.dtype, self.cols, self.pairs, rule)


class Store:
    """Input files in a folder, and pieces that refer to them."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.opened: list[str] = []

    def put(self, path: str, *parts: bytes) -> list[Range]:
        """Writes the parts one after the other, behind a few bytes of something else."""
        data, ranges = b"\xff" * 13, []
        source = Input("org/in", "0" * 40, path, len(data) + sum(map(len, parts)), "")
        for part in parts:
            ranges.append(Range(source, len(data), len(part)))
            data += part
        (self.folder / path).write_bytes(data)
        return ranges

    def locate(self, source: Input) -> Path:
        """Where an input lies; remembers what was asked for."""
        self.opened.append(source.path)
        return self.folder / source.path

    def fused(self, weight: Weight) -> OutputTensor:
        """An output tensor with the weight's pairs folded in."""
        [stored] = self.put(f"{weight.name}.w", weight.data)
        terms = []
        for index, pair in enumerate(weight.pairs):
            a, b = self.put(f"{weight.name}.{index}", pair.a, pair.b)
            name = f"adapter{index}"
            key = f"{weight.name}.lora"
            terms.append(Term(name, f"{key}_A.weight", f"{key}_B.weight", a, b, pair.dtype, pair.rank, pair.scale))
        piece = Fused.whole(stored, weight.dtype, weight.rows, weight.cols, tuple(terms))
        return OutputTensor(weight.name, weight.dtype, (weight.rows, weight.cols), (piece,))

    def build(
        self,
        tensors: list[OutputTensor],
        out: Path,
        engine: Engine | None,
        rule: str = "fp32-once",
        *,
        jobs: int = 2,
        memory: int = MEMORY,
        progress: Callable[[int], None] | None = None,
    ) -> BuiltFile:
        """Builds a file of these tensors."""
        spec = SafetensorsFile("model.safetensors", {"format": "pt"}, tuple(tensors))
        with Workers(engine, jobs, memory) as workers:
            return build_safetensors(
                spec,
                out,
                open_input=self.locate,
                workers=workers,
                rule=rule,
                progress=progress,
                is_last_reader=lambda _: True,
            )


def data_of(path: Path) -> bytes:
    """The data section of a safetensors file."""
    content = path.read_bytes()
    return content[8 + struct.unpack("<Q", content[:8])[0] :]


def seeded(seed: int) -> random.Random:
    """A generator of test data."""
    return random.Random(seed)  # no secret


def random_values(dice: random.Random, count: int, dtype: str, *, spread: int = 6, tiny: bool = False) -> bytes:
    """Stored values of random bits: mixed signs, ``spread`` binary orders below 1, zeros of both signs; with ``tiny``
    also subnormals and values whose products vanish."""
    fraction_bits, bias = {"BF16": (7, 127), "F16": (10, 15), "F32": (23, 127)}[dtype]
    words = []
    for _ in range(count):
        sign = dice.getrandbits(1) << (8 * SIZES[dtype] - 1)
        exponent = bias - dice.randrange(spread)
        if tiny and dice.random() < 0.5:  # half of them
            exponent = dice.randrange(bias)
        word = exponent << fraction_bits | dice.getrandbits(fraction_bits)
        words.append(sign | (0 if dice.random() < 0.1 else word))  # a tenth
    return b"".join(word.to_bytes(SIZES[dtype], "little") for word in words)


def random_weight(  # a table's columns
    dice: random.Random,
    shape: tuple[int, int],
    dtype: str,
    pair_dtypes: list[str],
    rank: int,
    scale: float = 1.0,
    name: str = "w",
    *,
    tiny: bool = False,
) -> Weight:
    """A weight of random values with one pair for each dtype."""
    rows, cols = shape
    pairs = [
        Pair(
            random_values(dice, rank * cols, pair_dtype, tiny=tiny),
            random_values(dice, rows * rank, pair_dtype, tiny=tiny),
            pair_dtype,
            rank,
            scale,
        )
        for pair_dtype in pair_dtypes
    ]
    return Weight(name, dtype, rows, cols, random_values(dice, rows * cols, dtype, tiny=tiny), pairs)
