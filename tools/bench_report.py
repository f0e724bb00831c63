"""What is made of a benchmark's samples: medians, ratios, a line through the sizes, the floor, and a table of it."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = [
    "Line",
    "Row",
    "Sample",
    "Size",
    "fit_line",
    "fit_lines",
    "floor_parts",
    "floor_rows",
    "floor_seconds",
    "report",
    "summarize",
    "table",
]

GB = 1e9


@dataclass(frozen=True, slots=True)
class Sample:
    """One run of one command.

    Attributes:
        wall: Seconds from its start to the end of the sync after it.
        user: CPU seconds; ``system`` likewise.
        peak: Peak resident memory in bytes.
        sync: Of ``wall``, the sync after the process.
        printed: What is kept of the JSON that it printed.
    """

    wall: float
    user: float
    system: float
    peak: int
    sync: float = 0.0
    printed: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Row:
    """A contender at one size; seconds and ratios are medians, None where there is nothing to take them of.

    Attributes:
        whole: Wall seconds of the whole process and the sync after it.
        start_up: ``whole`` without ``work``.
        work: What grows with the bytes.
        call: What the program itself says that it took.
        whole_cp: ``whole`` over the ``whole`` of cp in the same round; ``work_cp`` likewise.
        faster_than_plain: ``whole`` of the plain rewrite over ``whole``, likewise.
        rate: GB of the base in a second of ``work``.
        cpu: CPU seconds.
        peak_mib: Peak resident memory.
    """

    whole: float | None = None
    start_up: float | None = None
    work: float | None = None
    call: float | None = None
    whole_cp: float | None = None
    work_cp: float | None = None
    faster_than_plain: float | None = None
    rate: float | None = None
    cpu: float | None = None
    peak_mib: float | None = None


@dataclass(frozen=True, slots=True)
class Size:
    """What came out at one size.

    Attributes:
        nbytes: Bytes of the base.
        rows: By contender, of those that ran, and of the floor.
        not_run: Why the others did not.
        floor: The parts that the floor is made of, in words; None where they were not measured.
    """

    blocks: int
    nbytes: int
    rows: Mapping[str, Row]
    not_run: Mapping[str, str]
    floor: str | None = None


@dataclass(frozen=True, slots=True)
class Line:
    """Work against size: ``seconds = fixed_s + s_per_gb * GB``, and the largest distance of a point from it."""

    fixed_s: float
    s_per_gb: float
    deviation_percent: float


def summarize(samples: Mapping[str, Sequence[Sample]], start_ups: Mapping[str, float], nbytes: int) -> dict[str, Row]:
    """The row of every contender.

    Args:
        samples: By contender, one for each round, all of one size.
        start_ups: Start-up of each contender that does not tell its own.
        nbytes: Bytes of the base at this size.
    """
    rows = {}
    for name, found in samples.items():
        whole = [sample.wall for sample in found]
        work = [_work(sample, start_ups[name]) for sample in found]
        cp, plain = ([sample.wall for sample in samples.get(other, ())] for other in ("cp", "plain"))
        calls = [sample.printed["seconds"] for sample in found if "seconds" in sample.printed]
        rows[name] = Row(
            whole=statistics.median(whole),
            start_up=statistics.median(a - b for a, b in zip(whole, work, strict=True)),
            work=statistics.median(work),
            call=statistics.median(calls) if calls else None,
            whole_cp=_median_ratio(whole, cp),
            work_cp=_median_ratio(work, cp),
            faster_than_plain=_median_ratio(plain, whole),
            rate=nbytes / GB / statistics.median(work),
            cpu=statistics.median(sample.user + sample.system for sample in found),
            peak_mib=statistics.median(sample.peak for sample in found) / 2**20,
        )
    return rows


def _work(sample: Sample, start_up: float) -> float:
    """As the program itself tells it apart, with the sync after it; else by what the tiny checkpoint takes."""
    printed = sample.printed
    if "start_seconds" in printed:
        return float(printed["seconds"] - printed["start_seconds"] + sample.sync)
    return sample.wall - start_up


def _median_ratio(over: Sequence[float], under: Sequence[float]) -> float | None:
    return statistics.median(a / b for a, b in zip(over, under, strict=True)) if over and under else None


def floor_seconds(parts: Mapping[str, Any], device: str) -> float:
    """What a perfect overlap could reach, from the parts as ``bench_floor.py`` prints them.

    The larger of two times: writing and syncing the bytes with nothing else to do; and the CPU seconds of reading,
    arithmetic and writing, shared evenly by all processors. On CUDA the arithmetic and the copies to the device and
    back count nothing, being faster than any disk.
    """
    names = ("read", "write") if device == "cuda" else ("read", "arithmetic", "write")
    disk: float = parts["write"]["wall"]
    processors: float = sum(parts[name]["cpu"] for name in names) / parts["processors"]
    return max(disk, processors)


def floor_rows(floors: Sequence[Sample], cp: Sequence[Sample], devices: Sequence[str], nbytes: int) -> dict[str, Row]:
    """A row for each device, of the floor runs and the runs of cp in the same rounds."""
    rows = {}
    for device in devices:
        seconds = [floor_seconds(sample.printed, device) for sample in floors]
        work = statistics.median(seconds)
        ratio = _median_ratio(seconds, [sample.wall for sample in cp])
        rows[f"floor {device}"] = Row(work=work, work_cp=ratio, rate=nbytes / GB / work)
    return rows


def floor_parts(floors: Sequence[Sample], nbytes: int) -> str:
    """The medians that the floor is made of."""

    def median(part: str, key: str) -> float:
        found: list[float] = [sample.printed[part][key] for sample in floors]
        return statistics.median(found)

    rate = nbytes / GB / median("read", "wall")
    return (
        f"write and sync {median('write', 'wall'):.2f} s; cpu: read {median('read', 'cpu'):.2f} s, "
        f"arithmetic {median('arithmetic', 'cpu'):.2f} s, write {median('write', 'cpu'):.2f} s, "
        f"on {floors[0].printed['processors']} processors (copy in memory {rate:.1f} GB/s)"
    )


def fit_lines(sizes: Sequence[Size]) -> dict[str, Line]:
    """A line for each contender that ran at two sizes or more."""
    work: dict[str, dict[int, float]] = {}
    for size in sizes:
        for name, row in size.rows.items():
            if row.work is not None:
                work.setdefault(name, {})[size.nbytes] = row.work
    return {name: fit_line(points) for name, points in work.items() if len(points) > 1}


def fit_line(points: Mapping[int, float]) -> Line:
    """The least-squares line through seconds by bytes; at least two sizes."""
    sizes = [nbytes / GB for nbytes in points]
    slope, fixed = statistics.linear_regression(sizes, list(points.values()))
    expected = [fixed + slope * size for size in sizes]
    worst = max(abs(seconds / line - 1) for seconds, line in zip(points.values(), expected, strict=True))
    return Line(fixed, slope, 100 * worst)


def table(rows: Mapping[str, Row], not_run: Mapping[str, str]) -> str:
    """The rows in aligned columns, and below them who did not run, and why."""
    columns = {
        "whole s": ("whole", 2),
        "start-up s": ("start_up", 2),
        "work s": ("work", 2),
        "call s": ("call", 2),
        "whole/cp": ("whole_cp", 2),
        "work/cp": ("work_cp", 2),
        "plain/whole": ("faster_than_plain", 2),
        "GB/s": ("rate", 2),
        "cpu s": ("cpu", 1),
        "peak MiB": ("peak_mib", 0),
    }
    cells = [["", *columns]]
    for name, row in rows.items():
        found = [(getattr(row, key), digits) for key, digits in columns.values()]
        cells.append([name, *("-" if value is None else f"{value:.{digits}f}" for value, digits in found)])
    cells += [[name] for name in not_run]
    first = max(len(line[0]) for line in cells)
    widths = [max(len(line[index]) for line in cells if len(line) > 1) for index in range(1, len(columns) + 1)]
    lines = []
    for name, *values in cells:
        aligned = (value.rjust(width) for value, width in zip(values, widths, strict=True)) if values else ()
        lines.append(f"{name.ljust(first)}  {'  '.join(aligned) or f'not run: {not_run[name]}'}")
    return "\n".join(lines)


def report(sizes: Sequence[Size]) -> str:
    """The table of each size, and the lines through them."""
    parts = []
    for size in sizes:
        title = f"{size.blocks} {'block' if size.blocks == 1 else 'blocks'}, {size.nbytes / GB:.2f} GB"
        floor = [f"floor of: {size.floor}"] if size.floor else []
        parts.append("\n".join([title, table(size.rows, size.not_run), *floor]))
    lines = fit_lines(sizes)
    if lines:
        first = max(map(len, lines))
        parts.append(
            "work by size\n"
            + "\n".join(
                f"{name.ljust(first)}  {line.fixed_s:6.2f} s + {line.s_per_gb:5.2f} s/GB"
                f"   deviation {line.deviation_percent:5.1f} %"
                for name, line in lines.items()
            )
        )
    return "\n\n".join(parts)
