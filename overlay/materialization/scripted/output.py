"""What a script left, taken over: each file is hashed and made an object; what is an input is carried as one."""

from __future__ import annotations

import os
from codecs import BOM_UTF8
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from overlay.cache import is_small
from overlay.consumers import sglang
from overlay.errors import BrokenInput, OverlayError
from overlay.fingerprint import file_digest
from overlay.formats.files import MAX_CHECKED_FILE, safe_path
from overlay.formats.header import read_header
from overlay.formats.local import open_file, read_span
from overlay.formats.materialized import OURS
from overlay.formats.strict_json import why_no_json
from overlay.formats.tree_files import LOOKED_AT, why_no_data, why_not_by_name
from overlay.formats.wording import format_bytes, some
from overlay.planning.outputs import AliasFile, CarriedFile, GeneratedFile, ScriptedFile
from overlay.planning.plan import finish

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from pathlib import Path

    from overlay.cache import Cache
    from overlay.materialization.request import Phase
    from overlay.materialization.scripted.stage import Stage
    from overlay.planning.outputs import Input, OutputFile
    from overlay.sandbox import LeftFile

__all__ = ["check_output", "take_output"]

_MOST_HASHED = 8
"""Files at a time."""

_IN_OURS = tuple(f"{name}/" for name in OURS)


def check_output(files: Sequence[LeftFile], stage: Stage, where: str) -> None:
    """Refuse what is no file of a model, and what no server would load.

    That is: files of a kind that is not known to hold data alone, files that are not what their name says, no model
    index, a component that is none, weights that are none.

    Raises:
        BrokenInput: It is that.
    """
    for file in files:
        _check_file(file, stage, where)
    try:
        finish([GeneratedFile(file.path, b"") for file in files], "its output")
    except BrokenInput as error:  # two names that some filesystem takes for one
        raise _bad(where, error.message, str(error.data.get("path", "."))) from error
    if why := sglang.why_incomplete(stage.output, sglang.release_of(None), by_path=True):
        raise _bad(where, f"left a tree that no server loads: {some(why).replace(f'{stage.output}/', '')}", ".")


def _check_file(file: LeftFile, stage: Stage, where: str) -> None:
    path = file.path
    if path in OURS:
        return
    try:
        safe_path(path, "output")
        if (
            why := "a folder in the place of a file of ours" if path.startswith(_IN_OURS) else why_not_by_name(path)
        ) is not None:
            raise _bad(where, f"left {path}: {why}", path)
        if path.lower().endswith(".safetensors"):
            read_header(stage.output / path)
            return
        with open_file(stage.output / path) as (descriptor, found):
            first = os.pread(descriptor, LOOKED_AT, 0)
            why = why_no_data(first)
            if why is None and path.endswith(".json") and found.st_size <= MAX_CHECKED_FILE:
                why = why_no_json(read_span(descriptor, 0, found.st_size).removeprefix(BOM_UTF8))
            if why is None and path.lower().endswith(".gguf") and not first.startswith(b"GGUF"):
                why = "no GGUF"
            if why is not None:
                raise _bad(where, f"left {path}, which is {why}", path)
    except OverlayError as error:
        if error.code == "script-output":
            raise
        said = error.message.replace(f"{stage.output}/", "")
        raise _bad(where, f"left a file that is not what its name says: {said}", path) from error


def take_output(
    files: Sequence[LeftFile], stage: Stage, cache: Cache, phase: Phase, *, most: int, where: str
) -> tuple[OutputFile, ...]:
    """Hash every file once and move it into the objects; what is an input, linked or copied, is carried instead.

    A second name of weights costs nothing. That of a small file is a file of its own in the tree, because servers
    rewrite such files in place.

    Args:
        most: Bytes that such second names may take.

    Raises:
        BrokenInput: They take more.
        CannotWrite: The filesystem refused.
    """
    taken = list(_taken(files, stage))
    own = {place: place.stat().st_size for _, place, source in taken if source is None}
    with phase("hash", sum(own.values())) as update:
        digests = dict(_digests(own, update))
    by_digest = {item.digest: item for item in stage.real.values()}
    seen: set[str] = set()
    new: dict[str, Path] = {}
    first: dict[str, str] = {}
    repeated = 0
    outputs: list[OutputFile] = []
    for path, place, link in taken:
        source = link or by_digest.get(digests[place])
        digest, size = (source.digest, source.size) if source else (digests[place], own[place])
        if is_small(path, size):
            repeated += size if digest in seen else 0
        elif digest in first:
            outputs.append(AliasFile(path, first[digest]))
            continue
        else:
            first[digest] = path
        seen.add(digest)
        if source is not None:
            outputs.append(CarriedFile(path, source))
            continue
        new.setdefault(digest, place)
        outputs.append(ScriptedFile(path, digest, size, is_new=True))
    if repeated > most:
        raise _bad(where, f"left second names of small files, of {format_bytes(repeated)} altogether", ".")
    for digest, place in new.items():
        cache.adopt_file(_owned(place, stage), digest)
    return tuple(outputs)


def _taken(files: Sequence[LeftFile], stage: Stage) -> Iterator[tuple[str, Path, Input | None]]:
    """Path, the file that lies there or is linked to, and the input that this is; one file has one place."""
    inputs = {_inode(path): item for path, item in stage.real.items()}
    places: dict[tuple[int, int], Path] = {}
    for file in files:
        if file.path in OURS:
            continue
        place = file.target or stage.output / file.path  # a target may be in the overlay, or in the output itself
        inode = _inode(place)
        yield file.path, places.setdefault(inode, place), inputs.get(inode)


def _inode(path: Path) -> tuple[int, int]:
    found = path.stat()
    return found.st_dev, found.st_ino


def _digests(places: Iterable[Path], update: Callable[[int], None]) -> Iterator[tuple[Path, str]]:
    def digest(place: Path) -> tuple[Path, str]:
        found = file_digest(place, "sha256")
        update(place.stat().st_size)
        return place, found

    with ThreadPoolExecutor(min(_MOST_HASHED, len(os.sched_getaffinity(0)))) as pool:
        yield from pool.map(digest, places)


def _bad(script: str, found: str, path: str) -> BrokenInput:
    return BrokenInput(
        f"{script}: {found}",
        code="script-output",
        hint="this script may not be used as it is; nothing was published",
        where=path,
        found=found,
    )


def _owned(place: Path, stage: Stage) -> Path:
    """The file with our mode and owner: a script may have run as another user, and chooses modes as it likes."""
    mode = stage.root.stat().st_mode & 0o666
    with open(place, "rb") as file:  # noqa: PTH123 - by descriptor
        found = os.fstat(file.fileno())
        if found.st_uid != os.geteuid():
            os.fchown(file.fileno(), os.geteuid(), os.getegid())
        if found.st_mode & 0o7777 != mode:
            os.fchmod(file.fileno(), mode)
    return place
