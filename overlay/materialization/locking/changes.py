"""What a lock says of a model otherwise than before, for the person who reviews the change."""

from __future__ import annotations

from typing import TYPE_CHECKING

from overlay.formats.wording import counted

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from overlay.registry.lock import Expected, LockedModel, LockedRepo

__all__ = ["EXPECTED_DROPPED", "changes"]

EXPECTED_DROPPED = "expected output dropped: it was of other pins or another recipe"
"""The line for an output that nobody has built yet of the pins as they are."""

_SHOWN = 10


def changes(before: LockedModel | None, after: LockedModel) -> tuple[str, ...]:
    """One line for each thing that changed; empty where nothing did."""
    if before == after:
        return ()
    return tuple(_lines(before, after)) or ("the same facts, noted otherwise",)


def _lines(before: LockedModel | None, after: LockedModel) -> Iterator[str]:
    repos = before.repos if before else {}
    for name in sorted(repos.keys() | after.repos.keys()):
        yield from _repo(name, repos.get(name), after.repos.get(name))
    if before is None:
        yield f"location {after.location}"
        yield from (f"adapter {item.name}: {counted(item.pairs, 'pair')}" for item in after.adapters)
    else:
        if before.recipe != after.recipe:
            yield f"recipe: {_recipe(before.recipe)} -> {_recipe(after.recipe)}"
        if before.location != after.location:
            yield f"location: {before.location} -> {after.location}"
        yield from _adapters(before, after)
        if before.script != after.script:
            yield "the overlay's script changed"
    yield from _expected(before.expected if before else None, after.expected)


def _repo(name: str, before: LockedRepo | None, after: LockedRepo | None) -> Iterator[str]:
    if after is None:
        yield f"{name}: no part of the model any more"
        return
    if before is None:
        yield f"{name}@{after.revision[:12]}: {counted(len(after.files), 'file')}"
        return
    if before.revision != after.revision:
        yield f"{name}: {before.revision[:12]} -> {after.revision[:12]}"
    if before.components != after.components:
        yield f"{name}: components {', '.join(after.components) or 'none'}"
    if before.complete != after.complete:
        yield f"{name}: {'all' if after.complete else 'not all'} files are known now"
    old, new = before.files, after.files
    kinds = {
        "added": sorted(new.keys() - old.keys()),
        "removed": sorted(old.keys() - new.keys()),
        "changed": sorted(path for path in new.keys() & old.keys() if new[path] != old[path]),
    }
    for kind, paths in kinds.items():
        yield from (f"{name}: {kind} {path}" for path in paths[:_SHOWN])
        if len(paths) > _SHOWN:
            yield f"{name}: {kind} {len(paths) - _SHOWN} more"


def _adapters(before: LockedModel, after: LockedModel) -> Iterator[str]:
    old = {item.name: item for item in before.adapters}
    new = {item.name: item for item in after.adapters}
    yield from (f"adapter {name} is gone" for name in sorted(old.keys() - new.keys()))
    yield from (f"adapter {name} is new" for name in sorted(new.keys() - old.keys()))
    for name in sorted(old.keys() & new.keys()):
        if old[name].meaning != new[name].meaning:
            yield f"adapter {name} means something else: {new[name].pairs} pairs, {old[name].pairs} before"
        elif old[name] != new[name]:
            yield f"adapter {name} lies elsewhere or is described otherwise; it means the same"
    if [item.name for item in before.adapters] != [item.name for item in after.adapters] and old.keys() == new.keys():
        yield f"adapters are folded in another order: {', '.join(item.name for item in after.adapters)}"


def _expected(before: Expected | None, after: Expected | None) -> Iterator[str]:
    if before == after:
        return
    if after is None:
        yield EXPECTED_DROPPED
        return
    old = before.files if before else {}
    differ = [path for path in after.files if old.get(path) != after.files[path]]
    gone = len(old.keys() - after.files.keys())
    yield f"expected output: {counted(len(differ), 'file')} new or changed" + (f", {gone} gone" if gone else "")


def _recipe(recipe: Mapping[str, object]) -> str:
    return " ".join(str(value) for value in recipe.values())
