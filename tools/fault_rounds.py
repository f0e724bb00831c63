"""Rounds of ``overlay prewarm`` that are killed at random moments, and what must hold after each of them."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

from overlay.cache import CacheRoot
from overlay.cache.collecting import gc
from overlay.cli._main import main
from overlay.demo.checkpoint import SOURCE_REPO, write_hub
from overlay.demo.registry import write_registry
from overlay.fusion.output import PartialFile
from overlay.materialization.materialize import plan
from overlay.materialization.request import Options
from overlay.materialization.verify import verify

if TYPE_CHECKING:
    import random
    from collections.abc import Callable
    from pathlib import Path

__all__ = ["SIGNALS", "BrokenGuaranteeError", "KillRound", "World", "kill_round", "make_world"]

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGKILL)
_STATUS = {signal.SIGTERM: 143, signal.SIGINT: 130, signal.SIGKILL: -signal.SIGKILL}
_PATIENCE = 120.0
_EACH_WRITE = 0.005
"""Seconds that a write takes longer in a run that is to be killed: without it the tiny build is often done before."""


class BrokenGuaranteeError(AssertionError):
    """Something that must hold does not."""


@dataclass(frozen=True, slots=True)
class World:
    """A hub folder, a registry for it, and what an unhindered run gave.

    Attributes:
        tree: Name of the right tree.
        inputs: sha256 of every file of the hub, by path.
        span: Seconds from the first staged byte to the end of a run that is to be killed, if it is not.
    """

    folder: Path
    tree: str
    inputs: dict[str, str]
    span: float

    @property
    def hub(self) -> Path:
        """The hub folder."""
        return self.folder / "hub"

    def options(self, root: Path, link: Any = "auto") -> Options:
        """Options of a run on some root."""
        return Options(registry=self.folder / "registry.yaml", hub=self.hub, cache_root=root, link=link)


@dataclass(frozen=True, slots=True)
class KillRound:
    """One round: runs that were killed one after the other, and the one that finished the job.

    Attributes:
        killed: How each run that was to be killed ended: the signal's name, or ``finished`` where it was faster.
        staged: How many of them had staged a byte.
        kept: Objects that the last run found.
    """

    number: int
    link: str
    killed: tuple[str, ...]
    staged: int
    kept: int


def make_world(folder: Path, blocks: int) -> World:
    """Make the hub and build from it once."""
    write_registry(folder / "registry.yaml", write_hub(folder / "hub", blocks=blocks))
    world = World(folder, "", digests(folder / "hub"), 0.0)
    import torch  # noqa: F401 - once, here, and not in every child

    run_to_end(world, folder / "reference", "auto")
    tree = next((folder / "reference/.overlay/trees").iterdir()).name
    pid = start(world, folder / "timed", "auto", folder / "log", prepare=slow_down)
    wait_for_stage(folder / "timed", pid)
    begun = time.monotonic()
    os.waitpid(pid, 0)
    return World(folder, tree, world.inputs, time.monotonic() - begun)


def digests(folder: Path) -> dict[str, str]:
    """sha256 of every file below a folder, by path."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in paths}


def objects(root: Path) -> dict[str, tuple[int, int]]:
    """Inode and time of the last write of every object."""
    found = ((path, path.stat()) for path in (root / ".overlay/objects").glob("*/*/*"))
    return {path.name: (status.st_ino, status.st_mtime_ns) for path, status in found}


def kill_round(world: World, root: Path, number: int, dice: random.Random) -> KillRound:
    """Kill one to three runs after their first staged byte, then let one finish.

    Raises:
        BrokenGuaranteeError: Anything was seen, lost, damaged or made twice that should not have been.
    """
    link = dice.choice(["auto", "hardlink", "copy"])
    ended: list[str] = []
    staged, kept = 0, objects(root)
    for attempt in range(dice.choice([1, 1, 2, 3])):
        sent = dice.choice(SIGNALS)
        log = root.with_name(f"{root.name}-{attempt}.log")
        pid = start(world, root, link, log, prepare=slow_down)
        saw = wait_for_stage(root, pid)
        time.sleep(dice.uniform(0, world.span) if saw else 0)
        os.kill(pid, sent)
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        require(status in (0, _STATUS[sent]), f"status {status} after {sent.name}", log)
        require("Traceback" not in log.read_text() and "error[bug]" not in log.read_text(), "a bug", log)
        ended.append("finished" if status == 0 else sent.name)
        staged += saw
        check(world, root)
        now = objects(root)
        require(all(now.get(name) == was for name, was in kept.items()), "a finished file was lost or made again")
        kept = now
    planned = plan(SOURCE_REPO, world.options(root, link)).counters
    done = run_to_end(world, root, link)
    require([done[f"bytes_{name}"] for name in ("read", "written", "linked")] == [planned.read, planned.written,
            planned.linked], "counters differ from the plan")  # fmt: skip
    require(done["path"].endswith(f"/{world.tree}"), f"another tree: {done['path']}")
    now = objects(root)
    require(all(now.get(name) == was for name, was in kept.items()), "a finished file was made again")
    check(world, root)
    gc(CacheRoot(root))
    require(not list((root / ".overlay/staging").iterdir()), "staging that cannot be collected")
    require(objects(root) == now, "gc took an object that the tree has")
    check(world, root)
    return KillRound(number, link, tuple(ended), staged, len(kept))


def check(world: World, root: Path) -> None:
    """What is published verifies to the last byte, and no input was damaged."""
    check_published(world, root)
    require(digests(world.hub) == world.inputs, "an input was damaged")


def check_published(world: World, root: Path) -> None:
    """What is published is the right tree, to the last byte."""
    for place in (*root.glob("materialized_models/*"), *root.glob(".overlay/trees/*")):
        report = verify(place, "full")
        require(report.ok, f"{place}: {report.problems}")
        require(place.resolve().name == world.tree, f"{place}: not the right tree")


def require(holds: bool, otherwise: str, log: Path | None = None) -> None:  # noqa: FBT001 - as assert
    """Raise BrokenGuaranteeError unless it holds."""
    if not holds:
        raise BrokenGuaranteeError(otherwise + (f"\n{log.read_text()}" if log else ""))


def start(world: World, root: Path, link: str, log: Path, *, prepare: Callable[[], None] = lambda: None) -> int:
    """Fork a process that is ``overlay prewarm``, signal handlers and all; its output goes to a file.

    Args:
        prepare: Called in the child first.
    """
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        prepare()
        _become(world, root, link, log)
    return pid


def slow_down() -> None:
    """Let this process, a child that is to be killed, write slowly, and everything itself."""
    write = PartialFile.write_at

    def slowly(file: PartialFile, offset: int, data: memoryview | bytes) -> None:
        time.sleep(_EACH_WRITE)
        write(file, offset, data)

    PartialFile.write_at = slowly  # type: ignore[assignment, method-assign]  # in this process alone
    PartialFile.copy_from = lambda *_: False  # type: ignore[method-assign]  # likewise


def _become(world: World, root: Path, link: str, log: Path) -> NoReturn:
    status: Any = 70
    try:
        descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        os.dup2(descriptor, 1)
        os.dup2(descriptor, 2)
        os.environ |= {
            "OVERLAY_HUB": str(world.hub),
            "OVERLAY_REGISTRY": str(world.folder / "registry.yaml"),
            "OVERLAY_CACHE_ROOT": str(root),
        }
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115 - for good
        sys.stderr = open(2, "w", encoding="utf-8", closefd=False)  # noqa: SIM115 - for good
        sys.argv = ["overlay", "prewarm", SOURCE_REPO, "--link", link, "--json"]
        main()
    except SystemExit as end:
        status = end.code
    finally:
        with suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(status if isinstance(status, int) else 70)


def run_to_end(world: World, root: Path, link: str) -> dict[str, Any]:
    """An unhindered run's document for the model."""
    log = root.with_name(f"{root.name}-end.log")
    pid = start(world, root, link, log)
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    require(status == 0, f"status {status} of an unhindered run", log)
    document: dict[str, Any] = json.loads(log.read_text())["models"][0]
    return document


def wait_for_stage(root: Path, pid: int) -> bool:
    """Whether the process staged a byte; returns at once when it did, or when it ended."""
    end = time.monotonic() + _PATIENCE
    while time.monotonic() < end:
        for folder in (root / ".overlay/staging").glob(f"{pid}-*"):
            with suppress(OSError):
                if any(path.stat().st_blocks for path in folder.iterdir() if path.is_file()):
                    return True
        if os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
            return False
        time.sleep(0.001)
    raise BrokenGuaranteeError(f"nothing staged within {_PATIENCE:.0f} s")
