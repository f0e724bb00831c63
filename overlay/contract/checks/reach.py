"""What a server's download never brings: files outside a manifest's patterns, and names that it insists against."""

from __future__ import annotations

import posixpath
from typing import TYPE_CHECKING

from overlay.contract.checks.manifest import MOST_PATTERNS
from overlay.contract.checks.required import requirements
from overlay.contract.finding import found
from overlay.contract.reading import MOST_DATA, folded_paths, serve_instead
from overlay.formats.adapters.find import SPEC_NAMES
from overlay.formats.wording import counted
from overlay.hub.repo import matches
from overlay.planning.vdn_h3 import BASE, BASE_FOLDERS

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from overlay.contract.finding import Finding
    from overlay.contract.subject import Subject
    from overlay.formats.manifest import Manifest

__all__ = ["check_reach"]

_NEVER = ("*.onnx", "*.msgpack")
"""What a server leaves out whatever the patterns say."""


def check_reach(subject: Subject) -> Iterator[Finding]:
    """``not-fetched`` and ``fallback-unreachable``."""
    yield from _not_fetched(subject)
    yield from _fallback_unreachable(subject)


def _not_fetched(subject: Subject) -> Iterator[Finding]:
    """Files that are there and needed, and that the manifest's patterns keep a server from."""
    manifest, overlay = subject.manifest, subject.entry.overlay
    if manifest is None or overlay is None:
        return
    needed = {one.path for one in requirements(subject) if one.repo is subject.source}
    needed.update(_weights_and_descriptions(subject, manifest))
    left_out = sorted(path for path in needed & {*subject.source.paths()} if not _is_fetched(path, manifest))
    if left_out:
        yield found(
            "not-fetched",
            subject.entry,
            f"source_allow_patterns of the overlay do not match {counted(len(left_out), 'file')} that the build needs:"
            f" {folded_paths(left_out)}; a server never downloads what no pattern matches",
            place=overlay.place,
            fix=f"{serve_instead(subject.entry)}, or pin another overlay",
            count=len(left_out),
            files=left_out[:MOST_DATA],
        )


def _fallback_unreachable(subject: Subject) -> Iterator[Finding]:
    """An adapter's description may have two names, but a server gets no further with one.

    Said only where the name that the manifest insists on is there; where it is not, that is ``file-renamed``.
    """
    manifest, overlay = subject.manifest, subject.entry.overlay
    if manifest is None or overlay is None:
        return
    required, present = set(manifest.required_source_files), set(subject.source.paths())
    ruled_out: list[tuple[str, str]] = []
    for adapter in subject.adapters:
        if adapter.repo is not subject.source or adapter.path in present:
            continue
        names = [posixpath.join(adapter.path, name) for name in SPEC_NAMES]
        here = [name for name in names if name in present]
        insisted = [name for name in here if name in required]
        others = [name for name in names if name not in required]
        if insisted and others:
            ruled_out.append((others[0], f"it requires {posixpath.basename(insisted[0])}"))
        elif any(_is_fetched(name, manifest) for name in here):
            blocked = [name for name in names if not _is_fetched(name, manifest)]
            ruled_out += [(name, "none of its source_allow_patterns matches that") for name in blocked]
    if ruled_out:
        first, why = ruled_out[0]
        folders = folded_paths(posixpath.dirname(path) for path, _ in ruled_out)
        yield found(
            "fallback-unreachable",
            subject.entry,
            f"an adapter's description may be called {posixpath.basename(first)} too, but the overlay's manifest rules"
            f" that out: {why} ({folders}); after a rename upstream a server fails before it reads either",
            place=overlay.place,
            fix=f"{serve_instead(subject.entry)}; the overlay's author can ask for neither name in"
            " required_source_files, and let the patterns match both",
            ruled_out=[path for path, _ in ruled_out],
        )


def _weights_and_descriptions(subject: Subject, manifest: Manifest) -> list[str]:
    """What a recipe reads of the source by folder; of an adapter's two names the one that a server gets, if it does."""
    folders = [f"{adapter.path}/" for adapter in subject.adapters if adapter.repo is subject.source]
    if subject.entry.recipe.name == "vdn-h3":
        folders += [f"{BASE}/{component}/" for component in BASE_FOLDERS]
    paths = [path for path in subject.source.paths() if path.startswith(tuple(folders))]
    needed = [path for path in paths if path.endswith((".safetensors", ".safetensors.index.json"))]
    for folder in folders:
        here = [path for path in paths if path in {f"{folder}{name}" for name in SPEC_NAMES}]
        if not any(_is_fetched(path, manifest) for path in here):
            needed += here
    return needed


def _is_fetched(path: str, manifest: Manifest) -> bool:
    if matches(path, _NEVER):
        return False
    patterns = manifest.source_allow_patterns
    return patterns is None or len(patterns) > MOST_PATTERNS or matches(path, _as_the_client(patterns))


def _as_the_client(patterns: Sequence[str]) -> list[str]:
    """The Hub's client takes a pattern that ends in a slash for everything below that folder."""
    return [f"{pattern}*" if pattern.endswith("/") else pattern for pattern in patterns]
