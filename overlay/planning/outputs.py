"""What a plan is made of: output files, and where each of their bytes comes from.

A safetensors output is an ordered list of tensors, and a tensor is an ordered list of pieces: byte ranges of input
files, literal bytes, zeros, or rows of a fused weight. Renaming, re-laying and splitting tensors are then all the same
thing, copying ranges, and fusing is the only piece that needs arithmetic.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

__all__ = [
    "AliasFile",
    "CarriedFile",
    "Fused",
    "GeneratedFile",
    "Input",
    "Literal",
    "OutputFile",
    "OutputTensor",
    "Piece",
    "Range",
    "SafetensorsFile",
    "ScriptedFile",
    "Term",
    "Zeros",
]


@dataclass(frozen=True, slots=True)
class Input:
    """One file of a pinned repo.

    Attributes:
        repo: Repo id (``org/name``), or the absolute folder for ``overlay fuse``.
        revision: 40-hex commit, or ``local``.
        path: POSIX path inside the repo.
        size: Bytes.
        digest: ``sha256:<hex>`` where it is known or was computed, ``sha1-git:<hex>`` for a small file of the Hub that
            was not read yet; empty where no identity is needed (``overlay fuse``).
    """

    repo: str
    revision: str
    path: str
    size: int
    digest: str


@dataclass(frozen=True, slots=True)
class Range:
    """``nbytes`` bytes of ``input`` from the absolute file offset ``offset``."""

    input: Input
    offset: int
    nbytes: int

    @property
    def bytes_read(self) -> int:
        """Bytes of inputs that making the piece reads."""
        return self.nbytes


@dataclass(frozen=True, slots=True)
class Literal:
    """Bytes known when the plan is made."""

    bytes_read: ClassVar[int] = 0
    data: bytes

    @property
    def nbytes(self) -> int:
        """Their number."""
        return len(self.data)


@dataclass(frozen=True, slots=True)
class Zeros:
    """``nbytes`` zero bytes."""

    bytes_read: ClassVar[int] = 0
    nbytes: int


@dataclass(frozen=True, slots=True)
class Term:
    """One LoRA pair of a fused weight.

    Attributes:
        adapter: Name of the adapter, for messages and the record.
        a_name: Tensor name of A in its file; ``b_name`` likewise. For messages.
        a: Bytes of A, [rank, in], row-major.
        b: Bytes of B, [out, rank], row-major.
        dtype: Stored dtype of both: BF16, F16 or F32.
        rank: Inner dimension.
        scale: alpha/rank (or alpha/sqrt(rank)), divided in float64 and rounded once to float32; held as a float.
    """

    adapter: str
    a_name: str
    b_name: str
    a: Range
    b: Range
    dtype: str
    rank: int
    scale: float


@dataclass(frozen=True, slots=True)
class Fused:
    """Rows of a weight [rows, cols] with LoRA terms folded into it, in order.

    The rule is one for each element, so rows that are cut out of a fused weight are the same wherever they go.

    Attributes:
        weight: Bytes of the whole W as stored, row-major.
        dtype: Stored dtype of W: BF16, F16 or F32.
        first_row: First of the rows that are taken, ``num_rows`` from there.
    """

    weight: Range
    dtype: str
    rows: int
    cols: int
    terms: tuple[Term, ...]
    first_row: int
    num_rows: int

    @classmethod
    def whole(cls, weight: Range, dtype: str, rows: int, cols: int, terms: tuple[Term, ...]) -> Fused:
        """Every row of a weight."""
        return cls(weight, dtype, rows, cols, terms, 0, rows)

    @property
    def nbytes(self) -> int:
        """Bytes of the result, those of the rows that are taken."""
        return self.weight.nbytes // self.rows * self.num_rows

    @property
    def bytes_read(self) -> int:
        """Bytes of inputs that making the piece reads: these rows of the weight and of every B, but no A."""
        return self.nbytes + sum(term.b.nbytes // self.rows * self.num_rows for term in self.terms)


Piece = Range | Literal | Zeros | Fused


@dataclass(frozen=True, slots=True)
class OutputTensor:
    """One tensor of a safetensors output; the pieces' sizes add up to its own."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    pieces: tuple[Piece, ...]

    @property
    def bytes_read(self) -> int:
        """Bytes of inputs that making it reads; an A is read once, into however many pieces it goes."""
        all_a = {term.a for piece in self.pieces if isinstance(piece, Fused) for term in piece.terms}
        return sum(piece.bytes_read for piece in self.pieces) + sum(a.nbytes for a in all_a)


@dataclass(frozen=True, slots=True)
class SafetensorsFile:
    """A safetensors file written by this program, tensors in any order (the writer lays them out canonically)."""

    path: str
    metadata: dict[str, str]
    tensors: tuple[OutputTensor, ...]

    @property
    def is_fused(self) -> bool:
        """Whether any of its weights is fused; if not, writing it takes no arithmetic."""
        return any(isinstance(piece, Fused) for tensor in self.tensors for piece in tensor.pieces)


@dataclass(frozen=True, slots=True)
class CarriedFile:
    """An input file as it is, linked or copied."""

    path: str
    input: Input


@dataclass(frozen=True, slots=True)
class GeneratedFile:
    """A small file whose bytes the plan already holds (JSON, mostly)."""

    path: str
    data: bytes


@dataclass(frozen=True, slots=True)
class AliasFile:
    """A second name for another output file of the same plan."""

    path: str
    of: str


@dataclass(frozen=True, slots=True)
class ScriptedFile:
    """A file that the overlay's own script wrote. It is an object of the cache by the time that a plan names it.

    Attributes:
        digest: ``sha256:<hex>``.
        size: Bytes.
        is_new: Whether it was written in this run, and not in an earlier one with the same inputs.
    """

    path: str
    digest: str
    size: int
    is_new: bool = False


OutputFile = SafetensorsFile | CarriedFile | GeneratedFile | AliasFile | ScriptedFile
