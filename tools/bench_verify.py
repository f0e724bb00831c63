"""How fast `overlay verify` reads, against dd on the same files in the same minute.

A tree in a cache root is made of random bytes: large files, the first half of them known by the fast digest as files
written here are, the others by sha256 as files taken over from the Hub. Each round reads them from the page cache and
from the disk: by dd, one file after another and all at once, and by verify. CPU time is of all threads; where a machine
is shared, it tells more than the wall clock. What was made is removed in the end.

    python tools/bench_verify.py --gib 8 --rounds 3 --work /scratch --out docs/benchmarks/verify.json
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import statistics
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from bench_machine import filesystem, machine

import overlay
from overlay.cache import Cache
from overlay.fingerprint import file_digest
from overlay.materialization.record import RECORD_NAME

if TYPE_CHECKING:
    from collections.abc import Callable

GB = 1e9
FILES = 4


@dataclass(frozen=True, slots=True)
class Sample:
    """One pass over all files: seconds of wall time, and of user and system time on all cores together."""

    wall: float
    cpu: float


def make_tree(root: Path, size: int) -> tuple[Path, list[Path]]:
    """A tree of ``FILES`` files with its record, in a cache root; the tree and the files."""
    tree = Cache.open(root, create=True).tree_path("bench__verify-0123456789abcdef")
    tree.mkdir(parents=True)
    outputs = []
    for number in range(FILES):
        path = tree / f"weights-{number}.bin"
        with path.open("wb") as file:
            for _ in range(max(1, size // FILES // 2**24)):
                file.write(os.urandom(2**24))
        algorithm = "xxh3_128" if number < FILES // 2 else "sha256"
        outputs.append({"path": path.name, "size": path.stat().st_size, "digest": file_digest(path, algorithm)})
    (tree / RECORD_NAME).write_text(json.dumps({"schema_version": 1, "outputs": outputs}), encoding="utf-8")
    os.sync()
    return tree, [tree / str(item["path"]) for item in outputs]


def drop(files: list[Path]) -> None:
    """Take files out of the page cache."""
    for path in files:
        with path.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def dd(files: list[Path], at_a_time: int, *flags: str) -> None:
    """Read files to nowhere."""

    def read(path: Path) -> None:
        size = "16M" if flags else "1M"
        command = ["dd", f"if={path}", "of=/dev/null", f"bs={size}", "status=none", *flags]
        subprocess.run(command, check=True)  # noqa: S603  # dd of the PATH is meant

    with ThreadPoolExecutor(at_a_time) as pool:
        list(pool.map(read, files))


def verify(tree: Path, level: str, jobs: int | None) -> None:
    """Read a tree that must be sound."""
    if problems := overlay.verify(tree, level, jobs=jobs).problems:
        raise SystemExit(str(problems))


def timed(action: Callable[[], None]) -> Sample:
    """Run it."""

    def spent() -> float:
        both = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
        return sum(found.ru_utime + found.ru_stime for found in both)

    wall, cpu = time.monotonic(), spent()
    action()
    return Sample(time.monotonic() - wall, spent() - cpu)


def measure(tree: Path, files: list[Path], rounds: int) -> dict[str, list[Sample]]:
    """Samples by contender, one a round."""
    warm: dict[str, Callable[[], None]] = {
        "warm dd": lambda: dd(files, 1),
        "warm dd, all at once": lambda: dd(files, FILES),
        "warm verify, 1 job": lambda: verify(tree, "full", 1),
        "warm verify": lambda: verify(tree, "full", None),
        "warm verify --level sha256": lambda: verify(tree, "sha256", None),
    }
    cold: dict[str, Callable[[], None]] = {
        "cold dd": lambda: dd(files, 1),
        "cold dd, all at once": lambda: dd(files, FILES),
        "direct dd": lambda: dd(files, 1, "iflag=direct"),
        "direct dd, all at once": lambda: dd(files, FILES, "iflag=direct"),
        "cold verify": lambda: verify(tree, "full", None),
    }
    verify(tree, "full", None)  # learns the fast digests, as a run that hashed its inputs did
    samples: dict[str, list[Sample]] = {name: [] for name in (*warm, *cold)}
    for number in range(rounds):
        dd(files, 1)
        for name in _turned(list(warm), number):
            samples[name].append(timed(warm[name]))
        for name in _turned(list(cold), number):
            drop(files)
            samples[name].append(timed(cold[name]))
    return samples


def _turned(names: list[str], number: int) -> list[str]:
    return names[number % len(names) :] + names[: number % len(names)]


def report(samples: dict[str, list[Sample]], size: int) -> dict[str, object]:
    """Medians, and ratios of the rates taken within each round."""
    rows = {
        name: {
            "gb_per_s": statistics.median(size / GB / sample.wall for sample in found),
            "gb_per_cpu_s": statistics.median(size / GB / sample.cpu for sample in found),
        }
        for name, found in samples.items()
    }
    disk = [name for name in samples if name.startswith(("cold dd", "direct dd"))]
    pairs = zip(*(samples[name] for name in ("cold verify", *disk)), strict=True)
    ratios = {
        "cold verify/fastest dd": statistics.median(
            min(sample.wall for sample in others) / cold.wall for cold, *others in pairs
        )
    }
    for name, other in (
        ("cold verify", "cold dd"),
        ("warm verify", "warm dd, all at once"),
        ("warm verify, 1 job", "warm dd"),
    ):
        both = zip(samples[name], samples[other], strict=True)
        ratios[f"{name}/{other}"] = statistics.median(theirs.wall / ours.wall for ours, theirs in both)
    for name, row in rows.items():
        print(f"{name:28} {row['gb_per_s']:6.2f} GB/s  {row['gb_per_cpu_s']:6.2f} GB a CPU second")
    for name, ratio in ratios.items():
        print(f"{name:42} {ratio:.2f}")
    return {"medians": rows, "ratios": ratios}


def main() -> None:
    """Make the tree, measure, print, write, remove."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gib", type=float, default=8, help="size of all files together")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--work", type=Path, required=True, help="folder for the files")
    parser.add_argument("--out", type=Path, required=True, help="JSON file to write")
    choices = parser.parse_args()

    root = choices.work / "bench-verify"
    try:
        tree, files = make_tree(root, int(choices.gib * 2**30))
        size = sum(path.stat().st_size for path in files)
        document = {"schema_version": 1, "machine": machine(), "filesystem": filesystem(root), "bytes": size}
        samples = measure(tree, files, choices.rounds)
    finally:
        shutil.rmtree(root, ignore_errors=True)
    document |= report(samples, size)
    document["samples"] = {name: [asdict(sample) for sample in found] for name, found in samples.items()}
    choices.out.parent.mkdir(parents=True, exist_ok=True)
    choices.out.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
