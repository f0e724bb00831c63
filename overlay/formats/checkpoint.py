"""A checkpoint: the safetensors files of one folder, checked against the index that lists them."""

from __future__ import annotations

import posixpath
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from overlay.errors import BrokenInput, NotHere
from overlay.formats.files import PICKLES, safe_path
from overlay.formats.strict_json import parse_object
from overlay.formats.wording import counted, some

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from overlay.formats.files import Files
    from overlay.formats.header import Header, TensorInfo

__all__ = [
    "INDEX_SUFFIX",
    "WEIGHTS_SUFFIX",
    "Checkpoint",
    "Listing",
    "check_placed",
    "list_shards",
    "numbered_of",
    "read_checkpoint",
    "read_weight_map",
]

WEIGHTS_SUFFIX = ".safetensors"
INDEX_SUFFIX = ".safetensors.index.json"
_NUMBERED = re.compile(r"(?P<stem>.*)-(?P<number>\d{5})-of-(?P<total>\d{5})\.safetensors")
_SHOWN = 20


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The tensors of a folder.

    Attributes:
        folder: Path of the folder in its ``Files``; empty for the root.
        index: Path of the index file in its ``Files``; None for files without one.
        index_json: The index, whole; None likewise.
        shards: Header of every shard, by path relative to ``folder``, sorted.
        weight_map: Shard (relative to ``folder``) of every tensor, by name.
    """

    folder: str
    index: str | None
    index_json: Mapping[str, Any] | None
    shards: Mapping[str, Header]
    weight_map: Mapping[str, str]

    def path(self, shard: str) -> str:
        """Path of a shard in its ``Files``."""
        return f"{self.folder}/{shard}" if self.folder else shard

    def tensor(self, name: str) -> tuple[str, TensorInfo]:
        """The shard and place of a tensor. Raises ``KeyError`` for a name that is not in ``weight_map``."""
        shard = self.weight_map[name]
        return shard, self.shards[shard].tensors[name]


@dataclass(frozen=True, slots=True)
class Listing:
    """The shards of a folder, as its index or their names give them.

    Attributes:
        folder: Path of the folder in its ``Files``; empty for the root.
        index: Path of the index file in its ``Files``; None for files without one.
        index_json: The index, whole; None likewise.
        shards: Paths relative to ``folder``, sorted.
        weight_map: Shard of every tensor by name, as the index says; None without one.
    """

    folder: str
    index: str | None
    index_json: Mapping[str, Any] | None
    shards: tuple[str, ...]
    weight_map: Mapping[str, str] | None

    def path(self, shard: str) -> str:
        """Path of a shard in its ``Files``."""
        return f"{self.folder}/{shard}" if self.folder else shard


def read_checkpoint(files: Files, folder: str = "") -> Checkpoint:
    """Reads every header of a folder's checkpoint and holds them against its index.

    Args:
        files: The repo or folder that holds it.
        folder: Path of the folder in ``files``; empty for the root.

    Raises:
        NotHere: No safetensors file there.
        BrokenInput: A bad header or index; shards missing or left over (all of them are listed); a tensor that is not
            where the index says, not in the index, or in two shards; pickled weights only.
    """
    listing = list_shards(files, folder)
    headers = {shard: files.header(listing.path(shard)) for shard in listing.shards}
    where = files.where(listing.folder) if listing.folder else files.name
    found = _tensor_shards(headers, where)
    if listing.weight_map is not None and listing.index is not None:
        _check_tensors(listing.weight_map, found, files.where(listing.index))
    return Checkpoint(listing.folder, listing.index, listing.index_json, headers, listing.weight_map or found)


def list_shards(files: Files, folder: str = "") -> Listing:
    """The shards of a folder's checkpoint, held against its index or their numbers; reads no header.

    Args:
        files: The repo or folder that holds it.
        folder: Path of the folder in ``files``; empty for the root.

    Raises:
        NotHere: No safetensors file there.
        BrokenInput: A bad index; shards missing or left over (all of them are listed); pickled weights only.
    """
    folder = safe_path(folder, files.name) if folder else ""
    prefix = folder and folder + "/"
    inside = [path.removeprefix(prefix) for path in files.paths() if path.startswith(prefix)]
    here = [path for path in inside if "/" not in path]
    indexes = [path for path in here if path.endswith(INDEX_SUFFIX)]
    where = files.where(folder) if folder else files.name
    if len(indexes) > 1:
        raise BrokenInput(
            f"{where}: {len(indexes)} indexes ({some(indexes, _SHOWN)}), expected one",
            code="two-indexes",
            hint="keep one variant of the weights in the folder",
            where=where,
            indexes=indexes,
        )
    if not indexes:
        return _without_index(files, folder, inside, where)
    index = prefix + indexes[0]
    document = parse_object(files.read_bytes(index), files.where(index))
    wanted = _weight_map(document, files.where(index))
    listed = sorted(set(wanted.values()))
    places = {"", *(posixpath.dirname(shard) for shard in listed)}
    present = {path for path in inside if path.endswith(WEIGHTS_SUFFIX) and posixpath.dirname(path) in places}
    _check_files(listed, set(inside), present, files.where(index))
    return Listing(folder, index, document, tuple(listed), wanted)


def read_weight_map(files: Files, index: str) -> Mapping[str, str]:
    """Shard of every tensor by name, as an index says it; shards are relative to the index's folder.

    Raises:
        BrokenInput: The index cannot be used.
    """
    return _weight_map(parse_object(files.read_bytes(index), files.where(index)), files.where(index))


def numbered_of(name: str) -> int:
    """Of how many shards a file is one, by its name; 0 for a file whose name does not say."""
    match = _NUMBERED.fullmatch(name)
    return int(match["total"]) if match else 0


def check_placed(weight_map: Mapping[str, str], shards: Mapping[str, Header], where: str) -> None:
    """Hold an index against the headers of its shards: every tensor is where it says.

    Args:
        weight_map: Shard of every tensor by name.
        shards: Headers by shard.
        where: Name of the index, for messages.

    Raises:
        BrokenInput: One is not.
    """
    found = {name: shard for shard, header in shards.items() for name in header.tensors}
    misplaced = [name for name, shard in weight_map.items() if name not in shards[shard].tensors]
    _refuse_misplaced(misplaced, weight_map, found, where)


def _without_index(files: Files, folder: str, inside: list[str], where: str) -> Listing:
    prefix = folder and folder + "/"
    here = [path for path in inside if "/" not in path]
    names = [path for path in here if path.endswith(WEIGHTS_SUFFIX)]
    if not names:
        deeper = sorted({posixpath.dirname(path) for path in inside if path.endswith(WEIGHTS_SUFFIX)})
        raise _no_weights(here, where, [files.where(prefix + name) for name in deeper])
    for match in filter(None, map(_NUMBERED.fullmatch, names)):
        stem, total = match["stem"], match["total"]
        whole = [f"{stem}-{number:05d}-of-{total}{WEIGHTS_SUFFIX}" for number in range(1, int(total) + 1)]
        _check_files(whole, set(names), set(), f"{where} (numbered shards, no index)")
    return Listing(folder, None, None, tuple(sorted(names)), None)


def _weight_map(document: Mapping[str, Any], where: str) -> dict[str, str]:
    entries = document.get("weight_map")
    if not isinstance(entries, dict) or not entries:
        raise BrokenInput(
            f"{where}: weight_map is {'missing' if entries is None else repr(entries)[:80]},"
            " expected tensor names with their shard",
            code="bad-index",
            hint="download the index again",
            where=where,
        )
    checked: dict[str, str] = {}
    for name, shard in entries.items():
        if not isinstance(shard, str) or not shard.endswith(WEIGHTS_SUFFIX):
            raise BrokenInput(
                f"{where}: weight_map[{name!r}] is {repr(shard)[:80]}, expected a {WEIGHTS_SUFFIX} file",
                code="bad-index",
                hint="download the index again",
                where=where,
                tensor=name,
            )
        checked[name] = safe_path(shard, f"{where}: weight_map[{name!r}]")
    return checked


def _check_files(listed: list[str], existing: Collection[str], present: Collection[str], where: str) -> None:
    missing = [shard for shard in listed if shard not in existing]
    if missing:
        raise BrokenInput(
            f"{where}: {len(missing)} of {counted(len(listed), 'shard')} missing: {', '.join(missing)}",
            code="missing-shards",
            hint="incomplete download? download the folder again",
            where=where,
            missing=missing,
        )
    extra = sorted(set(present) - set(listed))
    if extra:
        raise BrokenInput(
            f"{where}: does not list {counted(len(extra), 'safetensors file')} beside its shards: {', '.join(extra)}",
            code="extra-shards",
            hint="left over from another version? remove them, or download the index that belongs to them",
            where=where,
            extra=extra,
        )


def _tensor_shards(shards: Mapping[str, Header], where: str) -> dict[str, str]:
    """Shard of every tensor, by what the headers say."""
    found: dict[str, str] = {}
    for shard, header in shards.items():
        for name in header.tensors:
            if name in found:
                raise BrokenInput(
                    f"{where}: tensor {name!r} is in two shards, {found[name]} and {shard}; expected one",
                    code="tensor-in-two-shards",
                    hint="remove the file that does not belong there (another variant of the weights?)",
                    where=where,
                    tensor=name,
                    shards=[found[name], shard],
                )
            found[name] = shard
    return found


def _check_tensors(wanted: Mapping[str, str], found: Mapping[str, str], where: str) -> None:
    misplaced = [name for name, shard in wanted.items() if found.get(name) != shard]
    _refuse_misplaced(misplaced, wanted, found, where)
    unlisted = [name for name in found if name not in wanted]
    if unlisted:
        raise BrokenInput(
            f"{where}: does not list {counted(len(unlisted), 'tensor')} of its shards: {some(unlisted, _SHOWN)}",
            code="tensor-not-in-index",
            hint="index and shards belong to different versions; download the folder again",
            where=where,
            tensors=unlisted,
        )


def _refuse_misplaced(misplaced: list[str], wanted: Mapping[str, str], found: Mapping[str, str], where: str) -> None:
    if misplaced:
        name = misplaced[0]
        actual = f"is in {found[name]}" if name in found else "is in no shard"
        raise BrokenInput(
            f"{where}: tensor {name!r} {actual}, expected in {wanted[name]}"
            f" ({len(misplaced)} of {counted(len(wanted), 'tensor')} not where the index says:"
            f" {some(misplaced, _SHOWN)})",
            code="tensor-not-in-shard",
            hint="index and shards belong to different versions; download the folder again",
            where=where,
            tensors=misplaced,
        )


def _no_weights(here: list[str], where: str, deeper: list[str]) -> BrokenInput | NotHere:
    pickles = [path for path in here if path.endswith(PICKLES)]
    if pickles:
        return BrokenInput(
            f"{where}: only pickled weights ({some(pickles, _SHOWN)}), expected {WEIGHTS_SUFFIX}",
            code="pickle",
            hint="pickle files can run code when they are read; convert them to safetensors first",
            where=where,
            files=pickles,
        )
    found = some(here, _SHOWN) or ("only folders" if deeper else "no file at all")
    return NotHere(
        f"{where}: no {WEIGHTS_SUFFIX} file; found {found}",
        code="no-weights",
        hint=f"the files sit deeper: use {some(deeper)}" if deeper else "check the folder; incomplete download?",
        where=where,
        deeper=deeper,
    )
