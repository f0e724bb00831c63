"""Run a script in a sandbox and take over what it left."""

from __future__ import annotations

from typing import TYPE_CHECKING

from overlay.errors import Untrusted

if TYPE_CHECKING:
    from collections.abc import Callable

    from overlay.sandbox.job import Job, Ran, Sandbox

__all__ = ["run"]


def run(job: Job, on_output: Callable[[str], None], *, sandbox: Sandbox | None = None) -> Ran:
    """Call the job's ``materialize`` where it can reach nothing but what the job names, and check what it left.

    When this returns or raises, every process that the script started is gone. What is in the output folder is kept
    either way; the caller removes it.

    Args:
        job: What to run.
        on_output: Called with what the script prints as it comes, the first MiB of it; control characters are replaced.
        sandbox: The one to use; the best that works here when None.

    Raises:
        Untrusted: ``sandbox-unavailable``: no sandbox works here.
        BrokenInput: ``script-failed``: it raised, exited or died; ``script-limit``: it reached the limit that
            ``data["limit"]`` names (seconds, memory, processes, disk); ``script-output``: it left something that may
            not be taken over, as ``data["found"]`` says.
    """
    raise Untrusted("not built yet", code="sandbox-unavailable")
