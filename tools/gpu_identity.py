"""Measures on a machine with a GPU: do its products follow the rule, are a fuse's bytes the CPU's, and how fast is it.

    python3 tools/gpu_identity.py --out results.json

Prints a table and writes JSON. Needs torch, xxhash and this checkout; takes a few minutes. A section that fails is
recorded with its error and the others go on. ``scan`` is where the bounds of ``overlay/fusion/library.py`` come from.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import tempfile
import time
import traceback
from collections import defaultdict
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from overlay.fusion.build import build_safetensors
from overlay.fusion.engine import Engine
from overlay.fusion.library import Library
from overlay.fusion.ordered import ordered_product
from overlay.fusion.self_test import run_self_test, same_bits
from overlay.fusion.settings import full_precision
from overlay.fusion.workers import Workers
from overlay.planning.outputs import Fused, Input, OutputTensor, Range, SafetensorsFile, Term

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from overlay.fusion.build import BuiltFile

GPU = torch.device("cuda:0")
DTYPES = {"BF16": torch.bfloat16, "F16": torch.float16, "F32": torch.float32}
MEMORY = 4 * 2**30
UNBOUNDED = "cuda library"
"""Kind of engine that gives every fp32 product to the library, within no bounds: what might be in the table."""
MAX_JOBS = len(os.sched_getaffinity(0))

SCAN_RANKS = (1, 2, 3, 4, 7, 8, 15, 16, 17, 24, 31, 32, 33, 48, 63, 64, 65, 96, 127, 128, 129)
SCAN_RANKS += (160, 191, 192, 193, 255, 256, 257, 320, 383, 384, 385, 448, 511, 512)
SCAN_SHAPES = ((1, 1), (1, 2), (2, 1), (1, 33), (1, 2688), (1, 5376), (1, 14336), (1000, 1), (8192, 1), (2, 5376))
SCAN_SHAPES += (
    (2, 2),
    (3, 5),
    (8, 8),
    (16, 16),
    (31, 33),
    (4096, 2),
    (2, 4097),
    (129, 8),
    (8, 129),
    (256, 256),
    (333, 777),
)
SCAN_SHAPES += (
    (585, 14336),
    (1560, 5376),
    (1561, 5376),
    (3120, 2688),
    (4096, 64),
    (17, 65536),
    (100, 5376),
    (7168, 1000),
)
FLOORS = ((1, 1), (1, 2), (2, 1), (2, 2), (3, 5), (8, 8), (16, 16), (31, 33), (256, 256))


@dataclass(frozen=True)
class Case:
    """A weight [rows, cols] with two pairs of one rank."""

    rows: int
    cols: int
    rank: int
    dtype: str = "BF16"
    pair_dtype: str = "BF16"
    scale: float = 1.0
    magnitude: float = 0.02

    def __str__(self) -> str:
        return (
            f"{self.dtype}[{self.rows},{self.cols}] r{self.rank} {self.pair_dtype} x{self.scale:g} ~{self.magnitude:g}"
        )


RELEASE = (
    Case(7168, 5376, 64),
    Case(5376, 14336, 64),
    Case(96768, 2688, 16),
    Case(10752, 2688, 16),
    Case(28672, 5376, 64),
)
SMALL = tuple(
    Case(1001, 2049, rank, dtype, pair_dtype, scale)
    for dtype, pair_dtype, (rank, scale) in product(DTYPES, DTYPES, ((64, 1.0), (33, 0.30000001192092896)))
)
ODD = (
    Case(1, 70001, 64),
    Case(70001, 1, 64),
    Case(999, 1001, 512),
    Case(999, 1001, 64, magnitude=1e-20),  # products are subnormal, or vanish
    Case(999, 1001, 1, magnitude=1e-20),
)


class Inputs:
    """Weights and pairs of cases as files in a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def locate(self, source: Input) -> Path:
        """Where an input lies."""
        return self._folder / source.path

    def tensor(self, case: Case) -> OutputTensor:
        """Writes a case's inputs once and describes its output."""
        name = str(case).replace(" ", "_")
        weight = self._put(f"{name}.w", case.rows, case.cols, case.dtype, case.magnitude, 0)
        terms = []
        for index in range(2):
            a = self._put(f"{name}.a{index}", case.rank, case.cols, case.pair_dtype, case.magnitude, 2 * index + 1)
            b = self._put(f"{name}.b{index}", case.rows, case.rank, case.pair_dtype, case.magnitude, 2 * index + 2)
            terms.append(Term(f"adapter{index}", "A", "B", a, b, case.pair_dtype, case.rank, case.scale))
        piece = Fused.whole(weight, case.dtype, case.rows, case.cols, tuple(terms))
        return OutputTensor("weight", case.dtype, (case.rows, case.cols), (piece,))

    def _put(self, path: str, rows: int, cols: int, dtype: str, magnitude: float, seed: int) -> Range:
        file = self._folder / path
        if not file.exists():
            device = GPU if torch.cuda.is_available() else "cpu"  # other values there, as good
            generator = torch.Generator(device).manual_seed(seed)
            values = torch.randn(rows, cols, generator=generator, device=device) * magnitude
            pick = torch.randint(0, 64, (rows, cols), generator=generator, device=device)
            for index, special in enumerate((0.0, -0.0, 3e-39, -6e-8)):  # the last two are subnormal in BF16 and F16
                values[pick == index] = special if seed == 0 or index < 2 else 0.0  # noqa: PLR2004  # the zeros
            file.write_bytes(values.to(DTYPES[dtype]).cpu().view(torch.uint8).numpy().data)
        size = file.stat().st_size
        return Range(Input("data", "local", path, size, ""), 0, size)


def fuse(inputs: Inputs, case: Case, engine: Engine, rule: str, jobs: int, folder: Path) -> tuple[BuiltFile, float]:
    """Builds a case; the file and the seconds it took."""
    spec = SafetensorsFile("out.safetensors", {}, (inputs.tensor(case),))
    out = folder / "out.safetensors"
    out.unlink(missing_ok=True)
    with Workers(engine, jobs, MEMORY) as workers:
        started = time.perf_counter()
        built = build_safetensors(spec, out, open_input=inputs.locate, workers=workers, rule=rule)
        seconds = time.perf_counter() - started
    out.unlink()
    return built, seconds


def environment() -> dict[str, Any]:
    """Versions and devices, and what engines say of themselves."""
    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "gpu": torch.cuda.get_device_name(GPU),
        "capability": list(torch.cuda.get_device_capability(GPU)),
        "cpus": MAX_JOBS,
        "engine_cpu": Engine.start("cpu").describe(),
        "engine_cuda": Engine.start("cuda").describe(),
    }


def scan(dtype: torch.dtype) -> dict[str, Any]:
    """The library against the ordered kernel over ranks and shapes; the largest rank that holds above each floor."""
    failures: dict[int, list[str]] = defaultdict(list)
    failing: set[tuple[int, int, int]] = set()
    compared = 0
    with full_precision():
        for rank, (rows, cols) in product(SCAN_RANKS, SCAN_SHAPES):
            b, a = _mixed(rows, rank, dtype, 1), _mixed(rank, cols + 3, dtype, 2)[:, 3:]
            weight = _mixed(rows, cols, dtype, 3)
            for kind, factor in (("sliced", a), ("whole", a.contiguous())):
                expected = ordered_product(b, factor)
                compared += 2
                bad = [] if same_bits(torch.mm(b, factor), expected) else ["mm"]
                bad += [] if same_bits(weight.clone().addmm_(b, factor), weight + expected) else ["addmm"]
                if bad:
                    failures[rank].append(f"{rows}x{cols} {kind} {'+'.join(bad)}")
                    failing.add((rank, rows, cols))
    bounds = {}
    for rows, cols in FLOORS:
        bad_ranks = [rank for rank, r, c in failing if r >= rows and c >= cols]
        bounds[f"{rows}x{cols}"] = max((rank for rank in SCAN_RANKS if rank < min(bad_ranks, default=10**6)), default=0)
    return {
        "compared": compared,
        "failing": len(failing),
        "largest_rank_by_smallest_shape": bounds,
        "failures": {rank: found[:40] for rank, found in sorted(failures.items())},
    }


def tf32_is_noticed() -> dict[str, Any]:
    """The start-up test fails where TF32 is on, as it must."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        outcome = run_self_test(_everything("cublas"), GPU)
    finally:
        torch.set_float32_matmul_precision(before)
    return {"noticed": not outcome.passed, "mismatches": len(outcome.mismatches)}


def self_test() -> dict[str, Any]:
    """The start-up test of fp32 products within each rank and floor, and its seconds."""
    found = {}
    with full_precision():
        for max_rank, floor in product((64, 128, 256, 512), ((1, 1), (2, 2), (16, 16))):
            started = time.perf_counter()
            outcome = run_self_test(_everything("cublas", max_rank, floor), GPU)
            found[f"r{max_rank} from {floor[0]}x{floor[1]}"] = {
                "passed": outcome.passed,
                "mismatches": list(outcome.mismatches),
                "seconds": round(time.perf_counter() - started, 3),
            }
    return found


def identity(folder: Path, cases: tuple[Case, ...], rules: tuple[str, ...], kinds: tuple[str, ...]) -> dict[str, Any]:
    """Digests of each case by each kind of engine, and whether all agree."""
    inputs = Inputs(folder)
    engines = _engines()
    found = {}
    for case, rule in product(cases, rules):
        row: dict[str, Any] = {}
        for kind in kinds:
            try:
                built, seconds = fuse(inputs, case, engines[kind], rule, MAX_JOBS, folder)
            except Exception:  # noqa: BLE001  # a measurement records what it meets
                row[kind] = {"error": traceback.format_exc(limit=3)}
                continue
            row[kind] = {"digest": built.digest, "seconds": round(seconds, 3), "kernels": dict(built.kernels)}
        digests = {kind: entry.get("digest") for kind, entry in row.items()}
        trusted = {digest for kind, digest in digests.items() if kind != UNBOUNDED}
        found[f"{case} {rule}"] = {
            "same": len(trusted) == 1 and None not in trusted,
            "library_same": digests[UNBOUNDED] in trusted,
            **row,
        }
    return found


def rates(folder: Path) -> dict[str, Any]:
    """GB/s of stored weight: folding a unit that is on the GPU already, and whole builds on a memory filesystem."""
    found: dict[str, Any] = {}
    engines = _engines()
    for kind, (cols, rank) in product((UNBOUNDED, "cuda ordered"), ((5376, 64), (2688, 16))):
        engine = engines[kind]
        rows = 2**23 // cols
        weight = torch.zeros(rows, cols, dtype=torch.bfloat16, device=GPU)
        b, a = _mixed(rows, rank, torch.float32, 1), _mixed(rank, cols, torch.float32, 2)
        found[f"fold {kind} [{rows},{cols}] r{rank} x2"] = _fold_rate(engine, weight, b, a)
    inputs = Inputs(folder)
    for case, (kind, jobs) in product(
        (RELEASE[4], RELEASE[2]),
        (*((UNBOUNDED, jobs) for jobs in (1, 2, 4, 8, 16)), ("cuda ordered", 4), ("cpu", 2), ("cpu", MAX_JOBS)),
    ):
        runs = [fuse(inputs, case, engines[kind], "fp32-once", jobs, folder)[1] for _ in range(3)]
        nbytes = case.rows * case.cols * 2
        found[f"build {kind} {case} jobs={jobs}"] = round(nbytes / 1e9 / sorted(runs)[1], 2)
    return found


def _fold_rate(engine: Engine, weight: torch.Tensor, b: torch.Tensor, a: torch.Tensor) -> float:
    from overlay.fusion.products import Products  # beside its only use
    from overlay.fusion.rule import Factors, combine

    pairs = [Factors(b, a, 1.0)] * 2
    with full_precision():
        combine(weight.clone(), pairs, "fp32-once", Products(engine.library))
        torch.cuda.synchronize()
        started, repeats = time.perf_counter(), 10
        for _ in range(repeats):
            combine(weight.clone(), pairs, "fp32-once", Products(engine.library))
        torch.cuda.synchronize()
    return round(weight.nbytes * repeats / (time.perf_counter() - started) / 1e9, 2)


def _engines() -> dict[str, Engine]:
    cpu = Engine.start("cpu")
    return {
        "cpu": cpu,
        "cpu ordered": Engine(cpu.device, None),
        "cuda": Engine.start("cuda"),
        "cuda ordered": Engine(GPU, None),
        UNBOUNDED: Engine(GPU, _everything("cublas, unbounded")),
    }


def _everything(name: str, max_rank: int = 10**6, floor: tuple[int, int] = (1, 1)) -> Library:
    return Library(name, {torch.float32: max_rank if max_rank < 10**6 else 512}, *floor)


def _mixed(rows: int, cols: int, dtype: torch.dtype, seed: int) -> torch.Tensor:
    """BF16 values (fp32 ones for fp64) over a dozen binary orders, one in eight a zero of either sign."""
    generator = torch.Generator(GPU).manual_seed(seed)
    values = torch.randn(rows, cols, generator=generator, device=GPU)
    values = (values if dtype == torch.float64 else values.to(torch.bfloat16)).to(dtype)
    values *= 2.0 ** torch.randint(-6, 6, (rows, cols), generator=generator, device=GPU).to(dtype)
    pick = torch.randint(0, 16, (rows, cols), generator=generator, device=GPU)
    return values.masked_fill_(pick == 0, 0.0).masked_fill_(pick == 1, -0.0)


@contextmanager
def _scratch() -> Iterator[Path]:
    """A folder in memory, where there is one."""
    root = "/dev/shm" if os.path.ismount("/dev/shm") else None  # noqa: S108, PTH  # a scratch folder of its own below
    with tempfile.TemporaryDirectory(dir=root) as folder:
        yield Path(folder)


def main() -> int:
    """Runs every section; 0 if all identity checks held."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("gpu_identity.json"))
    out = parser.parse_args().out
    both = ("fp32-once", "openvdn")
    everyone = ("cpu", "cpu ordered", "cuda", "cuda ordered", UNBOUNDED)
    results: dict[str, Any] = {}
    with _scratch() as folder:
        sections: dict[str, Callable[[], dict[str, Any]]] = {
            "environment": environment,
            "identity: odd shapes": lambda: identity(folder, ODD, both, everyone),
            "identity: dtypes": lambda: identity(folder, SMALL, both, everyone),
            "scan fp32": lambda: scan(torch.float32),
            "tf32": tf32_is_noticed,
            "self test": self_test,
            "identity: release": lambda: identity(folder, RELEASE, both[:1], everyone),
            "identity: release, openvdn": lambda: identity(folder, RELEASE, both[1:], ("cpu", "cuda", UNBOUNDED)),
            "rates": lambda: rates(folder),
            "scan fp64": lambda: scan(torch.float64),
        }
        for name, section in sections.items():
            started = time.perf_counter()
            try:
                results[name] = section()
            except Exception:  # noqa: BLE001  # the other sections are worth having
                results[name] = {"error": traceback.format_exc()}
            results[name]["section_seconds"] = round(time.perf_counter() - started, 1)
            out.write_text(json.dumps(results, indent=2))
            _show(name, results[name])
    rows = [row for name, part in results.items() if name.startswith("identity") for row in part.values()]
    return 0 if all(row["same"] for row in rows if isinstance(row, dict)) else 1


def _show(name: str, part: dict[str, Any]) -> None:
    print(f"== {name} ({part['section_seconds']} s)")
    for key, value in part.items():
        if isinstance(value, dict) and "same" in value:
            verdict = "same" if value["same"] else "DIFFERENT"
            library = "" if value["library_same"] else "(library differs)"
            print(f"{verdict:9} {key:62} {library}")
            for kind, entry in value.items():
                if isinstance(entry, dict):
                    print(f"{kind:>24} {entry.get('digest', entry.get('error'))} {entry.get('seconds', '')}")
        elif key not in {"section_seconds", "failures"}:
            print(f"{key:60} {value}")
    for rank, found in part.get("failures", {}).items():
        print(f"rank {rank:4} {', '.join(found[:6])}{' ...' if len(found) > 6 else ''}")  # noqa: PLR2004  # a line
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
