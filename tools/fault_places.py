"""Places of a kind: a disk of every size between too small and large enough, and a filesystem with reflinks."""

from __future__ import annotations

import ctypes
import os
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fault_rounds import check, check_published, objects, require, run_to_end, start

if TYPE_CHECKING:
    from pathlib import Path

    from fault_rounds import World

__all__ = ["PlaceRound", "full_disk_round", "own_mounts", "reflink_rounds"]

_NEWNS, _REMOUNT = 0x00020000, 32
_REC_PRIVATE = 16384 | 1 << 18


@dataclass(frozen=True, slots=True)
class PlaceRound:
    """One run in a place.

    Attributes:
        place: What it was like.
        outcome: ``same tree``, or the code of the error and the operation that met it.
        kept: Objects that were finished nevertheless.
    """

    place: str
    outcome: str
    kept: int
    linked: int = 0


def own_mounts() -> bool:
    """Give this process mounts that nobody else sees. False where it may not."""
    libc = ctypes.CDLL(None, use_errno=True)
    return libc.unshare(_NEWNS) == 0 and libc.mount(b"none", b"/", None, ctypes.c_ulong(_REC_PRIVATE), None) == 0


def full_disk_round(world: World, place: Path, limit: str) -> PlaceRound:
    """Run on a small filesystem that fills up in the middle (``size=6m``, ``nr_inodes=40``), then once it has grown.

    Raises:
        BrokenGuaranteeError: As everywhere.
    """
    place.mkdir()
    _mount(place, 0, limit)
    root, log = place / "root", place.with_name(f"{place.name}.log")
    pid = start(world, root, "auto", log, prepare=_no_preflight)
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    check(world, root)
    kept = objects(root)
    outcome = "same tree"
    if status != 0:
        text = log.read_text()
        require(status == 4, f"{limit}: status {status}", log)  # noqa: PLR2004 - cannot write
        require("no-room" in text, f"{limit}: not no-room", log)
        require(not list(root.glob("materialized_models/*")), f"{limit}: published")
        operation = re.search(r'"operation": "([^"]*)"', text)
        outcome = f"no-room at {_kind(operation[1]) if operation else 'the preflight'}"
    _mount(place, _REMOUNT, "nr_inodes=100000" if "nr_inodes" in limit else "size=1g")
    run_to_end(world, root, "auto")
    require(all(objects(root)[name] == was for name, was in kept.items()), f"{limit}: made again")
    check(world, root)
    require(ctypes.CDLL(None).umount(os.fsencode(place)) == 0, "umount")
    return PlaceRound(limit, outcome, len(kept))


def _mount(place: Path, flags: int, limit: str) -> None:
    mount = ctypes.CDLL(None).mount
    require(mount(b"tmpfs", os.fsencode(place), b"tmpfs", ctypes.c_ulong(flags), limit.encode()) == 0, f"mount {limit}")


def _no_preflight() -> None:
    from overlay.cache import store

    store.free_room = lambda _path: 1 << 60


def _kind(operation: str) -> str:
    return re.sub(r"(?<!\S)/\S+|[\w.-]*\d[\w.-]*|\S+\.(json|safetensors|md|jinja|txt)\b", "…", operation)


def reflink_rounds(world: World, folder: Path) -> list[PlaceRound]:
    """Runs whose hub and root lie on one filesystem that has reflinks: everything that is carried over shares blocks.

    Raises:
        BrokenGuaranteeError: As everywhere; also where an edited input changes what was made of it.
    """
    found = []
    for link in ("reflink", "auto", "hardlink", "copy"):
        root = folder / f"linked-{link}"
        done: dict[str, Any] = run_to_end(world, root, link)
        require(done["path"].endswith(f"/{world.tree}"), f"{link}: another tree")
        shares = link != "copy"
        require((done["bytes_linked"] > 0) == shares, f"{link}: {done['bytes_linked']} bytes linked")
        inputs = {path.stat().st_ino for path in world.hub.rglob("*")}
        made = {inode for inode, _ in objects(root).values()}
        require(bool(inputs & made) == (link == "hardlink"), f"{link}: inodes shared: {len(inputs & made)}")
        check(world, root)
        found.append(PlaceRound(f"--link {link}", "same tree", len(made), done["bytes_linked"]))
    source = next(world.hub.glob("OpenVDN/*/*/stage-dmd-step-250/linear_branch/model.safetensors"))
    content = source.read_bytes()
    # Edit the input in place: what shares its blocks, and not its inode, must not change.
    edited = {name: folder / f"linked-{name}" for name in ("reflink", "auto", "copy")}
    source.write_bytes(bytes(len(content)))
    for root in edited.values():
        check_published(world, root)
    source.write_bytes(content)
    return found
