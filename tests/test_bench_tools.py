"""The parts of the benchmark that are arithmetic, and what it does with a contender that fails."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import bench_fuse
import pytest
from bench_fuse import Bench, DidNotRunError, Source, commands, run, warm, write_source
from bench_report import Row, Sample, Size, fit_line, fit_lines, floor_rows, floor_seconds, report, summarize, table

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.no_torch

PARTS = {
    "processors": 4,
    "read": {"wall": 0.5, "cpu": 2.0},
    "arithmetic": {"wall": 3.0, "cpu": 12.0},
    "write": {"wall": 2.5, "cpu": 4.0},
}


def sample(wall: float, **printed: object) -> Sample:
    return Sample(wall, user=wall / 2, system=wall / 4, peak=3 * 2**20, printed=printed)


def test_a_line_has_no_deviation_from_itself() -> None:
    """Points on a line give its slope, its constant, and no distance."""
    line = fit_line({10**9: 3.0, 3 * 10**9: 7.0, 6 * 10**9: 13.0})

    assert (line.fixed_s, line.s_per_gb, line.deviation_percent) == pytest.approx((1.0, 2.0, 0.0))


def test_the_deviation_is_that_of_the_worst_point() -> None:
    """Of points beside the line the largest relative distance is given, in percent."""
    line = fit_line({10**9: 1.0, 2 * 10**9: 2.6, 3 * 10**9: 3.0})

    # The least-squares line is 0.2 + x: 1.2, 2.2, 3.2, and 2.6 lies 2/11 above it.
    assert (line.fixed_s, line.s_per_gb) == pytest.approx((0.2, 1.0))
    assert line.deviation_percent == pytest.approx(100 * 2 / 11)


def test_lines_need_two_sizes_and_leave_out_who_did_not_run() -> None:
    """A contender that ran at one size only has no line."""
    sizes = [
        Size(1, 10**9, {"cp": Row(work=1.0), "peft": Row(work=5.0)}, {}),
        Size(3, 3 * 10**9, {"cp": Row(work=3.0)}, {"peft": "killed"}),
    ]

    assert list(fit_lines(sizes)) == ["cp"]


def test_ratios_are_taken_within_a_round() -> None:
    """The median of the ratios of each round, not the ratio of medians."""
    samples = {
        "cp": [sample(1.0), sample(2.0), sample(10.0)],
        "fuse cpu": [sample(4.0, seconds=3.5), sample(5.0, seconds=4.5), sample(12.0, seconds=9.0)],
        "plain": [sample(8.0), sample(20.0), sample(12.0)],
    }

    row = summarize(samples, {"cp": 0.0, "fuse cpu": 1.0, "plain": 2.0}, nbytes=8 * 10**9)["fuse cpu"]

    assert row == Row(
        whole=5.0,
        start_up=1.0,
        work=4.0,
        call=4.5,
        whole_cp=2.5,  # of 4, 2.5, 1.2
        work_cp=2.0,  # of 3, 2, 1.1
        faster_than_plain=2.0,  # of 2, 4, 1
        rate=2.0,
        cpu=3.75,
        peak_mib=3.0,
    )


def test_without_cp_and_plain_there_are_no_ratios() -> None:
    """Contenders can be left out; what depends on them is unknown."""
    row = summarize({"fuse cpu": [sample(4.0)]}, {"fuse cpu": 1.0}, 10**9)["fuse cpu"]

    assert (row.whole_cp, row.work_cp, row.faster_than_plain, row.call) == (None, None, None, None)


@pytest.mark.parametrize(
    ("device", "wall", "expected"),
    [
        ("cpu", 2.5, 4.5),  # (2 + 12 + 4) / 4 processors
        ("cpu", 5.0, 5.0),  # the disk
        ("cuda", 1.0, 1.5),  # (2 + 4) / 4 processors
        ("cuda", 2.5, 2.5),  # the disk
    ],
)
def test_the_floor_is_the_disk_or_the_processors(device: str, wall: float, expected: float) -> None:
    """Whichever takes longer; on CUDA the arithmetic is free."""
    assert floor_seconds({**PARTS, "write": {"wall": wall, "cpu": 4.0}}, device) == pytest.approx(expected)


def test_the_floor_has_a_row_for_each_device() -> None:
    """With its ratio to the cp of the same rounds."""
    rows = floor_rows([sample(9.0, **PARTS)], [sample(2.0)], ["cpu", "cuda"], 9 * 10**9)

    assert rows == {
        "floor cpu": Row(work=4.5, work_cp=2.25, rate=2.0),
        "floor cuda": Row(work=2.5, work_cp=1.25, rate=3.6),
    }


def test_the_table_is_aligned_and_says_who_did_not_run() -> None:
    """Every line of figures is as long as the heading; unknown figures are dashes; reasons come last."""
    rows = {"cp": Row(whole=7.125, work=7.0, peak_mib=3.0), "fuse cuda": Row(whole=123.0, start_up=4.0)}

    heading, *lines, last = table(rows, {"peft": "No module named 'peft'"}).splitlines()

    assert {len(line) for line in lines} == {len(heading)}
    assert lines[0].split() == ["cp", "7.12", "-", "7.00", *"------", "3"]
    assert lines[1].split() == ["fuse", "cuda", "123.00", "4.00", *"--------"]
    assert last == "peft       not run: No module named 'peft'"


def test_the_report_has_each_size_its_floor_and_the_lines() -> None:
    """One table for each size, then the lines through them."""
    sizes = [
        Size(1, 10**9, {"cp": Row(work=1.0)}, {}, "write and sync 1 s"),
        Size(3, 3 * 10**9, {"cp": Row(work=3.0)}, {}),
    ]

    text = report(sizes)

    assert [line for line in text.splitlines() if "GB" in line and "GB/s" not in line] == [
        "1 block, 1.00 GB",
        "3 blocks, 3.00 GB",
        "cp    0.00 s +  1.00 s/GB   deviation   0.0 %",
    ]
    assert "floor of: write and sync 1 s" in text


def test_run_keeps_what_is_measured_of_what_a_command_prints() -> None:
    """Seconds and parts are kept of its JSON, the rest is not."""
    found = run(sys.executable, "-c", 'print(\'{"seconds": 1.5, "adapters": []}\')')

    assert found.printed == {"seconds": 1.5}
    assert found.wall > 0
    assert found.peak > 2**20


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("import no_such_module", "ModuleNotFoundError: No module named 'no_such_module'"),
        ("import sys; print('error[x]: why\\nhint: what next', file=sys.stderr); sys.exit(2)", "error[x]: why"),
        ("import os; os.kill(os.getpid(), 9)", f"{sys.executable}: exit status -9"),
    ],
)
def test_the_reason_of_a_failure_is_what_the_command_said(code: str, reason: str) -> None:
    """The last line that it wrote, hints aside; else its exit status."""
    with pytest.raises(DidNotRunError) as caught:
        run(sys.executable, "-c", code)

    assert str(caught.value) == reason


@pytest.fixture
def sources(tmp_path: Path) -> list[Source]:
    """Two copies of the tiny checkpoint, the second in the place of a size."""
    tiny, size = (write_source(tmp_path / name, 0) for name in ("tiny", "size"))
    return [tiny, Source(1, size.base, size.adapters, size.nbytes)]


def stubs(monkeypatch: pytest.MonkeyPatch, **codes: str) -> None:
    """Let the contenders be these Python programs; each is told the base."""

    def fake(source: Source, out: Path, *_: object) -> dict[str, list[str | Path]]:
        return {name: [sys.executable, "-c", code, source.base, out] for name, code in codes.items()}

    monkeypatch.setattr(bench_fuse, "commands", fake)


def test_a_contender_that_fails_on_the_tiny_checkpoint_runs_nowhere(
    sources: list[Source], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is shown as not run with its reason, and the others are measured."""
    stubs(monkeypatch, cp="import os, sys; os.mkdir(sys.argv[2])", peft="raise SystemExit('no such class')")

    bench = Bench(sources, [], ["cpu"], tmp_path / "out")
    bench.round(0)
    bench.round(1)
    size = bench.size(sources[1])

    assert list(size.rows) == ["cp"]
    assert size.rows["cp"].whole_cp == 1
    assert size.not_run == {"peft": "no such class"}
    assert [len(found["cp"]) for found in bench.samples.values()] == [2, 2]
    assert not (tmp_path / "out").exists()


def test_a_contender_that_fails_at_a_size_is_left_out_there(
    sources: list[Source], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it did on the tiny checkpoint stays in the samples."""
    stubs(monkeypatch, cp="", plain="import sys; 'size' in sys.argv[1] and sys.exit('out of memory')")

    bench = Bench(sources, [], ["cpu"], tmp_path / "out")
    bench.round(0)

    assert bench.size(sources[1]).not_run == {"plain": "out of memory"}
    assert len(bench.samples["tiny"]["plain"]) == 1


def test_the_source_is_read_before_every_run(
    sources: list[Source], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each contender finds it warm, whatever the one before did to the page cache."""
    events = []
    stubs(monkeypatch, cp="", plain="")
    monkeypatch.setattr(bench_fuse, "warm", lambda source: events.append(f"warm {source.name}"))
    monkeypatch.setattr(bench_fuse, "run", lambda *_: (events.append("run"), sample(1.0))[1])

    Bench(sources, [], ["cpu"], tmp_path / "out").round(0)

    assert events == ["warm tiny", "run"] * 2 + ["warm blocks-1", "run"] * 2


def test_the_order_changes_with_the_round(
    sources: list[Source], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No contender always comes first, or always after the same one's mess."""
    order = []
    stubs(monkeypatch, cp="cp", plain="plain", peft="peft")
    monkeypatch.setattr(bench_fuse, "run", lambda *command: (order.append(command[2]), sample(1.0))[1])
    bench = Bench(sources[:1], [], ["cpu"], tmp_path / "out")

    for number in range(3):
        bench.round(number)

    assert [order[start : start + 3] for start in (0, 3, 6)] == [
        ["cp", "plain", "peft"],
        ["plain", "peft", "cp"],
        ["peft", "cp", "plain"],
    ]


def test_contenders_are_a_fuse_for_each_device_and_who_was_asked_for(sources: list[Source], tmp_path: Path) -> None:
    """Only the fuse is told a device, and only who was named is there."""
    found = commands(sources[0], tmp_path / "out", ["cp", "fuse"], ["cpu", "cuda"])

    assert list(found) == ["cp", "fuse cpu", "fuse cuda"]
    assert [command[-2:] for name, command in found.items() if name != "cp"] == [
        ["--device", "cpu"],
        ["--device", "cuda"],
    ]


def test_a_source_is_what_the_demo_writes(sources: list[Source], tmp_path: Path) -> None:
    """The base and both adapters of a hub folder, byte for byte."""
    from overlay.demo.checkpoint import write_hub

    hub = write_hub(tmp_path / "hub", preset="tiny", blocks=1).source_folder
    adapters = hub / "stage-dmd-step-250/adapters"

    for made, wanted in [
        (sources[0].base, hub / "h3-base/transformer"),
        *((adapter, adapters / adapter.name) for adapter in sources[0].adapters),
    ]:
        files = {path.name: path.read_bytes() for path in wanted.iterdir()}
        assert {path.name: path.read_bytes() for path in made.iterdir()} == files
    assert sources[0].nbytes == sum(path.stat().st_size for path in sources[0].base.iterdir())


def test_warming_reads_every_file(sources: list[Source]) -> None:
    """An unreadable source is noticed before a contender is measured on it."""
    (sources[0].adapters[1] / "gone").symlink_to("nowhere")

    with pytest.raises(FileNotFoundError):
        warm(sources[0])
