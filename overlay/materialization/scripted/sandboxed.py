"""One run of a script in a sandbox: how far it is, and what went wrong in words that outlast its folders."""

from __future__ import annotations

import json
import os
import re
from contextlib import contextmanager, suppress
from threading import Event, Thread
from typing import TYPE_CHECKING, Any

from overlay.errors import BrokenInput
from overlay.formats.overlay_repo import MANIFEST_PATH
from overlay.formats.wording import format_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from overlay.materialization.request import Phase
    from overlay.materialization.scripted.stage import Stage
    from overlay.planning.scripted import Script
    from overlay.sandbox import Ran, Sandbox

__all__ = ["UNKNOWN", "run_script"]

UNKNOWN = -1
"""Total of a phase whose end nobody knows."""

_MOST_SHOWN = 4096  # characters of what the script printed
_LONGEST_LINE = 300
_LOOK_EVERY = 5.0  # seconds

_FIXED = {"files": "files and folders", "depth": "folders within one another"}
_OFFLINE = re.compile(r"LocalEntryNotFound|OfflineMode|outgoing traffic has been disabled|offline mode is enabled")
_TRACEBACK = "Traceback (most recent call last)"
_WITHOUT_LOCAL_DIR = (
    "with local_dir the Hub's client asks the Hub even for what is there: leave local_dir out and copy from the folder"
    " that it returns; and the repo must be among the entry's needs, as {repo: ORG/NAME, revision: COMMIT}"
)
_NO_MODULE = re.compile(r"No module named '([\w.]+)'")


def run_script(made: Stage, script: Script, sandbox: Sandbox, phase: Phase) -> Ran:
    """Run it within its limits, and say meanwhile what it has written.

    Raises:
        BrokenInput: As ``overlay.sandbox.run``, by the names of overlay and output.
        Untrusted: The sandbox cannot be used after all.
    """
    from overlay.sandbox import Job, Limits, run

    limits = script.limits
    job = Job(
        script=script.code,
        overlay_dir=made.overlay,
        source_dir=made.source,
        output_dir=made.output,
        manifest=json.loads(script.overlay[MANIFEST_PATH]),
        readable=made.readable,
        python_path=made.python_path,
        environ=made.environ,
        limits=Limits(limits.seconds or 0, limits.memory or 0, limits.processes or 0, limits.disk or 0),
    )
    try:
        with phase("script", UNKNOWN) as update, _watched(made.output, update):
            return run(job, sandbox=sandbox)
    except BrokenInput as error:
        raise _told(error, made, script) from error


@contextmanager
def _watched(output: Path, update: Callable[[int], None]) -> Iterator[None]:
    """Tell of the bytes in a folder while they become more; also that they did not."""
    is_over = Event()

    def watch() -> None:
        before = 0
        while not is_over.wait(_LOOK_EVERY):
            now = _size(output)
            update(max(0, now - before))
            before = max(now, before)

    thread = Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


def _size(folder: Path) -> int:
    found = 0
    for path, _, names in os.walk(folder):
        for name in names:
            with suppress(OSError):  # it is the script's to remove
                found += os.lstat(os.path.join(path, name)).st_size  # noqa: PTH118 - by the thousand
    return found


def _told(error: BrokenInput, made: Stage, script: Script) -> BrokenInput:
    where = f"{script.overlay_name}/{script.path}"

    def lasting(text: str) -> str:
        text = text.replace(str(made.overlay / script.path), where).replace(str(made.overlay), script.overlay_name)
        return text.replace(f"{made.output}/", "").replace(f"{made.root}/", "")

    data: dict[str, Any] = {
        key: lasting(value) if isinstance(value, str) else value for key, value in error.data.items()
    }
    printed = data.get("output", "")
    if "output" in data:
        data["output"] = printed[-_MOST_SHOWN:]
    words, hint = lasting(error.message).removeprefix(f"{where}: "), error.hint
    if error.code == "script-limit":
        words, hint = _of_limit(data["limit"], data["most"])
    elif error.code == "script-failed":
        words = words if len(words) <= _LONGEST_LINE else f"{words[:_LONGEST_LINE]}…"
        hint = _after_failure(words, printed, script)
    return BrokenInput(f"{where}: {words}", code=error.code, hint=hint, **data)


def _of_limit(limit: str, most: int) -> tuple[str, str]:
    if limit in _FIXED:
        return (
            f"had {most} {_FIXED[limit]} at one time",
            "a model needs fewer: look at what it does; -v shows the end of what it printed",
        )
    key = "time" if limit == "seconds" else limit
    shown = f"{most}" if limit == "processes" else _duration(most) if limit == "seconds" else _bytes(most)
    hint = (
        f"if it deserves more: limits: {{{key}: ...}} in the recipe of the entry; -v shows the end of what it printed"
    )
    return f"stopped at its limit of {shown} ({key})", hint


def _duration(seconds: float) -> str:
    """As an entry may have it: ``90 min``."""
    unit, name = next((each for each in ((3600, "h"), (60, "min")) if seconds % each[0] == 0), (1, "s"))
    return f"{seconds / unit:g} {name}"


def _bytes(size: int) -> str:
    """In powers of 1024 where it was given so."""
    if size % 2**20:
        return format_bytes(size)
    return f"{size / 2**30:.1f} GiB" if size >= 2**30 else f"{size // 2**20} MiB"


def _after_failure(words: str, printed: str, script: Script) -> str:
    """What to do next, as far as the error or its traceback tells."""
    if _OFFLINE.search(words + printed[printed.rfind(_TRACEBACK) :]):
        if any(b"local_dir" in data for path, data in script.overlay.items() if path.endswith(".py")):
            return _WITHOUT_LOCAL_DIR
        return (
            "it loads a repo, or a commit of one, that the entry does not give it: add it to the entry's needs, as"
            " {repo: ORG/NAME, revision: COMMIT}"
        )
    if module := _NO_MODULE.search(words):
        return f"install {module[1].partition('.')[0]} beside overlay, or add its wheel to the entry's needs"
    return "-v shows the end of what it printed; it had no network, no environment and one folder to write"
