"""Files that something asks for by name, and the source lacks; with where they went, as far as that can be told."""

from __future__ import annotations

import difflib
import posixpath
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from overlay.contract.checks.manifest import MOST_MAPPINGS
from overlay.contract.finding import found
from overlay.contract.reading import MOST_DATA, folded_paths, is_below, pin_of, unless_broken
from overlay.errors import BrokenInput, NotHere
from overlay.formats.adapters.find import SPEC_NAMES, find_adapter
from overlay.formats.manifest import FileMapping
from overlay.formats.wording import named, shown
from overlay.planning.mappings import select
from overlay.planning.renames import Former, find_renames
from overlay.planning.vdn_h3 import STAGES, small_files

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from overlay.contract.finding import Finding
    from overlay.contract.subject import AdapterPlace, Subject
    from overlay.hub import Repo
    from overlay.planning.renames import Rename
    from overlay.registry import Place, Recipe

__all__ = ["Requirement", "check_required", "requirements"]

_WEIGHTS = "adapter_model.safetensors"
_LISTED = 5
_BESIDE = 8
_COMPARED = 2000
"""Files whose names are compared with a misspelt one."""


@dataclass(frozen=True, slots=True)
class Requirement:
    """A file, or for a mapping or a recipe's place a folder or pattern, that something asks for.

    Attributes:
        by: Who asks: the beginning of a sentence that ends with the path.
        place: Where the registry has what one would change.
    """

    repo: Repo
    path: str
    by: str
    place: Place


def check_required(subject: Subject) -> Iterator[Finding]:
    """``file-renamed`` and ``file-missing``: whatever is asked for by name and not there."""
    wanted: dict[str, list[Requirement]] = defaultdict(list)
    for requirement in requirements(subject):
        wanted[requirement.repo.repo].append(requirement)
    for asked in wanted.values():
        repo = asked[0].repo
        there = set(repo.paths())
        missing = [requirement for requirement in asked if requirement.path not in there]
        if not missing:
            continue
        former = _former(subject, repo)
        renames = find_renames(repo, [requirement.path for requirement in asked], former)
        yield from _renamed(subject, missing, renames)
        yield from _missing(subject, [one for one in missing if one.path not in renames], former)


def requirements(subject: Subject) -> tuple[Requirement, ...]:
    """Everything that is asked for by name, each path of a repo once; who asks first says why."""
    every = [*_of_manifest(subject), *_of_recipe(subject)]
    return tuple({(one.repo.repo, one.path): one for one in reversed(every)}.values())[::-1]


def _of_manifest(subject: Subject) -> Iterator[Requirement]:
    manifest, entry = subject.manifest, subject.entry
    if manifest is None or entry.overlay is None:
        return
    for path in manifest.required_source_files:
        yield Requirement(subject.source, path, "the overlay requires", entry.overlay.place)
    for mapping in manifest.file_mappings[:MOST_MAPPINGS]:
        by = f"the overlay's {mapping.type} mapping takes"
        if isinstance(mapping, FileMapping) or not select(mapping, subject.source.paths()):
            yield Requirement(subject.source, mapping.src, by, entry.overlay.place)


def _of_recipe(subject: Subject) -> Iterator[Requirement]:
    recipe, source = subject.entry.recipe, subject.entry.source
    by = f"recipe {recipe.name} reads"
    place = source.place if recipe.name == "vdn-h3" else recipe.place
    if recipe.name == "vdn-h3" and recipe.options["stage"] in STAGES:
        for name in (*small_files(recipe.options["stage"]), *([subject.branch] if subject.branch else [])):
            yield Requirement(subject.source, name, by, place)
    elif recipe.name == "lora" and subject.base is not None:
        repo, path = subject.base
        if path and not any(is_below(name, path) for name in repo.paths()):
            yield Requirement(repo, path, by, place)
    for one in _carried_places(recipe):
        repo, path = subject.inventory.repos[one["repo"]], one["path"]
        if path and not any(is_below(name, path) for name in repo.paths()):
            yield Requirement(repo, path, f"recipe {recipe.name} takes", place)
    for adapter in subject.adapters:
        if lacks := _lacks(subject, adapter):
            yield Requirement(adapter.repo, lacks, by, place)


def _carried_places(recipe: Recipe) -> tuple[Mapping[str, str], ...]:
    """Places whose files are taken over as they are; base and adapters are read."""
    read = (recipe.options["base"], *recipe.options["adapters"]) if recipe.name == "lora" else ()
    return recipe.places[len(read) :]


def _lacks(subject: Subject, adapter: AdapterPlace) -> str | None:
    """The file that an adapter lacks for its reader, by the name that it had or should have; None where it has all.

    Nothing where the manifest requires a file of the adapter that is absent: that is the same cause.
    """
    repo, folder = adapter.repo, adapter.path
    manifest = subject.manifest if repo is subject.source else None
    if manifest and any(
        posixpath.dirname(path) == folder for path in {*manifest.required_source_files} - {*repo.paths()}
    ):
        return None
    try:
        find_adapter(repo, folder)
    except (BrokenInput, NotHere) as error:  # whatever else is wrong with it is found where it is read for its meaning
        if error.code == "no-such-adapter":
            return folder
        if error.code == "adapter-spec-missing":
            names = [posixpath.join(folder, name) for name in SPEC_NAMES]
            former = _former(subject, repo)
            return next((name for name in names if name in former), names[0])
        if error.code == "adapter-file" and not error.data.get("files", True):
            return posixpath.join(folder, _WEIGHTS)
    return None


def _former(subject: Subject, repo: Repo) -> Mapping[str, Former]:
    """The files of a repo as they were before the change; else as the lock has them."""
    if subject.before is not None:
        then = subject.before.inventory.repos.get(repo.repo)
        sizes = ((path, unless_broken(then.size, path)) for path in then.paths()) if then else ()
        return {path: Former(size, repo=then) for path, size in sizes if size is not None and then is not None}
    locked = subject.locked.repos.get(repo.repo) if subject.locked else None
    return {path: Former(file.size, file.digest) for path, file in (locked.files if locked else {}).items()}


def _renamed(subject: Subject, missing: Sequence[Requirement], renames: Mapping[str, Rename]) -> Iterator[Finding]:
    """One finding for all files that were renamed alike, such as the descriptions of all adapters."""
    alike: dict[tuple[str, str, str], list[Requirement]] = defaultdict(list)
    for one in missing:
        if rename := renames.get(one.path):
            alike[one.by, posixpath.basename(one.path), posixpath.basename(rename.found)].append(one)
    for group in alike.values():
        first = group[0]
        evidence = dict.fromkeys(renames[one.path].evidence for one in group[:_LISTED])
        names = dict.fromkeys(renames[one.path].shown for one in group)
        message = (
            f"{first.by} {folded_paths([one.path for one in group], _LISTED)}; {_name(subject, first.repo)} has"
            f" {'them' if len(group) > 1 else 'it'} as {folded_paths(names, _LISTED)} ({'; '.join(evidence)})"
        )
        facts = [
            {"path": one.path, "found": renames[one.path].found, "evidence": renames[one.path].evidence}
            for one in group[:MOST_DATA]
        ]
        yield found(
            "file-renamed",
            subject.entry,
            message,
            place=first.place,
            fix=f"overlay bump {subject.entry.model}",
            repo=first.repo.repo,
            renames=facts,
        )


def _missing(subject: Subject, missing: Sequence[Requirement], former: Mapping[str, Former]) -> Iterator[Finding]:
    """One finding for all files that one side asks for."""
    by_whom: dict[str, list[Requirement]] = defaultdict(list)
    for one in missing:
        by_whom[one.by].append(one)
    for group in by_whom.values():
        first = group[0]
        what = f"{len(group)} files" if len(group) > 1 else shown(first.path)
        listed = f": {folded_paths([one.path for one in group], _LISTED)}" if len(group) > 1 else ""
        message = f"{first.by} {what}; {_name(subject, first.repo)} lacks {'them' if listed else 'it'}{listed}"
        message += f"; {_beside(first)}"
        then = next((file for path, file in former.items() if is_below(path, first.path)), None)
        if then:
            message += f"; it was there {f'at {then.repo.revision[:12]}' if then.repo else 'when this was locked'}"
        yield found(
            "file-missing",
            subject.entry,
            message,
            place=first.place,
            fix=_fix(subject, first, was_there=then is not None),
            repo=first.repo.repo,
            count=len(group),
            missing=[one.path for one in group[:MOST_DATA]],
        )


def _fix(subject: Subject, one: Requirement, *, was_there: bool) -> str:
    """What the entry itself names and nobody ever had is a slip of the pen; else another commit may have the file."""
    if was_there or one.place != subject.entry.recipe.place:
        return f"overlay bump {subject.entry.model}"
    files = one.repo.paths()[:_COMPARED]
    near = difflib.get_close_matches(one.path, {*files, *map(posixpath.dirname, files)}, n=1)
    return f"correct the path in the recipe{f'; the nearest is {shown(near[0])}' if near else ''}"


def _beside(one: Requirement) -> str:
    """What lies where the file should be; for an adapter's description, the names that were looked for."""
    folder, name = posixpath.split(one.path)
    prefix = f"{folder}/" if folder else ""
    names = dict.fromkeys(
        path.removeprefix(prefix).partition("/")[0] for path in one.repo.paths() if path.startswith(prefix)
    )
    place = shown(folder) if folder else "the repo"
    if not names:
        return f"there is no folder {place}"
    tried = (
        f"neither {' nor '.join(SPEC_NAMES)} is there; "
        if name in SPEC_NAMES and not set(SPEC_NAMES) & {*names}
        else ""
    )
    return f"{tried}{place} has {named(names, _BESIDE)}"


def _name(subject: Subject, repo: Repo) -> str:
    return "the source" if repo is subject.source else str(pin_of(subject.entry, repo))
