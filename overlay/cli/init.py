"""``overlay init``: a registry of one's own."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from overlay.cli._options import Common, common_options
from overlay.errors import InvalidUsage
from overlay.formats.os_errors import cannot_write
from overlay.registry.load import FILE_NAME, VARIABLE

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Started", "init"]

CONTENT = """\
# The models of this project, every repo at one commit. `overlay add` writes entries, `overlay bump` moves their pins,
# and both leave everything else in this file as it is. registry.lock beside it says what the pins hold: commit both.
#
# What ships with the program is known without being named here. An entry of the same name changes only what it says:
#
#   models:
#     org/name:
#       source:
#         revision: <40 hex digits>

schema_version: 1

models: {}
"""


@dataclass(frozen=True, slots=True)
class Started:
    """What ``overlay init`` prints.

    Attributes:
        path: The file that was made, or would be.
        next: The command to run next.
    """

    path: str
    dry_run: bool
    next: str


@click.command(short_help="Start a registry of your own.")
@click.option("--dry-run", is_flag=True, help="Say what would be made; write nothing.")
@common_options
def init(common: Common, dry_run: bool) -> None:
    """Make an empty registry.yaml in the working directory, or where --registry says. Nothing is overwritten."""
    path = common.registry or Path(FILE_NAME)
    if dry_run and path.exists():
        raise _exists(path)
    try:
        if not dry_run:
            with path.open("x", encoding="utf-8") as file:
                file.write(CONTENT)
    except FileExistsError as error:
        raise _exists(path) from error
    except OSError as error:
        raise cannot_write(error, str(path), "make the file", elsewhere="name another file: --registry") from error
    for note in _notes(common, path):
        common.output.remark(note)
    document = Started(str(path), dry_run, common.completed("overlay add MODEL --overlay REPO"))
    made = f"{document.path}  {'would be made' if dry_run else 'made'}"
    common.output.result(document, lambda: [made] if common.output.quiet else [made, f"next: {document.next}"])


def _exists(path: Path) -> InvalidUsage:
    return InvalidUsage(
        f"{path}: is there already, and was left as it is",
        code="registry-exists",
        hint="add a model to it: overlay add MODEL --overlay REPO",
        where=str(path),
    )


def _notes(common: Common, path: Path) -> Iterator[str]:
    """Why another file may be in force, or no longer is."""
    if common.registry is not None:
        return
    if elsewhere := os.environ.get(VARIABLE):
        yield f"{VARIABLE}={elsewhere} is in force as long as it is set, not {path}"
        return
    above = [folder / FILE_NAME for folder in Path.cwd().parents if (folder / FILE_NAME).is_file()]
    if above:
        yield f"in this folder and below, {path} now takes the place of {above[0]}"
