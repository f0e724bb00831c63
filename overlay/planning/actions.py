"""Action keys: what an output file's bytes depend on, known without reading a weight.

A key covers the output's layout, where each byte comes from (by content digest and offset), the numeric rule and the
ranks, scales and order of the adapters. File names, commits and the spelling of JSON files are not in it, so a bump
that changes only those finds every object in the cache.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from overlay.fingerprint import action_key, bytes_digest
from overlay.planning.outputs import CarriedFile, Fused, Literal, Range, SafetensorsFile, Zeros

if TYPE_CHECKING:
    from overlay.planning.outputs import Input, OutputFile, OutputTensor, Piece

__all__ = ["WRITER_VERSION", "action_of"]

# Raise by hand whenever the same plan gives other bytes. Golden files in the tests hold it.
WRITER_VERSION = 1


def action_of(output: OutputFile, rule: str) -> str | None:
    """Action key of one output; None for those that are made anew each time (generated files, aliases)."""
    if isinstance(output, CarriedFile):
        return action_key({"carry": output.input.digest})
    if isinstance(output, SafetensorsFile):
        return action_key(_document(output, rule))
    return None


def _document(output: SafetensorsFile, rule: str) -> dict[str, Any]:
    inputs: dict[str, int] = {}

    def place(source: Input) -> int:
        return inputs.setdefault(source.digest, len(inputs))

    def span(piece: Range) -> list[int]:
        return [place(piece.input), piece.offset, piece.nbytes]

    def describe(piece: Piece) -> dict[str, Any]:
        match piece:
            case Range():
                return {"range": span(piece)}
            case Literal():
                return {"bytes": bytes_digest(piece.data, "sha256")}
            case Zeros():
                return {"zeros": piece.nbytes}
            case Fused():
                terms = [[span(t.a), span(t.b), t.dtype, t.rank, float(t.scale).hex()] for t in piece.terms]
                return {"fuse": span(piece.weight), "terms": terms}

    def tensor(item: OutputTensor) -> list[Any]:
        return [item.name, item.dtype, list(item.shape), [describe(piece) for piece in item.pieces]]

    tensors = [tensor(item) for item in sorted(output.tensors, key=lambda item: item.name)]
    return {
        "writer": WRITER_VERSION,
        "rule": rule if output.is_fused else None,
        "metadata": output.metadata,
        "tensors": tensors,
        "inputs": list(inputs),
    }
