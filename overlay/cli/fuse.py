"""``overlay fuse``: fold adapters into a folder of safetensors, with no registry and no cache."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

import overlay
from overlay.cli._options import DIRECTORY, Common, build_options, common_options, link_option
from overlay.cli._output import columns, format_seconds, style
from overlay.cli._progress import phases
from overlay.formats.wording import counted, format_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["FusedAdapter", "FusedFolder", "fuse"]


@dataclass(frozen=True, slots=True)
class FusedAdapter:
    """One adapter, in the order of fusing.

    Attributes:
        kind: The layout that it was read as.
        scales: Distinct scales of its pairs, and ``scale_origins`` how they came about.
        pattern_rule: Rule by which per-module patterns were matched.
    """

    name: str
    kind: str
    weights: str
    pairs: int
    scales: tuple[float, ...]
    scale_origins: tuple[str, ...]
    pattern_rule: str


@dataclass(frozen=True, slots=True)
class FusedFolder:
    """What ``overlay fuse`` prints. Counters count tensor payload; ``room`` counts files.

    Attributes:
        path: The new folder.
        left_out: Files of the base that were not taken along.
        notes: Why files were copied, where nobody asked for that.
        start_seconds: Of ``seconds``, the import of torch and the start-up test of the device.
    """

    path: str
    dry_run: bool
    rule: str
    adapters: tuple[FusedAdapter, ...]
    left_out: tuple[str, ...]
    bytes_read: int
    bytes_written: int
    bytes_linked: int
    room: int
    seconds: float
    start_seconds: float
    notes: tuple[str, ...]


@click.command()
@click.argument("base", type=DIRECTORY)
@click.option(
    "--adapter",
    "adapters",
    type=click.Path(path_type=Path),
    multiple=True,
    required=True,
    help="Folder or safetensors file; once for each, in the order of fusing.",
)
@click.option(
    "--out", type=DIRECTORY, required=True, help="The new folder; must not exist. Missing folders above it are made."
)
@click.option("--dry-run", is_flag=True, help="Read and check everything, write nothing.")
@link_option
@build_options
@common_options
def fuse(common: Common, base: Path, adapters: tuple[Path, ...], out: Path, dry_run: bool, **choices: Any) -> None:
    """Fold adapters into the safetensors of BASE, into a new folder.

    The new folder holds the fused shards with their index, BASE's JSON, text and licence files, and a record; what
    else BASE has is listed. It appears complete or not at all.
    """
    found = overlay.fuse(base, adapters, out, dry_run=dry_run, phase=phases(common.output), **choices)
    document = _document(found, choices["rule"], dry_run=dry_run)
    common.output.result(document, lambda: _text(document))


def _document(found: overlay.Fusion, rule: str, *, dry_run: bool) -> FusedFolder:
    return FusedFolder(
        path=str(found.path),
        dry_run=dry_run,
        rule=rule,
        adapters=tuple(
            FusedAdapter(
                use.name,
                use.kind,
                use.weights.path,
                use.num_pairs,
                use.scales,
                use.scale_origins,
                use.pattern_rule,
            )
            for use in found.adapters
        ),
        left_out=found.left_out,
        bytes_read=found.counters.read,
        bytes_written=found.counters.written,
        bytes_linked=found.counters.linked,
        room=found.room,
        seconds=round(found.seconds, 3),
        start_seconds=round(found.start_seconds, 3),
        notes=found.notes,
    )


def _text(found: FusedFolder) -> Iterator[str]:
    verbs = ("read", "write", "link") if found.dry_run else ("read", "wrote", "linked")
    counts = (found.bytes_read, found.bytes_written, found.bytes_linked)
    moved = " · ".join(f"{verb} {format_bytes(count)}" for verb, count in zip(verbs, counts, strict=True) if count)
    done = (
        "would fuse"
        if found.dry_run
        else f"fused in {format_seconds(found.seconds)} ({format_seconds(found.start_seconds)} start-up)"
    )
    room = f" · room {format_bytes(found.room)}" if found.dry_run else ""
    yield f"{style(found.path, 'strong')}  {done} · {moved}{room} · rule {found.rule}"
    rows = []
    for adapter in found.adapters:
        scales = ", ".join(f"{scale:g}" for scale in adapter.scales)
        origins = "; ".join(adapter.scale_origins)
        rows.append(
            ["adapter", adapter.name, f"{counted(adapter.pairs, 'pair')} ({adapter.kind}), scale {scales}: {origins}"]
        )
    rows += [["left out", path] for path in found.left_out]
    rows += [["note", note] for note in found.notes]
    yield from columns(rows)
