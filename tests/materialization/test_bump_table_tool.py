"""The tool that measures the table of bumps."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from support.bumps import QUIET

from overlay.demo.revisions import BUMPS

TOOL = Path(__file__).parents[2] / "tools/bump_table.py"


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_every_bump_is_measured_from_the_same_state(tmp_path: Path) -> None:
    """Two rounds agree on every byte, bumps of no weight move none, and nothing is left in the folder to work in."""
    out = tmp_path / "bumps.json"
    choices = ["--preset", "tiny", "--blocks", "1", "--rounds", "2", "--work", tmp_path / "work", "--out", out]
    done = subprocess.run([sys.executable, TOOL, *choices], capture_output=True, text=True, check=True)
    document = json.loads(out.read_text())
    rows = {row["bump"]: row for row in document["rows"]}
    assert [name for name in rows if name in BUMPS] == list(BUMPS)
    assert all(name in done.stdout for name in rows)
    assert all(len(document["samples"][name]) == 2 for name in BUMPS)
    for name in BUMPS:
        moved = [rows[name][count] for count in ("downloaded", "read", "written", "linked", "served")]
        assert rows[name]["result"] == ("reused" if name in QUIET else "built")
        assert (moved == [0] * 5) == (name in QUIET)
    assert list((tmp_path / "work").iterdir()) == []
