"""How long a fuse takes, against copying the same bytes, the plain rewrite, and peft, in paired runs.

    python tools/bench_fuse.py --blocks 1 3 6 --device cpu cuda --rounds 5 --work /scratch --out results/fuse.json

A round runs every contender on every size, one after the other, in an order that changes with the round. Before each
run the source is read once, outside the time, so that it is in the page cache whatever the run before dropped (with
``--source`` on a tmpfs it always is, and nothing waits for the disk). Every output is synced inside the time and then
removed. Ratios are taken within a round; their median is what to quote.

Contenders:

- ``cp``: ``cp -r`` of the base. A filesystem with reflinks would copy nothing; measure on one without.
- ``fuse``: ``overlay fuse``, once for each device.
- ``plain``: ``plain_rewrite.py``, the published rule with whole shards in memory. Its bytes are those of the fuse.
- ``peft``: ``peft_rewrite.py``, diffusers and peft. Its bytes differ by design.
- ``floor``: ``bench_floor.py``, what the parts of the work cost alone.

What fails is shown as not run, with the reason that it gave.

What the columns mean:

- ``whole``: wall time of the process from start to exit, and of a ``sync`` after it.
- ``work``: what grows with the bytes. The fuse tells it: its ``call`` less the import of torch and the start-up test of
  the device, and the ``sync`` after it. Of the others it is ``whole`` less that of the same command on the tiny
  checkpoint (4 MB), median of the rounds. ``work/cp`` is work over the ``whole`` of cp.
- ``start-up``: ``whole`` less ``work``: the interpreter, the imports (torch is most of it), the self-test of the
  kernels, a device's context, the exit.
- ``call``: what ``overlay fuse --json`` says as ``seconds``: from the call of ``overlay.fuse`` to its return, with the
  import of torch, which happens inside it, and the sync of each file; without the interpreter's start, the imports of
  the command line, the exit, and the sync at the end.
- ``floor``: what a perfect overlap could reach: the larger of writing and syncing the bytes with nothing else to do,
  and of the CPU seconds of reading, arithmetic and writing over the number of processors.

A line is fitted to the work of each contender over the sizes; ``deviation`` is the largest distance from it.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from bench_machine import filesystem, machine
from bench_report import Sample, Size, fit_lines, floor_parts, floor_rows, report, summarize

from overlay.demo.checkpoint import SPEC_NAME, write_vdn_adapter
from overlay.demo.documents import ADAPTER_STAGES, DMD_STAGE, adapter_spec, component_config, dump_line
from overlay.demo.presets import make_preset
from overlay.demo.shards import write_shards
from overlay.demo.tensors import transformer_tensors
from overlay.demo.weights import Weights

if TYPE_CHECKING:
    from collections.abc import Sequence

TOOLS = Path(__file__).parent
CONTENDERS = ("cp", "fuse", "plain", "peft", "floor")
DEVICES = ("cpu", "cuda")
BUFFER = 2**22
KEPT = ("seconds", "start_seconds", "processors", "read", "arithmetic", "write")
"""What is kept of the JSON that a contender prints."""


class DidNotRunError(Exception):
    """A command failed; the message is the reason that it gave."""


@dataclass(frozen=True, slots=True)
class Source:
    """A checkpoint to fuse; ``blocks`` is 0 for the tiny one, which start-up is measured with."""

    blocks: int
    base: Path
    adapters: tuple[Path, ...]
    nbytes: int

    @property
    def name(self) -> str:
        """How messages and the JSON call it."""
        return f"blocks-{self.blocks}" if self.blocks else "tiny"


def run(*command: str | Path) -> Sample:
    """Run a command to its end, then sync, inside the time.

    Raises:
        DidNotRunError: It failed.
    """
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        started = time.monotonic()
        process = subprocess.Popen([str(part) for part in command], stdout=out, stderr=err)  # noqa: S603  # our own
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        ended = time.monotonic()
        os.sync()
        wall, sync = time.monotonic() - started, time.monotonic() - ended
        if status:
            err.seek(0)
            said = [line.strip() for line in err if line.strip() and not line.startswith("hint:")]
            raise DidNotRunError(said[-1] if said else f"{command[0]}: exit status {process.returncode}")
        out.seek(0)
        printed = json.loads(out.read() or "{}")
    kept = {
        key: printed[key]
        for key in ("seconds", "start_seconds", "processors", "read", "arithmetic", "write")
        if key in printed
    }
    return Sample(wall, usage.ru_utime, usage.ru_stime, usage.ru_maxrss * 1024, sync, kept)


def write_source(folder: Path, blocks: int) -> Source:
    """Write the part of the demo's checkpoint that a fuse reads: the base transformer and the two adapters."""
    preset = make_preset("release-dims", blocks) if blocks else make_preset("tiny", 1)
    weights, base = Weights(preset.name, 0), folder / "transformer"
    tensors = transformer_tensors(preset.transformer)
    write_shards(base, tensors, weights, "h3-base/transformer", limit=preset.shard_limit)
    (base / "config.json").write_bytes(component_config("transformer", preset.transformer))
    adapters = tuple(folder / name for name in ADAPTER_STAGES[DMD_STAGE])
    for adapter in adapters:
        write_vdn_adapter(adapter, preset, weights, DMD_STAGE, adapter.name)
        (adapter / SPEC_NAME).write_bytes(dump_line(adapter_spec(preset, adapter.name)))
    return Source(blocks, base, adapters, sum(path.stat().st_size for path in base.iterdir()))


def warm(source: Source) -> None:
    """Read every file of the source once, so that it is in the page cache."""
    buffer = bytearray(BUFFER)
    for folder in (source.base, *source.adapters):
        for path in folder.iterdir():
            with path.open("rb", buffering=0) as file:
                while file.readinto(buffer):
                    pass


def commands(source: Source, out: Path, names: Sequence[str], devices: Sequence[str]) -> dict[str, list[str | Path]]:
    """The command of each contender; the fuse is one for each device."""
    flags = [part for adapter in source.adapters for part in ("--adapter", adapter)]
    fuse = [sys.executable, "-m", "overlay", "fuse", source.base, *flags, "--out", out, "--json", "-q", "--device"]
    every: dict[str, list[str | Path]] = {
        "cp": ["cp", "-r", source.base, out],
        **{f"fuse {device}": [*fuse, device] for device in devices},
        **{
            name: [sys.executable, TOOLS / script, source.base, out, *source.adapters]
            for name, script in (
                ("plain", "plain_rewrite.py"),
                ("peft", "peft_rewrite.py"),
                ("floor", "bench_floor.py"),
            )
        },
    }
    return {name: command for name, command in every.items() if name.partition(" ")[0] in names}


class Bench:
    """The samples of all rounds so far, by size and contender, and the reasons of those that did not run."""

    def __init__(self, sources: Sequence[Source], names: Sequence[str], devices: Sequence[str], out: Path) -> None:
        self.sources = sources
        self.devices = devices
        self.out = out
        self.commands = {source.name: commands(source, out, names, devices) for source in sources}
        self.samples: dict[str, dict[str, list[Sample]]] = {
            source.name: {name: [] for name in self.commands[source.name]} for source in sources
        }
        self.not_run: dict[str, dict[str, str]] = {source.name: {} for source in sources}

    def round(self, number: int) -> None:
        """Run every contender on every size; who failed once at a size, or on the tiny checkpoint, is left out."""
        for source in self.sources:
            names = list(self.commands[source.name])
            for name in names[number % len(names) :] + names[: number % len(names)]:
                if name not in self.missing(source):
                    self._run(source, name, number)

    def missing(self, source: Source) -> dict[str, str]:
        """Who did not run at this size, and why."""
        return self.not_run["tiny"] | self.not_run[source.name]

    def _run(self, source: Source, name: str, number: int) -> None:
        warm(source)
        os.sync()
        try:
            sample = run(*self.commands[source.name][name])
        except DidNotRunError as error:
            self.not_run[source.name][name] = str(error)
            print(f"round {number + 1} {source.name} {name}: not run: {error}", file=sys.stderr)
        else:
            self.samples[source.name][name].append(sample)
            print(f"round {number + 1} {source.name} {name}: {sample.wall:.1f} s", file=sys.stderr)
        shutil.rmtree(self.out, ignore_errors=True)

    def size(self, source: Source) -> Size:
        """What came out at the size of ``source`` so far."""
        missing = self.missing(source)
        ran = {name: found for name, found in self.samples[source.name].items() if name not in missing}
        floors = ran.pop("floor", [])
        start_ups = {name: statistics.median(s.wall for s in self.samples["tiny"][name]) for name in ran}
        rows = summarize(ran, start_ups, source.nbytes)
        if floors:
            devices = [device for device in self.devices if f"fuse {device}" not in missing]
            rows |= floor_rows(floors, ran.get("cp", []), devices, source.nbytes)
        floor = floor_parts(floors, source.nbytes) if floors else None
        return Size(source.blocks, source.nbytes, rows, missing, floor)


def main() -> None:
    """Make the checkpoints, measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--blocks", type=int, nargs="+", default=[3], help="transformer blocks of each size")
    parser.add_argument("--device", nargs="+", choices=DEVICES, default=["cpu"], help="devices of the fuse")
    parser.add_argument("--contenders", nargs="+", choices=CONTENDERS, default=CONTENDERS)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--work", type=Path, required=True, help="folder for outputs, on the disk that is measured")
    parser.add_argument("--source", type=Path, help="folder for checkpoints: a tmpfs saves reading them from the disk")
    parser.add_argument("--out", type=Path, required=True, help="JSON file to write")
    choices = parser.parse_args()
    if min(choices.blocks) < 1:
        parser.error("--blocks: at least 1 expected")

    folder = choices.source or choices.work
    folder.mkdir(parents=True, exist_ok=True)
    choices.work.mkdir(parents=True, exist_ok=True)
    sources = [write_source(folder / f"source-{blocks}", blocks) for blocks in (0, *choices.blocks)]
    bench = Bench(sources, choices.contenders, choices.device, choices.work / "bench-out")
    head = {
        "schema_version": 2,
        "machine": machine(),
        "filesystem": filesystem(choices.work),
        "source_filesystem": filesystem(folder),
        "arguments": sys.argv[1:],
    }
    choices.out.parent.mkdir(parents=True, exist_ok=True)
    for number in range(choices.rounds):
        bench.round(number)
        results = [bench.size(source) for source in sources[1:]]
        document = {
            **head,
            "rounds": number + 1,
            "sizes": [asdict(size) for size in results],
            "lines": {name: asdict(line) for name, line in fit_lines(results).items()},
            "samples": bench.samples,
        }
        text = json.dumps(document, indent=1, default=asdict)
        choices.out.write_text(text + "\n", encoding="utf-8")  # after each round, should the time run out
    print(report(results))


if __name__ == "__main__":
    main()
