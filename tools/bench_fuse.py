"""How long a fuse takes, against copying the same files and against the plain rewrite, in paired runs.

Each round runs all three one after another on the same checkpoint, its source in the page cache, every output synced
to the disk and then removed. Ratios are taken within a round, and their median is what to quote. The raw samples go
into a JSON file.

    python tools/bench_fuse.py --blocks 3 --rounds 5 --work /scratch --out docs/benchmarks/fuse.json
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path

TOOLS = Path(__file__).parent
GB = 1e9


@dataclass(frozen=True, slots=True)
class Sample:
    """One run of one command: seconds of wall, user and system time, and the peak resident memory in bytes."""

    wall: float
    user: float
    system: float
    peak: int


def run(*command: str | Path) -> Sample:
    """Run a command to its end, its output to stderr; then sync, inside the time."""
    started = time.monotonic()
    process = subprocess.Popen([str(part) for part in command], stdout=sys.stderr)  # noqa: S603  # our own commands
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"{command[0]}: status {status}")
    os.sync()
    return Sample(time.monotonic() - started, usage.ru_utime, usage.ru_stime, usage.ru_maxrss * 1024)


def warm(folder: Path) -> int:
    """Read every file once, so that the source is in the page cache; their bytes."""
    total = 0
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            with path.open("rb", buffering=0) as file:
                while chunk := file.read(2**24):
                    total += len(chunk)
    return total


def measure(base: Path, adapters: list[Path], work: Path, rounds: int, device: str) -> dict[str, list[Sample]]:
    """Samples by contender, one a round, in an order that changes with the round."""
    flags = [part for adapter in adapters for part in ("--adapter", adapter)]
    out = work / "bench-out"
    contenders: dict[str, list[str | Path]] = {
        "cp": ["cp", "-r", base, out],
        "fuse": [sys.executable, "-m", "overlay", "fuse", base, *flags, "--out", out, "--device", device, "-q"],
        "plain": [sys.executable, TOOLS / "plain_rewrite.py", base, out, *adapters],
    }
    samples: dict[str, list[Sample]] = {name: [] for name in contenders}
    names = list(contenders)
    for number in range(rounds):
        for name in names[number % len(names) :] + names[: number % len(names)]:
            os.sync()
            samples[name].append(run(*contenders[name]))
            print(f"round {number + 1} {name}: {samples[name][-1].wall:.1f} s", file=sys.stderr)
            shutil.rmtree(out)
    return samples


def report(samples: dict[str, list[Sample]], payload: int) -> dict[str, object]:
    """Medians, and ratios of the fuse to the others taken within each round."""
    wall = {name: [sample.wall for sample in found] for name, found in samples.items()}
    ratios = {
        f"fuse/{name}": statistics.median(f / o for f, o in zip(wall["fuse"], wall[name], strict=True))
        for name in ("cp", "plain")
    }
    rows = {
        name: {
            "wall_s": statistics.median(wall[name]),
            "gb_per_s": payload / GB / statistics.median(wall[name]),
            "cpu_s": statistics.median(sample.user + sample.system for sample in found),
            "peak_mib": statistics.median(sample.peak for sample in found) / 2**20,
        }
        for name, found in samples.items()
    }
    for name, row in rows.items():
        print(
            f"{name:6} {row['wall_s']:7.1f} s  {row['gb_per_s']:5.2f} GB/s  cpu {row['cpu_s']:6.1f} s"
            f"  peak {row['peak_mib']:6.0f} MiB"
        )
    for name, ratio in ratios.items():
        print(f"{name:11} {ratio:.2f}")
    return {"medians": rows, "ratios": ratios}


def start_up(rounds: int) -> float:
    """Median seconds of importing torch alone, which every fuse pays once."""
    return statistics.median(run(sys.executable, "-c", "import torch").wall for _ in range(rounds))


def gpu() -> str | None:
    """Name of the GPU, if there is one."""
    import torch

    return torch.cuda.get_device_name() if torch.cuda.is_available() else None


def machine() -> dict[str, object]:
    """What the figures were taken on."""
    lines = Path("/proc/cpuinfo").read_text(encoding="ascii", errors="replace").splitlines()
    cpu = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "unknown")
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    versions = {name: metadata.version(name) for name in ("torch", "safetensors", "xxhash")}
    return {
        "cpu": cpu,
        "gpu": gpu(),
        "processors": len(os.sched_getaffinity(0)),
        "memory_gib": round(pages / 2**30, 1),
        "kernel": platform.release(),
        "python": platform.python_version(),
        **versions,
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
    }


def main() -> None:
    """Make the checkpoint, measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--blocks", type=int, default=3, help="transformer blocks of the release-dims checkpoint")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--work", type=Path, required=True, help="folder for checkpoint and outputs")
    parser.add_argument("--out", type=Path, required=True, help="JSON file to write")
    choices = parser.parse_args()

    from overlay.demo.checkpoint import write_hub

    hub = write_hub(choices.work / f"hub-{choices.blocks}", preset="release-dims", blocks=choices.blocks)
    base = hub.source_folder / "h3-base/transformer"
    adapters = [hub.source_folder / "stage-dmd-step-250/adapters" / name for name in ("default", "turbo")]
    payload = warm(base)
    document = {
        "schema_version": 1,
        "machine": machine(),
        "blocks": choices.blocks,
        "device": choices.device,
        "bytes": payload,
        "import_torch_s": start_up(3),
    }
    samples = measure(base, adapters, choices.work, choices.rounds, choices.device)
    document |= report(samples, payload)
    document["samples"] = {name: [asdict(sample) for sample in found] for name, found in samples.items()}
    choices.out.parent.mkdir(parents=True, exist_ok=True)
    choices.out.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
