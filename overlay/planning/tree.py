"""The tree that a plan makes, held against what a server needs of it to load it: from listings and small files.

A server accepts a tree by its model index: every component that this names has a folder, with weights in it where
weights belong. What is carried as it is was read by nobody yet, so a file that is no file (a Git LFS pointer), JSON
that is none, and weights that their index lists and the tree lacks show here or on the server.
"""

from __future__ import annotations

import posixpath
from collections import defaultdict
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from overlay.errors import BrokenInput, NotHere
from overlay.formats.checkpoint import INDEX_SUFFIX, WEIGHTS_SUFFIX, check_placed, numbered_of, read_weight_map
from overlay.formats.files import MAX_CHECKED_FILE, PICKLES
from overlay.formats.lfs import POINTER_LIMIT
from overlay.formats.model_index import INDEX_NAMES, read_model_index
from overlay.formats.strict_json import why_no_json
from overlay.formats.wording import counted, some

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

    from overlay.formats.header import Header
    from overlay.formats.model_index import ModelIndex
    from overlay.hub import Repo
    from overlay.registry import Entry

__all__ = ["Carried", "Problem", "Tree", "component_problems", "needs_weights", "weight_problems"]

_MOST_READ = 500
"""Small files that are looked at; a component has a dozen."""

_INDEXED = ("vdn-h3", "mappings")
"""Recipes whose trees have no other model index than the one that comes with the overlay."""

_WITHOUT_COMPONENTS = frozenset({"transformer", "vae"})
"""Folders that a server looks for where the model index names no component."""

_WITHOUT_WEIGHTS = ("tokenizer", "scheduler", "processor", "feature_extractor")
"""In the name of a component whose folder a server accepts without weights."""

_WITH_CONFIG = ("diffusers", "transformers")
"""Libraries that load no weights without a ``config.json`` beside them."""


class Carried(NamedTuple):
    """A file that is taken over as it is."""

    repo: Repo
    path: str

    @property
    def where(self) -> str:
        """Its full name, for messages."""
        return self.repo.where(self.path)


Tree = Mapping[str, Carried | None]
"""What lies at each path of a tree; None for a file that the recipe makes."""

Problem = tuple[Carried, BrokenInput]
"""The file or folder that is at fault, and what is wrong."""


def component_problems(entry: Entry, overlay: Repo | None, tree: Tree, made: Collection[str] = ()) -> Iterator[Problem]:
    """What a server misses in a tree by its model index, and carried small files that are not what their names say.

    An entry without an overlay is held to no index: its base's files are carried as they are.

    Args:
        entry: What is built.
        overlay: Its overlay.
        tree: Every file of the tree, but those that are about the tree.
        made: Components that the recipe makes with weights, which a server has to be told of.

    Raises:
        OverlayError: It cannot be told now.
    """
    components = {component for need in entry.needs for component in need.components}
    libraries: dict[str, str | None] = dict.fromkeys(components if entry.recipe.name == "vdn-h3" else ())
    if overlay is not None:
        place = _index_place(entry, overlay, tree)
        if place is None and entry.recipe.name in _INDEXED:
            yield Carried(overlay, INDEX_NAMES[0]), _no_index(overlay)
        elif place is not None:
            try:
                index = read_model_index(*place)
            except BrokenInput as error:
                yield place, error
            else:
                yield from _index_problems(entry.recipe.name, tree, index, place, made)
                components |= index.components.keys()
                libraries |= {name: library for name, (library, _) in index.components.items()}
                libraries = libraries or dict.fromkeys(_WITHOUT_COMPONENTS)
    yield from _weightless(tree, libraries)
    yield from _file_problems(tree, components)


def weight_problems(tree: Tree) -> Iterator[Problem]:
    """Carried indexes whose shards the tree lacks, and files of weights on this host that are none.

    Files beside those that an index lists are no fault: a folder may hold its weights in two precisions.
    """
    headers: dict[str, Header] = {}
    for path, place in tree.items():
        if place is None or not path.endswith(WEIGHTS_SUFFIX):
            continue
        with suppress(NotHere):
            try:
                if place.repo.local(place.path) is not None:
                    headers[path] = place.repo.header(place.path)
            except BrokenInput as error:
                yield place, error
    for path, place in tree.items():
        if place is None or not path.endswith(INDEX_SUFFIX):
            continue
        try:
            weight_map = read_weight_map(place.repo, place.path)
            shards = {shard: posixpath.join(posixpath.dirname(path), shard) for shard in sorted({*weight_map.values()})}
            _check_shards(shards, tree, place)
            if all(shard in headers for shard in shards.values()):
                check_placed(weight_map, {shard: headers[at] for shard, at in shards.items()}, place.where)
        except BrokenInput as error:
            yield place, error


def needs_weights(component: str) -> bool:
    """Whether a server looks for weights in the folder of a component."""
    return not any(word in component.lower() for word in _WITHOUT_WEIGHTS)


def _index_place(entry: Entry, overlay: Repo, tree: Tree) -> Carried | None:
    """The model index that a server reads; of recipes that carry another's, only the overlay's own is a promise."""
    carries = entry.recipe.name in ("lora", "compose")
    here: Tree = {path: Carried(overlay, path) for path in overlay.paths()} if carries else tree
    return next((place for name in INDEX_NAMES if (place := here.get(name)) is not None), None)


def _no_index(overlay: Repo) -> BrokenInput:
    where = overlay.name
    return BrokenInput(
        f"{where}: neither {' nor '.join(INDEX_NAMES)} comes to the tree; a server loads none without it",
        code="bad-model-index",
        hint="pin an overlay that has one",
        where=where,
    )


def _index_problems(
    recipe: str, tree: Tree, index: ModelIndex, place: Carried, made: Collection[str]
) -> Iterator[Problem]:
    """What the model index promises and the tree does not hold, and the other way round."""
    top = {path.partition("/")[0] for path in tree}
    promised = {*index.components} or {*_WITHOUT_COMPONENTS}
    if missing := sorted(promised - top):
        what = "names components" if index.components else "names no component, and a server then looks for two"
        what += f" that recipe {recipe} does not make: {some(missing, 20)}; a server refuses a tree without them"
        yield place, _missing(f"{place.where}: {what}", missing)
    if unnamed := sorted({*made} - {*index.components}):
        what = f"does not name what recipe {recipe} makes, so no server loads it: {some(unnamed, 20)}"
        yield place, _missing(f"{place.where}: {what}", unnamed)


def _weightless(tree: Tree, libraries: Mapping[str, str | None]) -> Iterator[Problem]:
    """Components that are there and cannot be loaded, by the library that loads each, where it is known."""
    inside: dict[str, dict[str, Carried | None]] = defaultdict(dict)
    for path, file in tree.items():
        component, _, name = path.partition("/")
        inside[component][name] = file
    for component in sorted({*libraries} & {*inside}):
        if needs_weights(component):
            yield from _folder_problems(component, inside[component], libraries[component])


def _folder_problems(component: str, inside: Tree, library: str | None) -> Iterator[Problem]:
    """Of a component with weights: that there are some, a config to load them by, and an index of several files."""
    files = {name: place for name, place in inside.items() if name and "/" not in name}
    weights = {name: place for name, place in files.items() if name.endswith((WEIGHTS_SUFFIX, *PICKLES))}
    first = next((place for place in (*files.values(), *inside.values()) if place is not None), None)
    if first is None:
        return  # the recipe makes all of it
    folder = Carried(first.repo, posixpath.dirname(first.path))
    where = folder.where
    if not weights:
        if any(name.endswith(INDEX_SUFFIX) for name in files):
            return  # what it lists is missing
        yield (
            folder,
            _missing(f"{where}: no weights for component {component}; there is {some(inside, 8)}", [component]),
        )
        return
    if library in _WITH_CONFIG and "config.json" not in files:
        yield folder, _missing(f"{where}: no config.json beside the weights of component {component}", [component])
    if any(name.endswith(".index.json") for name in files) or None in weights.values():
        return
    if numbered := [name for name in weights if numbered_of(name) > 1]:
        yield (
            folder,
            BrokenInput(
                f"{where}: {counted(len(numbered), 'numbered shard')} ({some(numbered)}) and no index that lists them",
                code="bad-index",
                hint="download the folder again, or pin a commit that has the index",
                where=where,
            ),
        )


def _missing(message: str, missing: list[str]) -> BrokenInput:
    return BrokenInput(
        message,
        code="component-missing",
        hint="pin an overlay and a source that belong together, or correct the entry's needs",
        missing=missing,
    )


def _file_problems(tree: Tree, components: Collection[str]) -> Iterator[Problem]:
    """Small files that are Git LFS pointers, and files of components that are named ``.json`` and hold none."""
    wanted: dict[str, Carried] = {}
    for path, place in tree.items():
        if place is None:
            continue
        try:
            if _is_read(path, place, components):
                wanted[path] = place
        except BrokenInput as error:
            yield place, error
    wanted = dict(list(wanted.items())[:_MOST_READ])
    _bring(wanted.values())
    for path, place in wanted.items():
        try:
            _look_at(path, place, is_json=_is_json(path, components))
        except BrokenInput as error:
            yield place, error


def _is_read(path: str, place: Carried, components: Collection[str]) -> bool:
    """Whether a file is small enough to be a pointer, or to be parsed; none whose size only a connection would tell."""
    with suppress(NotHere):
        size = place.repo.size(place.path)
        return size < POINTER_LIMIT or (_is_json(path, components) and size <= MAX_CHECKED_FILE)
    return False


def _look_at(path: str, place: Carried, *, is_json: bool) -> None:
    try:
        data = place.repo.read_bytes(place.path)
    except NotHere as error:
        if is_json or error.code != "not-cached":
            raise
        return  # a lock knows such files by digest, and looked at them when it was made
    if is_json:
        _check_json(data, place.where, is_object=posixpath.basename(path) == "config.json")


def _is_json(path: str, components: Collection[str]) -> bool:
    """Whether a file has to hold JSON; an index is read for what it lists."""
    folder, _, name = path.partition("/")
    return folder in components and "/" not in name and name.endswith(".json") and not name.endswith(INDEX_SUFFIX)


def _check_json(data: bytes, where: str, *, is_object: bool) -> None:
    if problem := why_no_json(data, is_object=is_object):
        hint = "download the file again, or pin a commit that has it"
        raise BrokenInput(f"{where}: {problem}", code="bad-json", hint=hint, where=where)


def _check_shards(shards: Mapping[str, str], tree: Tree, index: Carried) -> None:
    if missing := [shard for shard, path in shards.items() if path not in tree]:
        raise BrokenInput(
            f"{index.where}: {len(missing)} of {counted(len(shards), 'shard')} missing: {some(missing, 20)}",
            code="missing-shards",
            hint="incomplete download? download the folder again",
            where=index.where,
            missing=missing,
        )


def _bring(places: Iterable[Carried]) -> None:
    """Several files at once: one after the other they take a minute on a real Hub."""
    by_repo: dict[str, tuple[Repo, list[str]]] = {}
    for repo, path in places:
        by_repo.setdefault(repo.repo, (repo, []))[1].append(path)
    for repo, paths in by_repo.values():
        with suppress(NotHere, BrokenInput):  # reading it says which
            repo.fetch(paths)
