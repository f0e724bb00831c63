"""Where a server looks for the output, held against what the registry says and against where it looked before."""

from __future__ import annotations

from typing import TYPE_CHECKING

from overlay.consumers import sglang
from overlay.contract.finding import found
from overlay.contract.reading import unless_broken
from overlay.formats.wording import shown
from overlay.planning.location import overlay_identity
from overlay.registry import LOCAL
from overlay.registry.recipe_words import recipe_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from overlay.contract.finding import Finding
    from overlay.contract.subject import Subject

__all__ = ["check_location", "differences"]

_SHORT = 12


def check_location(subject: Subject) -> Iterator[Finding]:
    """``fingerprint-differs``, ``source-revision-differs`` and ``location-changed``."""
    yield from _fingerprint_differs(subject)
    yield from _source_revision_differs(subject)
    yield from _location_changed(subject)


def _fingerprint_differs(subject: Subject) -> Iterator[Finding]:
    """The registry's fingerprint is not that of the overlay's files: what reads no file looks in a wrong place."""
    entry, now = subject.entry, _where(subject)
    said = entry.overlay_fingerprint
    if entry.overlay is None or now is None or said in (None, now[1]["overlay_fingerprint"]):
        return
    fingerprint = now[1]["overlay_fingerprint"]
    yield found(
        "fingerprint-differs",
        entry,
        f"the registry says that the files of {entry.overlay} have the fingerprint {_short(said)}, and they have"
        f" {_short(fingerprint)}: `overlay path` and `overlay resolve` look in a directory that no server uses",
        place=entry.fingerprint_place,
        fix=f"overlay bump {entry.model}",
        said=said,
        fingerprint=fingerprint,
    )


def _source_revision_differs(subject: Subject) -> Iterator[Finding]:
    """The overlay's manifest names another commit of the source than the entry."""
    entry, manifest = subject.entry, subject.manifest
    named = manifest.source_revision if manifest else None
    if not named or entry.source.revision in (None, LOCAL, named):
        return
    yield found(
        "source-revision-differs",
        entry,
        f"the overlay's manifest names {entry.source.repo} at {_short(named)}, the entry pins {entry.source}: a server"
        " that resolves the overlay by itself takes the manifest's, unless its own registry names one",
        place=entry.source.place,
        fix=f"overlay bump {entry.model} --source-to {named}",
        manifest=named,
        pinned=entry.source.revision,
    )


def _location_changed(subject: Subject) -> Iterator[Finding]:
    """The directory's name is another one than before the change, or than in the lock."""
    now = _where(subject)
    if now is None:
        return
    location, fields = now
    if subject.before is not None:
        then = _where(subject.before)
        former, why = (then[0], differences(then[1], fields)) if then else (None, "")
    else:
        # Of a lock of these very pins, it is the lock that differs.
        moved = subject.locked is not None and subject.locked.differences(subject.entry)
        former, why = (subject.locked.location if subject.locked and moved else None), _moved_pins(subject)
    if former in (None, location):
        return
    entry = subject.entry
    yield found(
        "location-changed",
        entry,
        f"a server looks in {location} now, and looked in {former} before{f': {why}' if why else ''};"
        " it finds nothing there until the model is built or linked",
        place=(entry.overlay or entry.source).place,
        fix=f"overlay prewarm {entry.model}",
        before=former,
        after=location,
    )


def _where(subject: Subject) -> tuple[str, Mapping[str, str]] | None:
    """A model's location and what it is named by; None where the overlay cannot be read, which is said elsewhere."""
    entry, overlay, manifest = subject.entry, subject.inventory.overlay, subject.manifest
    if overlay is None:
        pins = {pin.repo: str(pin.revision) for pin in entry.pins}
        return sglang.location_name(entry, None), {
            **pins,
            "recipe": recipe_text(entry.recipe.name, entry.recipe.options),
        }
    if manifest is None:
        return None
    identity = unless_broken(overlay_identity, entry, overlay, manifest)
    return (identity.location_name, identity.fields) if identity is not None else None


def differences(
    before: Mapping[str, str], after: Mapping[str, str], words: str = "{name} {before} is now {after}"
) -> str:
    """In words, which fields of two identities are not the same."""
    changed = [name for name in sorted(before.keys() | after.keys()) if before.get(name) != after.get(name)]
    return ", ".join(
        words.format(name=name, before=_short(before.get(name)), after=_short(after.get(name))) for name in changed
    )


def _moved_pins(subject: Subject) -> str:
    """What a lock tells of the reason: the pins that are not at the commit that was locked."""
    locked = subject.locked.repos if subject.locked else {}
    moved = [pin for pin in subject.entry.pins if pin.repo in locked and pin.revision != locked[pin.repo].revision]
    return ", ".join(f"{pin.repo} {_short(locked[pin.repo].revision)} is now {_short(pin.revision)}" for pin in moved)


def _short(value: str | None) -> str:
    if value is None:
        return "none"
    is_digest = len(value) > _SHORT and not set(value) - set("0123456789abcdef")
    return value[:_SHORT] if is_digest else shown(value)
