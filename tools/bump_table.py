"""What each bump of a checkpoint costs: bytes and seconds, each run a process of its own against a local Hub.

    python tools/bump_table.py --preset release-dims --blocks 3 --rounds 3 --work /scratch --out bumps.json

Makes the checkpoint and every bump of it, serves them with ``hub_server.py``, runs ``overlay prewarm`` once for the
revision before the bumps, and then for each bump, always from the state that this first run left. Bytes are the
program's own counters (tensor payload), which must be the same in every round; ``served`` is what the server sent of
weight files, headers included. ``work`` is what the program says that it took, ``whole`` the process from start to
exit, ``cpu`` its processor time; what lies between work and whole, and part of ``work`` where something is fused (the
import of torch), is start-up. Takes five times the checkpoint on the disk: 35 GB with three blocks at the released
widths.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from bench_machine import filesystem, machine
from hub_server import HubServer

from overlay.demo.checkpoint import SOURCE_REPO, write_hub
from overlay.demo.presets import PRESETS
from overlay.demo.registry import write_registry
from overlay.demo.revisions import BUMPS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from overlay.demo.checkpoint import HubFolder

GB = 1e9
FIRST = "nothing (the first run)"


@dataclass(frozen=True, slots=True)
class Sample:
    """One run: payload in bytes, bytes of weight files that the server sent, seconds, and how it ended."""

    downloaded: int
    read: int
    written: int
    linked: int
    served: int
    work: float
    whole: float
    cpu: float
    result: str

    @property
    def moved(self) -> tuple[int, ...]:
        """What must be the same in every round."""
        return self.downloaded, self.read, self.written, self.linked, self.served


@dataclass(frozen=True, slots=True)
class Host:
    """A cache root and a Hub cache, in one folder."""

    folder: Path
    server: HubServer

    def prewarm(self, hub: HubFolder) -> Sample:
        """Run the program for the revisions that ``hub`` stands for."""
        registry = self.folder.parent / "registry.yaml"
        write_registry(registry, hub)
        command = [sys.executable, "-m", "overlay", "prewarm", SOURCE_REPO, "--json", "--quiet"]
        command += ["--registry", str(registry), "--cache-root", str(self.folder / "root")]
        self.server.forget()
        os.sync()
        started, before = time.monotonic(), os.times()
        done = subprocess.run(command, env=self._environment(), stdout=subprocess.PIPE, check=True)  # noqa: S603  # ours
        whole, after = time.monotonic() - started, os.times()
        [model] = json.loads(done.stdout)["models"]
        return Sample(
            *(model[f"bytes_{name}"] for name in ("downloaded", "read", "written", "linked")),
            served=self.server.payload(),
            work=model["seconds"],
            whole=whole,
            cpu=after.children_user + after.children_system - before.children_user - before.children_system,
            result=model["result"],
        )

    def paths(self) -> dict[Path, Path | None]:
        """Everything that is there, and where the links lead."""
        return {path: path.readlink() if path.is_symlink() else None for path in self.folder.rglob("*")}

    def restore(self, before: dict[Path, Path | None]) -> None:
        """Take out what a run has added, and let links lead where they led."""
        for path, target in sorted(self.paths().items(), reverse=True):
            if path not in before or before[path] != target:
                if path.is_dir() and target is None:
                    shutil.rmtree(path)
                else:
                    path.unlink()
        for path, target in before.items():
            if target is not None and not path.is_symlink():
                path.symlink_to(target)

    def _environment(self) -> dict[str, str]:
        others = ("HF_", "OVERLAY_", "PYTHONDONTWRITEBYTECODE")
        kept = {name: value for name, value in os.environ.items() if not name.startswith(others)}
        return kept | {
            "HF_ENDPOINT": self.server.url,
            "HF_HOME": str(self.folder / "hf"),
            "HF_HUB_DISABLE_TELEMETRY": "1",
            "PYTHONPYCACHEPREFIX": str(self.folder.parent / "compiled"),  # as installed: compiled once
        }


def measure(host: Host, hub: HubFolder, rounds: int) -> dict[str, list[Sample]]:
    """Samples by bump; the first run comes first, and once."""
    bumped = {name: bump(hub) for name, bump in BUMPS.items()}
    host.folder.mkdir()
    samples = {FIRST: [host.prewarm(hub)], **{name: [] for name in bumped}}
    time.sleep(2)  # a file younger than that is not taken for what it was
    before = host.paths()
    for _ in range(rounds):
        for name, revision in bumped.items():
            samples[name].append(host.prewarm(revision))
            host.restore(before)
    return samples


def summarize(samples: dict[str, list[Sample]]) -> list[dict[str, object]]:
    """A row for each bump: bytes, medians of seconds."""
    rows: list[dict[str, object]] = []
    for name, found in samples.items():
        if len({(*sample.moved, sample.result) for sample in found}) > 1:
            raise SystemExit(f"{name}: rounds do not agree: {found}")
        row = {"bump": name, **asdict(found[0])}
        for seconds in ("work", "whole", "cpu"):
            row[seconds] = round(statistics.median(getattr(sample, seconds) for sample in found), 3)
        rows.append(row)
    return rows


def start_up(rounds: int) -> dict[str, float]:
    """Median seconds of a command that does nothing, and of importing torch, which only a fuse does."""
    commands = {"overlay": ["-m", "overlay", "--version"], "torch": ["-c", "import torch"]}
    return {name: statistics.median(_wall(words) for _ in range(rounds)) for name, words in commands.items()}


def _wall(words: Sequence[str]) -> float:
    started = time.monotonic()
    subprocess.run([sys.executable, *words], stdout=subprocess.DEVNULL, check=True)  # noqa: S603  # our own commands
    return time.monotonic() - started


def show(rows: list[dict[str, object]]) -> None:
    """Print the table."""
    moved, seconds = ("downloaded", "read", "written", "linked"), ("work", "whole", "cpu")
    print(f"{'GB and seconds':50}" + "".join(f"{name:>12}" for name in (*moved, *seconds)) + "  result")
    for row in rows:
        figures = [float(str(row[name])) / GB for name in moved] + [float(str(row[name])) for name in seconds]
        print(f"{row['bump']:50}" + "".join(f"{figure:12.3f}" for figure in figures) + f"  {row['result']}")


def main() -> None:
    """Make the checkpoint, measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", choices=PRESETS, default="release-dims")
    parser.add_argument("--blocks", type=int, default=3, help="transformer blocks of the checkpoint")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--work", type=Path, required=True, help="folder for checkpoint and caches; they are removed")
    parser.add_argument("--out", type=Path, required=True, help="JSON file to write")
    choices = parser.parse_args()

    work = choices.work / "bump-table"
    try:
        hub = write_hub(work / "hub", preset=choices.preset, blocks=choices.blocks, spec_name="adapter_config.json")
        with HubServer(hub.root) as server:
            samples = measure(Host(work / "host", server), hub, choices.rounds)
        rows = summarize(samples)
        document = {
            "schema_version": 1,
            "machine": {**machine(), "filesystem": filesystem(work)},
            "preset": choices.preset,
            "blocks": choices.blocks,
            "start_up_s": start_up(choices.rounds),
            "rows": rows,
            "samples": {name: [asdict(sample) for sample in found] for name, found in samples.items()},
        }
    finally:
        shutil.rmtree(work, ignore_errors=True)
    show(rows)
    choices.out.parent.mkdir(parents=True, exist_ok=True)
    choices.out.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
