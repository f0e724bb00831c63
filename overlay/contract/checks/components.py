"""Components that the model index promises and that an entry takes, held against what comes to the tree."""

from __future__ import annotations

import difflib
from collections import defaultdict
from typing import TYPE_CHECKING, Any

from overlay.contract.finding import found
from overlay.contract.reading import MOST_DATA, folded_paths, is_broken, pin_of, said
from overlay.contract.tree import carried_needs, made_by, tree_of
from overlay.formats.files import PICKLES
from overlay.formats.model_index import INDEX_NAMES
from overlay.formats.wording import counted, named, shown
from overlay.planning.tree import component_problems, needs_weights

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from overlay.contract.finding import Finding
    from overlay.contract.subject import Subject
    from overlay.errors import OverlayError
    from overlay.planning.tree import Carried, Problem

__all__ = ["check_components"]

_CARRYING = ("vdn-h3", "python")
"""Recipes that take folders of the entry's needs; the others name every path themselves."""

_FIX = "name the repo that holds them among the entry's needs, or pin an overlay that fits the recipe"


def check_components(subject: Subject) -> Iterator[Finding]:
    """``component-missing`` and ``component-broken``: promised and not made, or not to be carried; or no use there.

    Also ``manifest-broken`` for an overlay whose tree would have no model index, and ``checkpoint-broken`` for shards
    that no index lists.
    """
    lacking: set[str] = set()
    for finding in _carried(subject):
        lacking.update(finding.data["missing"])
        yield finding
    tree, overlay = tree_of(subject), subject.inventory.overlay
    if tree is None:  # only the overlay's own Python knows the rest
        tree, overlay = carried_needs(subject), None
    pointers: dict[str, list[Problem]] = defaultdict(list)
    for place, error in component_problems(subject.entry, overlay, tree, made_by(subject)):
        if not is_broken(error):
            raise error
        code = _code(place, error)
        absent = error.data.get("missing", ())
        missing = [name for name in absent if name not in lacking]
        said_elsewhere = code == "manifest-broken" and place.repo is overlay and place.path in overlay.paths()
        if said_elsewhere or (absent and not missing):
            continue
        if error.code == "lfs-pointer" and code == "component-broken":
            pointers[place.repo.repo].append((place, error))
        else:
            yield _found(subject, code, place, said(error), missing=missing[:MOST_DATA])
    for alike in pointers.values():  # a clone without git-lfs has one in the place of every file that is kept so
        (place, error), *others = alike
        more = f"; {counted(len(others), 'other file')} likewise: {folded_paths([o.path for o, _ in others])}"
        paths = [place.path for place, _ in alike[:MOST_DATA]]
        yield _found(subject, "component-broken", place, said(error) + (more if others else ""), paths=paths)


def _found(subject: Subject, code: str, place: Carried, message: str, **facts: Any) -> Finding:
    fix = _FIX if code == "component-missing" else f"overlay bump {subject.entry.model}"
    pin = pin_of(subject.entry, place.repo)
    return found(code, subject.entry, message, place=pin.place, fix=fix, repo=place.repo.repo, path=place.path, **facts)


def _code(place: Carried, error: OverlayError) -> str:
    if error.code == "component-missing":
        return error.code
    if place.path.rpartition("/")[2] in INDEX_NAMES:
        return "manifest-broken"
    return "checkpoint-broken" if error.code == "bad-index" else "component-broken"


def _carried(subject: Subject) -> Iterator[Finding]:
    """Folders that the entry takes from its needs: there, and with weights where a server looks for some.

    A script takes of them what it likes, so nobody knows what it misses in one that is there.
    """
    if subject.entry.recipe.name not in _CARRYING:
        return
    is_script = subject.entry.recipe.name == "python"
    for need in subject.entry.needs:
        repo = subject.inventory.repos[need.pin.repo]
        for component in need.components:
            files = [path for path in repo.paths() if path.startswith(f"{component}/")]
            top = [path for path in files if path.count("/") == 1]
            if not files:
                problem = f"has no folder {shown(component)}; there is {named(sorted(_folders(repo.paths())), 8)}"
            elif (
                is_script
                or not needs_weights(component)
                or any(path.endswith((".safetensors", *PICKLES)) for path in top)
            ):
                continue
            elif any(path.endswith(".safetensors.index.json") for path in top):
                continue  # said by ``shard-missing``
            else:
                problem = (
                    f"has no weights in {shown(component)}; there is {folded_paths(top, 8) or 'no file but in folders'}"
                )
            yield found(
                "component-missing",
                subject.entry,
                f"{need.pin} {problem}; the entry takes {shown(component)} from it",
                place=pin_of(subject.entry, repo).place,
                fix=f"overlay bump {subject.entry.model}"
                if files
                else _fix(subject, component, _folders(repo.paths())),
                repo=repo.repo,
                missing=[component],
            )


def _fix(subject: Subject, component: str, folders: Iterable[str]) -> str:
    """Where the entry is free in what it takes, a name that nearly is one of the repo's was meant to be that."""
    near = difflib.get_close_matches(component, folders, n=1) if subject.entry.recipe.name != "vdn-h3" else []
    if near:
        return f"correct the name under components; the nearest is {shown(near[0])}"
    if subject.entry.recipe.name == "python":
        return "name the folders under components that the script reads, or leave components away"
    return f"overlay bump {subject.entry.model}"


def _folders(paths: Iterable[str]) -> set[str]:
    return {path.partition("/")[0] for path in paths if "/" in path}
