"""The benchmark of verify measures what it says, and leaves nothing behind."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

import bench_verify
import pytest
from bench_verify import Sample, report

if TYPE_CHECKING:
    from pathlib import Path


def test_ratios_are_of_rates_within_a_round() -> None:
    """Against the fastest dd of the same round: a disk that was slow in one round makes no ratio of its own."""
    names = ("warm dd", "warm dd, all at once", "warm verify, 1 job", "warm verify", "cold dd", "direct dd")
    samples = {name: [Sample(2.0, 1.0), Sample(20.0, 1.0), Sample(2.0, 1.0)] for name in names}
    samples["direct dd"] = [Sample(1.0, 0.1), Sample(10.0, 0.1), Sample(1.0, 0.1)]
    samples["cold verify"] = [Sample(1.25, 0.5), Sample(12.5, 0.5), Sample(1.25, 0.5)]

    found = report(samples, 10 * 10**9)

    assert found["ratios"]["cold verify/fastest dd"] == pytest.approx(0.8)
    assert found["ratios"]["cold verify/cold dd"] == pytest.approx(1.6)
    assert found["ratios"]["warm verify, 1 job/warm dd"] == pytest.approx(1)
    assert found["medians"]["cold verify"] == {"gb_per_s": pytest.approx(8), "gb_per_cpu_s": pytest.approx(20)}


@pytest.mark.slow
def test_a_small_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every contender has a sample a round, and the files are gone."""
    out = tmp_path / "out.json"
    monkeypatch.setattr(
        sys, "argv", ["bench", "--gib", "0.01", "--rounds", "2", "--work", str(tmp_path), "--out", str(out)]
    )

    bench_verify.main()

    document = json.loads(out.read_text())
    assert document["bytes"] == 4 * 2**24
    assert {len(found) for found in document["samples"].values()} == {2}
    assert set(document["samples"]) == set(document["medians"])
    assert all(ratio > 0 for ratio in document["ratios"].values())
    assert list(tmp_path.iterdir()) == [out]
