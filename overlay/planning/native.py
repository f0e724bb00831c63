"""A fused transformer in MiniMax's own layout, with the other files of a release beside it: what vLLM-Omni loads.

The tensors are those of the fused Diffusers layout, cut by rows and put together under other names, so nothing is
computed that the fuse does not compute. A tensor is in the shard that its first part was in.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from overlay.errors import BrokenInput
from overlay.formats.dtypes import tensor_nbytes
from overlay.formats.h3_native import ROPE_TENSOR, native_config, native_name, read_architecture
from overlay.formats.materialized import FUSED_NAME
from overlay.formats.rope import rope_inv_freq
from overlay.formats.strict_json import dump_json, parse_object
from overlay.formats.wording import some
from overlay.planning.carry import carry_files
from overlay.planning.compose import part_paths
from overlay.planning.fuse import DEFAULT_METADATA, adapter_uses, fused_shards, sha256_of
from overlay.planning.outputs import Fused, GeneratedFile, Literal, OutputTensor, Range, SafetensorsFile

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from overlay.formats.checkpoint import Checkpoint
    from overlay.formats.h3_native import Architecture
    from overlay.planning.fuse import AdapterSource
    from overlay.planning.outputs import Input, OutputFile, Piece
    from overlay.planning.plan import InputBook

__all__ = ["native_transformer", "require_diffusers", "sibling_paths", "siblings"]

INDEX_NAME = "diffusion_pytorch_model.safetensors.index.json"
"""One of the two names that vLLM-Omni looks for; without an index it takes every file of the folder."""

_COMPONENT = "transformer"
_BLOCKS = "transformer_blocks."


def native_transformer(
    book: InputBook,
    checkpoint: Checkpoint,
    adapters: Sequence[AdapterSource],
    before: Sequence[str],
    rule: str,
    out_folder: str,
) -> tuple[list[OutputFile], Input]:
    """Shards, index, config and stamp under ``out_folder``; and the config that they were laid out by.

    Args:
        before: Digests of the adapters that the base holds already.

    Raises:
        BrokenInput: The base is no MiniMax-H3 transformer in the Diffusers layout, whole.
    """
    config_path = checkpoint.path("config.json")
    where = book.files.where(config_path)
    architecture = read_architecture(parse_object(book.files.read_bytes(config_path), where), where)
    _check_names(architecture, checkpoint.weight_map, book.files.where(checkpoint.folder))
    layout = _Layout(architecture, fused_shards(book, checkpoint, adapters), book.files.where(checkpoint.folder))
    shards = layout.shards()
    outputs: list[OutputFile] = [
        SafetensorsFile(
            f"{out_folder}/{shard}", dict(checkpoint.shards[shard].metadata) or dict(DEFAULT_METADATA), tuple(tensors)
        )
        for shard, tensors in shards.items()
    ]
    index = {
        "metadata": {"total_size": sum(tensor_nbytes(t.dtype, t.shape) for item in shards.values() for t in item)},
        "weight_map": {tensor.name: shard for shard, tensors in shards.items() for tensor in tensors},
    }
    said = native_config(
        architecture,
        layout.rows("transformer_blocks.0.adaln_proj.linear.weight"),
        layout.rows("norm_out.linear.weight"),
        where,
    )
    outputs += [
        GeneratedFile(f"{out_folder}/{INDEX_NAME}", dump_json(index)),
        GeneratedFile(f"{out_folder}/config.json", dump_json(said)),
        GeneratedFile(f"{out_folder}/{FUSED_NAME}", dump_json(_stamp(adapters, before, rule))),
    ]
    return outputs, book(config_path)


def siblings(book: InputBook, path: str, folder: str) -> tuple[list[OutputFile], Input]:
    """Every file of a release's folder but its transformer, carried into ``folder``; and its model index.

    Raises:
        BrokenInput: It is no folder of that release, or lacks a component that its model index names.
    """
    prefix = f"{path}/" if path else ""
    taken = sibling_paths(book.files.paths(), path)
    index_path = f"{prefix}model_index.json"
    where = book.files.where(index_path)
    index = parse_object(book.files.read_bytes(index_path), where)
    release = index.get("_minimax_h3")
    partition = release.get("partition") if isinstance(release, dict) else None
    if partition != folder.lower():
        raise BrokenInput(
            f"{where}: _minimax_h3.partition is {str(partition)[:80]!r}; expected {folder.lower()!r}, as for {folder}/",
            code="bad-model-index",
            hint=f"siblings of {folder} are the folder {folder} of the native release",
            where=where,
        )
    named = {name for name, value in index.items() if isinstance(value, list) and any(value) and name[:1] != "_"}
    there = {name.partition("/")[0] for name in taken if "/" in name}
    if missing := sorted(named - there - {_COMPONENT}):
        raise BrokenInput(
            f"{where}: names components whose folders are not beside it: {some(missing)}",
            code="component-missing",
            hint="incomplete download? or pin a commit that has them",
            missing=missing,
        )
    moved = {place: f"{folder}/{name}" for name, place in taken.items()}
    return carry_files(book, moved, moved), book(index_path)


def sibling_paths(paths: Iterable[str], path: str) -> dict[str, str]:
    """Files of a release's folder but its transformer's, by their path inside it."""
    found = part_paths(paths, path)
    return {inside: place for inside, place in found.items() if not inside.startswith(f"{_COMPONENT}/")}


def require_diffusers(book: InputBook, checkpoint: Checkpoint) -> None:
    """Refuse a base in another layout by the first look at its names.

    Raises:
        BrokenInput: ``not-diffusers-h3``.
    """
    if not any(name.startswith(_BLOCKS) for name in checkpoint.weight_map):
        some_names = sorted(checkpoint.weight_map)
        raise _not_diffusers(book.files.where(checkpoint.folder), [f"{_BLOCKS}0"], some_names)


def _check_names(architecture: Architecture, weight_map: Mapping[str, str], where: str) -> None:
    wanted = set(architecture.diffusers_names())
    missing, unknown = sorted(wanted - weight_map.keys()), sorted(weight_map.keys() - wanted)
    if missing or unknown:
        raise _not_diffusers(where, missing, unknown)


def _not_diffusers(where: str, missing: Sequence[str], unknown: Sequence[str]) -> BrokenInput:
    lacks = [f"lacks {some(missing)}"] if missing else []
    has = [f"has {some(unknown)}, which has no place in it"] if unknown else []
    return BrokenInput(
        f"{where}: is no MiniMax-H3 transformer in the Diffusers layout: {' and '.join(lacks + has)}",
        code="not-diffusers-h3",
        hint="layout: native takes the transformer (or transformer_ref) of the Diffusers export as its base",
        missing=list(missing[:100]),
        unknown=list(unknown[:100]),
    )


def _stamp(adapters: Sequence[AdapterSource], before: Sequence[str], rule: str) -> dict[str, Any]:
    """Which adapters are in, for whoever gets the folder without the record of its tree."""
    digests = [sha256_of(book, adapter.weights) for book, adapter in adapters]
    held = [
        {"name": use.name, "kind": use.kind, "pairs": use.num_pairs, "scales": list(use.scales), "digest": digest}
        for use, digest in zip(adapter_uses(adapters), digests, strict=True)
    ]
    return {"schema_version": 1, "layout": "native", "rule": rule, "adapters": held, "fused_before": list(before)}


class _Layout:
    """Native tensors out of those of the Diffusers layout."""

    def __init__(self, architecture: Architecture, shards: Mapping[str, Sequence[OutputTensor]], where: str) -> None:
        self._architecture = architecture
        self._tensors = {tensor.name: tensor for tensors in shards.values() for tensor in tensors}
        self._shard_of = {tensor.name: shard for shard, tensors in shards.items() for tensor in tensors}
        self._where = where

    def shards(self) -> dict[str, list[OutputTensor]]:
        """Native tensors by shard; the rotary frequencies are in the first."""
        found: dict[str, list[OutputTensor]] = defaultdict(list)
        for name, shard in self._shard_of.items():
            native = native_name(name)
            match native.layout:
                case "plain":
                    found[shard].append(replace(self._tensors[name], name=native.name))
                case "gated":
                    found[shard].append(self._halves_swapped(name, native.name))
                case "q":
                    found[shard].append(self._interleaved(name, native.name))
        rope = rope_inv_freq(self._architecture.rope_freq_dim, self._architecture.rope_theta)
        found[min(found)].append(
            OutputTensor(ROPE_TENSOR, "F32", (self._architecture.rope_freq_dim,), (Literal(rope),))
        )
        return dict(sorted(found.items()))

    def rows(self, name: str) -> int:
        """Rows of a tensor, which has at least one dimension."""
        shape = self._tensors[name].shape
        if not shape:
            raise self._wrong(name, "at least one dimension")
        return shape[0]

    def _interleaved(self, name: str, native: str) -> OutputTensor:
        """Rows of q, of k, of v, head by head."""
        heads, dim = self._architecture.num_heads, self._architecture.head_dim
        triple = [name.replace(".to_q.", f".to_{part}.") for part in "qkv"]
        first = self._tensors[name]
        for one in triple:
            other = self._tensors[one]
            if (other.dtype, other.shape) != (first.dtype, first.shape) or self.rows(one) != heads * dim:
                raise self._wrong(one, f"{first.dtype} with {heads * dim} rows ({heads} heads of {dim})")
        pieces = tuple(piece for head in range(heads) for one in triple for piece in self._cut(one, head * dim, dim))
        return OutputTensor(native, first.dtype, (3 * heads * dim, *first.shape[1:]), pieces)

    def _halves_swapped(self, name: str, native: str) -> OutputTensor:
        """Value and gate become gate and value."""
        rows = self.rows(name)
        if rows % 2:
            raise self._wrong(name, "an even number of rows (value and gate)")
        pieces = (*self._cut(name, rows // 2, rows // 2), *self._cut(name, 0, rows // 2))
        return replace(self._tensors[name], name=native, pieces=pieces)

    def _cut(self, name: str, first: int, count: int) -> tuple[Piece, ...]:
        """Rows of a tensor: of its one piece, or of none."""
        tensor = self._tensors[name]
        match tensor.pieces:
            case (Fused() as piece,):
                return (replace(piece, first_row=first, num_rows=count),)
            case (Range() as piece,):
                row = piece.nbytes // self.rows(name)
                return (replace(piece, offset=piece.offset + first * row, nbytes=count * row),)
        return ()

    def _wrong(self, name: str, expected: str) -> BrokenInput:
        tensor = self._tensors[name]
        return BrokenInput(
            f"{self._where}: {name} is {tensor.dtype} {list(tensor.shape)}; expected {expected}",
            code="tensor-shape",
            tensor=name,
        )
