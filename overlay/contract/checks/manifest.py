"""The overlay's own papers: its manifest, the script that this names, and its model index."""

from __future__ import annotations

from typing import TYPE_CHECKING

from overlay.contract.finding import found
from overlay.contract.reading import is_broken, said
from overlay.errors import OverlayError
from overlay.formats.manifest import read_manifest
from overlay.formats.model_index import INDEX_NAMES, read_model_index
from overlay.formats.overlay_repo import MANIFEST_PATH
from overlay.formats.wording import shown

if TYPE_CHECKING:
    from collections.abc import Iterator

    from overlay.contract.finding import Finding
    from overlay.contract.subject import Subject
    from overlay.formats.manifest import Manifest
    from overlay.hub import Repo

__all__ = ["MOST_MAPPINGS", "MOST_PATTERNS", "check_manifest"]

MOST_MAPPINGS = 200
MOST_PATTERNS = 200
_MOST_REQUIRED = 10_000
"""Entries of a manifest that are followed; one with more is broken. The published ones have up to 12 of a kind."""


def check_manifest(subject: Subject) -> Iterator[Finding]:
    """``manifest-broken``: there is none, it cannot be read, or what it names of the overlay itself is not there."""
    overlay, pin = subject.inventory.overlay, subject.entry.overlay
    if overlay is None or pin is None:
        return
    bump = f"overlay bump {subject.entry.model}"
    for problem, mend in _problems(overlay):
        yield found(
            "manifest-broken",
            subject.entry,
            problem,
            place=pin.place,
            fix=f"{mend}, or go to a sound one: {bump}" if mend else bump,
            repo=overlay.repo,
        )


def _problems(overlay: Repo) -> Iterator[tuple[str, str | None]]:
    """What is wrong; and what whoever writes the overlay does about it, where that is known."""
    if MANIFEST_PATH not in overlay.paths():
        why = f"has no {MANIFEST_PATH}, so it is no overlay; a server would take it for a whole model"
        yield f"{overlay.name}: {why}", None
        return
    try:
        manifest = read_manifest(overlay)
    except OverlayError as error:
        if not is_broken(error):
            raise
        yield said(error), None
    else:
        yield from ((problem, None) for problem in _problems_of(manifest, overlay))
    index = next((name for name in INDEX_NAMES if name in overlay.paths()), None)
    if index is not None:
        try:
            read_model_index(overlay, index)
        except OverlayError as error:
            if not is_broken(error):
                raise
            yield said(error), error.hint if error.code == "bad-model-index" else None


def _problems_of(manifest: Manifest, overlay: Repo) -> Iterator[str]:
    where, script = overlay.where(MANIFEST_PATH), manifest.custom_materializer
    if script is not None and script not in overlay.paths():
        yield f"{where}: custom_materializer is {shown(script)}, which the overlay does not have; a server stops there"
    for field, count, most in (
        ("required_source_files", len(manifest.required_source_files), _MOST_REQUIRED),
        ("source_allow_patterns", len(manifest.source_allow_patterns or ()), MOST_PATTERNS),
        ("file_mappings", len(manifest.file_mappings), MOST_MAPPINGS),
    ):
        if count > most:
            yield f"{where}: {field} has {count} entries; expected at most {most}"
