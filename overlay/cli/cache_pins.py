"""``overlay cache pin`` and ``unpin``: what must stay whatever a collector is told."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from overlay.cli._options import Common, common_options
from overlay.cli._output import columns
from overlay.errors import InvalidUsage, NotHere

if TYPE_CHECKING:
    from collections.abc import Iterator

    from overlay.cache.layout import CacheRoot
    from overlay.cache.listing import TreeInfo

__all__ = ["Pinned", "pin", "the_tree", "unpin"]


@dataclass(frozen=True, slots=True)
class Pinned:
    """What ``overlay cache pin`` and ``unpin`` print.

    Attributes:
        trees: The trees that are pinned now, or were until now.
        reason: Why; empty where nobody said, and for ``unpin``.
    """

    root: str
    trees: tuple[str, ...]
    reason: str


@click.command(short_help="Keep a tree: gc and rm leave it alone.")
@click.argument("target")
@click.option("--reason", default="", help="Why, for whoever wonders later; without it, an earlier reason stays.")
@common_options
def pin(common: Common, target: str, reason: str) -> None:
    """Keep a tree until it is unpinned: gc leaves it alone, and rm refuses it.

    TARGET is a location, a tree, a model, or the path of one of the first two.
    """
    from overlay.cache import choose_root
    from overlay.cache.pins import pin

    root = choose_root(common.cache_root, os.environ)
    tree = the_tree(common, root, target, "pin")
    reason = reason or (tree.pin.reason if tree.pin else "")
    pin(root, tree.name, reason)
    _print(common, Pinned(str(root.path), (tree.name,), reason), "pinned")


@click.command(short_help="Take pins back.")
@click.argument("target")
@common_options
def unpin(common: Common, target: str) -> None:
    """Take pins back: of a location, a tree, or all trees of a model."""
    from overlay.cache import choose_root
    from overlay.cache.listing import find
    from overlay.cache.pins import pins, unpin

    root = choose_root(common.cache_root, os.environ)
    # A pin may outlive its tree, by a repair that could not build it again.
    names = [target] if target in pins(root) else [tree.name for tree in find(root, target)[0]]
    done = tuple(name for name in names if unpin(root, name))
    _print(common, Pinned(str(root.path), done, ""), "unpinned")


def the_tree(common: Common, root: CacheRoot, target: str, command: str) -> TreeInfo:
    """The one tree that a name stands for.

    Raises:
        NotHere: There is none.
        InvalidUsage: There are several.
    """
    from overlay.cache.listing import find

    trees = find(root, target)[0]
    if not trees:
        raise NotHere(f"{target}: leads to no tree", code="not-in-cache", hint="overlay cache gc", target=target)
    if len(trees) > 1:
        names = ", ".join(f"{tree.name} ({', '.join(tree.locations) or 'superseded'})" for tree in trees)
        raise InvalidUsage(
            f"{target}: {len(trees)} generations, expected one: {names}",
            code="ambiguous-target",
            hint=common.command("cache", command, trees[0].name),
            target=target,
            trees=[tree.name for tree in trees],
        )
    return trees[0]


def _print(common: Common, document: Pinned, verb: str) -> None:
    def text() -> Iterator[str]:
        yield verb if document.trees else "nothing was pinned"
        yield from columns([[tree] for tree in document.trees])

    common.output.result(document, text)
