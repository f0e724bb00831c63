"""What is to be adopted: a folder that a server built, the marker in it, and the model that both are of."""

from __future__ import annotations

import os
import shlex
import stat
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from overlay.errors import BrokenInput, CheckFailed, InvalidUsage, NotHere, OverlayError
from overlay.formats.folders import DEEPEST, too_deep
from overlay.formats.licenses import LICENSES_FOLDER
from overlay.formats.local import explain_os_error, read_small_file
from overlay.formats.materialized import MARKER_NAME, RECORD_NAME
from overlay.formats.strict_json import parse_object
from overlay.formats.wording import counted, some
from overlay.materialization.request import resolved
from overlay.materialization.resolve import prewarm_words
from overlay.planning.outputs import GeneratedFile

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping

    from overlay.materialization.request import Options
    from overlay.planning.plan import Plan
    from overlay.registry import Registry, Resolution

__all__ = [
    "Target",
    "check_marker",
    "entries_in",
    "files_in",
    "find_target",
    "read_marker",
    "require_files",
    "telling_what_else",
]

_FIELDS = {
    "source_model_id",
    "source_dir",
    "source_revision",
    "overlay_repo_id",
    "overlay_revision",
    "materializer_version",
    "overlay_fingerprint",
}
_LONGEST_MARKER = 2**16
_AT_FAULT = {"file-differs", "no-marker", "tree-differs"}


@dataclass(frozen=True, slots=True)
class Target:
    """What a user named.

    Attributes:
        folder: The folder, where one was named; None: what is at the model's location.
    """

    resolution: Resolution
    folder: Path | None


def find_target(target: str, registry: Registry, options: Options) -> Target:
    """A model's name, or a folder with a server's marker, which names the model.

    Raises:
        InvalidUsage: Neither a model nor a folder.
        NotHere: A folder without a marker.
        BrokenInput: The marker is none, or of a model that the registry does not have.
    """
    folder = Path(target)
    if target in registry.entries or not folder.is_dir():
        return Target(resolved(target, registry, options), None)
    if not os.path.lexists(folder / MARKER_NAME):
        try:
            return Target(resolved(target, registry, options), None)  # the source of a model, as for other commands
        except InvalidUsage as error:
            if error.code != "unknown-folder":
                raise
    folder = folder.resolve()
    model = read_marker(folder)["source_model_id"]
    if model not in registry.entries:
        raise BrokenInput(
            f"{folder / MARKER_NAME}: source_model_id is {str(model)[:200]!r}, which {registry.path} does not have",
            code="marker-differs",
            hint=f"known models: {', '.join(registry.entries)}",
            where=str(folder / MARKER_NAME),
            fields=["source_model_id"],
        )
    return Target(resolved(str(model), registry, options), folder)


def read_marker(folder: Path) -> Mapping[str, str | None]:
    """The marker that a server left in a folder, every field a text; ``source_revision`` may be None.

    Raises:
        NotHere: There is none: a server writes it last.
        BrokenInput: It is no such marker.
        OverlayError: It cannot be read (``formats.local``).
    """
    path = folder / MARKER_NAME
    if not os.path.lexists(path):
        raise NotHere(
            f"{folder}: has no {MARKER_NAME}, so no server finished it",
            code="no-marker",
            hint="name a folder that a server finished, or move this one away and build the model (overlay prewarm)",
            where=str(folder),
        )
    document = parse_object(read_small_file(path, _LONGEST_MARKER), str(path))
    wrong = {name for name, value in document.items() if not isinstance(value, str)}
    wrong -= {"source_revision"} if document.get("source_revision", "") is None else set()
    wrong |= document.keys() - _FIELDS
    wrong |= _FIELDS - {"source_revision", "overlay_fingerprint"} - document.keys()  # which older releases do not write
    if wrong:
        raise BrokenInput(
            f"{path}: {some(sorted(wrong))}: missing, unknown or no text; expected the marker of a known sglang",
            code="bad-marker",
            hint=f"expected fields: {', '.join(sorted(_FIELDS))}",
            where=str(path),
            fields=sorted(wrong),
        )
    return document


def check_marker(folder: Path, plan: Plan) -> None:
    """Hold the marker against the one that the pins give: every field but the folder that the source was in.

    Raises:
        CheckFailed: They differ; every such field is named.
        OverlayError: As :func:`read_marker`.
    """
    [expected] = [
        parse_object(output.data, MARKER_NAME)
        for output in plan.outputs
        if isinstance(output, GeneratedFile) and output.path == MARKER_NAME
    ]
    found = read_marker(folder)
    fields = [
        name
        for name in sorted(_FIELDS - {"source_dir"})
        # A release that does not hash a field leaves it out, or says null.
        if (found.get(name) or None) != (expected.get(name) or None)
    ]
    if fields:
        what = "; ".join(f"{name} is {_said(found, name)}, expected {_said(expected, name)}" for name in fields)
        raise CheckFailed(
            f"{folder / MARKER_NAME}: {what}",
            code="marker-differs",
            hint="say which server built it (--for sglang==VERSION, --with-override), or pin what it was built from",
            where=str(folder / MARKER_NAME),
            fields=fields,
        )


def _said(marker: Mapping[str, object], field: str) -> str:
    value = marker.get(field)
    return "not given" if value is None else repr(value)


def files_in(folder: Path) -> tuple[str, ...]:
    """Paths of every file and of every link to one below a folder.

    Raises:
        CheckFailed: Something that is neither a file nor a folder, or a link to a folder or to nothing.
        OverlayError: A folder cannot be read (``formats.local``).
    """
    found = []
    for name, entry in entries_in(folder).items():
        path = folder / name
        try:
            mode = path.stat().st_mode
        except OSError as error:
            raise _strange(path, error.strerror or str(error)) from error
        if stat.S_ISREG(mode):
            found.append(name)
        elif entry:
            raise _strange(path, "neither a file nor a link to one")
    return tuple(found)


def entries_in(folder: Path) -> dict[str, tuple[int, ...]]:
    """Everything below a folder by path, with what tells that it is still the same; empty for a folder.

    Of a link it is the link itself. Times of the last change of an inode are not asked, which our links move.

    Raises:
        OverlayError: A folder cannot be read (``formats.local``).
    """
    found: dict[str, tuple[int, ...]] = {}
    folders = [folder]
    while folders:
        place = folders.pop()
        if len(place.parts) - len(folder.parts) > DEEPEST:
            raise too_deep(place)
        try:
            with os.scandir(place) as entries:
                for entry in entries:
                    is_folder = entry.is_dir(follow_symlinks=False)
                    status = entry.stat(follow_symlinks=False)
                    path = Path(entry.path)
                    identity = (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)
                    found[path.relative_to(folder).as_posix()] = () if is_folder else identity
                    if is_folder:
                        folders.append(path)
        except OSError as error:
            raise explain_os_error(place, error) from error
    return found


def require_files(folder: Path, plan: Plan, found: Iterable[str], left_out: Collection[str] = ()) -> frozenset[str]:
    """Hold names against the plan.

    Args:
        left_out: What a server's tree may hold besides.

    Returns:
        Licence files that are not there: they come to every tree of this program, and to none of a server.

    Raises:
        CheckFailed: Files are missing, or there are more; all are named.
    """
    wanted = {output.path for output in plan.outputs}
    there = set(found) - {RECORD_NAME}
    absent = wanted - there
    own = {path for path in absent if path.startswith(f"{LICENSES_FOLDER}/")}
    missing, extra = sorted(absent - own), sorted(there - wanted - {*left_out})
    if missing or extra:
        said = [f"{counted(len(missing), 'file')} missing ({some(missing)})"] if missing else []
        said += [f"{counted(len(extra), 'file')} too many ({some(extra)})"] if extra else []
        raise CheckFailed(
            f"{folder}: {' and '.join(said)}",
            code="tree-differs",
            hint="it is unfinished, damaged or changed; move it away, then build the model (overlay prewarm)",
            where=str(folder),
            missing=missing,
            extra=extra,
        )
    return frozenset(own)


def _strange(path: Path, what: str) -> CheckFailed:
    return CheckFailed(
        f"{path}: {what}",
        code="tree-differs",
        hint="it is unfinished, damaged or changed; move it away, then build the model (overlay prewarm)",
        where=str(path),
        missing=[],
        extra=[],
    )


@contextmanager
def telling_what_else(resolution: Resolution, options: Options) -> Iterator[None]:
    """Whoever finds a folder at fault does not know of which model it is; the hint is to name the command."""
    try:
        yield
    except OverlayError as error:
        if error.code in _AT_FAULT:
            command = shlex.join(["overlay", *prewarm_words(resolution.model, resolution, options)])
            error.hint = f"it is unfinished, damaged or of other inputs; move it away, then build the model: {command}"
        raise
