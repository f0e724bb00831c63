"""Check of what the lock says of today's pins: whether locking them now would write the same."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from overlay.contract.facts import is_large, lock_model
from overlay.contract.finding import found
from overlay.formats.wording import counted, some
from overlay.registry.load import is_packaged, relock_hint

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from overlay.contract.finding import Finding
    from overlay.contract.subject import Subject
    from overlay.hub import Repo
    from overlay.planning.plan import Plan
    from overlay.registry import Pin, Place
    from overlay.registry.lock import Expected, LockedAdapter, LockedFile, LockedModel, LockedRepo

__all__ = ["check_facts"]


def check_facts(subject: Subject, plan: Plan | None) -> Iterator[Finding]:
    """Whether a lock of these pins says what is there: of each repo, then of what follows from the files.

    The output that it expects takes a build to be told: of that, only which files there are. Of a large file in a
    folder the size and the header have to do, until it is used.

    Args:
        plan: Of the model; None where there is none, and then the files that are locked are all that is compared.
    """
    locked, entry = subject.locked, subject.entry
    if locked is None:
        return
    now = None
    if not locked.differences(entry) and (plan is not None or entry.recipe.name == "python"):
        now = lock_model(subject, plan, believed=locked)
    is_found = False
    for pin in entry.pins:
        for finding in _repo(subject, locked, pin, now):
            is_found = True
            yield finding
    if now is None or is_found:  # the rest follows from the files
        return
    known = plan if plan is not None and plan.script is None else None  # else what it makes is known when it was made
    lines = [*_derived(locked, now), *(_expected(locked.expected, known) if locked.expected and known else ())]
    if lines:
        yield _found(subject, f"the lock is not of what is there: {'; '.join(lines)}", entry.recipe.place, lines=lines)


def _repo(subject: Subject, locked: LockedModel, pin: Pin, now: LockedModel | None) -> Iterator[Finding]:
    """Everything about one repo that its commit has otherwise, in one finding."""
    repo, section = subject.inventory.repos.get(pin.repo), locked.repos.get(pin.repo)
    if repo is None or section is None or repo.revision != section.revision:
        return
    facts = now.repos[pin.repo] if now else None
    present = set(repo.paths())
    absent = sorted(path for path in section.files if path not in present)
    different = {
        path: differs
        for path, file in sorted(section.files.items())
        if path in present and (differs := _differs(file, repo, path, facts, is_whole=section.complete))
    }
    unlocked: list[str] = []
    unused: list[str] = []
    lines: list[str] = []
    if facts is not None and section.complete:
        unlocked = sorted(facts.files.keys() - section.files.keys())
        unused = sorted((section.files.keys() & present) - facts.files.keys())
        if section.licenses != facts.licenses:
            lines.append(f"licenses: {_listed(section.licenses)}, it has {_listed(facts.licenses)}")
    elif facts is not None and not is_packaged(subject.inventory.resolution.registry_path):
        lines.append("complete: false, which only the lock that ships with this program may be")
    groups = {"absent": absent, "different": [f"{path} ({', '.join(names)})" for path, names in different.items()]}
    groups |= {"not in the lock": unlocked, "not needed": unused}
    said = [f"{name}: {', '.join(paths)}" for name, paths in groups.items() if paths]
    if not said and not lines:
        return
    num_files = len(absent) + len(different) + len(unlocked) + len(unused)
    what = [f"{counted(num_files, 'file')} not as the lock says: {'; '.join(said)}"] if said else []
    yield _found(
        subject,
        f"{repo.name}: {'; '.join([*what, *lines])}",
        pin.place,
        repo=repo.repo,
        absent=absent,
        different=list(different),
        unlocked=unlocked,
        unused=unused,
        lines=lines,
    )


def _differs(locked: LockedFile, repo: Repo, path: str, facts: LockedRepo | None, *, is_whole: bool) -> list[str]:
    """Names of what a lock says of a file otherwise; what it does not say is nothing to compare."""
    size, now = repo.size(path), facts.files.get(path) if facts else None
    digest = now.digest if now else "" if is_large(repo, path) else repo.digest(path)
    names = []
    if locked.difference(size, digest):
        names.append("size" if size != locked.size else "sha256")
    if now is not None:
        names += [
            name
            for name in ("tensors", "header")
            if getattr(locked, name) != getattr(now, name) and (is_whole or getattr(locked, name) is not None)
        ]
    return names


def _derived(locked: LockedModel, now: LockedModel) -> Iterator[str]:
    """What follows from the files: location, script, adapters."""
    if locked.location != now.location:
        yield f"location {locked.location}, it is {now.location}"
    is_partial = not all(section.complete for section in locked.repos.values())
    if locked.script != now.script and not (is_partial and locked.script is None):
        yield "the overlay's script"
    known, there = ({item.name: item for item in adapters} for adapters in (locked.adapters, now.adapters))
    for name in sorted(known.keys() - there.keys()):
        yield f"adapter {name}, which there is not"
    for name in () if is_partial else sorted(there.keys() - known.keys()):
        yield f"no adapter {name}, which there is"
    for name in sorted(known.keys() & there.keys()):
        if fields := _fields(known[name], there[name]):
            yield f"adapter {name}: {', '.join(fields)}"
    if list(known) != list(there) and known.keys() == there.keys():
        yield f"the order of adapters, it is {', '.join(there)}"


def _fields(locked: LockedAdapter, now: LockedAdapter) -> list[str]:
    """Names of the fields that differ; where a fact is from is none of them."""
    return [
        name for name in type(locked).model_fields if name != "source" and getattr(locked, name) != getattr(now, name)
    ]


def _expected(expected: Expected, plan: Plan) -> Iterator[str]:
    """Files of the expected output that the plan does not make, and files that it makes which nobody expects."""
    made = {output.path for output in plan.outputs}
    if unknown := sorted(expected.files.keys() - made):
        yield f"expected output: {some(unknown)}, which no build of these pins makes"
    if missing := sorted(made - expected.files.keys()):
        yield f"expected output: without {some(missing)}, which every build makes"


def _listed(paths: Sequence[str]) -> str:
    return ", ".join(paths) or "none"


def _found(subject: Subject, message: str, place: Place, **data: Any) -> Finding:
    entry, registry = subject.entry, subject.inventory.resolution.registry_path
    fix = relock_hint(registry, entry.model)
    return found("lock-differs", entry, message, place=place, fix=fix, **data)
