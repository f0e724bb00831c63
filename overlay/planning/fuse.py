"""One checkpoint folder plus adapters, as output files: the part that every recipe with LoRA shares."""

from __future__ import annotations

from typing import TYPE_CHECKING

from overlay.errors import BrokenInput
from overlay.fingerprint import bytes_digest
from overlay.formats.adapters import fused_adapters, read_adapter
from overlay.planning.outputs import CarriedFile, Fused, OutputTensor, Range, SafetensorsFile, Term
from overlay.planning.plan import AdapterUse

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from overlay.formats.adapters import Adapter
    from overlay.formats.checkpoint import Checkpoint
    from overlay.formats.files import Files
    from overlay.formats.header import Header, TensorInfo
    from overlay.planning.outputs import OutputFile
    from overlay.planning.plan import InputBook

__all__ = [
    "DEFAULT_METADATA",
    "adapter_uses",
    "base_tensors",
    "copied_tensor",
    "fuse_checkpoint",
    "fused_shards",
    "read_adapters",
    "refuse_fused_twice",
    "sha256_of",
]

DEFAULT_METADATA = {"format": "pt"}
"""Of a shard that has none."""

AdapterSource = tuple["InputBook", "Adapter"]


def base_tensors(checkpoint: Checkpoint) -> dict[str, TensorInfo]:
    """Every tensor of a checkpoint by name."""
    return {name: info for header in checkpoint.shards.values() for name, info in header.tensors.items()}


def read_adapters(
    sources: Iterable[tuple[InputBook, str, str | None]], base: Mapping[str, TensorInfo]
) -> tuple[AdapterSource, ...]:
    """Read adapters in the order given; each source is (book of its repo, path in it, name or None).

    Raises:
        BrokenInput: One of them cannot be applied to this base whole.
    """
    return tuple((book, read_adapter(book.files, path, base, name=name)) for book, path, name in sources)


def adapter_uses(adapters: Sequence[AdapterSource]) -> tuple[AdapterUse, ...]:
    """What the record says of each adapter."""
    return tuple(
        AdapterUse(
            name=adapter.name,
            kind=adapter.kind,
            weights=book(adapter.weights),
            spec=book(adapter.spec) if adapter.spec else None,
            num_pairs=len(adapter.pairs),
            scales=tuple(sorted({pair.scale for pair in adapter.pairs})),
            scale_origins=tuple(sorted({pair.scale_origin for pair in adapter.pairs})),
            pattern_rule=adapter.pattern_rule,
        )
        for book, adapter in adapters
    )


def refuse_fused_twice(base: Files, folder: str, adapters: Sequence[AdapterSource]) -> tuple[str, ...]:
    """Refuse an adapter that is given twice, or that a stamp says the base holds. Digests of those that it does hold.

    Args:
        base: Files that hold the base and, where there is one, the folder above it.

    Raises:
        BrokenInput: It is, or a stamp says that something was fused but not what.
    """
    wanted: dict[str, str] = {}
    for book, adapter in adapters:
        if (digest := book(adapter.weights).digest) in wanted:
            raise BrokenInput(
                f"{book.files.where(adapter.weights)}: these are the weights of {wanted[digest]}, which comes before",
                code="adapter-twice",
                hint="name each adapter once; fusing one twice doubles its effect",
                adapters=[wanted[digest], adapter.name],
            )
        wanted[digest] = adapter.name
    stamps = fused_adapters(base, folder)
    for stamp in stamps:
        held = [wanted[digest] for digest in stamp.digests if digest in wanted]
        if held or not stamp.digests:
            what = f"already holds {', '.join(held)}" if held else "was fused before"
            raise BrokenInput(
                f"{base.where(folder)}: this base {what}, says {stamp.path}",
                code="already-fused",
                hint="give the original base; fusing an adapter twice doubles its effect",
                stamp=stamp.path,
                adapters=held,
            )
    return tuple(sorted({digest for stamp in stamps for digest in stamp.digests}))


def sha256_of(book: InputBook, path: str) -> str:
    """``sha256:<hex>`` of a file; a small one of the Hub, which names it by its git blob, is read."""
    digest = book(path).digest
    return digest if digest.startswith("sha256:") else bytes_digest(book.files.read_bytes(path), "sha256")


def copied_tensor(header: Header, book: InputBook, path: str, name: str, rename: str | None = None) -> OutputTensor:
    """A tensor taken over as it is, under its own name or ``rename``."""
    info = header.tensors[name]
    piece = Range(book(path), header.offset(name), info.nbytes)
    return OutputTensor(rename or name, info.dtype, info.shape, (piece,) if info.nbytes else ())


def fuse_checkpoint(
    book: InputBook, checkpoint: Checkpoint, adapters: Sequence[AdapterSource], out_folder: str
) -> list[OutputFile]:
    """The checkpoint's shards under ``out_folder``, targets fused.

    Shards without a target are carried where the published script would write the same bytes: a canonical header that
    has metadata. Others are written again, metadata kept, ``{"format": "pt"}`` where there is none.
    """
    outputs: list[OutputFile] = []
    for shard, tensors in fused_shards(book, checkpoint, adapters).items():
        header = checkpoint.shards[shard]
        made = SafetensorsFile(
            f"{out_folder}/{shard}" if out_folder else shard, dict(header.metadata) or dict(DEFAULT_METADATA), tensors
        )
        as_it_is = not made.is_fused and header.canonical and header.metadata
        outputs.append(CarriedFile(made.path, book(checkpoint.path(shard))) if as_it_is else made)
    return outputs


def fused_shards(
    book: InputBook, checkpoint: Checkpoint, adapters: Sequence[AdapterSource]
) -> dict[str, tuple[OutputTensor, ...]]:
    """Every tensor of the checkpoint by its shard, targets fused; each has one piece, or none if it is empty."""
    terms = _terms_by_target(adapters)

    def tensor(shard: str, header: Header, name: str) -> OutputTensor:
        path = checkpoint.path(shard)
        if name in terms:
            return _fused_tensor(header, book, path, name, terms[name])
        return copied_tensor(header, book, path, name)

    return {
        shard: tuple(tensor(shard, header, name) for name in header.tensors)
        for shard, header in sorted(checkpoint.shards.items())
    }


def _terms_by_target(adapters: Sequence[AdapterSource]) -> dict[str, tuple[Term, ...]]:
    terms: dict[str, tuple[Term, ...]] = {}
    for book, adapter in adapters:
        weights = book(adapter.weights)
        for pair in adapter.pairs:
            term = Term(
                adapter=adapter.name,
                a_name=pair.a.name,
                b_name=pair.b.name,
                a=Range(weights, adapter.header.offset(pair.a.name), pair.a.nbytes),
                b=Range(weights, adapter.header.offset(pair.b.name), pair.b.nbytes),
                dtype=adapter.dtype,
                rank=pair.rank,
                scale=pair.scale,
            )
            terms[pair.target] = (*terms.get(pair.target, ()), term)
    return terms


def _fused_tensor(header: Header, book: InputBook, path: str, name: str, terms: tuple[Term, ...]) -> OutputTensor:
    info = header.tensors[name]
    rows, cols = info.shape
    weight = Range(book(path), header.offset(name), info.nbytes)
    return OutputTensor(name, info.dtype, info.shape, (Fused.whole(weight, info.dtype, rows, cols, terms),))
