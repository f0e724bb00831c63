"""Commits that nobody gave, in the entry or in the overlay's script, and scripts that nobody has seen."""

from __future__ import annotations

from typing import TYPE_CHECKING

from overlay.contract.finding import found
from overlay.contract.reading import is_broken, serve_instead
from overlay.contract.scripts import KNOWN, known_for
from overlay.errors import OverlayError
from overlay.fingerprint import bytes_digest
from overlay.formats.files import MAX_CHECKED_FILE
from overlay.formats.wording import shown
from overlay.registry import LOCAL

if TYPE_CHECKING:
    from collections.abc import Iterator

    from overlay.contract.finding import Finding
    from overlay.contract.subject import Subject

__all__ = ["check_pins"]


def check_pins(subject: Subject) -> Iterator[Finding]:
    """``unpinned``, ``secondary-unpinned``, ``script-changed`` and ``script-unpinned``."""
    yield from _unpinned(subject)
    yield from _secondary_unpinned(subject)
    yield from _script_changed(subject)
    yield from _script_not_as_pinned(subject)


def _unpinned(subject: Subject) -> Iterator[Finding]:
    """Source, overlay or need without a commit."""
    for pin in subject.entry.pins:
        if pin.revision is not None:
            continue
        now = subject.inventory.repos[pin.repo].revision
        yield found(
            "unpinned",
            subject.entry,
            f"{pin.repo} has no commit ({pin.floating}), so what is built today may differ tomorrow",
            place=pin.place,
            fix=f"overlay bump {subject.entry.model}" if now == LOCAL else f"write revision: {now} (its head now)",
            repo=pin.repo,
            reason=pin.floating,
            revision=now,
        )


def _secondary_unpinned(subject: Subject) -> Iterator[Finding]:
    """The overlay's script takes a need of the entry from wherever its branch stands."""
    path, script = _script(subject)
    if script is None:
        return
    known = KNOWN.get(_sha256(script))
    for need in subject.entry.needs:
        repo, revision = need.pin.repo, need.pin.revision
        # A script that names the repo and not the commit cannot ask for the commit.
        floats = known is not None and repo in known.floating
        floats = floats or (repo.encode() in script and str(revision).encode() not in script)
        if revision is not None and floats:
            yield found(
                "secondary-unpinned",
                subject.entry,
                f"the overlay's {shown(path)} takes {repo} without a commit, and the entry pins it to {revision[:12]}:"
                " a server that builds this model by itself may get other files than are built here",
                place=need.pin.place,
                fix=serve_instead(subject.entry),
                repo=repo,
                revision=revision,
                script=path,
            )


def _script_changed(subject: Subject) -> Iterator[Finding]:
    """The recipe repeats what a script does, and the overlay has another one now."""
    entry, pin = subject.entry, subject.entry.overlay
    known = known_for(entry.recipe.name)
    path, script = _script(subject)
    if not known or script is None or pin is None or (sha256 := _sha256(script)) in known:
        return
    former = _former_script(subject)
    was = f"; it was {former[:12]} before" if former and former != sha256 else ""
    published = [(sha, one) for sha, one in known.items() if one.revision]
    repeated = ", ".join(f"{sha[:12]} ({one.said})" for sha, one in published)
    yield found(
        "script-changed",
        entry,
        f"{pin}: {shown(path)} has sha256 {sha256[:12]}{was}; recipe {entry.recipe.name} repeats {repeated}, and nobody"
        " has seen what the other does",
        place=pin.place,
        fix=f"overlay bump {entry.model} --overlay-to {published[-1][1].revision}",
        script=path,
        sha256=sha256,
        before=former,
        known=sorted(known),
    )


def _script_not_as_pinned(subject: Subject) -> Iterator[Finding]:
    """The recipe runs the overlay's own script, and the entry pins none, or another one."""
    entry = subject.entry
    path, script = _script(subject)
    if entry.recipe.name != "python" or script is None:
        return
    sha256, pinned = _sha256(script), entry.recipe.options.get("script")
    if pinned == sha256:
        return
    what = f"{entry.overlay}: {shown(path)} has sha256 {sha256}"
    pin = f"read it; if you want it to run: script: {{sha256: {sha256}}} in the recipe"
    facts = {"script": path, "sha256": sha256}
    if pinned is None:
        message = f"{what}, and the entry pins no script, so this model is not built here"
        yield found("script-unpinned", entry, message, place=entry.recipe.place, fix=pin, **facts)
    else:
        message = f"{what}; the entry lets {pinned[:12]} run, and nobody has seen what the other does"
        yield found("script-changed", entry, message, place=entry.recipe.place, fix=pin, before=pinned, **facts)


def _script(subject: Subject) -> tuple[str, bytes | None]:
    """Path and content of the overlay's script; no content where it has none that can be read."""
    overlay, manifest = subject.inventory.overlay, subject.manifest
    path = manifest.custom_materializer if manifest else None
    if overlay is None or path is None or path not in overlay.paths():
        return "", None  # one that is named and absent is ``manifest-broken``
    try:
        return path, overlay.read_bytes(path, MAX_CHECKED_FILE)
    except OverlayError as error:
        if is_broken(error):
            return path, b""  # too large for a script: no known one, whatever it says
        raise


def _former_script(subject: Subject) -> str | None:
    """sha256 of the script as it was before the change; else as the lock has it."""
    if subject.before is not None:
        _, script = _script(subject.before)
        return _sha256(script) if script is not None else None
    return subject.locked.script.sha256 if subject.locked and subject.locked.script else None


def _sha256(content: bytes) -> str:
    return bytes_digest(content, "sha256").partition(":")[2]
