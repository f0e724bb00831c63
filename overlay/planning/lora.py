"""Recipe ``lora``: one base folder, adapters folded in in order, everything else of the base's repo carried over.

Or, in MiniMax's native layout, beside the other files of a native release.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from overlay.formats.checkpoint import read_checkpoint
from overlay.formats.tree_files import is_hidden
from overlay.planning.carry import carry_files
from overlay.planning.fuse import adapter_uses, base_tensors, fuse_checkpoint, read_adapters, refuse_fused_twice
from overlay.planning.native import native_transformer, require_diffusers, siblings
from overlay.planning.plan import overlaid
from overlay.planning.sources import Outcome

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from overlay.planning.sources import Sources
    from overlay.registry import Entry

__all__ = ["lora"]


def lora(entry: Entry, sources: Sources, rule: str) -> Outcome:
    """The recipe's options: ``base``, the folder that holds the base's weights, and ``adapters``, in order.

    Each is a ``repo`` and a ``path`` in it; path ``""`` is the root, an adapter's may also be a file. ``output``, where
    it is given, has the ``folder`` that the weights are laid out for, and the place of their ``siblings``.

    Raises:
        BrokenInput: An adapter does not fit the base, or the base already holds it.
    """
    base: Mapping[str, str] = entry.recipe.options["base"]
    wanted: Sequence[Mapping[str, str]] = entry.recipe.options["adapters"]
    books = {**sources.by_repo, entry.source.repo: sources.source}
    book, folder = books[base["repo"]], base["path"]
    checkpoint = read_checkpoint(book.files, folder)
    output = entry.recipe.options.get("output")
    if output:
        require_diffusers(book, checkpoint)  # before the adapters are held against names that are none of that layout
    adapters = read_adapters(
        [(books[place["repo"]], place["path"], None) for place in wanted], base_tensors(checkpoint)
    )
    before = refuse_fused_twice(book.files, folder, adapters)
    if output:
        beside, to = output["siblings"], output["folder"]
        made, config = native_transformer(book, checkpoint, adapters, before, rule, f"{to}/transformer")
        carried, index = siblings(books[beside["repo"]], beside["path"], to)
        return Outcome([*made, *carried], adapter_uses(adapters), (config, index), fused_before=before)
    replaced = {checkpoint.path(shard) for shard in checkpoint.shards}
    held_here = {adapter.weights for adapter_book, adapter in adapters if adapter_book is book}
    held_here |= {adapter.spec for adapter_book, adapter in adapters if adapter_book is book and adapter.spec}
    others = [
        path for path in book.files.paths() if path not in replaced and path not in held_here and not is_hidden(path)
    ]
    outputs = overlaid(carry_files(book, others), fuse_checkpoint(book, checkpoint, adapters, folder))
    return Outcome(list(outputs), adapter_uses(adapters), fused_before=before)
