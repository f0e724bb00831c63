"""``overlay verify``: a materialization held against its record, and that against the lock in force."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

import overlay
from overlay.cli._options import Common, common_options, rule_option, server_flags, server_options
from overlay.cli._output import columns, style
from overlay.cli._progress import phases
from overlay.errors import InvalidRegistry, InvalidUsage, NotHere
from overlay.formats.wording import counted, format_bytes
from overlay.registry import load_registry

if TYPE_CHECKING:
    from collections.abc import Iterator

    from overlay.consumers.server import Server
    from overlay.registry import Registry

__all__ = ["Problem", "Verified", "verify"]


@dataclass(frozen=True, slots=True)
class Problem:
    """One way in which a directory is not what its record says, or the lock expects.

    Attributes:
        kind: ``lock``: the registry's lock expects something else; else it is the record that says otherwise.
        tensors: The tensors that differ, where the record can tell.
    """

    path: str
    kind: Literal["missing", "extra", "size", "content", "unreadable", "lock"]
    what: str
    tensors: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Verified:
    """What ``overlay verify`` prints.

    Attributes:
        files: Files that the record names.
        bytes_read: Bytes that were read and digested; 0 at level quick.
    """

    ok: bool
    path: str
    level: str
    model: str | None
    files: int
    bytes_read: int
    problems: tuple[Problem, ...]


@click.command(short_help="Check a materialization against its record.")
@click.argument("target", metavar="MODEL_OR_DIR")
@click.option(
    "--level",
    type=click.Choice(["quick", "full", "sha256"]),
    default="full",
    show_default=True,
    help="quick: names, sizes, record. full: every byte. sha256: every byte, by sha256 where record or lock has it.",
)
@rule_option
@server_options
@common_options
def verify(common: Common, target: str, level: str, rule: str, server: Server | None) -> None:
    """Check that a materialization is what its record says; status 1 when it is not.

    Level full finds what broke or was changed by mistake, as fast as the disk reads. Files taken over from a repo are
    known by sha256 too, and so is every file of a build that the lock expects: level sha256 insists on it, also against
    somebody who made a file to pass.

    Where the lock in force expects an output of today's pins, every level holds the record against it, too.
    """
    folder, stale = _folder(common, target, rule, server)
    found = overlay.verify(folder, level, phase=phases(common.output), registry=_registry(common, level))
    document = Verified(
        ok=found.ok,
        path=str(found.path),
        level=found.level,
        model=found.model,
        files=found.num_files,
        bytes_read=found.bytes_read,
        problems=tuple(Problem(item.path, item.kind, item.what, item.tensors) for item in found.problems),
    )
    common.output.result(document, lambda: _text(document))
    if stale:
        common.output.remark(f"{target} is stale: {stale}")
    if not document.ok:
        of_lock = {problem.kind == "lock" for problem in found.problems}
        if False in of_lock and _is_cached(common, found.path, server):
            # What is present is not built again by a prewarm, and other trees may share the bad bytes.
            repair = common.command("cache", "repair", *server_flags(server))
            common.output.remark(f"to build what is bad again: {repair}")
        if True in of_lock:
            command = common.command("lock", found.model or target, "--from-build", str(found.path))
            common.output.remark(f"find out first which is right, the lock or this build; if it is this: {command}")
        raise click.exceptions.Exit(1)


def _registry(common: Common, level: str) -> Registry | None:
    """The registry in force; a folder is held against its record also where there is none that can be used."""
    try:
        return load_registry(common.registry)
    except InvalidRegistry as error:
        if level == "sha256":
            raise
        common.output.remark(f"not held against a lock: {error.message}")
        return None


def _is_cached(common: Common, folder: Path, server: Server | None) -> bool:
    from overlay.materialization.request import open_cache

    return folder.parent == open_cache(common.options(server=server), create=False).root.trees.resolve()


def _folder(common: Common, target: str, rule: str, server: Server | None) -> tuple[Path, str]:
    """A folder with a record, else what the model's location leads to; and why that is stale, if it is."""
    from overlay.materialization.record import RECORD_NAME
    from overlay.materialization.resolve import build_words

    if (Path(target) / RECORD_NAME).is_file():
        return Path(target), ""
    options = common.options(rule=rule, server=server)
    try:
        found = overlay.resolve(target, options)
    except InvalidUsage as error:
        if error.code == "unknown-folder":
            return Path(target), ""  # to be told what it lacks
        raise
    state = found.state
    if state.tree is None:
        raise NotHere(
            f"{target}: {state.name}, nothing to verify",
            code=f"model-{state.name}",
            hint=common.command(*build_words(target, found, options)),
            model=target,
        )
    return state.tree, state.why if state.name == "stale" else ""


def _text(found: Verified) -> Iterator[str]:
    verdict = style("ok", "good") if found.ok else style(counted(len(found.problems), "problem"), "bad")
    how = f"{format_bytes(found.bytes_read)} read" if found.level != "quick" else "names, sizes, record"
    yield f"{found.path}"
    yield f"  {verdict} · {counted(found.files, 'file')} · {how}"
    yield from columns([[problem.kind, problem.path, problem.what] for problem in found.problems])
