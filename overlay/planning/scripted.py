"""Recipe ``python``: what the overlay's own script is given, and what it gave.

What a script writes is known only once it ran. Until then a plan has the files that it finds in its output folder, the
overlay's own and those that the manifest maps, and the script with everything that it is given. That is the action key:
the same key, the same files.
"""

from __future__ import annotations

import sys
from contextlib import suppress
from dataclasses import dataclass, replace
from importlib import metadata
from typing import TYPE_CHECKING, Any

from overlay.consumers.sglang.asked import is_fetched
from overlay.consumers.sglang.fingerprint import enters_fingerprint, overlay_fingerprint
from overlay.errors import BrokenInput, Untrusted
from overlay.fingerprint import action_key, bytes_digest
from overlay.formats.tree_files import why_not_by_name
from overlay.planning.mappings import mapped
from overlay.planning.plan import finish
from overlay.planning.sources import Outcome
from overlay.registry import COMMIT, LOCAL

if TYPE_CHECKING:
    from collections.abc import Iterable

    from overlay.formats.manifest import Manifest
    from overlay.planning.outputs import Input, OutputFile
    from overlay.planning.plan import InputBook
    from overlay.planning.sources import Sources
    from overlay.registry import Entry, ScriptLimits, Wheel

__all__ = ["GivenRepo", "Script", "environment", "python", "script_key", "source_files"]

# Raise by hand whenever a script is given its inputs in another way.
_RUNNER_VERSION = 3

_COMPUTES = ("torch", "numpy", "safetensors")
"""Packages whose release may decide the bytes of what a script computes and writes."""

_SECONDS = 4 * 3600
_MEMORY = 64 * 2**30  # a script may hold whole shards, or all of a VAE
_PROCESSES = 1024  # torch starts one thread for each core
_DISK = 2**30  # beside twice its inputs


@dataclass(frozen=True, slots=True)
class GivenRepo:
    """A repo of the entry's needs, as the script finds it in its Hub cache."""

    repo: str
    revision: str
    files: tuple[Input, ...]


@dataclass(frozen=True, slots=True)
class Script:
    """The overlay's own Python and all that it is given.

    Attributes:
        overlay_name: The overlay, for messages.
        path: In the overlay.
        sha256: 64 hex digits; what the entry pins.
        code: The script.
        overlay: The overlay's files, by path.
        source: Files of the source, those that the manifest's patterns select.
        needs: Secondary repos.
        wheels: Importable beside what is installed.
        finds: What is in its output folder when it starts: the overlay's own files, and what the manifest maps, as far
            as a script may leave such files.
        limits: What it may take, complete.
    """

    overlay_name: str
    path: str
    sha256: str
    code: bytes
    overlay: dict[str, bytes]
    source: tuple[Input, ...]
    needs: tuple[GivenRepo, ...]
    wheels: tuple[Wheel, ...]
    finds: tuple[OutputFile, ...]
    limits: ScriptLimits

    @property
    def given(self) -> tuple[Input, ...]:
        """Every file of source and needs."""
        return (*self.source, *(item for need in self.needs for item in need.files))


def python(entry: Entry, sources: Sources, _rule: str) -> Outcome:
    """The overlay's own files and the manifest's mappings, and the script that goes on from there.

    Raises:
        BrokenInput: The manifest names no script, or the overlay has none there; or a mapping finds nothing.
        Untrusted: The script is not the one that the entry pins.
    """
    overlay, source, manifest = sources.overlay, sources.source, sources.manifest
    if overlay is None or manifest is None or manifest.custom_materializer is None:
        raise BrokenInput(
            f"{entry.overlay}: its manifest names no custom_materializer, and the recipe python is what that makes",
            code="bad-manifest",
            hint="name: mappings, if the file mappings are all that there is",
        )
    path = manifest.custom_materializer
    code = overlay.files.read_bytes(path) if path in overlay.files.paths() else None
    if code is None:
        raise BrokenInput(
            f"{overlay.files.name}: its manifest names the script {path}, which is not there",
            code="required-file-missing",
            hint="pin a revision of the overlay that has it",
            missing=[path],
        )
    sha256 = bytes_digest(code, "sha256").partition(":")[2]
    _require_pinned(entry, overlay.files.where(path), sha256)
    given_overlay = _overlay_files(overlay, entry)
    _require_overlay_pinned(entry, given_overlay)
    given = source_files(source.files.paths(), manifest)
    source_given = tuple(source(name) for name in given)
    needs = tuple(_given(entry, sources))
    found = finish(mapped(sources, given), entry.model)
    script = Script(
        overlay_name=overlay.files.name,
        path=path,
        sha256=sha256,
        code=code,
        overlay=given_overlay,
        source=source_given,
        needs=needs,
        wheels=entry.wheels,
        finds=tuple(file for file in found if why_not_by_name(file.path) is None),
        limits=_limits(entry, (*source_given, *(item for need in needs for item in need.files))),
    )
    # What no script may leave, such as the overlay's own Python, is not its to change: it comes to the tree as it is.
    return Outcome([file for file in found if why_not_by_name(file.path) is not None], script=script)


def source_files(paths: Iterable[str], manifest: Manifest) -> list[str]:
    """The files of a source that a server fetches for this manifest, and those that the manifest requires."""
    required, patterns = {*manifest.required_source_files}, manifest.source_allow_patterns
    return [path for path in paths if path in required or is_fetched(path, patterns)]


def script_key(script: Script) -> str:
    """Action key of everything that a script is given; limits are no part of it.

    The releases of Python and of what computes are: a script's arithmetic is its own, so nobody knows which of them its
    bytes hang on.
    """
    document: dict[str, Any] = {
        "runner": _RUNNER_VERSION,
        "script": [script.path, script.sha256],
        "overlay": {path: bytes_digest(data, "sha256") for path, data in sorted(script.overlay.items())},
        "source": [[item.path, item.digest] for item in script.source],
        "needs": [[need.repo, need.revision, [[i.path, i.digest] for i in need.files]] for need in script.needs],
        "wheels": [str(wheel) for wheel in script.wheels],
        "environment": environment(),
    }
    return action_key(document)


def environment() -> dict[str, str]:
    """Releases that a script's bytes may hang on: of Python and of what it computes with, as far as it is installed."""
    found = {"python": f"{sys.version_info.major}.{sys.version_info.minor}"}
    for package in _COMPUTES:
        with suppress(metadata.PackageNotFoundError):
            found[package] = metadata.version(package)
    return found


def _limits(entry: Entry, given: Iterable[Input]) -> ScriptLimits:
    """Those of the entry; for the others, what suits scripts that write a model once."""
    said = entry.recipe.limits
    return replace(
        said,
        seconds=said.seconds or _SECONDS,
        memory=said.memory or _MEMORY,
        processes=said.processes or _PROCESSES,
        disk=said.disk or 2 * sum(item.size for item in given) + _DISK,
    )


def _given(entry: Entry, sources: Sources) -> Iterable[GivenRepo]:
    for need in entry.needs:
        book = sources.needs[need.pin.repo]
        folders = tuple(f"{component}/" for component in need.components)
        paths = [path for path in book.files.paths() if not folders or path.startswith(folders)]
        for folder in folders:
            if not any(path.startswith(folder) for path in paths):
                raise BrokenInput(
                    f"{book.files.name}: no file under {folder}",
                    code="component-missing",
                    hint="correct the entry's needs, or its revision",
                    folder=folder.rstrip("/"),
                )
        yield GivenRepo(book.repo, book.revision, tuple(book(path) for path in paths))


def _overlay_files(overlay: InputBook, entry: Entry) -> dict[str, bytes]:
    """What a script finds of its overlay: of a folder only what its fingerprint covers, so no compiled leftovers."""
    is_folder = entry.overlay is not None and entry.overlay.revision == LOCAL
    paths = [path for path in overlay.files.paths() if not is_folder or enters_fingerprint(path)]
    return {path: overlay.files.read_bytes(path) for path in paths}


def _require_overlay_pinned(entry: Entry, files: dict[str, bytes]) -> None:
    """The modules that a script imports from its overlay are as much its code as itself: a commit pins them all.

    Raises:
        Untrusted: The overlay is a folder or floats, and the entry does not pin its fingerprint either.
    """
    pin, pinned = entry.overlay, entry.overlay_fingerprint
    if pin is not None and pin.revision is not None and COMMIT.fullmatch(pin.revision):
        return
    found = overlay_fingerprint(files.items())
    if pinned == found:
        return
    said = f"the entry pins the fingerprint {pinned}" if pinned else "nothing pins its other files"
    raise Untrusted(
        f"{entry.model}: the overlay {pin} is at no commit, so the digest of its script says nothing of what the script"
        f" imports; its files have the fingerprint {found}, and {said}",
        code="overlay-not-pinned",
        hint="pin the overlay to a commit; or read its files, then write in the entry of"
        f" {entry.model}: overlay: {{fingerprint: {found}}}",
        model=entry.model,
        found=found,
        pinned=pinned,
    )


def _require_pinned(entry: Entry, where: str, sha256: str) -> None:
    pinned = entry.recipe.options.get("script")
    if pinned != sha256:
        raise Untrusted(
            f"{where}: has sha256 {sha256}, pinned is {pinned}",
            code="script-differs",
            hint=f"read the script; if you want it to run: script: {{sha256: {sha256}}} in the recipe of {entry.model}",
            where=where,
            model=entry.model,
            found=sha256,
            pinned=pinned,
        )
