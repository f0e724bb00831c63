"""Checks of an entry against its lock: is there one, is it of these pins, and did a licence change since."""

from __future__ import annotations

from typing import TYPE_CHECKING

from overlay.contract.facts import sha256_of
from overlay.contract.finding import found
from overlay.formats.licenses import is_license
from overlay.registry.load import is_packaged
from overlay.registry.lock import recipe_json

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from overlay.contract.finding import Finding
    from overlay.contract.subject import Subject
    from overlay.hub import Repo
    from overlay.registry import Pin, Resolution
    from overlay.registry.lock import LockedModel, LockedRepo

__all__ = ["check_lock", "staleness"]


def check_lock(subject: Subject) -> Iterator[Finding]:
    """Whether there is a lock of these pins, and licences that changed."""
    yield from staleness(subject.inventory.resolution, subject.locked)
    yield from _licenses(subject)


def staleness(resolution: Resolution, locked: LockedModel | None) -> Iterator[Finding]:
    """Whether there is a lock, and of this entry; no repo is looked at."""
    entry = resolution.entry
    if locked is None:
        can_be_locked = all(pin.revision is not None for pin in entry.pins)  # else that is said of the pin
        if can_be_locked and not is_packaged(entry.place.file):  # a project locks the entries of its own file
            message = "not in the lock, so nothing says what its commits held"
            yield found("lock-missing", entry, message, fix=f"overlay lock {entry.model}")
        return
    differences = locked.differences(entry)
    if differences:
        changed = [pin for pin in entry.pins if _locked_elsewhere(pin, locked.repos)]
        yield found(
            "lock-stale",
            entry,
            f"the lock was made for another entry: {'; '.join(differences)}",
            place=changed[0].place if changed else entry.recipe.place if locked.recipe != recipe_json(entry) else None,
            fix=_relock(resolution),
            differences=list(differences),
        )


def _relock(resolution: Resolution) -> str | None:
    """The command that makes the lock one of this entry; None where nobody writes it."""
    if is_packaged(resolution.registry_path):
        return None
    # Of a model that is in the file no more, it takes the lock away.
    return "overlay lock" if is_packaged(resolution.entry.place.file) else f"overlay lock {resolution.entry.model}"


def _locked_elsewhere(pin: Pin, repos: Mapping[str, LockedRepo]) -> bool:
    return pin.repo not in repos or repos[pin.repo].revision != pin.revision


def _licenses(subject: Subject) -> Iterator[Finding]:
    """Licence files that are not what they were: before the change that is checked, else when it was locked."""
    for role, repo, pin in _roles(subject):
        before = _licenses_before(subject, role, repo)
        if before is None:
            continue
        now = {path: sha256_of(repo, path) for path in repo.paths() if is_license(path)}
        changes = [
            *(f"{path} is new" for path in sorted(now.keys() - before.keys())),
            *(f"{path} is gone" for path in sorted(before.keys() - now.keys())),
            *(f"{path} changed" for path in sorted(now.keys() & before.keys()) if now[path] != before[path]),
        ]
        if changes:
            yield found(
                "license-changed",
                subject.entry,
                f"{repo.name}: {', '.join(changes)}",
                place=pin.place,
                fix="read it at both commits before you deploy; a lock of the new pins takes it as read",
                repo=repo.repo,
                changes=changes,
            )


def _roles(subject: Subject) -> Iterator[tuple[str, Repo, Pin]]:
    """What each repo is to the model: a source stays the source where its name changes."""
    entry, inventory = subject.entry, subject.inventory
    yield "source", inventory.source, entry.source
    if inventory.overlay is not None and entry.overlay is not None:
        yield "overlay", inventory.overlay, entry.overlay
    for need in entry.needs:
        yield need.pin.repo, inventory.needs[need.pin.repo], need.pin


def _licenses_before(subject: Subject, role: str, repo: Repo) -> Mapping[str, str] | None:
    """sha256 of the licence files by path; None where nothing is known of other pins."""
    if subject.before is not None:
        for other, former, _ in _roles(subject.before):
            if other == role and (former.repo, former.revision) != (repo.repo, repo.revision):
                return {path: sha256_of(former, path) for path in former.paths() if is_license(path)}
        return None
    section = subject.locked.repos.get(repo.repo) if subject.locked else None
    if section is None or not section.complete or section.revision == repo.revision:
        return None
    return {path: section.files[path].sha256 for path in section.licenses if path in section.files}
