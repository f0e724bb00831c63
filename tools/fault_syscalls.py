"""Runs of ``overlay prewarm`` under strace, which makes real system calls fail, and what has to come of them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fault_rounds import check, objects, require, run_to_end

from overlay.demo.checkpoint import SOURCE_REPO

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from fault_rounds import World

__all__ = ["CallRound", "call_round", "calls", "reads"]

_OPERATIONS = {
    "rename": "rename,renameat,renameat2",
    "link": "link,linkat",
    "symlink": "symlink,symlinkat",
    "mkdir": "mkdir,mkdirat",
    "ftruncate": "ftruncate",
    "fallocate": "fallocate",
    "copy_file_range": "copy_file_range",
    "ioctl (reflink)": "ioctl",
    "fsync": "fsync,fdatasync",
    "flock": "flock",
    "sync_file_range": "sync_file_range",
    "fadvise": "fadvise64",
}
_ERRORS = ("ENOSYS", "EXDEV", "EPERM")
_READ = "read,pread64,readv,preadv,preadv2,copy_file_range"


@dataclass(frozen=True, slots=True)
class CallRound:
    """One run in which system calls failed.

    Attributes:
        what: The operation, or the file that could not be read.
        hits: Calls that failed.
        outcome: ``same tree``, ``not called``, or the status and the code of the error.
        message: What was printed, if it failed.
    """

    what: str
    error: str
    hits: int
    outcome: str
    message: str = ""


def calls() -> Iterator[tuple[str, str, list[str]]]:
    """Name, errno and strace options of every round that makes an operation fail."""
    for name, numbers in _OPERATIONS.items():
        for error in _ERRORS:
            yield name, error, ["-e", f"trace={numbers}", "-e", f"inject={numbers}:error={error}"]


def reads(world: World) -> Iterator[tuple[str, str, list[str]]]:
    """Likewise of every round that makes the reading of one input fail, from its second call on."""
    for path in sorted(world.hub.rglob("*.safetensors")):
        if "Watercolor" not in str(path) and "stage-b" not in str(path):
            name = str(path.relative_to(world.hub))
            name = re.sub(r"[0-9a-f]{40}/", "", name)
            options = ["-P", str(path), "-e", f"trace={_READ}", "-e", f"inject={_READ}:error=EIO:when=2+"]
            yield f"read of {name}", "EIO", options


def call_round(world: World, root: Path, what: str, error: str, options: list[str]) -> CallRound:
    """Run once with the fault and once without.

    Raises:
        BrokenGuaranteeError: The run neither gave the right tree nor failed with status 1 or 4 and a message, or
            something was published, lost or damaged that should not have been.
    """
    log = root.with_name(f"{root.name}.strace")
    program = [sys.executable, "-B", "-c", "import overlay.cli; overlay.cli.main()"]
    command = ["strace", "-f", "--seccomp-bpf", "-qq", "-o", str(log), *options, *program, "prewarm", SOURCE_REPO]
    variables = {
        "OVERLAY_HUB": str(world.hub),
        "OVERLAY_CACHE_ROOT": str(root),
        "OVERLAY_REGISTRY": str(world.folder / "registry.yaml"),
    }
    done = subprocess.run(command, env=os.environ | variables, capture_output=True, text=True, check=False)  # noqa: S603 - our own
    hits = log.read_text(errors="replace").count("(INJECTED)")
    message = "\n".join(line for line in done.stderr.splitlines() if line.startswith(("error[", "hint:")))
    check(world, root)
    if done.returncode == 0:
        outcome = "same tree" if hits else "not called"
    else:
        require(done.returncode == (1 if error == "EIO" else 4), f"{what} {error}: {done.returncode} {done.stderr}")
        require("hint:" in message, f"{what} {error}: no next step: {done.stderr}")
        require(not list(root.glob("materialized_models/*")), f"{what} {error}: published")
        outcome = f"status {done.returncode}, {re.search(r'error.([a-z-]+)', message)[1]}"  # type: ignore[index]
    kept = objects(root)
    run_to_end(world, root, "auto")
    require(all(objects(root)[name] == was for name, was in kept.items()), f"{what} {error}: made again")
    check(world, root)
    return CallRound(what, error, hits, outcome, message)
