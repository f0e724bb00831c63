"""What is run in a sandbox, within which limits, and what comes back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["Job", "LeftFile", "Limits", "Ran", "Sandbox"]


@dataclass(frozen=True, slots=True)
class Limits:
    """What a script may use. One that reaches a limit is stopped, with everything that it started.

    Args:
        seconds: Wall-clock time.
        memory: Bytes of anonymous and shared memory of all its processes together; mapped files do not count.
        processes: Processes and threads at one time. Libraries start a thread for each processor core.
        disk: Bytes in the output folder and the scratch folder together.
    """

    seconds: float
    memory: int
    processes: int
    disk: int


@dataclass(frozen=True, slots=True)
class Job:
    """One call of an overlay's own ``materialize(*, overlay_dir, source_dir, output_dir, manifest)``.

    Args:
        script: The script's bytes, whose digest the caller has checked.
        overlay_dir: Given to the script; readable.
        source_dir: Given to the script; readable.
        output_dir: Given to the script; an existing folder, which no other path of the job lies in; what is in it is
            the script's to change. All that it may write, beside a scratch folder that is removed at the end.
        manifest: Given to the script; JSON-representable.
        readable: Further files and folders that it may read: targets of links in the folders above, further inputs.
        python_path: Folders that it may import from beside the standard library, in this order; readable.
        environ: Its whole environment, beside ``HOME``, ``TMPDIR``, ``USER`` and ``LANG``.
        limits: What it may use.
    """

    script: bytes
    overlay_dir: Path
    source_dir: Path
    output_dir: Path
    manifest: dict[str, Any]
    readable: tuple[Path, ...]
    python_path: tuple[Path, ...]
    environ: dict[str, str]
    limits: Limits


@dataclass(frozen=True, slots=True)
class Sandbox:
    """One way to confine a script, as found on this machine.

    Args:
        name: ``bubblewrap`` or ``landlock``.
        why_not: Why it cannot be used here; None where it can.
    """

    name: Literal["bubblewrap", "landlock"]
    why_not: str | None


@dataclass(frozen=True, slots=True)
class LeftFile:
    """One file that a script left.

    Args:
        path: Below the output folder, with ``/``.
        kind: ``file``: regular; ``link``: a symbolic link to a regular file among the inputs or in the output folder.
        size: Bytes, of a link's target where it is one.
        target: The real path that a link leads to; None for a file.
    """

    path: str
    kind: Literal["file", "link"]
    size: int
    target: Path | None


@dataclass(frozen=True, slots=True)
class Ran:
    """A script that ended well, and what it left.

    Args:
        sandbox: Name of the sandbox that it ran in.
        seconds: Wall-clock time.
        peak_memory: Most bytes that were seen in use; peaks between two looks are not.
        output_tail: The last 64 KiB that it printed, on both streams, with control characters replaced.
        files: All files in the output folder, sorted by path.
    """

    sandbox: str
    seconds: float
    peak_memory: int
    output_tail: str
    files: tuple[LeftFile, ...]
