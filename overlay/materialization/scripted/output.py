"""What a script left, taken over: each file is hashed and made an object; what is an input is carried as one."""

from __future__ import annotations

import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from overlay.cache import is_small
from overlay.consumers import sglang
from overlay.errors import BrokenInput, OverlayError
from overlay.fingerprint import file_digest
from overlay.formats.files import safe_path
from overlay.formats.header import read_header
from overlay.formats.materialized import MARKER_NAME, RECORD_NAME
from overlay.formats.wording import some
from overlay.planning.outputs import AliasFile, CarriedFile, ScriptedFile

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    from overlay.cache import Cache
    from overlay.materialization.request import Phase
    from overlay.materialization.scripted.stage import Stage
    from overlay.planning.outputs import Input, OutputFile
    from overlay.sandbox import LeftFile

__all__ = ["check_output", "take_output"]

_MOST_HASHED = 8
"""Files at a time."""

_OURS = (MARKER_NAME, RECORD_NAME)
"""Written once the tree is known, whatever a script says of it."""


def check_output(files: Iterable[LeftFile], stage: Stage, where: str) -> None:
    """Refuse what no server would load: no model index, a component that is none, weights that are none.

    Raises:
        BrokenInput: It is that.
    """
    if why := sglang.why_incomplete(stage.output, sglang.release_of(None), by_path=True):
        raise _bad(where, f"left a tree that no server loads: {some(why)}")
    try:
        for file in files:
            safe_path(file.path, "output")
            if file.path.endswith(".safetensors"):
                read_header(stage.output / file.path)
    except OverlayError as error:
        raise _bad(where, f"left a file that is not what its name says: {error.message}") from error


def take_output(files: Iterable[LeftFile], stage: Stage, cache: Cache, phase: Phase) -> tuple[OutputFile, ...]:
    """Hash every file and move it into the objects; files that are inputs, linked or copied, are carried instead.

    Raises:
        CannotWrite: The filesystem refused.
    """
    taken = list(_taken(files, stage))
    own = [(path, place) for path, place, source in taken if source is None]
    with phase("hash", sum(place.stat().st_size for _, place in own)) as update:
        digests = dict(_digests(own, update))
    by_digest = {item.digest: item for item in stage.real.values()}
    first: dict[str, str] = {}
    outputs: list[OutputFile] = []
    for path, place, link in taken:
        source = link or by_digest.get(digests[path])
        if source is not None:
            outputs.append(CarriedFile(path, source))
            continue
        size, digest = place.stat().st_size, digests[path]
        if digest in first and not is_small(path, size):
            outputs.append(AliasFile(path, first[digest]))
        else:
            first.setdefault(digest, path)
            cache.adopt_file(place, digest)
            outputs.append(ScriptedFile(path, digest, size, is_new=True))
    return tuple(outputs)


def _taken(files: Iterable[LeftFile], stage: Stage) -> Iterator[tuple[str, Path, Input | None]]:
    """Path, place, and the input that it is a link to; every other file is a plain one of our own by then."""
    links, inodes = [], {_inode(path): item for path, item in stage.real.items()}
    for file in files:
        place = stage.output / file.path
        if file.path in _OURS:
            continue
        if file.target is None and (source := inodes.get(_inode(place))) is not None:  # a hardlink: never chmodded
            yield file.path, place, source
        elif file.target is None:
            yield file.path, _owned(place, stage), None
        elif (source := stage.real.get(file.target)) is not None:
            yield file.path, place, source
        else:  # to a file of the overlay, or of the output itself
            links.append((file.path, place, file.target))
    for path, place, target in links:
        place.unlink()
        shutil.copyfile(target, place)
        yield path, _owned(place, stage), None


def _inode(path: Path) -> tuple[int, int]:
    found = path.stat()
    return found.st_dev, found.st_ino


def _digests(files: list[tuple[str, Path]], update: Callable[[int], None]) -> Iterator[tuple[str, str]]:
    def digest(place: Path) -> str:
        found = file_digest(place, "sha256")
        update(place.stat().st_size)
        return found

    with ThreadPoolExecutor(min(_MOST_HASHED, len(os.sched_getaffinity(0)))) as pool:
        yield from zip([path for path, _ in files], pool.map(digest, [place for _, place in files]), strict=True)


def _bad(where: str, found: str) -> BrokenInput:
    return BrokenInput(
        f"{where}: {found}",
        code="script-output",
        hint="pin an overlay and a source that belong together; nothing was published",
        where=where,
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
