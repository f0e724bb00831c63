"""The lock in force on the output of a run: rebuilt once where it is not as expected, refused where it still is not."""

from __future__ import annotations

from typing import TYPE_CHECKING

from overlay.errors import CannotWrite, CheckFailed
from overlay.formats.os_errors import MAY_NOT_WRITE
from overlay.formats.wording import counted, some
from overlay.materialization.locking.deviations import build_again, deviations, drop_deviating
from overlay.materialization.locking.in_force import why_not_comparable
from overlay.materialization.publishing import quarantine

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from overlay.materialization.build import Made
    from overlay.materialization.job import Job
    from overlay.materialization.locking.deviations import Deviation, Rebuilt
    from overlay.materialization.locking.in_force import LockInForce
    from overlay.materialization.publishing import Sealed
    from overlay.materialization.survey import Work

    _Seal = Callable[[Work, Made, Rebuilt | None], Sealed]

__all__ = ["enforced"]


def enforced(
    lock: LockInForce | None, job: Job, work: Work, made: Made, seal: _Seal
) -> tuple[Work, Made, Rebuilt | None]:
    """The work and what was made, as the lock expects it, and what had to be built a second time for that.

    Args:
        seal: Names and records a tree that is not to be published.

    Raises:
        CheckFailed: Also what the ordered kernel made is not as expected. The tree is in quarantine then, and the cache
            holds none of the files that differ.
        OverlayError: As ``materialize``.
    """
    expected = lock.locked.expected if lock else None
    if lock is None or expected is None or why_not_comparable(expected, job.options.rule):
        return work, made, None
    whole = not job.options.only
    deviating = deviations(expected, made.files, whole=whole)
    if not deviating:
        return work, made, None
    rebuilt, kept = None, None
    try:
        work, made, rebuilt = build_again(job, work, made, deviating)
        deviating = deviations(expected, made.files, whole=whole)
        if not deviating:
            return work, made, rebuilt
        kept = quarantine(work, made, job.cache, seal(work, made, rebuilt))
        drop_deviating(job.cache, work, deviating)
    except CannotWrite as error:
        if error.code not in MAY_NOT_WRITE:  # on a root that may not be written, the answer is no all the same
            raise
    raise _refusal(lock, job, work, deviating, rebuilt, kept)


def _refusal(
    lock: LockInForce, job: Job, work: Work, deviating: Sequence[Deviation], rebuilt: Rebuilt | None, kept: Path | None
) -> CheckFailed:
    num_tensors = sum(len(item.tensors) for item in deviating)
    counts = ([counted(num_tensors, "tensor")] if num_tensors else []) + [counted(len(deviating), "file")]
    again = ", also when built again by the ordered kernel" if rebuilt else ""
    other = job.cache.location_target(work.plan.location)
    hint = "the cache may not be written here, so nothing was kept to look at"
    if kept is not None:
        hint = (
            f"look: {f'overlay compare {kept} {other}' if other else kept}; if the lock is what is wrong: "
            f"overlay lock {lock.model} --from-build {kept}"
        )
    return CheckFailed(
        f"{lock.path}: the output of {lock.model} is not as expected in {' of '.join(counts)} "
        f"({some(_names(deviating))}){again}; not published",
        code="output-differs",
        hint=hint,
        where=str(lock.path),
        model=lock.model,
        files=[item.to_json() for item in deviating],
        quarantine=str(kept) if kept else None,
    )


def _names(deviating: Sequence[Deviation]) -> Iterator[str]:
    """Each tensor that differs, with its file; files alone where no tensors are known, and why."""
    for item in deviating:
        if item.tensors:
            yield from (f"{item.path}: {name}" for name in item.tensors)
        elif item.found is None:
            yield f"{item.path}: not made"
        else:
            yield item.path if item.expected else f"{item.path}: not in the lock"
