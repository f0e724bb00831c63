"""Action keys: what an output file's bytes depend on.

The key of the inputs is known without reading a weight. It covers the output's layout, where each byte comes from (by
content digest and offset), the numeric rule and the ranks, scales and order of the adapters. The key of the factors
names A and B of each pair by the digests of their own bytes instead, wherever in whichever adapter file they lie: it
needs the adapters to have been read, and stays when they change elsewhere. File names, commits and the spelling of JSON
files are in neither, so a bump that changes only those finds every object in the cache.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from overlay.fingerprint import action_key, bytes_digest
from overlay.planning.outputs import CarriedFile, Fused, Literal, Range, SafetensorsFile, Zeros

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from overlay.planning.outputs import Input, OutputFile, OutputTensor, Piece, Term

    _Place = Callable[[Input], int]
    _Describe = Callable[[Term, _Place], list[Any]]

__all__ = ["WRITER_VERSION", "action_of", "factor_action_of", "factors_of"]

# Raise by hand whenever the same plan gives other bytes. Golden files in the tests hold it.
WRITER_VERSION = 1


def action_of(output: OutputFile, rule: str) -> str | None:
    """Action key of one output; None for those that are made anew each time (generated files, aliases)."""
    if isinstance(output, CarriedFile):
        return action_key({"carry": output.input.digest})
    if isinstance(output, SafetensorsFile):
        return action_key(_document(output, rule, "terms", _by_place))
    return None


def factors_of(output: SafetensorsFile) -> tuple[Range, ...]:
    """Every A and B that is folded into one output, in the plan's order, each once."""
    pieces = (piece for tensor in output.tensors for piece in tensor.pieces if isinstance(piece, Fused))
    return tuple(dict.fromkeys(factor for piece in pieces for term in piece.terms for factor in (term.a, term.b)))


def factor_action_of(output: SafetensorsFile, rule: str, digests: Mapping[Range, str]) -> str:
    """Second action key of a fused output: the base as in :func:`action_of`, the adapters by their factors' bytes.

    Args:
        digests: ``sha256:<hex>`` of each of :func:`factors_of`.
    """

    def by_content(term: Term, _place: _Place) -> list[Any]:
        return [digests[term.a], digests[term.b]]

    return action_key(_document(output, rule, "factors", by_content))


def _by_place(term: Term, place: _Place) -> list[Any]:
    return [_span(term.a, place), _span(term.b, place)]


def _span(piece: Range, place: _Place) -> list[int]:
    return [place(piece.input), piece.offset, piece.nbytes]


def _document(output: SafetensorsFile, rule: str, label: str, pair: _Describe) -> dict[str, Any]:
    inputs: dict[str, int] = {}

    def place(source: Input) -> int:
        return inputs.setdefault(source.digest, len(inputs))

    def describe(piece: Piece) -> dict[str, Any]:
        match piece:
            case Range():
                return {"range": _span(piece, place)}
            case Literal():
                return {"bytes": bytes_digest(piece.data, "sha256")}
            case Zeros():
                return {"zeros": piece.nbytes}
            case Fused():
                terms = [[*pair(t, place), t.dtype, t.rank, float(t.scale).hex()] for t in piece.terms]
                cut = {} if piece.num_rows == piece.rows else {"rows": [piece.first_row, piece.num_rows, piece.rows]}
                return {"fuse": _span(piece.weight, place), label: terms, **cut}

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
