"""Recipe ``lora``: one base folder, adapters folded in in order, everything else of the base's repo carried over."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from overlay.formats.checkpoint import read_checkpoint
from overlay.planning.carry import carry_files
from overlay.planning.fuse import adapter_uses, base_tensors, fuse_checkpoint, read_adapters, refuse_fused_twice
from overlay.planning.plan import overlaid

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from overlay.planning.outputs import OutputFile
    from overlay.planning.plan import AdapterUse, InputBook

__all__ = ["lora"]


def lora(
    books: Mapping[str, InputBook], base: Mapping[str, str], adapters: Sequence[Mapping[str, Any]]
) -> tuple[list[OutputFile], tuple[AdapterUse, ...], tuple[str, ...]]:
    """Output files, adapters, and digests of the adapters that the base held before.

    Args:
        books: By repo id.
        base: ``repo`` and ``path`` of the folder that holds the base's weights; path ``""`` for the root.
        adapters: ``repo`` and ``path`` of each adapter's folder or file, in the order in which they are fused.

    Raises:
        BrokenInput: An adapter does not fit the base, or the base already holds it.
    """
    book, folder = books[base["repo"]], base["path"]
    checkpoint = read_checkpoint(book.files, folder)
    sources = read_adapters([(books[a["repo"]], a["path"], None) for a in adapters], base_tensors(checkpoint))
    before = refuse_fused_twice(book.files, folder, sources)
    prefix = f"{folder}/" if folder else ""
    replaced = {f"{prefix}{shard}" for shard in checkpoint.shards}
    held_here = {adapter.weights for adapter_book, adapter in sources if adapter_book is book}
    held_here |= {adapter.spec for adapter_book, adapter in sources if adapter_book is book and adapter.spec}
    others = [
        path
        for path in book.files.paths()
        if path not in replaced and path not in held_here and not any(part.startswith(".") for part in path.split("/"))
    ]
    outputs = overlaid(carry_files(book, others), fuse_checkpoint(book, checkpoint, sources, folder))
    return list(outputs), adapter_uses(sources), before
