"""``overlay adopt``: take a tree that a server built, after holding it against its inputs."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import click

import overlay
from overlay.cli._options import Common, build_options, common_options, link_option, lock_option, server_options
from overlay.cli._output import columns, format_seconds, moved_bytes, style
from overlay.cli._progress import phases
from overlay.formats.wording import format_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from overlay.materialization.adoption.survey import AdoptionWork
    from overlay.materialization.survey import Step

__all__ = ["Adopted", "AdoptedFile", "AdoptionPlan", "FileToAdopt", "adopt"]


@dataclass(frozen=True, slots=True)
class FileToAdopt:
    """One file of a dry run.

    Attributes:
        compared: ``computed``: with what a build would write, block by block. ``digest``: by a digest that the repo,
            the cache or the lock knows. ``bytes``: with small bytes that the plan holds, or another name's. ``added``:
            not at all: no server makes it.
        how: How it becomes an object; ``present``: the cache has it. Null where it is made anew.
    """

    path: str
    compared: Literal["computed", "digest", "bytes", "added"]
    how: Literal["present", "reflink", "hardlink", "copy"] | None
    size: int


@dataclass(frozen=True, slots=True)
class AdoptionPlan:
    """What ``overlay adopt --dry-run`` prints. Counters count tensor payload; ``room`` and sizes count files.

    Attributes:
        folder: What the server built; null where the model is published already.
        location: Where a consumer looks; null likewise.
        present: Whether the model is published already, so that a run does nothing.
        room: Bytes needed on the cache root's filesystem.
        missing: Inputs to download, because a file has to be computed from them.
    """

    folder: str | None
    location: str | None
    present: bool
    bytes_downloaded: int
    bytes_read: int
    bytes_written: int
    bytes_linked: int
    room: int
    files: tuple[FileToAdopt, ...]
    missing: tuple[str, ...]
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class AdoptedFile:
    """A file that became an object; ``present``: the cache had it, and its object was kept."""

    path: str
    how: Literal["present", "reflink", "hardlink", "copy"]


@dataclass(frozen=True, slots=True)
class Adopted:
    """What ``overlay adopt`` prints.

    Attributes:
        path: Its directory, links resolved.
        location: Where a consumer looks.
    """

    model: str
    path: str
    location: str
    result: Literal["adopted", "present"]
    bytes_downloaded: int
    bytes_read: int
    bytes_written: int
    bytes_linked: int
    files: tuple[AdoptedFile, ...]
    seconds: float
    notes: tuple[str, ...]


@click.command(short_help="Take a tree that a server built, after checking it.")
@click.argument("target", metavar="MODEL_OR_DIR")
@click.option("--dry-run", is_flag=True, help="Check marker and names, print what would be compared. Write nothing.")
@click.option("--allow-floating", is_flag=True, help="Hold it against a revision that the registry does not pin.")
@server_options
@link_option
@lock_option
@build_options
@common_options
def adopt(common: Common, target: str, dry_run: bool, **choices: Any) -> None:
    """Take a tree that sglang built itself: hold every byte against the inputs, then publish it without writing one.

    For a model, the folder at its location is taken, and a link of this program comes in its place; a server that has
    files open goes on. A folder elsewhere must hold the server's marker and lie on the filesystem of the cache root; it
    stays. What differs in one byte is refused, and nothing is changed.
    """
    options = common.options(**choices)
    if dry_run:
        from overlay.materialization.adoption.adopt import plan_adoption

        planned = _planned(plan_adoption(target, options, phase=phases(common.output)), options)
        common.output.result(planned, lambda: _plan_text(planned, verbose=common.output.verbose))
        return
    done = overlay.adopt(
        target,
        options,
        phase=phases(common.output),
        on_wait=lambda text: common.output.remark(f"{target}: {text}"),
    )
    document = Adopted(
        model=done.model,
        path=str(done.path),
        location=str(done.location),
        result=done.result,
        bytes_downloaded=done.counters.downloaded,
        bytes_read=done.counters.read,
        bytes_written=done.counters.written,
        bytes_linked=done.counters.linked,
        files=tuple(AdoptedFile(path, how) for path, how in sorted(done.links.items())),
        seconds=round(done.seconds, 3),
        notes=done.notes,
    )
    common.output.result(document, lambda: _done_text(document))
    for note in done.notes:
        common.output.remark(f"{done.model}: {note}")


def _planned(found: AdoptionWork | None, options: overlay.Options) -> AdoptionPlan:
    if found is None:
        return AdoptionPlan(None, None, True, 0, 0, 0, 0, 0, (), (), ())  # noqa: FBT003 - a document without content
    from overlay.materialization.request import open_cache

    work, counters = found.work, found.work.counters
    return AdoptionPlan(
        folder=str(found.folder),
        location=str(open_cache(options, create=False).location_path(work.plan.location)),
        present=False,
        bytes_downloaded=counters.downloaded,
        bytes_read=counters.read,
        bytes_written=counters.written,
        bytes_linked=counters.linked,
        room=work.room,
        files=tuple(_file(found, step) for step in work.steps),
        missing=tuple(f"{item.repo}@{item.revision}/{item.path}" for item in work.missing),
        notes=(*work.plan.notes, *work.notes),
    )


def _file(found: AdoptionWork, step: Step) -> FileToAdopt:
    path = step.output.path
    compared: Literal["computed", "digest", "bytes", "added"] = "digest"
    if path in found.absent:
        compared = "added"
    elif step.how in ("generate", "alias"):
        compared = "bytes"
    elif step.how == "build":
        compared = "computed"
    return FileToAdopt(path, compared, found.ways.get(path), step.size)


def _plan_text(plan: AdoptionPlan, *, verbose: bool) -> Iterator[str]:
    if plan.present:
        yield f"{style('present', 'good')}: nothing to adopt"
        return
    yield style(plan.folder or "", "strong")
    yield f"  {moved_bytes(plan, done=False)} · room {format_bytes(plan.room)}"
    compared = Counter(file.compared for file in plan.files)
    hows = Counter(file.how for file in plan.files if file.how)
    rows = [
        ["compared", ", ".join(f"{count} {_COMPARED[kind]}" for kind, count in compared.most_common())],
        ["taken", ", ".join(f"{count} {_TAKEN[how]}" for how, count in hows.most_common())],
        ["location", plan.location or ""],
        *(["note", note] for note in plan.notes),
    ]
    yield from columns(rows)
    if verbose:
        yield from columns([[file.compared, file.how or "", format_bytes(file.size), file.path] for file in plan.files])
        yield from columns([["download", path] for path in plan.missing])


_COMPARED = {
    "computed": "with what a build would write",
    "digest": "by digest",
    "bytes": "by their bytes",
    "added": "added (no server makes them)",
}
_TAKEN = {
    "present": "in the cache already",
    "reflink": "reflinked",
    "hardlink": "hardlinked",
    "copy": "copied",
}


def _done_text(done: Adopted) -> Iterator[str]:
    moved = moved_bytes(done, done=True)
    yield f"{style(done.model, 'strong')}  {done.result} in {format_seconds(done.seconds)} · {moved}"
    hows = Counter(file.how for file in done.files)
    if hows:
        yield f"  {', '.join(f'{count} {_TAKEN[how]}' for how, count in hows.most_common())}"
    yield f"  {done.path}"
